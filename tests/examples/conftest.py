"""A folder for one run of one example, as a user would have it."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
import example_runs


@pytest.fixture
def example(tmp_path, monkeypatch):
    """Called with an example's name. Its script runs in a folder that has the example's pool."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONHASHSEED", "0")  # set_seed changes it for good
    monkeypatch.delenv("RAVNEST_NODE", raising=False)
    before = set(sys.modules)

    def prepare(name):
        monkeypatch.syspath_prepend(example_runs.EXAMPLES / name)
        return example_runs.Example(name, tmp_path)

    yield prepare
    for name in set(sys.modules) - before:  # two examples may have files of the same name
        file = getattr(sys.modules[name], "__file__", None)
        if file and example_runs.EXAMPLES in Path(file).parents:
            del sys.modules[name]
