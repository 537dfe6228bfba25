#!/usr/bin/env python3
"""Set up and run Ravnest from a fresh clone. Needs only Python 3.11 or newer.

usage: python3 dev.py COMMAND [ARGS...]

  demo [OPTIONS]   a small real run on this machine (options of `ravnest demo`)
  test             linter, formatter, types, then all tests
  test ARGS        only pytest, with these arguments: python3 dev.py test -k zoo
  bench [NAME...]  benchmarks/NAME/bench.py, or all of them
  soak [NAME...]   long checks, or all of them: fuzzing for an hour, a sweep over the
                   architectures of transformers and timm, tests with all their cases
  lint             linter, formatter and types only
  clean            remove the virtual environment this script made

Everything is installed into .venv beside this file, once; later runs start at once. PyTorch is
whatever wheel pip chooses for this machine, so on Linux with a GPU the same command gets CUDA.
A PyTorch that is in .venv already stays, if its version is one that Ravnest works with.

Exit codes: 0 done, 1 or the failing tool's own code, 2 wrong usage, 130 interrupted.
"""

# Standard library only, and nothing newer than Python 3.8: an old Python must get as far as the
# message that it is too old.
from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

OLDEST = (3, 11)
ROOT = Path(__file__).resolve().parent
VENV = ROOT / ".venv"
INPUTS = (ROOT / "pyproject.toml", ROOT / "constraints.txt")

# The extras of pyproject.toml that each command needs. `test` and `bench` take the demo's as
# well, so that a demo after them has nothing left to install.
EXTRAS = {
    "demo": {"demo"},
    "test": {"demo", "lint", "test"},
    "bench": {"bench", "demo", "test"},
    "soak": {"demo", "test"},
    "lint": {"lint"},
}
COMMANDS = (*EXTRAS, "clean")

# What Python is given for each long check; tests/soaking.py sees that it is one.
SOAK = {
    "fuzzing": ["tests/stage/fuzzing.py"],
    "sweep": ["tests/sweep.py"],
    "tests": ["-m", "pytest", "-n", "2"],
}


class DevError(Exception):
    """Something the user has to hear about; ends the script with this exit code."""

    def __init__(self, text: str, code: int = 1) -> None:
        super().__init__(text)
        self.code = code


# ---- the virtual environment -----------------------------------------------------------------


class Marker:
    """What this script knows about a .venv, kept in a file inside it.

    `created`  this script made the environment, so it may rebuild and remove it
    `state`    "installing" from before pip starts until it ends: if that is what the next run
               finds, the last one was killed, and what lies there cannot be trusted
    `extras`   what was installed
    `digest`   hash of what that was made from; another one means: install again
    """

    def __init__(self, venv: Path) -> None:
        self.path = venv / "ravnest-dev.json"
        self.created, self.state = False, "unknown"
        self.extras: set[str] = set()
        self.digest = ""
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
            stored = json.loads(self.path.read_text(encoding="utf-8"))
            self.created, self.state = stored["created"], stored["state"]
            self.extras, self.digest = set(stored["extras"]), stored["digest"]

    def write(self, state: str) -> None:
        self.state = state
        stored = {"created": self.created, "state": state, "digest": self.digest}
        text = json.dumps({**stored, "extras": sorted(self.extras)})
        unfinished = self.path.with_suffix(".new")
        unfinished.write_text(text, encoding="utf-8")
        unfinished.replace(self.path)


def venv_python(venv: Path, windows: bool = os.name == "nt") -> Path:
    return venv / "Scripts" / "python.exe" if windows else venv / "bin" / "python"


def digest_of(files: tuple[Path, ...], extras: set[str], python_version: str) -> str:
    """Changes whenever an installation made from these would come out differently."""
    pieces = [path.read_bytes() for path in files]
    # The place counts: an editable install in a tree that was moved points to the old one.
    place = str(files[0].parent)
    pieces += [text.encode() for text in (place, python_version, ",".join(sorted(extras)))]
    total = hashlib.sha256()
    for piece in pieces:
        total.update(len(piece).to_bytes(8, "big") + piece)
    return total.hexdigest()


def pip_command(python: Path, extras: set[str], constraints: Path, quiet: bool) -> list[str]:
    pip = [str(python), "-m", "pip", "install", "--disable-pip-version-check"]
    target = f".[{','.join(sorted(extras))}]"
    return [*pip, *(["-q"] if quiet else []), "-c", str(constraints), "-e", target]


def torch_of(python: Path) -> str:
    """The version of the torch in an environment, or ""."""
    probe = "from importlib.metadata import version; print(version('torch'))"
    return output_of([str(python), "-c", probe])


def is_supported(torch: str, requirements: str) -> bool:
    """Is this version inside the range that pyproject.toml gives for torch?"""
    found = re.search(r'"torch>=(\d+)\.(\d+),<(\d+)\.(\d+)"', requirements)
    version = re.match(r"(\d+)\.(\d+)", torch)
    if not found or not version:
        return False
    least, most = tuple(map(int, found.groups()[:2])), tuple(map(int, found.groups()[2:]))
    return least <= tuple(map(int, version.groups())) < most


def constraints_for(torch: str) -> str:
    """The constraints, with the torch that is there in place of the one the tests run on.

    Its version is spelled out, or pip would replace it to get the newest torchvision; which of
    those fits is then for pip to find out.
    """
    requirements, constraints = (path.read_text(encoding="utf-8") for path in INPUTS)
    pinned = re.search(r"^torch==(\S+)", constraints, re.MULTILINE)
    if not is_supported(torch, requirements) or (pinned and torch.split("+")[0] == pinned[1]):
        return constraints
    say(f"keeping the torch {torch} that is in .venv")
    others = re.sub(r"^torch(vision)?==.*\n?", "", constraints, flags=re.MULTILINE)
    return f"{others}torch=={torch}\n"


def pip_install(python: Path, extras: set[str]) -> int:
    with tempfile.TemporaryDirectory() as folder:
        constraints = Path(folder) / "constraints.txt"
        constraints.write_text(constraints_for(torch_of(python)), encoding="utf-8")
        return run(pip_command(python, extras, constraints, quiet=not sys.stdout.isatty()))


def version_of(python: Path) -> str:
    """The version of an environment's Python, or "" if it does not start or has no pip."""
    probe = "import pip, sys; print('%d.%d.%d' % sys.version_info[:3])"
    return output_of([str(python), "-c", probe])


def output_of(command: list[str]) -> str:
    """What a command prints, or "" if it fails."""
    with contextlib.suppress(OSError, subprocess.CalledProcessError):
        return subprocess.check_output(command, stderr=subprocess.DEVNULL).decode().strip()
    return ""


def empty_out(venv: Path, keep: Path) -> None:
    """Delete everything but the marker, which is what entitles the next run to go on deleting."""
    for child in venv.iterdir():
        if child.is_dir() and not child.is_symlink():
            shutil.rmtree(str(child))
        elif child != keep:
            child.unlink()


def create_venv(marker: Marker) -> None:
    say("making .venv")
    VENV.mkdir(exist_ok=True)
    marker.created, marker.extras, marker.digest = True, set(), ""
    marker.write("installing")
    empty_out(VENV, keep=marker.path)
    # Not sys.executable: that may lie inside the environment which has just been emptied.
    python = getattr(sys, "_base_executable", None) or sys.executable
    if run([python, "-m", "venv", str(VENV)]) != 0:
        raise DevError(f"{python} cannot make .venv (Debian, Ubuntu: apt install python3-venv)")


def usable_venv(marker: Marker) -> str:
    """Make or repair .venv where necessary; returns the version of its Python."""
    python = venv_python(VENV)
    version = version_of(python)
    broken = not version or marker.state == "installing"
    if marker.created and broken:
        say("the last set-up was not finished: starting over")
    if (marker.created and broken) or not VENV.exists() or not any(VENV.iterdir()):
        create_venv(marker)
        version = version_of(python)
    if not version:
        raise DevError(f"{VENV} has no working Python with pip: move it away and run this again")
    return version


def install(extras: set[str]) -> None:
    """Make sure that .venv holds Ravnest with these extras."""
    marker, python = Marker(VENV), venv_python(VENV)
    version = usable_venv(marker)
    current = marker.state == "ready" and marker.digest == digest_of(INPUTS, marker.extras, version)
    if current and extras <= marker.extras:
        return
    # What is installed already stays in the set, or demo and test would evict each other.
    extras = extras | marker.extras if current else extras
    say(f"installing ravnest[{','.join(sorted(extras))}]; the first time takes some minutes")
    marker.write("installing")
    code = pip_install(python, extras)
    if code != 0:
        # pip itself gave up and tidied up, so the next run may simply try again.
        marker.write("failed")
        raise DevError(f"pip failed with exit code {code}")
    marker.extras, marker.digest = extras, digest_of(INPUTS, extras, version)
    marker.write("ready")


def clean() -> int:
    if not VENV.exists():
        say("there is no .venv")
        return 0
    marker = Marker(VENV)
    if VENV.is_symlink() or not marker.created:
        raise DevError(f"{VENV} was not made by this script: remove it yourself")
    if Path(sys.prefix).resolve() == VENV:
        raise DevError("this Python runs from .venv: leave it first (deactivate)")
    say("removing .venv")
    empty_out(VENV, keep=marker.path)
    shutil.rmtree(str(VENV))
    return 0


# ---- commands --------------------------------------------------------------------------------


def steps_of(command: str, args: list[str], root: Path, python: Path) -> dict[str, list[str]]:
    """What a command runs: the command line of each step, by name and in order."""
    module = [str(python), "-m"]
    if command == "demo":
        return {"demo": [*module, "ravnest", "demo", *args]}
    if command == "bench":
        return bench_steps(args, root / "benchmarks", python)
    if command == "soak":
        return soak_steps(args, python)
    steps = {
        "ruff check": [*module, "ruff", "check", "."],
        "ruff format": [*module, "ruff", "format", "--check", "."],
        "mypy": [*module, "mypy"],
    }
    if command == "test":
        steps = {} if args else steps
        steps["pytest"] = [*module, "pytest", "-n", "2", *args]
    return steps


def bench_steps(names: list[str], folder: Path, python: Path) -> dict[str, list[str]]:
    known = sorted(path.parent.name for path in folder.glob("*/bench.py"))
    unknown = [name for name in names if name not in known]
    if unknown or not known:
        wanted = ", ".join(unknown) or "at all"
        raise DevError(f"no benchmark {wanted}; there are: {', '.join(known) or 'none'}", code=2)
    return {name: [str(python), str(folder / name / "bench.py")] for name in names or known}


def soak_steps(names: list[str], python: Path) -> dict[str, list[str]]:
    unknown = [name for name in names if name not in SOAK]
    if unknown:
        raise DevError(f"no long check {', '.join(unknown)}; there are: {', '.join(SOAK)}", code=2)
    return {name: [str(python), *SOAK[name]] for name in names or SOAK}


def run_steps(steps: dict[str, list[str]], folder: Path) -> int:
    """Run all of them even if one fails; the exit code is that of the first one that failed."""
    codes = {}
    for name, command in steps.items():
        say(name)
        codes[name] = run(command, folder)
    failed = [name for name, code in codes.items() if code != 0]
    if len(steps) > 1:
        say(f"FAILED: {', '.join(failed)}" if failed else f"passed: {', '.join(steps)}")
    return codes[failed[0]] if failed else 0


def run(command: list[str], folder: Path | None = None) -> int:
    """Run a command, in the repository if nothing else is said; returns a shell's exit code."""
    process = subprocess.Popen(command, cwd=str(folder or ROOT))
    try:
        code = process.wait()
    except KeyboardInterrupt:
        # The terminal has sent Ctrl-C to the child as well: let it tidy up, however long that
        # takes. A second Ctrl-C ends it.
        try:
            process.wait()
        except KeyboardInterrupt:
            process.kill()
            process.wait()
        raise
    return code if code >= 0 else 128 - code


def say(text: str) -> None:
    print("dev: " + text, flush=True)


def dispatch(command: str, args: list[str]) -> int:
    if command == "clean":
        return clean()
    steps = steps_of(command, args, ROOT, venv_python(VENV))
    install(EXTRAS[command])
    if command in ("test", "soak"):
        # The tests run in parallel already; threads on top would only fight for the cores.
        os.environ["OMP_NUM_THREADS"] = "1"
    if command == "soak":
        os.environ["RAVNEST_SOAK"] = "1"
    # The demo's --workdir is meant as the user's own shell would read it.
    return run_steps(steps, Path.cwd() if command == "demo" else ROOT)


def wrong_usage(command: str, args: list[str]) -> str:
    """What is wrong with a command line, "" if nothing is."""
    if not command:
        return "which command?"
    if command not in COMMANDS:
        return f"unknown command {command}"
    if args and command in ("lint", "clean"):
        return f"{command} takes no arguments"
    return ""


def main(argv: list[str]) -> int:
    if sys.version_info < OLDEST:
        wanted = ".".join(map(str, OLDEST))
        print(f"Ravnest needs Python {wanted} or newer; this is {sys.version.split()[0]}.")
        return 1
    command, args = (argv[0], argv[1:]) if argv else ("", [])
    asks_for_help = command != "demo" and args[:1] in (["-h"], ["--help"])  # it has its own
    if command in ("-h", "--help") or (command in COMMANDS and asks_for_help):
        print(__doc__)
        return 0
    if problem := wrong_usage(command, args):
        print(f"dev: {problem}\n{__doc__}", file=sys.stderr)
        return 2
    try:
        return dispatch(command, args)
    except (DevError, OSError) as error:
        print(f"dev: {error}", file=sys.stderr)
        return error.code if isinstance(error, DevError) else 1
    except KeyboardInterrupt:
        print("dev: interrupted", file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
