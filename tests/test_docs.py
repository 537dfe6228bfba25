"""The programs in docs/ run as they are printed, in a folder that has the README's pool."""

import contextlib
import dataclasses
import json
import re
import socket
import sys
from pathlib import Path

import click
import msgspec
import pytest
import torch
from session.fake_office import Office
from torchvision_shim import import_torchvision

from ravnest import clusterize, model_fusion
from ravnest.cli import COMMANDS, cli
from ravnest.client.address import ServerAddress
from ravnest.client.known import Access, remember
from ravnest.launch import launch, planned_nodes
from ravnest.plan import Plan
from ravnest.recipes.losses import LOSSES
from ravnest.recipes.metrics import METRICS
from ravnest.recipes.optimizers import OPTIMIZERS
from ravnest.recipes.schedules import SCHEDULES
from ravnest.recipes.transforms import TRANSFORMS
from ravnest.rundir import RunDir
from ravnest.session.preparing import prepare
from ravnest.session.programs import load_request
from ravnest.session.request import SETTINGS, JobRequest
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


AROUND = """
import torch
from torch.utils.data import DataLoader, TensorDataset
from ravnest import Node, Trainer

torch.manual_seed(1)
data = TensorDataset(torch.randn(640, 20), torch.randint(0, 2, (640,)))
train = labels = DataLoader(data, batch_size=16)
def criterion(outputs, batch):
    return torch.nn.functional.cross_entropy(outputs, batch[1])
"""


@pytest.mark.parametrize("number", [0, 1])
def test_several_clusters(tmp_path, monkeypatch, number):
    """The programs of averaging.md, on two clusters of two."""
    monkeypatch.chdir(tmp_path)
    plan_for_local_providers(tmp_path, 4, max_clusters=2)
    shown = programs("docs/averaging.md")
    training = [line for line in shown[0].splitlines() if not line.startswith("node =")]
    program = shown[0] if number == 0 else "\n".join([shown[1], *training])
    (tmp_path / "train.py").write_text(AROUND + program)
    run_on_all_providers("train.py")
    assert set(planned_nodes(RunDir()).values()) == {0, 1}
    one, other = (torch.load(model_fusion(cluster_id=c), weights_only=True) for c in (0, 1))
    assert all(torch.equal(one[name], other[name]) for name in one)


def run_on_all_providers(script):
    """As `ravnest run` does; none of them may fail. Returns what they have printed."""
    lines = []
    outcome = launch(
        [sys.executable, script],
        planned_nodes(RunDir()),
        show=lambda name, line: lines.append(f"{name}: {line}"),
    )
    assert set(outcome.codes.values()) == {0}, "\n".join(lines)
    return lines


def plan_for_local_providers(folder, count, **options):
    (folder / "node_data").mkdir()
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        addresses = [f"127.0.0.1:{each.getsockname()[1]}" for each in sockets]
    pool = {
        str(number): {"IP": address, "benchmarks": {"ram": 2, "bandwidth": 1000}}
        for number, address in enumerate(addresses)
    }
    (folder / "node_data" / "node_configs.json").write_text(json.dumps(pool))
    model = torch.nn.Sequential(
        torch.nn.Linear(20, 64), torch.nn.ReLU(), torch.nn.Linear(64, 64), torch.nn.Linear(64, 2)
    )
    clusterize(model, (torch.randn(64, 20),), quiet=True, idle_gain=1e9, **options)


def test_a_provider_script_with_callbacks_and_a_loop_of_its_own(tmp_path, monkeypatch):
    """The four programs of training.md in one file, on two providers."""
    monkeypatch.chdir(tmp_path)
    plan_for_local_providers(tmp_path, 2, max_clusters=1)
    (tmp_path / "train.py").write_text("\n".join(programs("docs/training.md")))
    lines = run_on_all_providers("train.py")
    losses = [float(line) for line in (tmp_path / "losses.txt").read_text().splitlines()]
    assert len(losses) == 8 * (5 + 5 + 5 + 2)
    assert losses[-1] < losses[0]
    assert (tmp_path / "run.csv").read_text().count("\n") == 1 + 40
    assert any("epoch 5/5" in line for line in lines)
    assert any(line.endswith("False 5 0") for line in lines)


def test_a_file_for_submit(tmp_path, monkeypatch):
    """It becomes what is sent, and a few rows go through model and loss."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    path = tmp_path / "job.py"
    path.write_text(programs("docs/server.md")[0])
    spec = prepare(load_request(path), tmp_path / "sent").spec
    assert (spec.train.rows, spec.validation.rows) == (2400, 600)
    assert spec.training.epochs == 20
    assert path.read_text() == (ROOT / "examples" / "spirals" / "job.py").read_text()


def test_a_session(tmp_path, monkeypatch, capsys):
    """With a server that trains in no time, and was used last on this machine."""
    monkeypatch.setenv("RAVNEST_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    with Office() as office:
        remember(Access(ServerAddress.parse(office.url, insecure=True)), tmp_path / "home")
        run(programs("docs/server.md")[1])
    assert "Verdict: " in capsys.readouterr().out
    assert (tmp_path / "trained.pt").exists()
    assert office.specs["j0"].recipe.losses[0].params == {"label_smoothing": 0.1}


def test_the_names_of_all_recipes_are_listed():
    """Those of docs/server.md, and no others."""
    text = (ROOT / "docs" / "server.md").read_text(encoding="utf-8")
    for kind, registry in {
        "losses": LOSSES,
        "optimizers": OPTIMIZERS,
        "schedules": SCHEDULES,
        "metrics": METRICS,
        "transforms": TRANSFORMS,
    }.items():
        (row,) = re.findall(rf"^\| {kind} \| (.*) \|$", text, re.MULTILINE)
        assert re.findall(r"`(\w+)`", row) == sorted(registry)


def test_every_setting_is_explained():
    text = (ROOT / "docs" / "server.md").read_text(encoding="utf-8")
    named = set(re.findall(r"`(\w+)`", text))
    own = {field.name for field in dataclasses.fields(JobRequest)} - {
        "settings",
        "script",
        "script_arguments",
    }
    assert named >= own | set(SETTINGS)


@pytest.mark.parametrize("document", ["server.md", "security.md", "troubleshooting.md"])
def test_commands_and_options_in_the_text_exist(document):
    """Each `ravnest …` is typed as it could be; options are those of that command."""
    text = (ROOT / "docs" / document).read_text(encoding="utf-8")
    for line in re.findall(r"ravnest ([a-z]+[^`\n]*)", text):
        words = line.split()
        if words[0] not in COMMANDS:
            continue
        command = cli.get_command(click.Context(cli), words[0])
        if isinstance(command, click.Group) and words[1:2] and words[1] in command.commands:
            command = command.commands[words[1]]
        known = {option for param in command.params for option in param.opts}
        assert {word.strip("[]()") for word in words if word.startswith("--")} <= known, line


def test_every_promise_of_security_names_the_tests_that_show_it():
    text = (ROOT / "docs" / "security.md").read_text(encoding="utf-8")
    tables = re.findall(r"^\| promise \| test \|\n\|---\|---\|\n((?:\|.*\n)+)", text, re.MULTILINE)
    assert len(tables) == 7
    for row in "".join(tables).splitlines():
        promise, shown_by = row.strip("| ").split(" | ")
        named = re.findall(r"`(tests/[\w/]+\.py)::(test_\w+)`", shown_by)
        assert named, promise
        for file, test in named:
            source = (ROOT / file).read_text(encoding="utf-8")
            assert f"\ndef {test}(" in source, f"{file}::{test}, for: {promise}"


def _prose(path: Path) -> str:
    return re.sub(r"^```.*?^```$", "", path.read_text("utf-8"), flags=re.MULTILINE | re.DOTALL)


def _anchors(path: Path) -> set[str]:
    """Of the headings, as they are made on the web: words in small letters, joined by dashes."""
    found = set()
    for heading in re.findall(r"^#+ (.*)$", _prose(path), re.MULTILINE):
        words = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading).strip().lower()
        found.add(re.sub(r"[^\w -]", "", words).replace(" ", "-"))
    return found


PAGES = [
    *ROOT.glob("*.md"),
    *(p for d in ("docs", "examples", "benchmarks") for p in ROOT.glob(f"{d}/**/*.md")),
]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_to_pages_and_headings_that_exist(page):
    for link in re.findall(r"\]\(([^)\s]+)\)", _prose(page)):
        if "://" in link:
            continue
        name, _, anchor = link.partition("#")
        target = (page.parent / name).resolve() if name else page
        assert target.exists(), link
        assert not anchor or anchor in _anchors(target), link


def test_every_program_is_run_by_a_test():
    """A new one in the documentation needs a test above."""
    found = {path.name: len(programs(f"docs/{path.name}")) for path in ROOT.glob("docs/*.md")}
    assert {name: count for name, count in found.items() if count} == {
        "averaging.md": 2,
        "data.md": 3,  # in tests/data and tests/system
        "models.md": 2,
        "recipes.md": 1,  # in tests/recipes
        "server.md": 2,
        "training.md": 5,
    }
