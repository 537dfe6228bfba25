"""Scripts as users write them, odd ones included: how all providers end."""

import os
import signal
import sys
import textwrap
import threading
import time
from pathlib import Path

import pytest

from ravnest.launch import launch, planned_nodes

sys.path.insert(0, str(Path(__file__).parent))
from plans import plan

COMMON = """
import os, sys, time
import torch
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader
from ravnest import Node, Trainer, set_seed
from ravnest.callbacks import Callback
from ravnest.wire.peers import Patience

sys.path.insert(0, {here!r})
import jobs

set_seed(3)
items = [(x, y) for batch in jobs.loader("cnn") for x, y in zip(*batch)]
def loader(**options):
    return DataLoader(items, batch_size=8, **options)
def make(**options):
    return Node(optimizer="sgd", optimizer_params={{"lr": 0.01}},
                criterion=lambda outputs, batch: cross_entropy(outputs, batch[1]), **options)
me = os.environ.get("RAVNEST_NODE")
"""


@pytest.fixture
def run_script(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def run(body, providers=2, names=None, meanwhile=None):
        node_data = plan(tmp_path, "cnn", providers)
        script = tmp_path / "script.py"
        common = COMMON.format(here=str(Path(__file__).parent))
        script.write_text(common + textwrap.dedent(body))
        lines = []
        if meanwhile is not None:
            threading.Thread(target=meanwhile, args=(lines,), daemon=True).start()
        outcome = launch(
            [sys.executable, str(script)],
            dict.fromkeys(names, 0) if names else planned_nodes(node_data),
            folder=tmp_path,
            environment={"OMP_NUM_THREADS": "1"},
            show=lambda name, line: lines.append(f"{name}: {line}"),
        )
        return dict(outcome.codes), "\n".join(lines)

    return run


def test_workers_of_a_data_loader_live_beside_a_node(run_script):
    """They are forked when the Node's threads and sockets are there already."""
    codes, printed = run_script("""
        data = loader(num_workers=2, persistent_workers=True)
        node = make(labels=loader(num_workers=1))
        Trainer(node=node, train_loader=data, epochs=2).train()
        print("trained")
    """)
    assert codes == {"node_0": 0, "node_1": 0}, printed
    assert printed.count("trained") == 2
    assert "fork" not in printed


def test_two_providers_in_one_process_end_by_themselves(run_script):
    codes, printed = run_script(
        """
        root, leaf = (make(name=f"node_{k}", labels=loader()) for k in (0, 1))
        for batch in loader():
            root.forward_compute(batch[0], proof_of_item=batch)
        root.wait_for_backwards()
        print("trained")
        """,
        names=["both"],
    )
    assert codes == {"both": 0}, printed


def test_a_failure_after_train_is_everybodys(run_script):
    """Inside `with`, the others have nothing left to do that would tell them."""
    codes, printed = run_script("""
        with make(labels=loader()) as node:
            Trainer(node=node, train_loader=loader()).train()
            if node.is_root:
                raise ValueError("cannot go on")
    """)
    assert codes == {"node_0": 1, "node_1": 1}, printed
    assert "node_0 failed: its script ended with ValueError: cannot go on" in printed


def test_who_leaves_in_the_middle_of_training_ends_it_for_all(run_script):
    codes, printed = run_script("""
        class Leave(Callback):
            def on_step_end(self, progress):
                sys.exit(3)
        node = make(labels=loader())
        Trainer(node=node, train_loader=loader(), epochs=50, callbacks=[Leave()]).train()
        print("trained")
    """)
    assert codes == {"node_0": 3, "node_1": 1}, printed
    assert ": trained" not in printed


def test_a_script_that_is_busy_when_the_run_fails_ends_with_an_error(run_script):
    codes, printed = run_script("""
        node = make(labels=loader())
        if node.is_root:
            node.forward_compute(next(iter(loader()))[0])
            raise ValueError("cannot go on")
        while node.runtime.user.failure is None:
            time.sleep(0.01)
    """)
    assert codes == {"node_0": 1, "node_1": 1}, printed
    assert "node_1: node_1: node_0 failed" in printed


def test_a_failure_that_shows_only_at_the_end_is_in_the_exit_code(run_script):
    """The Root's script is over when its stage finds out that there is no optimizer."""
    codes, printed = run_script("""
        node = Node(labels=loader(), criterion=lambda o, batch: cross_entropy(o, batch[1]))
        if node.is_root:
            batch = next(iter(loader()))
            node.forward_compute(batch[0], proof_of_item=batch)
    """)
    assert codes == {"node_0": 1, "node_1": 1}, printed
    assert "nothing to train with" in printed


def test_a_message_that_cannot_be_put_into_words_is_passed_on(run_script):
    """Names of files may hold bytes that are no text; an exception may fail to describe itself."""
    codes, printed = run_script("""
        class Odd(Exception):
            def __str__(self):
                raise RuntimeError("no words")
        def labels():
            yield from ()
            raise Odd if os.environ.get("ODD") else ValueError("cannot decode caf\\udce9.png")
        node = make(labels=labels())
        Trainer(node=node, train_loader=loader()).train()
    """)
    assert codes == {"node_0": 1, "node_1": 1}, printed
    assert "cannot decode caf" in printed


def test_the_folder_of_the_plan_may_come_from_the_environment(run_script, tmp_path):
    codes, printed = run_script(f"""
        os.environ["RAVNEST_NODE_DATA"] = {str(tmp_path / "node_data")!r}
        os.chdir("/")
        print(make(labels=loader(), start=False).name, "knows its plan")
    """)
    assert codes == {"node_0": 0, "node_1": 0}, printed
    assert printed.count("knows its plan") == 2


@pytest.mark.skipif(not hasattr(signal, "SIGSTOP"), reason="processes cannot be stopped there")
def test_a_provider_that_freezes_is_noticed(run_script, tmp_path):
    """It neither answers nor closes its connections."""
    frozen = []

    def freeze(lines):
        deadline = time.monotonic() + 60
        while not any("pid" in line for line in lines) and time.monotonic() < deadline:
            time.sleep(0.05)
        (line,) = [line for line in lines if "pid" in line]
        frozen.append(int(line.rsplit(" ", 1)[1]))
        os.kill(frozen[0], signal.SIGSTOP)

    codes, printed = run_script(
        """
        node = make(labels=loader(), patience=Patience(resume_s=2))
        class Tell(Callback):
            def on_step_end(self, progress):
                if progress.step == 3:
                    open("at_work", "w").close()
        if node.is_leaf:
            import threading
            def tell():
                while not os.path.exists("at_work"):
                    time.sleep(0.05)
                print("pid", os.getpid(), flush=True)
            threading.Thread(target=tell, daemon=True).start()
        Trainer(node=node, train_loader=loader(), epochs=100000, callbacks=[Tell()]).train()
        """,
        meanwhile=freeze,
    )
    assert codes["node_0"] == 1, printed
    assert "node_1" in printed
    assert "PeerError" in printed
