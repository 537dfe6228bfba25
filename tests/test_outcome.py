"""Whose fault it was, from what the providers of a launch printed last and how they ended."""

import pytest

from ravnest.outcome import Ending, Outcome

PEER = "ravnest.errors.PeerError: node_1 failed: ValueError: bad sample"


def test_nothing_to_say_when_all_went_well():
    outcome = Outcome([Ending("node_0", 0, "done"), Ending("node_1", 0)])
    assert (outcome.cause, outcome.failures, list(outcome.lines())) == (None, [], [])


@pytest.mark.parametrize("position", [0, 1, 2])
def test_the_cause_is_named_first_whenever_it_ended(position):
    cause = Ending("node_1", 1, "ValueError: bad sample")
    endings = [Ending("node_0", 1, PEER), Ending("node_2", 1, PEER)]
    endings.insert(position, cause)
    assert list(Outcome(endings).lines()) == [
        "node_1 ended with exit code 1: ValueError: bad sample",
        "node_0 ended with exit code 1, after another had failed",
        "node_2 ended with exit code 1, after another had failed",
    ]


def test_whoever_was_killed_is_the_cause_though_it_said_nothing():
    endings = [Ending("node_0", 1, "RuntimeError: link"), Ending("node_1", -9, "epoch 1/2: 3")]
    outcome = Outcome(endings)
    assert next(outcome.lines()) == "node_1 was killed by SIGKILL"


def test_whoever_the_launcher_stopped_is_not_the_cause():
    outcome = Outcome([Ending("node_0", -9, was_stopped=True), Ending("node_1", 3)])
    assert list(outcome.lines()) == [
        "node_1 ended with exit code 3",
        "node_0 was stopped, not having ended, after another had failed",
    ]


def test_if_all_blame_others_the_first_to_end_is_named():
    outcome = Outcome([Ending("node_1", 1, PEER), Ending("node_0", 1, PEER)])
    assert outcome.cause is not None
    assert outcome.cause.name == "node_1"
