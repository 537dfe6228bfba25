"""What an agent does about what it hears: in order, twice, late, and across broken connections."""

import pytest
from made import CAPS, FACTS, FIGURES, FILE, assignment, end, report

from ravnest.agent.control import Control
from ravnest.agent.instructions import (
    AcceptCall,
    AdmitPeer,
    BringBack,
    CancelPreparing,
    CleanUp,
    EndWorker,
    Finish,
    KeepTime,
    MeasureLinks,
    Prepare,
    ProbePeers,
    Pulse,
    RemoveOld,
    RenewCertificate,
    Say,
    StartWorker,
    SteerWorker,
    Tell,
)
from ravnest.api.control import (
    Admit,
    Assign,
    Begin,
    Ended,
    Hello,
    Incoming,
    Leaving,
    Measured,
    PeerAddress,
    Prepared,
    Probe,
    Refused,
    Rejected,
    Reported,
    SetPause,
    Settled,
    Steer,
    Welcome,
)
from ravnest.api.limits import encode
from ravnest.api.machine import Caps
from ravnest.api.work import Point, RoundReport, Span
from ravnest.server.service.control import MESSAGE_BYTES

WELCOME = Welcome(provider=7, name="laptop", now=1.0, heartbeat_s=5.0, report_s=1.0)


def without_words(instructions):
    return [each for each in instructions if not isinstance(each, Tell | Pulse)]


def said(instructions):
    return [each.message for each in instructions if isinstance(each, Say)]


def connected(**options):
    control = Control(**{"facts": FACTS, "caps": CAPS, "figures": FIGURES, **options})
    control.opened()
    control.heard(WELCOME)
    return control


def reconnect(control):
    control.closed()
    return [*control.opened(), *control.heard(WELCOME)]


def at(phase, **options):
    """An agent with assignment a1 in that phase."""
    control = connected(**options)
    control.heard(Assign(assignment=assignment()))
    if phase != "preparing":
        control.prepared("a1", (3,))
    if phase in ("training", "returning"):
        control.heard(Begin(assignment="a1"))
    if phase == "returning":
        control.worker_ended("a1", end())
    assert control.state == phase
    return control


def test_the_whole_life_of_an_assignment():
    control = connected()
    task = assignment()
    assert control.state == "idle"
    assert without_words(control.heard(Assign(assignment=task))) == [Prepare(task)]
    assert control.state == "preparing"
    assert said(control.prepared("a1", (3,))) == [Prepared(assignment="a1", relayed=(3,))]
    assert control.state == "ready"
    assert without_words(control.heard(Begin(assignment="a1"))) == [StartWorker(task)]
    assert control.state == "training"
    told = report(epoch=1)
    assert said(control.reported("a1", told)) == [Reported(assignment="a1", report=told)]
    finished = end(saved=True, epochs_done=3)
    assert without_words(control.worker_ended("a1", finished)) == [BringBack(task, finished)]
    assert control.state == "returning"
    brought = control.brought_back("a1", finished, (FILE,))
    assert said(brought) == [Ended(assignment="a1", end=finished, results=(FILE,))]
    assert without_words(control.heard(Settled(assignment="a1"))) == [CleanUp("a1")]
    assert (control.state, control.assignment) == ("idle", None)


def test_stages_and_clusters_are_counted_as_everywhere_else():
    """`ravnest status`, the dashboard and plans count from 0."""

    def words(**place):
        told = connected().heard(Assign(assignment=assignment(**place)))
        return next(each.text for each in told if isinstance(each, Tell))

    middle = words(cluster=1, clusters=2, stage=1, stages=3, role="Stem")
    assert middle.startswith("assigned cluster 1 stage 1 (Stem, one of 3 stages) of ")
    alone = words(cluster=0, clusters=1, stage=0, stages=1, role="Root")
    assert alone.startswith("assigned cluster 0 stage 0 (Root+Leaf) of ")


def test_the_first_thing_said_is_who_it_is_and_what_it_is_at():
    control = Control(FACTS, CAPS)
    (hello,) = said(control.opened())
    assert hello == Hello(protocol=1, facts=FACTS, caps=CAPS, state="idle")
    assert said(Control(FACTS, CAPS, name="grace").opened())[0].name == "grace"
    busy = at("training")
    busy.closed()
    (hello,) = said(busy.opened())
    assert (hello.state, hello.assignment) == ("training", "a1")


def test_nothing_else_is_said_before_the_welcome():
    control = at("training")
    control.closed()
    control.opened()
    assert said(control.reported("a1", report())) == []
    assert said(control.worker_ended("a1", end())) == []
    assert control.beat() == []


def test_a_welcome_sets_the_rhythm_and_asks_for_what_was_not_measured():
    control = Control(FACTS, CAPS)
    control.opened()
    done = control.heard(WELCOME, offset_s=-2.0)
    assert KeepTime(5.0, 1.0, -2.0) in done
    assert MeasureLinks() in done
    assert said(control.measured(FIGURES)) == [Measured(figures=FIGURES)]
    assert said(reconnect(control))[1:] == [Measured(figures=FIGURES)]


def test_what_could_not_be_measured_is_measured_later_while_somebody_is_there():
    control = Control(FACTS, CAPS)
    assert control.unmeasured() == []
    control.opened()
    control.heard(WELCOME)
    assert control.unmeasured() == [MeasureLinks()]
    control.measured(FIGURES)
    assert control.unmeasured() == []


def test_the_certificate_is_looked_at_on_every_connection_and_by_the_clock():
    control = connected()
    assert RenewCertificate() in control.upkeep()
    assert RenewCertificate() in reconnect(control)
    control.closed()
    assert RenewCertificate() not in control.upkeep(), "nobody is there to sign it"


def test_old_files_are_removed_by_the_clock_but_not_those_of_the_present_job():
    assert RemoveOld("j1") in at("training").upkeep()
    control = connected()
    assert RemoveOld(None) in control.upkeep()
    control.closed()
    assert control.upkeep() == [RemoveOld(None)]


def test_a_clock_that_is_far_off_is_mentioned():
    control = Control(FACTS, CAPS)
    control.opened()
    for offset_s, expected in ((-90.0, 1), (2.0, 0)):
        done = control.heard(WELCOME, offset_s=offset_s)
        assert [getattr(each, "event", "") for each in done].count("clock") == expected


@pytest.mark.parametrize("phase", ["preparing", "ready", "training", "returning"])
def test_an_assignment_that_is_known_is_not_begun_again(phase):
    control = at(phase)
    done = without_words(control.heard(Assign(assignment=assignment())))
    again = {
        "ready": [Prepared(assignment="a1", relayed=(3,))],
        "returning": [Ended(assignment="a1", end=end())],
    }
    assert [each.message for each in done] == again.get(phase, [])
    assert control.state == phase


def test_begin_before_everything_is_ready_is_remembered():
    control = at("preparing")
    assert without_words(control.heard(Begin(assignment="a1"))) == []
    done = without_words(control.prepared("a1"))
    assert done == [Say(Prepared(assignment="a1")), StartWorker(assignment())]


def test_begin_twice_starts_one_worker():
    control = at("training")
    assert control.heard(Begin(assignment="a1")) == []


def test_begin_of_something_unknown_is_refused():
    (answer,) = said(connected().heard(Begin(assignment="zz")))
    assert isinstance(answer, Refused)
    assert "restarted" in answer.reason


@pytest.mark.parametrize(
    ("options", "task", "reason", "lasting"),
    [
        ({}, assignment(provider=8), "provider 7, not 8", False),
        ({"leaving": True}, assignment(), "leaving", False),
        ({"paused": True}, assignment(), "paused", False),
        ({"resting": True, "caps": Caps(hours="22:00-07:00")}, assignment(), "22:00-07:00", False),
        ({"paused": True}, assignment(script=True), "paused", False),
        ({}, assignment(script=True), "scripts", True),
        ({"caps": Caps(memory_bytes=10)}, assignment(), "needs 1000 bytes", True),
        ({"may_run": lambda task: f"no room for {task.id}"}, assignment(), "no room for a1", True),
    ],
)
def test_what_the_owner_does_not_allow_is_refused_with_the_reason(options, task, reason, lasting):
    control = connected(**options)
    (refused,) = said(control.heard(Assign(assignment=task)))
    assert isinstance(refused, Refused)
    assert reason in refused.reason
    assert refused.lasting == lasting
    assert control.work is None
    # And the same answer to the same question.
    assert said(control.heard(Assign(assignment=task))) == [refused]
    assert refused in said(reconnect(control))


def test_a_script_is_taken_with_consent():
    control = connected(caps=Caps(scripts="always"))
    task = assignment(script=True)
    assert Prepare(task) in control.heard(Assign(assignment=task))


def test_a_second_assignment_is_refused_while_there_is_one():
    control = at("training")
    (refused,) = said(control.heard(Assign(assignment=assignment("a2"))))
    assert (refused.assignment, control.assignment) == ("a2", "a1")
    assert "busy with assignment a1" in refused.reason
    assert not refused.lasting


def test_what_cannot_be_prepared_is_refused_and_cleaned_up():
    control = at("preparing")
    done = without_words(control.not_prepared("a1", "the disk is full"))
    refused = Say(Refused(assignment="a1", reason="the disk is full", lasting=False))
    assert done == [CancelPreparing("a1"), refused, CleanUp("a1")]
    assert control.state == "idle"
    assert control.prepared("a1") == []


def test_the_end_is_said_on_every_connection_until_it_is_settled():
    control = at("returning")
    for _ in range(2):
        assert said(reconnect(control))[-1] == Ended(assignment="a1", end=end())
    assert CleanUp("a1") in control.heard(Settled(assignment="a1"))
    assert not any(isinstance(each, Ended) for each in said(reconnect(control)))
    assert control.heard(Settled(assignment="a1")) == []
    assert control.heard(Settled(assignment="zz")) == []


def test_settled_before_the_end_was_said_changes_nothing():
    control = at("training")
    assert control.heard(Settled(assignment="a1")) == []
    assert control.state == "training"


def test_that_everything_is_ready_is_said_again_after_a_break():
    assert Prepared(assignment="a1", relayed=(3,)) in said(reconnect(at("ready")))


def test_reports_made_while_the_server_is_away_are_told_later_as_few():
    """Every point of a curve, but no spans, and not a message for each."""
    control = at("training")
    control.closed()
    span = Span(kind="forward", batch=1, part=0, start=1.0, end=2.0)
    for number in range(4500):
        point = Point(series="train/loss", step=number, epoch=0.0, at=1.0, value=0.5)
        said_now = control.reported("a1", report(step=number, spans=(span,), points=(point,)))
        assert said(said_now) == []
    control.opened()
    told = [each.report for each in said(control.heard(WELCOME)) if isinstance(each, Reported)]
    assert [each.step for each in told] == [1999, 3999, 4499]
    steps = [point.step for each in told for point in each.points]
    assert steps == list(range(4500))
    assert all(each.spans == () for each in told)
    assert sum(each.spans_dropped for each in told) == 4500
    assert not any(isinstance(each, Reported) for each in said(reconnect(control)))


def test_no_report_that_is_kept_is_larger_than_the_server_takes():
    control = at("training")
    control.closed()
    point = Point(series="\U0001d41a" * 80, step=1, epoch=0.0, at=1.0, value=0.5)
    ended = RoundReport(ring=1, number=1, began=1.0, ended=2.0, members=2, outcome="\0" * 40)
    large = {"notes": ("\0" * 4000,) * 13, "points": (point,) * 500, "rounds": (ended,) * 250}
    for _ in range(4):
        control.reported("a1", report(**large))
    control.opened()
    told = [each for each in said(control.heard(WELCOME)) if isinstance(each, Reported)]
    assert sum(len(each.report.points) for each in told) == 2000
    assert max(len(encode(each)) for each in told) < MESSAGE_BYTES


def test_a_worker_goes_on_while_the_server_is_away_and_ends():
    control = at("training")
    control.closed()
    assert said(control.worker_ended("a1", end("failed", reason="bad data"))) == []
    control.opened()
    (ended,) = [each for each in said(control.heard(WELCOME)) if isinstance(each, Ended)]
    assert ended.end.reason == "bad data"
    assert CleanUp("a1", failed=True) in control.heard(Settled(assignment="a1"))


@pytest.mark.parametrize("action", ["stop", "pause", "resume"])
def test_a_worker_is_steered(action):
    done = without_words(at("training").heard(Steer(assignment="a1", action=action)))
    assert done == [SteerWorker("a1", action)]


@pytest.mark.parametrize("action", ["stop", "pause", "resume", "drop"])
def test_steering_of_something_else_changes_nothing(action):
    control = at("training")
    assert control.heard(Steer(assignment="a0", action=action)) == []
    assert control.state == "training"


def test_a_pause_before_the_beginning_holds_for_the_beginning():
    control = at("ready")
    assert control.heard(Steer(assignment="a1", action="pause")) == []
    assert StartWorker(assignment(), paused=True) in control.heard(Begin(assignment="a1"))


@pytest.mark.parametrize("phase", ["preparing", "ready"])
def test_stop_before_training_ends_at_once_with_nothing_to_bring(phase):
    control = at(phase)
    done = control.heard(Steer(assignment="a1", action="stop", reason="enough"))
    assert (CancelPreparing("a1") in done) == (phase == "preparing")
    (ended,) = said(done)
    assert ended == Ended(assignment="a1", end=end("stopped", reason="enough"))
    assert control.prepared("a1") == []


def test_a_dropped_worker_is_ended_and_the_next_assignment_waits_for_that():
    control = at("training")
    assert EndWorker("a1") in control.heard(Steer(assignment="a1", action="drop"))
    assert without_words(control.heard(Assign(assignment=assignment("a2")))) == []
    assert control.heard(Steer(assignment="a1", action="drop")) == []
    done = without_words(control.worker_ended("a1", end("failed")))
    assert done == [CleanUp("a1"), Prepare(assignment("a2"))]


def test_a_waiting_assignment_can_be_dropped_too():
    control = at("training")
    control.heard(Steer(assignment="a1", action="drop"))
    control.heard(Assign(assignment=assignment("a2")))
    control.heard(Steer(assignment="a2", action="drop"))
    assert without_words(control.worker_ended("a1", end("failed"))) == [CleanUp("a1")]
    assert control.state == "idle"


@pytest.mark.parametrize("phase", ["preparing", "ready", "returning"])
def test_what_is_dropped_before_or_after_training_is_forgotten(phase):
    control = at(phase)
    done = without_words(control.heard(Steer(assignment="a1", action="drop")))
    assert done[-1] == CleanUp("a1")
    assert control.state == "idle"
    assert not any(isinstance(each, Ended) for each in said(reconnect(control)))


@pytest.mark.parametrize("phase", ["preparing", "ready", "training", "returning"])
def test_calls_are_accepted_once_there_is_somebody_to_take_them(phase):
    done = at(phase).heard(Incoming(call="c1", caller=3, assignment="a1"))
    expected = [AcceptCall("c1", 3, "a1")] if phase in ("ready", "training") else []
    assert done == expected
    assert at(phase).heard(Incoming(call="c1", caller=3, assignment="a0")) == []


def test_a_probe_is_passed_on():
    peer = PeerAddress(provider=3, addresses=("10.0.0.3:5",))
    assert connected().heard(Probe(peers=(peer,))) == [ProbePeers((peer,))]


def test_who_is_to_be_answered_is_passed_on():
    assert connected().heard(Admit(provider=3, seconds=9.0)) == [AdmitPeer(3, 9.0)]


def test_a_pause_is_for_the_next_assignment():
    control = at("training")
    control.heard(SetPause(paused=True))
    assert control.state == "training"
    (beat,) = said(control.beat())
    assert (beat.state, beat.paused) == ("training", True)
    control.closed()
    (hello,) = said(control.opened())
    assert (hello.state, hello.paused) == ("training", True)
    control.heard(WELCOME)
    control.worker_ended("a1", end())
    control.heard(Settled(assignment="a1"))
    assert control.state == "paused"
    control.heard(SetPause(paused=False))
    assert control.state == "idle"


def test_at_the_end_of_its_hours_the_server_is_told_and_stops_the_run():
    control = at("training", caps=Caps(hours="22:00-07:00"))
    assert without_words(control.set_resting(True)) == []
    (beat,) = said(control.beat())
    assert (beat.state, beat.assignment) == ("resting", "a1")
    assert SteerWorker("a1", "stop") in control.heard(Steer(assignment="a1", action="stop"))
    control.worker_ended("a1", end("stopped"))
    assert control.state == "returning"
    control.heard(Settled(assignment="a1"))
    assert control.state == "resting"
    assert control.set_resting(True) == []
    control.set_resting(False)
    assert control.state == "idle"


@pytest.mark.parametrize("is_away", [True, False])
def test_hours_are_kept_also_without_the_server(is_away):
    control = at("training", caps=Caps(hours="22:00-07:00"))
    if is_away:
        control.closed()
        assert SteerWorker("a1", "stop") in control.set_resting(True)
    else:
        control.set_resting(True)
        assert control.overdue() == [SteerWorker("a1", "stop")]


def test_a_final_rejection_is_the_end_and_another_is_not():
    assert connected().heard(Rejected(reason="unknown", final=True)) == [Finish("unknown")]
    (told,) = connected().heard(Rejected(reason="later", final=False))
    assert told == Tell("rejected", "later")


def test_leaving_without_work_is_at_once():
    assert without_words(connected().leave()) == [Say(Leaving(reason="asked to")), Finish()]


def test_leaving_with_work_waits_for_the_server_to_stop_the_run():
    control = at("training")
    assert without_words(control.leave()) == [Say(Leaving(reason="asked to"))]
    assert SteerWorker("a1", "stop") in control.heard(Steer(assignment="a1", action="stop"))
    control.worker_ended("a1", end("stopped"))
    done = without_words(control.heard(Settled(assignment="a1")))
    assert done == [CleanUp("a1"), Say(Leaving(reason="asked to")), Finish()]


def test_leaving_with_work_says_what_happens_to_it():
    (text,) = [each.text for each in at("training").leave() if isinstance(each, Tell)]
    assert text == "stopping and saving the present work, then leaving (Ctrl-C again: at once)"


def test_leaving_with_work_does_not_wait_for_ever():
    control = at("training")
    control.leave()
    assert control.overdue() == [SteerWorker("a1", "stop")]


def test_leaving_while_the_server_is_away_keeps_the_results_for_the_next_time():
    control = at("training")
    control.closed()
    assert SteerWorker("a1", "stop") in control.leave()
    assert BringBack(assignment(), end("stopped", saved=True)) in control.worker_ended(
        "a1", end("stopped", saved=True)
    )
    late = at("returning")
    late.leave()
    assert Finish() in late.closed()


@pytest.mark.parametrize("phase", ["preparing", "ready"])
def test_leaving_before_training_gives_the_assignment_back(phase):
    control = at(phase)
    assert [type(each) for each in said(control.leave())] == [Leaving]
    assert Finish() in control.heard(Steer(assignment="a1", action="drop"))
    late = at(phase)
    late.leave()
    done = late.overdue()
    assert [type(each) for each in said(done)] == [Refused, Leaving]
    assert (CancelPreparing("a1") in done) == (phase == "preparing")
    assert done[-1] == Finish()


def test_asked_a_second_time_it_leaves_at_once():
    control = at("training")
    control.leave()
    done = without_words(control.leave(now=True))
    assert done == [Say(Leaving(now=True, reason="asked to")), EndWorker("a1"), Finish()]


def test_after_one_assignment_with_once():
    control = at("returning", once=True)
    assert Finish() in control.heard(Settled(assignment="a1"))


def test_what_an_earlier_agent_could_not_deliver_is_delivered():
    control = Control(FACTS, CAPS, figures=FIGURES)
    saved = end("done", saved=True)
    assert control.taken_up(assignment(), saved) == [BringBack(assignment(), saved)]
    assert (control.state, control.assignment) == ("returning", "a1")
    control.brought_back("a1", saved, (FILE,))
    control.opened()
    expected = Ended(assignment="a1", end=saved, results=(FILE,))
    assert said(control.heard(WELCOME))[-1] == expected


def test_what_an_earlier_agent_did_not_finish_has_failed():
    control = Control(FACTS, CAPS, figures=FIGURES)
    lost = end("failed", reason="the agent was restarted")
    assert control.taken_up(assignment(), lost) == []
    control.opened()
    assert said(control.heard(WELCOME))[-1] == Ended(assignment="a1", end=lost)


def test_a_beat_tells_state_and_load():
    (beat,) = said(at("training").beat(10, 20, 1.7))
    assert (beat.state, beat.assignment, beat.cpu) == ("training", "a1", 1.0)
    assert (beat.memory_free_bytes, beat.worker_memory_bytes) == (10, 20)
