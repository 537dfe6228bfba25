"""The command line by itself: what it prints, how it exits, what it hands to the library.

The library's functions are replaced by recorders, so nothing here plans or trains.
"""

import subprocess
import sys
import types
from pathlib import Path

import msgspec
import pytest

from ravnest import __version__
from ravnest.cli import COMMANDS, main
from ravnest.errors import FusionError


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
    calls = library("ravnest.planning.fusion", fuse_cluster=Path("trained/state.pt"))
    assert main(["fuse", "--cluster", "2", "--root", str(tmp_path)]) == 0
    assert main(["fuse"]) == 0
    assert calls == [((tmp_path, 2), {}), ((Path("."), 0), {})]
    assert str(Path("trained/state.pt")) in capsys.readouterr().out


class Answer(msgspec.Struct):
    clusters: int


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
    assert msgspec.json.decode(capsys.readouterr().out) == {"clusters": 2}


def test_options_may_be_spelled_with_underscores(planner, script):
    assert main(["plan", "--max_clusters", "3", "--min-cluster-size=1", str(script)]) == 0
    assert planner[0][1] == UNSET | {"max_clusters": 3, "min_cluster_size": 1}


def test_environment_sets_options_and_the_command_line_wins(planner, script, monkeypatch):
    monkeypatch.setenv("RAVNEST_PLAN_MAX_CLUSTERS", "5")
    main(["plan", str(script)])
    main(["plan", "--max-clusters", "4", str(script)])
    sizes = [kwargs["max_clusters"] for _, kwargs in planner if kwargs]
    assert sizes == [5, 4]


def test_what_follows_the_script_belongs_to_it(planner, script):
    theirs = ("--json", "--max_clusters", "9", "-h", "data_dir")
    assert main(["plan", str(script), *theirs]) == 0
    assert planner[0] == ((script, theirs), UNSET)
