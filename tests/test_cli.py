"""The command line: what it prints, how it exits, what it hands to the library.

In the first half the library's functions are replaced by recorders, so nothing plans or trains;
the second half runs the commands for real.
"""

import logging
import re
import shutil
import subprocess
import sys
import types
from pathlib import Path

import msgspec
import pytest
import torch
from pools import run_clusterize, snapshot, write_pool
from torch import nn

from ravnest import __version__
from ravnest.cli import COMMANDS, main
from ravnest.errors import FusionError
from ravnest.plan import Plan
from ravnest.stage.package import save_trained


@pytest.fixture
def library(monkeypatch):
    """Puts a stand-in module with one function into the library's place; returns the calls."""
    calls = []

    def put(module, **functions):
        stand_in = types.ModuleType(module)
        for name, result in functions.items():

            def record(*args, _result=result, **kwargs):
                calls.append((args, kwargs))
                if isinstance(_result, BaseException):
                    raise _result
                return _result

            setattr(stand_in, name, record)
        monkeypatch.setitem(sys.modules, module, stand_in)
        return calls

    return put


@pytest.fixture
def script(tmp_path):
    path = tmp_path / "train.py"
    path.touch()
    return path


@pytest.mark.parametrize("argv", [["--help"], ["--version"], *[[name, "-h"] for name in COMMANDS]])
def test_help_and_version_do_not_load_torch(argv):
    program = (
        "import sys; from ravnest.cli import main; "
        f"code = main({argv!r}); "
        "heavy = {'torch', 'numpy', 'grpc'} & set(sys.modules); "
        "print('loaded', sorted(heavy)); sys.exit(code)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "loaded []"


def test_the_module_is_the_program():
    done = subprocess.run(
        [sys.executable, "-m", "ravnest", "--help"], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("Usage: ravnest ")
    assert all(f"\n  {name}  " in done.stdout for name in COMMANDS)


def test_version(capsys):
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"ravnest {__version__}\n"


@pytest.mark.parametrize(
    "argv",
    [[], ["nonsense"], ["plan"], ["plan", "--nonsense", "x.py"], ["fuse", "--cluster", "-1"]],
)
def test_wrong_usage_exits_with_2(argv, capsys):
    assert main(argv) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.startswith("Usage: ravnest")
    assert ("\nerror: " in shown.err) == bool(argv)  # as all other errors begin


def test_an_error_of_the_library_is_one_plain_block(library, capsys):
    library("ravnest.planning.fusion", fuse_cluster=FusionError("stage 1 is missing\ncopy it here"))
    assert main(["fuse"]) == 1
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err == "error: stage 1 is missing\ncopy it here\n"


def test_debug_lets_the_error_through_with_its_traceback(library, monkeypatch):
    library("ravnest.planning.fusion", fuse_cluster=FusionError("stage 1 is missing"))
    with pytest.raises(FusionError, match="stage 1"):
        main(["--debug", "fuse"])
    monkeypatch.setenv("RAVNEST_DEBUG", "1")
    with pytest.raises(FusionError, match="stage 1"):
        main(["fuse"])


def test_a_bug_is_not_dressed_up_as_a_users_mistake(library):
    library("ravnest.planning.fusion", fuse_cluster=KeyError("bug"))
    with pytest.raises(KeyError):
        main(["fuse"])


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (PermissionError(13, "Permission denied", "/etc/run"), "/etc/run: Permission denied"),
        (OSError(28, "No space left on device"), "[Errno 28] No space left on device"),
    ],
)
def test_what_the_file_system_refuses_is_an_error_in_one_line(library, capsys, error, text):
    library("ravnest.planning.fusion", fuse_cluster=error)
    assert main(["fuse"]) == 1
    assert capsys.readouterr().err == f"error: {text}\n"
    with pytest.raises(OSError, match=re.escape(error.strerror)):
        main(["--debug", "fuse"])


def test_a_folder_that_cannot_be_made_is_named(tmp_path, capsys):
    (tmp_path / "file").touch()
    assert main(["demo", "--workdir", str(tmp_path / "file" / "run")]) == 1
    shown = capsys.readouterr().err
    assert re.fullmatch(rf"error: {re.escape(str(tmp_path / 'file'))}\S*: Not a directory\n", shown)


def test_interruption_exits_with_130(library, capsys):
    library("ravnest.demo", run_demo=KeyboardInterrupt())
    assert main(["demo"]) == 130
    assert "Traceback" not in capsys.readouterr().err


def test_the_demo_chooses_its_exit_code(library, tmp_path):
    calls = library("ravnest.demo", run_demo=3)
    assert main(["demo"]) == 3
    assert main(["demo", "--workdir", str(tmp_path)]) == 3
    assert calls == [((None,), {}), ((tmp_path,), {})]


def test_fuse_passes_its_options_on(library, tmp_path, capsys):
    """They are those of `model_fusion`, with the same defaults."""
    calls = library("ravnest.planning.fusion", fuse_cluster=Path("trained/state.pt"))
    folders = ["--node-data", str(tmp_path / "plan"), "--output", str(tmp_path / "out")]
    assert main(["fuse", "--cluster", "2", *folders]) == 0
    assert main(["fuse"]) == 0
    assert calls == [
        ((tmp_path / "plan", 2, tmp_path / "out"), {}),
        ((Path("node_data"), 0, Path("trained")), {}),
    ]
    assert str(Path("trained/state.pt")) in capsys.readouterr().out


class Answer(msgspec.Struct):
    clusters: int
    warnings: tuple[str, ...] = ()


@pytest.fixture
def planner(library):
    library("ravnest.planning.report", render_report="the report")
    return library("ravnest.planning.dryrun", plan_script=Answer(clusters=2))


UNSET = {"pool": None, "min_cluster_size": None, "max_clusters": None}


def test_plan_prints_the_report(planner, script, capsys):
    assert main(["plan", str(script)]) == 0
    assert planner[0] == ((script, ()), UNSET)
    assert capsys.readouterr().out == "the report\n"


def test_plan_prints_json(planner, script, capsys):
    assert main(["plan", "--json", str(script)]) == 0
    assert msgspec.json.decode(capsys.readouterr().out)["clusters"] == 2


def test_options_may_be_spelled_with_underscores(planner, script):
    assert main(["plan", "--max_clusters", "3", "--min-cluster-size=1", str(script)]) == 0
    assert planner[0][1] == UNSET | {"max_clusters": 3, "min_cluster_size": 1}


def test_environment_sets_options_and_the_command_line_wins(planner, script, monkeypatch):
    monkeypatch.setenv("RAVNEST_PLAN_MAX_CLUSTERS", "5")
    main(["plan", str(script)])
    main(["plan", "--max-clusters", "4", str(script)])
    sizes = [kwargs["max_clusters"] for _, kwargs in planner if kwargs]
    assert sizes == [5, 4]


def test_a_wrong_value_from_the_environment_names_the_variable(script, monkeypatch, capsys):
    monkeypatch.setenv("RAVNEST_PLAN_MAX_CLUSTERS", "many")
    assert main(["plan", str(script)]) == 2
    shown = capsys.readouterr().err
    assert "'many' is not a valid" in shown
    assert "environment variable RAVNEST_PLAN_MAX_CLUSTERS" in shown
    assert main(["plan", str(script), "--max-clusters", "many"]) == 2
    assert "environment" not in capsys.readouterr().err


def test_options_may_follow_the_script(planner, script, capsys):
    assert main(["plan", str(script), "--json", "--max-clusters", "9", "data_dir"]) == 0
    assert planner[0] == ((script, ("data_dir",)), UNSET | {"max_clusters": 9})
    assert msgspec.json.decode(capsys.readouterr().out)["clusters"] == 2


def test_what_follows_two_dashes_belongs_to_the_script(planner, script):
    theirs = ("--json", "--max_clusters", "9", "-h", "--", "data_dir")
    assert main(["plan", str(script), "--", *theirs]) == 0
    assert planner[0] == ((script, theirs), UNSET)


def test_an_unknown_option_is_not_passed_on_in_silence(script, capsys):
    assert main(["plan", str(script), "--epochs", "3"]) == 2
    assert "come after --: ravnest plan SCRIPT -- --epochs" in capsys.readouterr().err


# ---- with the library -------------------------------------------------------------------------

TRAINING = """
import sys, torch
from torch import nn
from ravnest import clusterize
print("loading", *sys.argv[1:])
model = nn.Sequential(*(nn.Linear(32, 32) for _ in range(5)))
clusterize(model, torch.rand(4, 32))
print("planned")
"""


@pytest.fixture(scope="module")
def project(tmp_path_factory):
    """A folder with a pool of four machines and a script that plans for them."""
    folder = tmp_path_factory.mktemp("project")
    write_pool(folder / "node_data", 4)
    (folder / "train.py").write_text(TRAINING)
    return folder


def ravnest(folder, *argv):
    command = [sys.executable, "-m", "ravnest", *argv]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True)


def test_plan_shows_the_report_and_writes_nothing(project):
    """As a user types it: another process, another folder, arguments for the script."""
    before = snapshot(project)
    done = ravnest(project, "plan", "train.py", "--", "--epochs", "3")
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0] == "loading --epochs 3"
    assert "planned" not in lines
    assert any(line.startswith("Cluster 0: ") for line in lines)
    assert any(line.startswith("Verdict: ") for line in lines)
    assert done.stderr == ""
    assert snapshot(project) == before


def test_plan_as_json_is_the_plan_and_nothing_else(project, monkeypatch, capsys):
    """What the script prints goes elsewhere, so that the output can be piped into a program."""
    monkeypatch.chdir(project)
    assert main(["plan", "--json", "--max-clusters", "1", "train.py"]) == 0
    shown = capsys.readouterr()
    plan = msgspec.json.decode(shown.out, type=Plan)
    assert [len(cluster.stages) for cluster in plan.clusters] == [4]
    assert shown.err.startswith("loading\n")


def test_plan_tries_another_pool(project, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(project)
    pool = write_pool(tmp_path, 1) / "node_configs.json"
    assert main(["plan", "--pool", str(pool), "--min-cluster-size", "1", "train.py"]) == 0
    assert "Root+Leaf" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "ended without calling clusterize"),
        ("from ravnest import clusterize; clusterize(node_data='nowhere')", "there is no file"),
    ],
)
def test_plan_without_a_plan_is_an_error_in_one_line(script, capsys, text, message):
    script.write_text(text)
    assert main(["plan", str(script)]) == 1
    shown = capsys.readouterr()
    assert shown.out == ""
    assert re.fullmatch(rf"error: .*{message}.*\n", shown.err)


FAILING = {
    "index": ("rows = []\ndef first():\n    return rows[3]\nfirst()\n", [4, 3], "IndexError: list"),
    "file": ("open('/no/data')\n", [1], "FileNotFoundError: "),
    "syntax": ("x = 1\ndef\n", [2], "SyntaxError: "),
}


@pytest.mark.parametrize(("text", "lines", "message"), FAILING.values(), ids=list(FAILING))
def test_an_error_of_the_script_is_shown_as_python_shows_it(script, capsys, text, lines, message):
    """Only where it happened in the user's own code, not how this program got there."""
    script.write_text(text)
    assert main(["plan", str(script)]) == 1
    shown = capsys.readouterr().err
    assert re.findall(r'File "(.*)", line (\d+)', shown) == [(str(script), str(n)) for n in lines]
    assert shown.splitlines()[-1].startswith(message)


def test_debug_shows_an_error_of_the_script_with_all_frames(script):
    script.write_text("rows = []\nrows[3]\n")
    with pytest.raises(IndexError) as caught:
        main(["--debug", "plan", str(script)])
    assert caught.traceback[-1].path == script
    assert len(caught.traceback) > 5


COUNTING = """
import torch
from torch import nn
from ravnest import clusterize

class Counting(nn.Sequential):
    steps = 0
    def forward(self, x):
        self.steps = self.steps + 1
        return super().forward(x)

clusterize(Counting(*(nn.Linear(32, 32) for _ in range(3))), torch.rand(4, 32){options})
"""


def test_a_warning_is_shown_once(project, capsys, monkeypatch):
    """By the report that belongs to it, or where there is none, on stderr."""
    monkeypatch.chdir(project)
    (project / "counting.py").write_text(COUNTING.replace("{options}", ""))
    assert main(["plan", "counting.py"]) == 0
    shown = capsys.readouterr()
    assert shown.out.count("\nNote: Counting changes") == 1
    assert shown.err == ""
    assert main(["plan", "counting.py", "--json"]) == 0
    shown = capsys.readouterr()
    assert "Counting changes" in msgspec.json.decode(shown.out)["warnings"][0]
    assert shown.err == ""


def test_a_warning_is_not_lost_with_the_plan(project, capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(project)
    (project / "counting.py").write_text(COUNTING.replace("{options}", ""))
    pool = write_pool(tmp_path, {"ram": 1e-6}) / "node_configs.json"
    assert main(["plan", "counting.py", "--pool", str(pool)]) == 1
    first, last = capsys.readouterr().err.splitlines()
    assert first.startswith("warning: Counting changes")
    assert last.startswith("error: The model does not fit")


def test_other_warnings_say_that_they_are_warnings(library, capsys):
    """And afterwards the loggers are as they were."""
    logger = logging.getLogger("ravnest")
    before = logger.level, logger.propagate, list(logger.handlers)

    def fuse(*_):
        logging.getLogger("ravnest.stage").warning("cluster %d is old", 3)
        logging.getLogger("ravnest.stage").info("nobody asked")

    library("ravnest.planning.fusion", fuse_cluster=None)
    sys.modules["ravnest.planning.fusion"].fuse_cluster = fuse
    assert main(["fuse"]) == 0
    assert capsys.readouterr().err == "warning: cluster 3 is old\n"
    assert (logger.level, logger.propagate, list(logger.handlers)) == before


def test_the_steps_are_shown_in_a_terminal_or_on_demand(project, capsys, monkeypatch):
    monkeypatch.chdir(project)
    steps = "capturing Sequential …\nplanning for 4 providers …\n"
    assert main(["plan", "train.py", "-v"]) == 0
    assert capsys.readouterr().err == steps
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    assert main(["plan", "train.py"]) == 0
    assert capsys.readouterr().err == steps


def test_the_script_chooses_its_exit_code(script):
    script.write_text("raise SystemExit(7)")
    with pytest.raises(SystemExit) as ended:
        main(["plan", str(script)])
    assert ended.value.code == 7


def test_fuse_without_a_plan_names_the_folder_and_the_option(project, capsys):
    """Before any training: the error names the folder, so it looked in the right place."""
    assert main(["fuse", "--node-data", str(project / "node_data")]) == 1
    shown = capsys.readouterr().err
    assert f"there is no plan in {project / 'node_data'}" in shown
    assert "--node-data" in shown


def test_fuse_writes_the_state_dict_also_of_an_archived_plan(project, tmp_path, capsys):
    """The first run's results are put aside when the second one is planned, and still fuse."""
    folder = tmp_path / "node_data"
    shutil.copytree(project / "node_data", folder)
    models = [nn.Sequential(*(nn.Linear(32, 32) for _ in range(5))) for _ in range(2)]
    for model in models:
        planned = run_clusterize(model, torch.rand(4, 32), folder, max_clusters=1)
        for package in planned.packages():
            save_trained(package, package.module().tensors())
    for model, place in zip(models, (folder / "archive" / "001", folder), strict=True):
        output = tmp_path / "trained"
        assert main(["fuse", "--node-data", str(place), "--output", str(output)]) == 0
        result = output / "trained_state_dict.pt"
        assert capsys.readouterr().out == f"wrote {result}\n"
        found = torch.load(result, weights_only=True)
        assert all(torch.equal(found[name], tensor) for name, tensor in model.state_dict().items())
    assert main(["fuse", "--node-data", str(folder), "--cluster", "5"]) == 1
    assert re.search(r"there is no cluster 5; .*--cluster", capsys.readouterr().err)
