"""The programs in docs/ run as they are printed, in a folder that has the README's pool."""

import re
from pathlib import Path

import msgspec
import pytest
import torch
from torchvision_shim import import_torchvision

from ravnest.plan import Plan
from ravnest.rundir import RunDir
from ravnest.stage import operators
from ravnest.stage.local import LocalPipeline
from ravnest.stage.package import load_package

ROOT = Path(__file__).parents[1]


def programs(document: str) -> list[str]:
    text = (ROOT / document).read_text(encoding="utf-8")
    return re.findall(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    (pool,) = re.findall(r"^```json\n(.*?)^```$", readme, re.MULTILINE | re.DOTALL)
    (tmp_path / "node_data").mkdir()
    (tmp_path / "node_data" / "node_configs.json").write_text(pool, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(program: str) -> None:
    exec(compile(program, "docs", "exec"), {"__name__": "__main__"})


def stages_on_disk(folder: Path) -> LocalPipeline:
    node_data = RunDir(folder / "node_data")
    plan = msgspec.json.decode(node_data.plan_file.read_bytes(), type=Plan)
    (cluster,) = plan.clusters
    addresses = [stage.provider.address for stage in cluster.stages]
    assert len(addresses) > 1
    packages = [load_package(node_data.package_dir(0, address)) for address in addresses]
    return LocalPipeline([package.module() for package in packages])


def test_a_custom_operator(folder, capsys, monkeypatch):
    """It is planned, checked against the model and found in a stage."""
    monkeypatch.setattr(operators, "_locally_allowed", set(operators._locally_allowed))
    (program,) = [text for text in programs("docs/models.md") if "custom_op" in text]
    run(program)
    assert "Verdict: " in (printed := capsys.readouterr().out)
    assert "not compared" not in printed
    graphs = [path.read_text() for path in folder.rglob("graph.json")]
    assert sum("mylib.swish.default" in graph for graph in graphs) == 1


def test_a_large_model_is_read_from_its_checkpoint(folder, capsys):
    """The stages of the model that was never loaded compute what the model computes."""
    import_torchvision()
    from transformers import LlamaConfig, LlamaForCausalLM

    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 4}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2}
    model = LlamaForCausalLM(LlamaConfig(vocab_size=64, **sizes, **heads))
    model.save_pretrained(folder / "checkpoint")
    (program,) = [text for text in programs("docs/models.md") if "checkpoint" in text]
    run(program)
    assert "Verdict: " in capsys.readouterr().out
    pipeline = stages_on_disk(folder)
    pipeline.train(False)
    tokens = torch.randint(64, (3, 512), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        expected = model.train(False)(input_ids=tokens).logits
    torch.testing.assert_close(pipeline(input_ids=tokens)["logits"], expected)


def test_every_program_is_run_by_a_test():
    """A new one in the documentation needs a test above."""
    found = {path.name: len(programs(f"docs/{path.name}")) for path in ROOT.glob("docs/*.md")}
    assert {name: count for name, count in found.items() if count} == {"models.md": 2}
