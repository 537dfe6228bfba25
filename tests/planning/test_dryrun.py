"""`ravnest plan` without the command line: a script runs up to its `clusterize` and no further."""

import runpy
import sys

import msgspec
import pytest
from pools import snapshot, write_pool

from ravnest.errors import PlanError, PoolError
from ravnest.plan import Plan
from ravnest.planning.dryrun import current, plan_script

SCRIPT = """
import sys
import torch
from torch import nn
from ravnest import clusterize

torch.manual_seed(0)
width = int(sys.argv[1]) if len(sys.argv) > 1 else 32
model = nn.Sequential(*(nn.Linear(width, width) for _ in range(5)))
try:
    plan = clusterize(model, torch.rand(4, width), max_clusters=2{options})
except Exception:
    raise SystemExit("clusterize must not look like a failure to the script")
open("went_on", "w").close()
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A project with a pool of four; the current folder."""
    write_pool(tmp_path / "node_data", 4)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def script(folder, text=SCRIPT, options=""):
    path = folder / "train.py"
    path.write_text(text.replace("{options}", options))
    return path


def test_the_script_stops_at_clusterize_and_nothing_is_written(folder):
    """Not even the line after the call runs, although the script catches every exception."""
    path = script(folder)
    before = snapshot(folder)
    plan = plan_script(path)
    assert snapshot(folder) == before
    assert plan.model.parameters == 5 * (32 * 32 + 32)
    assert [len(cluster.stages) for cluster in plan.clusters] == [2, 2]


def test_it_is_the_plan_that_clusterize_makes(folder, monkeypatch):
    """The same as a real run of the script writes, down to its id."""
    path = script(folder)
    monkeypatch.setattr(sys, "argv", [str(path)])
    tried = plan_script(path)
    runpy.run_path(str(path), run_name="__main__")
    written = (folder / "node_data" / "plan.json").read_bytes()
    assert msgspec.json.decode(written, type=Plan) == tried
    assert (folder / "went_on").exists()


def test_arguments_reach_the_script_and_the_program_is_restored(folder):
    argv, path = list(sys.argv), list(sys.path)
    plan = plan_script(script(folder), ["16"])
    assert plan.model.parameters == 5 * (16 * 16 + 16)
    assert (sys.argv, sys.path) == (argv, path)
    assert not current().dry


def test_modules_beside_the_script_are_found_as_python_finds_them(folder):
    (folder / "beside_it.py").write_text("WIDTH = 24\n")
    text = "import beside_it, sys\nsys.argv[1:] = [str(beside_it.WIDTH)]\n" + SCRIPT
    assert plan_script(script(folder, text)).model.parameters == 5 * (24 * 24 + 24)


@pytest.mark.parametrize(
    ("options", "overrides", "lengths"),
    [
        ("", {}, [2, 2]),
        ("", {"max_clusters": 1}, [4]),
        ("", {"min_cluster_size": 3}, [4]),
        (", min_cluster_size=4", {}, [4]),
        (", min_cluster_size=4", {"min_cluster_size": 2}, [2, 2]),
        (", min_cluster_size=2", {"min_cluster_size": 1, "max_clusters": 4}, [1, 1, 1, 1]),
    ],
)
def test_overrides_win_over_the_script(folder, options, overrides, lengths):
    plan = plan_script(script(folder, options=options), **overrides)
    assert sorted(len(cluster.stages) for cluster in plan.clusters) == lengths


def test_another_pool_can_be_tried(folder):
    other = write_pool(folder / "other", 2) / "node_configs.json"
    assert len(plan_script(script(folder), pool=other).addresses) == 2


@pytest.mark.parametrize(
    "text",
    ["x = 1", "import sys; sys.exit()", "raise SystemExit(0)", "import ravnest"],
)
def test_a_script_without_clusterize_is_named(folder, text):
    """Also one that ends by `sys.exit(main())` with nothing wrong: there is no plan to show."""
    with pytest.raises(PlanError, match=r"train\.py ended without calling clusterize"):
        plan_script(script(folder, text))


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("1 / 0", ZeroDivisionError),
        ("raise KeyError('data')", KeyError),
        ("raise SystemExit(3)", SystemExit),
        ("import sys; sys.exit('no data')", SystemExit),
        ("def", SyntaxError),
        ("from ravnest import clusterize; clusterize(node_data='nowhere')", PoolError),
    ],
)
def test_an_error_of_the_script_comes_through_as_it_is(folder, text, error):
    """And the program is out of the trial afterwards, so that it can plan for real."""
    argv = list(sys.argv)
    with pytest.raises(error):
        plan_script(script(folder, text))
    assert sys.argv == argv
    assert not current().dry


THREADED = """
import threading
import torch
from torch import nn
from ravnest import clusterize

model = nn.Sequential(*(nn.Linear(8, 8) for _ in range(3)))
thread = threading.Thread(target=clusterize, args=(model, torch.rand(4, 8)))
thread.start()
thread.join()
"""


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_trial_reaches_into_the_threads_of_the_script(folder):
    path = script(folder, THREADED)
    before = snapshot(folder)
    assert plan_script(path).model.parameters == 3 * (8 * 8 + 8)
    assert snapshot(folder) == before
