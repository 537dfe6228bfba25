"""The parts of dev.py that decide: when to install, what to run, what it may delete.

Nothing is installed here; pip and venv are replaced by recorders that behave or misbehave.
"""

import ast
import importlib.util
import os
import sys
from pathlib import Path

import pytest

DEV = Path(__file__).parents[1] / "dev.py"


@pytest.fixture
def dev(tmp_path, monkeypatch):
    """A fresh dev.py whose repository is a temporary folder and whose subprocesses are faked."""
    spec = importlib.util.spec_from_file_location("ravnest_dev", DEV)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    inputs = (tmp_path / "pyproject.toml", tmp_path / "constraints.txt")
    for path in inputs:
        path.write_text("first", encoding="utf-8")
    monkeypatch.setattr(module, "ROOT", tmp_path)
    monkeypatch.setattr(module, "VENV", tmp_path / ".venv")
    monkeypatch.setattr(module, "INPUTS", inputs)
    return module


class Machine:
    """Stands in for subprocesses: `venv` makes a file where Python would be, pip does nothing."""

    def __init__(self, dev):
        self.python = dev.venv_python(dev.VENV)
        self.ran = []
        self.folders = []
        self.constraints = []
        self.fail_with = {}

    def run(self, command, folder=None):
        kind = command[2] if command[1] == "-m" else Path(command[1]).parent.name
        self.ran.append(kind)
        self.folders.append(folder)
        if kind == "pip":
            self.constraints.append(Path(command[command.index("-c") + 1]).read_text("utf-8"))
        outcome = self.fail_with.pop(kind, 0)
        if isinstance(outcome, BaseException):
            raise outcome
        if kind == "venv" and outcome == 0:
            self.python.parent.mkdir(parents=True)
            self.python.touch()
        return outcome

    def version_of(self, python):
        return "3.11.7" if python.exists() else ""

    def take_record(self):
        ran, self.ran = self.ran, []
        return ran


@pytest.fixture
def machine(dev, monkeypatch):
    machine = Machine(dev)
    monkeypatch.setattr(dev, "run", machine.run)
    monkeypatch.setattr(dev, "version_of", machine.version_of)
    return machine


def test_parses_on_the_old_pythons_it_has_to_turn_away():
    ast.parse(DEV.read_text(encoding="utf-8"), feature_version=(3, 8))


def test_old_python_gets_a_plain_message(dev, monkeypatch, capsys):
    monkeypatch.setattr(sys, "version_info", (3, 8, 18))
    assert dev.main(["test"]) == 1
    assert "3.11 or newer" in capsys.readouterr().out


def test_uses_only_the_standard_library():
    names = set()
    for node in ast.walk(ast.parse(DEV.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names.add(node.module.split(".")[0])
    assert names <= sys.stdlib_module_names


@pytest.mark.parametrize("argv", [[], ["nonsense"], ["lint", "src"], ["clean", "all"]])
def test_wrong_usage_exits_with_2(dev, argv, capsys):
    assert dev.main(argv) == 2
    assert "usage: python3 dev.py" in capsys.readouterr().err


def test_wrong_usage_says_what_is_wrong(dev, capsys):
    for argv, words in (
        ([], "which command?"),
        (["foo", "--help"], "unknown command foo"),
        (["lint", "src"], "lint takes no arguments"),
    ):
        dev.main(argv)
        assert capsys.readouterr().err.splitlines()[0] == f"dev: {words}"


@pytest.mark.parametrize("argv", [["--help"], ["-h"], ["test", "--help"]])
def test_help(dev, argv, capsys):
    assert dev.main(argv) == 0
    assert "usage: python3 dev.py" in capsys.readouterr().out


def test_the_demo_shows_its_own_help(dev, machine, monkeypatch):
    assert dev.main(["demo", "--help"]) == 0
    assert machine.take_record() == ["venv", "pip", "ravnest"]


def test_where_python_lies(dev):
    assert dev.venv_python(Path("v"), windows=False) == Path("v/bin/python")
    assert dev.venv_python(Path("v"), windows=True) == Path("v/Scripts/python.exe")


def test_the_digest_changes_with_everything_it_covers(dev, tmp_path):
    def digest(extras=("test",), version="3.11.7"):
        return dev.digest_of(dev.INPUTS, set(extras), version)

    seen = [digest(), digest(extras=("test", "lint")), digest(version="3.12.1")]
    for path in dev.INPUTS:
        path.write_text("second", encoding="utf-8")
        seen.append(digest())
    assert digest() == seen[-1]
    assert digest(extras=("lint", "test")) == digest(extras=("test", "lint"))
    moved = tmp_path / "elsewhere"
    moved.mkdir()
    copies = tuple(moved / path.name for path in dev.INPUTS)
    for path in copies:
        path.write_text("second", encoding="utf-8")
    seen.append(dev.digest_of(copies, {"test"}, "3.11.7"))
    assert len(set(seen)) == len(seen)


def test_the_digest_does_not_run_files_together(dev):
    first, second = dev.INPUTS
    first.write_text("ab", encoding="utf-8")
    second.write_text("c", encoding="utf-8")
    before = dev.digest_of(dev.INPUTS, set(), "3.11.7")
    first.write_text("a", encoding="utf-8")
    second.write_text("bc", encoding="utf-8")
    assert dev.digest_of(dev.INPUTS, set(), "3.11.7") != before


def test_pip_installs_under_the_constraints(dev):
    command = dev.pip_command(Path("py"), {"test", "lint"}, Path("c.txt"), quiet=True)
    assert command[:4] == ["py", "-m", "pip", "install"]
    assert command[-5:] == ["-q", "-c", "c.txt", "-e", ".[lint,test]"]
    assert "-q" not in dev.pip_command(Path("py"), {"test"}, Path("c.txt"), quiet=False)


REQUIREMENTS = '[project]\ndependencies = ["torch>=2.6,<2.14", "numpy>=1.26"]\n'
CONSTRAINTS = "# why\ntorch==2.13.0\ntorchvision==0.28.0\nnumpy==2.1\n"


@pytest.mark.parametrize(
    ("torch", "torch_line"),
    [
        ("", "torch==2.13.0"),
        ("2.5.1", "torch==2.13.0"),
        ("2.14.0", "torch==2.13.0"),
        ("3.0.0", "torch==2.13.0"),
        ("2.13.0+cpu", "torch==2.13.0"),
        ("2.6.0", "torch==2.6.0"),
        ("2.9.1+cu126", "torch==2.9.1+cu126"),
        ("2.13.1", "torch==2.13.1"),
    ],
)
def test_a_torch_that_is_there_is_kept(dev, machine, monkeypatch, torch, torch_line):
    """Inside the range of pyproject.toml: then pip may choose whichever torchvision fits it."""
    for path, text in zip(dev.INPUTS, (REQUIREMENTS, CONSTRAINTS), strict=True):
        path.write_text(text, encoding="utf-8")
    monkeypatch.setattr(dev, "torch_of", lambda python: torch)
    dev.install({"test"})
    (constraints,) = machine.constraints
    lines = constraints.splitlines()
    assert [line for line in lines if line.startswith("torch==")] == [torch_line]
    assert ("torchvision==0.28.0" in lines) == (torch_line == "torch==2.13.0")
    assert "numpy==2.1" in lines


def test_the_range_is_found_in_the_real_files(dev):
    requirements = (DEV.parent / "pyproject.toml").read_text(encoding="utf-8")
    assert dev.is_supported("2.6.0", requirements)
    assert not dev.is_supported("1.13.1", requirements)
    assert dev.torch_of(Path(sys.executable)).startswith("2.")


# ---- what is run -----------------------------------------------------------------------------


def test_tests_are_preceded_by_lint_unless_they_are_selected(dev, tmp_path):
    steps = dev.steps_of("test", [], tmp_path, Path("py"))
    assert list(steps) == ["ruff check", "ruff format", "mypy", "pytest"]
    steps = dev.steps_of("test", ["-k", "zoo"], tmp_path, Path("py"))
    assert steps == {"pytest": ["py", "-m", "pytest", "-n", "2", "-k", "zoo"]}


def test_lint_and_demo(dev, tmp_path):
    assert "pytest" not in dev.steps_of("lint", [], tmp_path, Path("py"))
    steps = dev.steps_of("demo", ["--workdir", "x"], tmp_path, Path("py"))
    assert steps == {"demo": ["py", "-m", "ravnest", "demo", "--workdir", "x"]}


def test_long_checks_by_name_or_all(dev, machine, capsys):
    root = Path(dev.__file__).parent
    steps = dev.steps_of("soak", [], root, Path("py"))
    assert list(steps) == ["fuzzing", "sweep", "tests"]
    assert all((root / steps[name][1]).is_file() for name in ("fuzzing", "sweep"))
    assert steps["tests"] == ["py", "-m", "pytest", "-n", "2"]
    assert dev.main(["soak", "fuzing"]) == 2
    assert "no long check fuzing; there are: fuzzing, sweep, tests" in capsys.readouterr().err


def test_tests_know_that_they_are_a_long_check(dev, machine, monkeypatch):
    monkeypatch.setattr(dev, "run_steps", lambda steps, folder: 0)
    for command, expected in (("test", None), ("soak", "1")):
        monkeypatch.setenv("RAVNEST_SOAK", "taken back when this test ends")
        monkeypatch.delenv("RAVNEST_SOAK")
        assert dev.main([command]) == 0
        assert os.environ.get("RAVNEST_SOAK") == expected


def test_benchmarks_by_name_or_all(dev, machine, tmp_path, capsys):
    assert dev.main(["bench"]) == 2
    for name in ("speed", "memory"):
        folder = tmp_path / "benchmarks" / name
        folder.mkdir(parents=True)
        (folder / "bench.py").touch()
    (tmp_path / "benchmarks" / "results").mkdir()
    assert list(dev.steps_of("bench", [], tmp_path, Path("py"))) == ["memory", "speed"]
    assert list(dev.steps_of("bench", ["speed"], tmp_path, Path("py"))) == ["speed"]
    assert dev.main(["bench", "sped"]) == 2
    assert "no benchmark sped; there are: memory, speed" in capsys.readouterr().err
    assert machine.take_record() == []


def test_all_steps_run_and_the_first_failure_is_the_exit_code(dev, machine, capsys):
    machine.fail_with = {"mypy": 3, "pytest": 1}
    assert dev.main(["test"]) == 3
    assert machine.take_record() == ["venv", "pip", "ruff", "ruff", "mypy", "pytest"]
    assert capsys.readouterr().out.splitlines()[-1] == "dev: FAILED: mypy, pytest"
    assert dev.main(["test"]) == 0
    assert capsys.readouterr().out.splitlines()[-1].startswith("dev: passed: ruff check,")


def test_the_demo_runs_where_the_user_is(dev, machine, tmp_path, monkeypatch):
    """So that --workdir is relative to the user's folder; the rest runs in the repository."""
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    dev.main(["demo", "--workdir", "run"])
    assert machine.folders[-1] == tmp_path / "elsewhere"
    dev.main(["lint"])
    assert machine.folders[-1] == tmp_path


def test_interruption_exits_with_130(dev, machine, capsys):
    machine.fail_with = {"pytest": KeyboardInterrupt()}
    assert dev.main(["test"]) == 130
    assert capsys.readouterr().err == "dev: interrupted\n"


# ---- the environment -------------------------------------------------------------------------


def test_the_second_run_installs_nothing(dev, machine):
    dev.install({"test"})
    assert machine.take_record() == ["venv", "pip"]
    dev.install({"test"})
    assert machine.take_record() == []


def test_extras_add_up(dev, machine):
    for extras in ({"demo"}, {"test"}, {"demo"}, {"demo", "test"}):
        dev.install(extras)
    assert machine.take_record() == ["venv", "pip", "pip"]


def test_a_changed_requirement_is_installed(dev, machine):
    dev.install({"test"})
    dev.INPUTS[0].write_text("second", encoding="utf-8")
    dev.install({"test"})
    assert machine.take_record() == ["venv", "pip", "pip"]


@pytest.mark.parametrize("killed_in", ["venv", "pip"])
def test_a_killed_set_up_is_started_over(dev, machine, killed_in):
    machine.fail_with = {killed_in: KeyboardInterrupt()}
    with pytest.raises(KeyboardInterrupt):
        dev.install({"test"})
    half_made = dev.VENV / "lib" / "half.py"
    half_made.parent.mkdir()
    half_made.touch()
    machine.take_record()
    dev.install({"test"})
    assert machine.take_record() == ["venv", "pip"]
    assert not half_made.exists()


def test_a_failed_pip_is_tried_again_without_starting_over(dev, machine):
    machine.fail_with = {"pip": 1}
    assert dev.main(["lint"]) == 1
    assert machine.take_record() == ["venv", "pip"]
    dev.install({"lint"})
    assert machine.take_record() == ["pip"]


def test_an_environment_whose_python_vanished_is_made_again(dev, machine):
    dev.install({"test"})
    machine.python.unlink()
    machine.python.parent.rmdir()
    dev.install({"test"})
    assert machine.take_record() == ["venv", "pip", "venv", "pip"]


def make_foreign(dev, machine):
    machine.python.parent.mkdir(parents=True)
    machine.python.touch()


def test_somebody_elses_environment_is_used_but_never_removed(dev, machine, capsys):
    make_foreign(dev, machine)
    dev.install({"test"})
    dev.install({"test"})
    assert machine.take_record() == ["pip"]
    assert dev.main(["clean"]) == 1
    assert "not made by this script" in capsys.readouterr().err
    assert machine.python.exists()


def test_a_killed_pip_in_somebody_elses_environment_only_runs_again(dev, machine):
    make_foreign(dev, machine)
    dev.install({"demo"})
    machine.fail_with = {"pip": KeyboardInterrupt()}
    with pytest.raises(KeyboardInterrupt):
        dev.install({"test"})
    machine.take_record()
    dev.install({"demo"})
    assert machine.take_record() == ["pip"]


def test_a_folder_that_is_no_environment_is_left_alone(dev, machine, capsys):
    dev.VENV.mkdir()
    (dev.VENV / "thesis.txt").touch()
    assert dev.main(["lint"]) == 1
    assert "move it away" in capsys.readouterr().err
    assert machine.take_record() == []
    assert (dev.VENV / "thesis.txt").exists()


def test_clean_removes_what_was_made_here(dev, machine):
    assert dev.main(["clean"]) == 0
    dev.install({"demo"})
    assert dev.main(["clean"]) == 0
    assert not dev.VENV.exists()


# ---- real processes --------------------------------------------------------------------------


def test_exit_codes_are_those_of_a_shell(dev):
    assert dev.run([sys.executable, "-c", "raise SystemExit(7)"]) == 7


@pytest.mark.skipif(sys.platform == "win32", reason="POSIX signals")
def test_a_killed_process_counts_as_128_and_its_signal(dev):
    kill = "import os, signal; os.kill(os.getpid(), signal.SIGTERM)"
    assert dev.run([sys.executable, "-c", kill]) == 128 + 15


def test_a_python_that_does_not_start_has_no_version(dev, tmp_path):
    assert dev.version_of(tmp_path / "no" / "python") == ""
