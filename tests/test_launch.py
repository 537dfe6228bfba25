"""`ravnest run` with scripts that train nothing: what the providers are told, how they are ended.

The scripts write what happens to them into a named pipe. It comes to its end when the last of them
is gone, whoever ended it, so the tests below wait for that and for nothing else.
"""

import contextlib
import os
import signal
import subprocess
import sys
import threading

import pytest

from ravnest.errors import NodeError
from ravnest.launch import launch, planned_nodes
from ravnest.rundir import RunDir

posix_only = pytest.mark.skipif(sys.platform == "win32", reason="no such signals, no pass_fds")


@pytest.fixture
def folder(tmp_path):
    """A project whose plan, as far as the launcher looks at it, uses two providers."""
    (tmp_path / "node_data" / "nodes").mkdir(parents=True)
    for number in range(2):
        (tmp_path / "node_data" / "nodes" / f"node_{number}.json").write_text("{}")
    return tmp_path


def run_lines(folder, program, *options):
    """What the providers print when `ravnest run` has them run this program."""
    (folder / "script.py").write_text(program)
    command = [sys.executable, "-m", "ravnest", "run", *options, "script.py"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return sorted(done.stdout.splitlines())


# ---- which providers, and what they are told ---------------------------------------------------


def test_only_documents_of_providers_count(folder):
    nodes = folder / "node_data" / "nodes"
    (nodes / "node_10.json").write_text("{}")
    (nodes / "node_3.json").write_text('{"node_type": "Idle"}')
    for other in ("node_old.json", "node_0_old.json", "node_.json", "node_1.json.bak"):
        (nodes / other).write_text("{}")
    assert planned_nodes(RunDir(folder / "node_data")) == dict.fromkeys(
        ("node_0", "node_1", "node_10"), 0
    )


@pytest.mark.parametrize(("count", "started"), [(None, 2), (2, 2), (3, 3), (1, 0), (4, 0)])
def test_idle_providers_are_started_where_the_whole_pool_is_asked_for(folder, count, started):
    nodes = folder / "node_data" / "nodes"
    (nodes / "node_2.json").write_text('{"node_type": "Idle"}')
    run = RunDir(folder / "node_data")
    if started:
        names = planned_nodes(run, count)
        assert list(names) == ["node_0", "node_1", "node_2"][:started]
    else:
        with pytest.raises(NodeError, match=r"uses 2 providers: .*; it leaves out node_2"):
            planned_nodes(run, count)


def test_other_files_alone_are_no_plan(folder):
    nodes = folder / "node_data" / "nodes"
    for number in range(2):
        (nodes / f"node_{number}.json").rename(nodes / f"node_{number}_old.json")
    with pytest.raises(NodeError, match="there is no plan"):
        planned_nodes(RunDir(folder / "node_data"))


@pytest.mark.parametrize(
    "options", [["--node-data", "plans/first"], []], ids=["given", "not given"]
)
def test_the_script_is_told_the_folder_of_the_plan(folder, options, monkeypatch):
    """As a path that holds wherever the script goes, and instead of one from an outer run."""
    monkeypatch.setenv("RAVNEST_NODE_DATA", "elsewhere")
    place = folder / (options[-1] if options else "node_data")
    place.parent.mkdir(exist_ok=True)
    (folder / "node_data").rename(place)
    lines = run_lines(folder, "import os; print(os.environ['RAVNEST_NODE_DATA'])", *options)
    assert lines == [f"node_{number} | {place}" for number in range(2)]


# ---- signals -----------------------------------------------------------------------------------

LASTING = """
import os, signal, sys, time
from ravnest import lifeline

def say(what):
    os.write(pipe, f"{os.environ['RAVNEST_NODE']} {what}\\n".encode())

def gone():
    say("has lost the launcher")
    os._exit(1)

def terminated(*_):
    say("terminated")
    os._exit(1)

pipe = os.open("said", os.O_WRONLY)
signal.signal(signal.SIGTERM, terminated)
try:
    lifeline.watch(gone)
    say("works")
    for _ in range(600):
        time.sleep(0.1)
    say("was left alone")
except KeyboardInterrupt:
    say("interrupted")
"""


@pytest.fixture
def lasting(folder):
    """Starts providers that work on and on, in a launcher that ignores certain signals."""
    os.mkfifo(folder / "said")
    (folder / "script.py").write_text(LASTING)
    with contextlib.ExitStack() as clearing:

        def start(*ignored):
            def set_signals():
                """Those who run the tests may ignore some: nohup, or in the background."""
                for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
                    signal.signal(number, signal.SIG_IGN if number in ignored else signal.SIG_DFL)

            command = [sys.executable, "-m", "ravnest", "run", "script.py"]
            runner = subprocess.Popen(command, cwd=folder, preexec_fn=set_signals)
            clearing.callback(runner.wait)
            clearing.callback(runner.kill)
            said = clearing.enter_context(open(folder / "said"))
            assert sorted([said.readline(), said.readline()]) == of_both("works")
            return runner, said

        yield start


def of_both(what):
    return [f"node_{number} {what}\n" for number in range(2)]


@posix_only
@pytest.mark.parametrize("name", ["SIGTERM", "SIGHUP"])
def test_a_signal_that_ends_the_launcher_interrupts_the_providers(lasting, name):
    number = getattr(signal, name)
    runner, said = lasting()
    runner.send_signal(number)
    assert sorted(said) == of_both("interrupted")
    assert runner.wait() == 128 + number


@posix_only
def test_a_signal_that_comes_twice_does_not_cut_the_ending_short(lasting):
    """`timeout` sends it to the process and then to its group."""
    runner, said = lasting()
    runner.send_signal(signal.SIGTERM)
    runner.send_signal(signal.SIGHUP)
    assert sorted(said) == of_both("interrupted")
    assert runner.wait() in (128 + signal.SIGTERM, 128 + signal.SIGHUP)


@posix_only
def test_an_ignored_hangup_stays_ignored(lasting):
    """nohup ravnest run …"""
    runner, said = lasting(signal.SIGHUP)
    runner.send_signal(signal.SIGHUP)
    runner.send_signal(signal.SIGTERM)
    assert sorted(said) == of_both("interrupted")
    assert runner.wait() == 128 + signal.SIGTERM


@posix_only
def test_providers_that_ignore_interruption_are_terminated(lasting):
    """A shell lets what it starts in the background ignore SIGINT, providers included."""
    runner, said = lasting(signal.SIGINT)
    runner.send_signal(signal.SIGTERM)
    assert sorted(said) == of_both("terminated")
    assert runner.wait() == 128 + signal.SIGTERM


@posix_only
def test_providers_notice_that_the_launcher_was_killed(lasting):
    runner, said = lasting()
    runner.kill()
    assert sorted(said) == of_both("has lost the launcher")


def test_signals_are_as_before_when_all_is_done():
    before = signal.getsignal(signal.SIGTERM)
    outcome = launch([sys.executable, "-c", ""], {"node_0": 0}, show=print)
    assert outcome.codes == {"node_0": 0}
    assert signal.getsignal(signal.SIGTERM) == before


def test_a_thread_may_launch_though_it_may_not_handle_signals():
    outcomes = []
    thread = threading.Thread(
        target=lambda: outcomes.append(
            launch([sys.executable, "-c", ""], {"node_0": 0}, show=print)
        )
    )
    thread.start()
    thread.join()
    assert [outcome.codes for outcome in outcomes] == [{"node_0": 0}]


# ---- the line to the launcher ------------------------------------------------------------------

HANDED_DOWN = """
import os, subprocess, sys
from ravnest import lifeline

descriptor = int(os.environ["RAVNEST_LIFELINE"])
look = f"import os; print('RAVNEST_LIFELINE' in os.environ); os.fstat({descriptor})"

def child():
    command = [sys.executable, "-c", look]
    done = subprocess.run(command, close_fds=False, capture_output=True, text=True)
    return done.stdout.strip(), "Bad file descriptor" in done.stderr

print(*child())
lifeline.watch(lambda: None)
print(*child())
"""


@posix_only
def test_children_of_a_provider_that_watches_get_neither_variable_nor_descriptor(folder):
    lines = run_lines(folder, HANDED_DOWN)
    assert lines == [
        "node_0 | False True",
        "node_0 | True False",
        "node_1 | False True",
        "node_1 | True False",
    ]


WATCHING = """
import os, sys, threading
from ravnest import lifeline

told = threading.Semaphore(0)
before = threading.active_count()
for _ in range(2):
    lifeline.watch(told.release)
watching = threading.active_count() - before
print("watching", watching, flush=True)
if watching:
    told.acquire(), told.acquire()
    print("told twice")
"""


def start_watching(value, **options):
    return subprocess.Popen(
        [sys.executable, "-c", WATCHING],
        env={**os.environ, "RAVNEST_LIFELINE": value},
        stdout=subprocess.PIPE,
        text=True,
        **options,
    )


@posix_only
def test_whoever_watches_later_is_told_too():
    """A script may make one Node after another."""
    theirs, ours = os.pipe()
    with start_watching(str(theirs), pass_fds=(theirs,)) as process:
        assert process.stdout.readline() == "watching 2\n"
        os.close(theirs)
        os.close(ours)
        assert process.stdout.readline() == "told twice\n"
    assert process.returncode == 0


@pytest.mark.parametrize("value", ["", "words", "-1", "1000000", "0"])
def test_a_variable_without_its_pipe_is_not_watched(value):
    """It came down from a provider that passed on its environment; 0 is open, but no pipe."""
    with start_watching(value, stdin=subprocess.DEVNULL) as process:
        assert process.stdout.read() == "watching 0\n"
    assert process.returncode == 0


# ---- whose fault it was ------------------------------------------------------------------------


@posix_only
@pytest.mark.parametrize(
    ("program", "told"),
    [
        ("raise ValueError('bad sample')", "ended with exit code 1: ValueError: bad sample"),
        ("os.kill(os.getpid(), 9)", "was killed by SIGKILL"),
    ],
    ids=["error", "killed"],
)
def test_the_first_cause_is_told_last(folder, program, told):
    """The other provider fails because of it, and before it."""
    (folder / "script.py").write_text(
        "import os\n"
        "from ravnest.errors import PeerError\n"
        "if os.environ['RAVNEST_NODE'] == 'node_0':\n"
        "    raise PeerError('node_1 has failed')\n"
        f"{program}\n"
    )
    command = [sys.executable, "-m", "ravnest", "run", "script.py"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    assert done.returncode == 1
    assert done.stderr.splitlines() == [
        f"node_1 {told}",
        "node_0 ended with exit code 1, after another had failed",
    ]
