"""What the README shows works when it is copied and pasted."""

import importlib
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from ravnest.cli import COMMANDS
from ravnest.planning.pool import read_pool

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def blocks(language):
    """Fenced code blocks of this language; "" is a block without one."""
    fences = re.findall(r"^```(\w*)\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)
    return [text for name, text in fences if name == language]


@pytest.fixture
def pool(tmp_path):
    """The README's pool file, in a project of its own."""
    (text,) = blocks("json")
    path = tmp_path / "node_data" / "node_configs.json"
    path.parent.mkdir()
    path.write_text(text, encoding="utf-8")
    return path


def test_the_pool_file_is_read_as_it_is_explained(pool):
    providers = read_pool(pool)
    assert [provider.memory_bytes for provider in providers] == [16 * 10**9, 8 * 10**9, 4 * 10**9]
    assert [provider.bandwidth_mbps for provider in providers] == [100, 100, 50]
    assert [provider.gflops for provider in providers] == [200, 50, 50]


def test_the_program_runs_as_it_is_printed(pool):
    """In a process of its own, with what the demo installs, and with the verdict that is shown."""
    (program,) = blocks("python")
    assert not re.search(r"^(import|from) (?!torch|ravnest)", program, re.MULTILINE)
    assert "torchvision" not in program
    path = pool.parents[1] / "train.py"
    path.write_text(program, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, path.name], cwd=path.parent, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert "Node(0, Cluster(0))" in done.stdout
    (verdict,) = [text.strip() for text in blocks("") if text.startswith("Verdict: ")]
    assert done.stdout.splitlines()[-1] == verdict
    written = {path.name for path in pool.parent.iterdir()}
    assert {"plan.json", "model.json", "nodes", "cluster_0"} <= written
    assert len(json.loads((pool.parent / "plan.json").read_text())["clusters"]) >= 1


def test_trying_it_takes_exactly_the_two_commands():
    """And dev.py knows both."""
    commands = next(text for text in blocks("") if "dev.py" in text)
    assert commands.splitlines() == ["python3 dev.py demo", "python3 dev.py test"]
    done = subprocess.run(
        [sys.executable, ROOT / "dev.py", "--help"], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert all(re.search(rf"\b{name}\b", done.stdout) for name in ("demo", "test"))


def test_commands_named_in_the_text_exist():
    named = set(re.findall(r"`ravnest (\w+)", README))
    assert named
    assert named <= set(COMMANDS)


@pytest.mark.parametrize(
    ("module", "names"),
    [
        ("ravnest", ("clusterize", "model_fusion", "set_seed")),
        ("ravnest.utils", ("model_fusion", "set_seed")),
        ("ravnest.operations.utils", ("clusterize",)),
    ],
)
def test_documented_import_paths(module, names):
    """Users' programs import from these places; all ways lead to the same function."""
    for name in names:
        found = getattr(importlib.import_module(module), name)
        assert found is getattr(importlib.import_module("ravnest"), name)
        assert callable(found)


def test_a_name_that_does_not_exist_is_an_ordinary_error():
    ravnest = importlib.import_module("ravnest")
    with pytest.raises(AttributeError, match="no attribute 'clusterise'"):
        _ = ravnest.clusterise
    assert {"clusterize", "model_fusion", "set_seed"} <= set(dir(ravnest))
