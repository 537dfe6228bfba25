"""The first program of docs/data.md, as printed. The second: tests/system/test_scripts.py."""

import re
from pathlib import Path

DOCUMENT = Path(__file__).parents[2] / "docs" / "data.md"


def test_the_example_writes_datasets(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    program, _ = re.findall(r"^```python\n(.*?)^```$", DOCUMENT.read_text(), re.DOTALL | re.M)
    exec(program, {})
    assert "500 ['image', 'label']" in capsys.readouterr().out
    assert list((tmp_path / "handover/data/validation").glob("x-*.safetensors"))
