"""The first programs of docs/data.md, as printed. The last one: tests/system/test_scripts.py."""

import re
from pathlib import Path

import torch
from safetensors.torch import save_file

DOCUMENT = Path(__file__).parents[2] / "docs" / "data.md"


def programs() -> list[str]:
    found = re.findall(r"^```python\n(.*?)^```$", DOCUMENT.read_text(), re.DOTALL | re.M)
    assert len(found) == 3
    return found


def test_the_example_writes_datasets(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    exec(programs()[0], {})
    assert "500 ['image', 'label']" in capsys.readouterr().out
    assert list((tmp_path / "handover/data/validation").glob("x-*.safetensors"))


def test_the_other_example_knows_what_it_has_recognised(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "trained").mkdir()
    state = {"1.weight": torch.zeros(2, 64), "1.bias": torch.tensor([0.0, 1.0])}
    torch.save(state, "trained/trained_state_dict.pt")
    names = '["cats","dogs"]'
    save_file(state, "trained/trained_state_dict.safetensors", {"classes": names})
    (tmp_path / "trained/classes.json").write_text(names)
    exec(programs()[1], {})
    assert capsys.readouterr().out == "this is one of the dogs\n"
