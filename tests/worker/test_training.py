"""Workers as real processes over loopback with TLS: the same weights as plain PyTorch."""

import json

import pytest
import runs
import torch
from msgspec.structs import replace
from runs import RECIPE, TRAINING, make_model, plan_run, prepare, started, written

from ravnest.api.jobs import InputSpec, Named
from ravnest.api.work import Report
from ravnest.data.batches import Batches, Reading
from ravnest.data.dividing import divide
from ravnest.data.reading import PartReader
from ravnest.recipes.criterion import build_criterion
from ravnest.recipes.optimizers import build_optimizer
from ravnest.recipes.schedules import build_schedule


def train_alone(data, recipe, training, model=None, first_epoch=0):
    """The same with plain PyTorch, on one machine."""
    model = model or make_model()
    reader = PartReader(divide(data.spec, 0, 1, ("x", "y")), data.folder)
    items = {"x": InputSpec(field="x"), "target_0": InputSpec(field="y")}
    how = Reading(batch_size=training.batch_size, seed=training.seed)
    batches = Batches(reader, items, how, epoch=first_epoch)
    factory, params = build_optimizer(recipe.optimizer)
    optimizer, criterion = factory(model.parameters(), **params), build_criterion(recipe)
    schedule = None
    if recipe.schedule is not None:
        per = len(batches) if recipe.schedule_per == "update" else 1
        schedule = build_schedule(
            recipe.schedule, steps=training.epochs * per, done=first_epoch * per
        )(optimizer)
    losses = []
    for _ in range(first_epoch, training.epochs):
        for batch in batches:
            loss = criterion(model(batch["x"]), batch)
            losses.append(float(loss.detach()))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if schedule is not None and recipe.schedule_per == "update":
                schedule.step()
        if schedule is not None and recipe.schedule_per == "epoch":
            schedule.step()
    return model, losses


def ends(processes):
    found = {node: process.end() for node, process in processes.items()}
    for node, process in processes.items():
        assert (process.code == 0) == (found[node].outcome != "failed"), process.log()
    return found


def assert_equal(trained, model):
    state = dict(model.state_dict())
    assert set(trained) == set(state)
    for name, value in state.items():
        torch.testing.assert_close(trained[name], value, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("providers", [1, 2, 3])
def test_a_recipe_trains_to_the_weights_of_plain_torch(tmp_path, providers):
    """One stage, Root and Leaf, Root, Stem and Leaf; the schedule counts updates."""
    recipe = replace(
        RECIPE, schedule=Named(name="warmup_cosine", params={"warmup": 3}), schedule_per="update"
    )
    data = written(tmp_path / "data")
    run = plan_run(tmp_path / "run", providers=providers)
    prepare(run, data, validation=written(tmp_path / "v", split="validation"), recipe=recipe)
    with started(run) as processes:
        found = ends(processes)
    for node, end in found.items():
        assert (end.outcome, end.epochs_done, end.saved) == ("done", 2, True), processes[node].log()
    model, losses = train_alone(data, recipe, TRAINING)
    assert_equal(run.trained(), model)
    root = processes[f"node_{run.plan.clusters[0].stages[0].provider.id}"]
    points = root.points("train/loss")
    assert [point.value for point in points] == pytest.approx(losses, rel=1e-4)
    assert [point.step for point in points] == list(range(1, len(losses) + 1))
    judged = root.points("eval/accuracy")
    everything = runs.make_data()
    right = (model(everything["x"]).argmax(1) == everything["y"]).float().mean()
    assert len(judged) == 2
    assert judged[-1].value == pytest.approx(float(right))
    root_end = found[f"node_{run.plan.clusters[0].stages[0].provider.id}"]
    assert set(root_end.metrics) == {"eval/accuracy", "eval/perplexity", "eval/loss"}
    assert root_end.metrics["eval/perplexity"] == pytest.approx(
        float(torch.tensor(root_end.metrics["eval/loss"]).exp())
    )


def test_reports_say_what_a_stage_does(tmp_path):
    data = written(tmp_path / "data")
    run = plan_run(tmp_path / "run")
    prepare(run, data, training=replace(TRAINING, epochs=3))
    with started(run) as processes:
        ends(processes)
    root, leaf = (processes[f"node_{s.provider.id}"] for s in run.plan.clusters[0].stages)
    for process, other in ((root, leaf), (leaf, root)):
        spans = [span for report in process.reports for span in report.spans]
        assert {span.kind for span in spans} >= {"forward", "backward", "update"}
        assert all(span.start <= span.end for span in spans)
        last = process.reports[-1]
        assert last.updates == 24
        assert last.epoch == 3
        assert last.memory_bytes > 1 << 20
        (link,) = last.links
        assert (
            link.node
            == json.loads((other.folder / "order.json").read_bytes())["assignment"]["node"]
        )
        assert link.sent > 0
        assert link.received > 0
    assert root.reports[-1].samples == 3 * 61
    assert root.reports[-1].step == 24
    assert not leaf.points("train/loss")


def test_an_asynchronous_run_learns(tmp_path):
    data = written(tmp_path / "data", runs.make_data(400))
    training = replace(TRAINING, schedule="async", epochs=15, validate_every=0)
    run = plan_run(tmp_path / "run")
    held = written(tmp_path / "v", runs.make_data(100), split="validation")
    recipe = replace(RECIPE, optimizer=Named(name="adamw", params={"lr": 0.01}))
    prepare(run, data, validation=held, training=training, recipe=recipe)
    with started(run) as processes:
        found = ends(processes)
    metrics = next(end.metrics for end in found.values() if end.metrics)
    assert metrics["eval/accuracy"] > 0.85
    (root,) = [process for process in processes.values() if process.points("train/loss")]
    assert len(root.points("eval/accuracy")) == 1  # only at the end


def test_two_clusters_train_on_rows_of_their_own_and_end_with_the_same_weights(tmp_path):
    data = written(tmp_path / "data", runs.make_data(80))
    run = plan_run(tmp_path / "run", providers=4, clusters=2)
    training = replace(TRAINING, epochs=4, reduce_factor=3, schedule="async")
    held = written(tmp_path / "v", runs.make_data(40), split="validation")
    prepare(run, data, validation=held, training=training)
    with started(run) as processes:
        found = ends(processes)
    assert {end.outcome for end in found.values()} == {"done"}
    first, second = run.trained(0), run.trained(1)
    for name, value in first.items():
        torch.testing.assert_close(value, second[name])
    rounds = [r for p in processes.values() for report in p.reports for r in report.rounds]
    assert any(ended.outcome == "applied" and ended.members == 2 for ended in rounds)
    roots = [p for p in processes.values() if p.points("train/loss")]
    assert len(roots) == 2
    assert sum(bool(root.points("eval/loss")) for root in roots) == 1
    assert {root.reports[-1].samples for root in roots} == {4 * 40}


LIES = """
import runpy
import sys
from ravnest.provider.averaging.share import Share
truly = Share.facts
def facts(self, ring, fragments):
    found = truly(self, ring, fragments)
    return type(found)(9.9e14, found.samples, found.updates, found.moments)
Share.facts = facts
sys.argv = ["-m", sys.argv[1]]
runpy.run_module("ravnest.worker", run_name="__main__", alter_sys=True)
"""


def test_a_worker_that_says_9_9e14_rows_is_left_out_and_the_others_say_so(tmp_path):
    """It was believed, and its weights were everybody's."""
    data = written(tmp_path / "data", runs.make_data(80))
    run = plan_run(tmp_path / "run", providers=2, clusters=2)
    training = replace(TRAINING, epochs=4, reduce_factor=3, schedule="async")
    prepare(run, data, training=training)
    liar = f"node_{run.plan.clusters[1].stages[0].provider.id}"

    def within(command, folder):
        lies = folder == run.folders[liar]
        return [command[0], "-P", "-c", LIES, str(folder)] if lies else command

    with started(run, within) as processes:
        found = ends(processes)
    (honest,) = found.keys() - {liar}
    assert found[honest].outcome == "done"
    assert found[honest].distrusts == (1,)
    notes = [note for report in processes[honest].reports for note in report.notes]
    assert any(
        f"without {liar}: it says that it has trained on 9.9e+14 rows" in note for note in notes
    ), notes


def is_after_epoch(number):
    return lambda line: isinstance(line, Report) and line.report.epoch >= number


def test_a_run_that_is_stopped_saves_and_another_goes_on_where_it_was(tmp_path):
    """The learning rate goes on too. Momentum does not survive, so there is none."""
    recipe = replace(
        RECIPE,
        optimizer=Named(name="sgd", params={"lr": 0.3}),
        schedule=Named(name="cosine"),
        schedule_per="update",
    )
    data = written(tmp_path / "data")
    training = replace(TRAINING, epochs=2000)
    run = plan_run(tmp_path / "run")
    prepare(run, data, recipe=recipe, training=training)
    with started(run) as processes:
        root = processes[f"node_{run.plan.clusters[0].stages[0].provider.id}"]
        root.wait_for(is_after_epoch(1))
        for process in processes.values():
            process.steer("stop")
        found = ends(processes)
    (done,) = {end.epochs_done for end in found.values()}
    assert 1 <= done < 2000
    assert {(end.outcome, end.saved) for end in found.values()} == {("stopped", True)}

    rest = replace(training, epochs=done + 2)
    again = plan_run(tmp_path / "again", Loaded(run.trained()))
    prepare(again, data, recipe=recipe, training=rest, epochs_done=done)
    with started(again) as processes:
        found = ends(processes)
    assert {(end.outcome, end.epochs_done) for end in found.values()} == {("done", done + 2)}
    model, losses = train_alone(data, recipe, rest, Loaded(run.trained()), first_epoch=done)
    assert_equal(again.trained(), model)
    (root,) = [process for process in processes.values() if process.points("train/loss")]
    points = root.points("train/loss")
    assert [point.value for point in points] == pytest.approx(losses, rel=1e-4)
    assert points[0].step == done * 8 + 1
    assert points[-1].epoch == done + 2


@pytest.mark.parametrize("was_there", [False, True])
def test_a_cluster_that_is_stopped_does_not_wait_for_one_that_is_lost(tmp_path, was_there):
    """It would not be let wait until it has given up by itself, and would lose what it has
    trained."""
    run = plan_run(tmp_path / "run", providers=2, clusters=2)
    training = replace(TRAINING, epochs=1_000_000, reduce_factor=2)
    prepare(run, written(tmp_path / "data", runs.make_data(80)), training=training)
    with started(run) as processes:
        lost, other = processes.values()
        if was_there:
            other.wait_for(lambda line: isinstance(line, Report) and line.report.rounds)
        lost.kill()
        other.wait_for(is_after_epoch(other.reports[-1].epoch + 1 if was_there else 1))
        other.steer("stop")
        end = other.end()
    assert (end.outcome, end.saved) == ("stopped", True), other.log()
    # On a slow machine its loss has been noticed before the stop.
    words = "is gone: the run is to end, and it is not there", "nobody else is left"
    assert any(each in other.log() for each in words), other.log()


class Loaded(runs.Net):
    def __init__(self, state):
        super().__init__()
        self.load_state_dict(state)


def test_a_run_can_be_paused_and_goes_on(tmp_path):
    data = written(tmp_path / "data")
    run = plan_run(tmp_path / "run", providers=1)
    prepare(run, data, training=replace(TRAINING, epochs=100_000))
    with started(run) as processes:
        (worker,) = processes.values()
        worker.wait_for(is_after_epoch(1))
        worker.steer("pause")
        worker.wait_for(lambda line: isinstance(line, Report) and line.report.busy == 0.0)
        still = worker.wait_for(lambda line: isinstance(line, Report)).report.step
        assert worker.wait_for(lambda line: isinstance(line, Report)).report.step == still
        worker.steer("resume")
        worker.wait_for(lambda line: isinstance(line, Report) and line.report.step > still)
        worker.steer("stop")
        (end,) = ends(processes).values()
    assert end.outcome == "stopped"
    assert end.saved


def test_what_is_said_while_a_worker_begins_is_obeyed(tmp_path):
    run = plan_run(tmp_path / "run", providers=1)
    prepare(run, written(tmp_path / "data"), training=replace(TRAINING, epochs=1_000_000))
    with started(run) as processes:
        (worker,) = processes.values()
        worker.process.stdin.write(b"nonsense\n{}\n")
        worker.steer("stop")
        (end,) = ends(processes).values()
    assert end.outcome == "stopped"
    assert end.epochs_done == 0
    assert "not understood" in worker.log()
