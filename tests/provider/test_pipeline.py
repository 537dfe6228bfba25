"""Providers together compute what one machine computes, and fail together when one fails."""

import copy
import functools
import threading

import msgspec
import pytest
import torch
from pipelines import TiedModel, pipeline, settings_for
from torch import nn

from ravnest.errors import DataError, PeerError, RunError
from ravnest.provider.compute.passes import Precision
from ravnest.provider.compute.randomness import StageRandomness, draws_numbers
from ravnest.provider.compute.updating import UpdateSettings
from ravnest.provider.inbox import Stop
from ravnest.provider.runtime import ProviderRuntime
from ravnest.stage import structure
from ravnest.wire import messages

SGD = UpdateSettings(optimizer=torch.optim.SGD, optimizer_params={"lr": 0.1, "momentum": 0.9})
ADAM = UpdateSettings(optimizer=torch.optim.Adam, optimizer_params={"lr": 0.01})
ADAMW = UpdateSettings(
    optimizer=torch.optim.AdamW,
    optimizer_params={"lr": 0.01, "weight_decay": 0.1},
    lr_scheduler=torch.optim.lr_scheduler.StepLR,
    lr_scheduler_params={"step_size": 3, "gamma": 0.5},
    lr_step_on_epoch_change=False,
    clip_norm=0.3,
)


def words(batches=7, rows=6):
    torch.manual_seed(3)
    return [torch.randint(0, 11, (rows, 5)) for _ in range(batches)]


def loss_of(outputs, batch):
    return nn.functional.cross_entropy(outputs.flatten(0, 1), batch.roll(1, 1).flatten())


def one_machine(model, batches, update, update_frequency=1, epochs=1, autocast=None):
    """The reference: plain PyTorch with gradient accumulation."""
    optimizer = update.optimizer(model.parameters(), **update.optimizer_params)
    scheduler = None
    if update.lr_scheduler is not None:
        scheduler = update.lr_scheduler(optimizer, **update.lr_scheduler_params)
    losses = []

    def step(count):
        for parameter in model.parameters():
            if parameter.grad is not None:
                parameter.grad /= count
        if update.clip_norm is not None:
            nn.utils.clip_grad_norm_(model.parameters(), update.clip_norm)
        optimizer.step()
        optimizer.zero_grad()
        if scheduler is not None and not update.lr_step_on_epoch_change:
            scheduler.step()

    for _ in range(epochs):
        waiting = 0
        for batch in batches:
            with torch.autocast("cpu", autocast, enabled=autocast is not None):
                loss = loss_of(model(batch), batch)
            loss.backward()
            losses.append(float(loss.detach()))
            waiting += 1
            if waiting == update_frequency:
                step(waiting)
                waiting = 0
        if waiting:
            step(waiting)
        if scheduler is not None and update.lr_step_on_epoch_change:
            scheduler.step()
    return losses


def train(model, folder, batches, update, epochs=1, **options):
    build = {
        key: options.pop(key) for key in ("stages", "parts", "update_frequency") if key in options
    }
    settings = settings_for(batches, loss_of, update, **options)
    with pipeline(model, (batches[0],), folder, settings, **build) as cluster:
        for _ in range(epochs):
            for batch in batches:
                cluster.train(batch)
            cluster.order("epoch")
        return cluster.state(), list(cluster.losses), [r.runner.meter for r in cluster.runtimes]


def difference(state, model):
    expected = dict(model.named_parameters())
    assert state.keys() >= expected.keys()
    return max(float((state[name] - value).abs().max()) for name, value in expected.items())


@pytest.mark.parametrize("update", [SGD, ADAMW], ids=["sgd", "adamw, schedule, clipping"])
@pytest.mark.parametrize(
    ("stages", "parts", "update_frequency"), [(1, 1, 1), (2, 1, 1), (3, 2, 1), (4, 3, 2), (3, 1, 3)]
)
def test_a_synchronous_pipeline_is_one_machine(tmp_path, update, stages, parts, update_frequency):
    """Tied weights, a skip connection, accumulation that does not divide the epoch, clipping."""
    torch.manual_seed(0)
    model = TiedModel()
    reference = copy.deepcopy(model)
    batches = words()
    state, losses, _ = train(
        model,
        tmp_path,
        batches,
        update,
        epochs=2,
        schedule="sync",
        stages=stages,
        parts=parts,
        update_frequency=update_frequency,
    )
    expected = one_machine(reference, batches, update, update_frequency, epochs=2)
    assert difference(state, reference) < 1e-5
    assert losses == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize("schedule", ["sync", "async"])
@pytest.mark.parametrize("recompute", [False, True])
def test_stages_may_have_nothing_to_train(tmp_path, schedule, recompute):
    """Before the first layer that is trained and behind the last one; with clipping."""
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Linear(5, 5) for _ in range(5)))
    for layer in (0, 1, 4):
        model[layer].requires_grad_(False)
    reference = copy.deepcopy(model)
    batches = [torch.randn(6, 5) for _ in range(7)]
    criterion = lambda outputs, batch: (outputs - batch.sin()).square().mean()  # noqa: E731
    options = {"schedule": schedule, "recompute": recompute}
    settings = settings_for(batches, criterion, ADAMW, **options)
    cuts = [1, 2, 3, 4]
    with pipeline(model, (batches[0],), tmp_path, settings, cuts=cuts, parts=2) as cluster:
        for stage, package in enumerate(cluster.packages):
            asks = [wire.grad for wire in package.graph.train.receives]
            assert asks == ([] if stage == 0 else [stage > 2])
        for batch in batches:
            cluster.train(batch)
            if schedule == "async":
                cluster.order("flush")
        cluster.order("epoch")
        state = cluster.state()
    optimizer = ADAMW.optimizer(reference.parameters(), **ADAMW.optimizer_params)
    scheduler = ADAMW.lr_scheduler(optimizer, **ADAMW.lr_scheduler_params)
    for batch in batches:
        optimizer.zero_grad()
        criterion(reference(batch), batch).backward()
        nn.utils.clip_grad_norm_(reference.parameters(), ADAMW.clip_norm)
        optimizer.step()
        scheduler.step()
    moved = [not torch.equal(state[n], v) for n, v in model.named_parameters()]
    assert moved == [False] * 4 + [True] * 4 + [False] * 2
    if schedule == "sync":
        assert difference(state, reference) < 1e-5


def test_a_tied_embedding_with_sparse_gradients_is_one_machine(tmp_path):
    """The owner's own gradient is sparse; what the copy sends is dense, or was made so."""
    torch.manual_seed(0)
    model = TiedModel()
    model.embed.sparse = True
    reference = copy.deepcopy(model)
    batches = words()
    state, _, _ = train(model, tmp_path, batches, SGD, schedule="sync", stages=3, parts=2)
    one_machine(reference, batches, SGD)
    assert difference(state, reference) < 1e-5


@pytest.mark.parametrize(
    ("precision", "tolerance"),
    [(Precision(torch.bfloat16), 2e-2), (Precision(torch.float16, loss_scale=4096.0), 2e-3)],
    ids=["bf16", "fp16 with a scaled loss"],
)
def test_half_precision_is_that_of_one_machine(tmp_path, precision, tolerance):
    torch.manual_seed(0)
    model = TiedModel()
    reference = copy.deepcopy(model)
    batches = words()
    state, losses, _ = train(
        model, tmp_path, batches, SGD, schedule="sync", stages=3, parts=2, precision=precision
    )
    expected = one_machine(reference, batches, SGD, autocast=precision.autocast)
    assert difference(state, reference) < tolerance
    assert losses == pytest.approx(expected, rel=1e-2)
    assert difference(state, TiedModel()) > 10 * tolerance


def test_gradients_that_overflow_leave_the_update_out(tmp_path, caplog):
    torch.manual_seed(0)
    model = TiedModel()
    before = copy.deepcopy(model)
    precision = Precision(torch.float16, loss_scale=1e30)
    state, losses, _ = train(
        model, tmp_path, words(3), SGD, schedule="sync", stages=2, precision=precision
    )
    assert difference(state, before) == 0
    assert all(loss < 10 for loss in losses)
    assert "smaller loss_scale" in caplog.text


def _draws(runtime):
    return draws_numbers(runtime.runner._passes.stage.graph)


@pytest.mark.parametrize("recompute", [False, True])
def test_activations_computed_again_change_nothing(tmp_path, recompute):
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Linear(5, 9), nn.BatchNorm1d(9), nn.Dropout(0.4), nn.ReLU(), nn.Linear(9, 5)
    )
    reference = copy.deepcopy(model)
    batches = [torch.randn(6, 5) for _ in range(5)]
    criterion = lambda outputs, batch: (outputs - batch).square().mean()  # noqa: E731
    settings = settings_for(batches, criterion, SGD, schedule="sync", recompute=recompute)
    with pipeline(model, (batches[0],), tmp_path, settings, stages=2) as cluster:
        torch.manual_seed(1)
        for batch in batches:
            cluster.train(batch)
            cluster.order("flush")
        state = cluster.state()
        draws = [r.runner._passes.stage.graph.stage for r in cluster.runtimes if _draws(r)]
    optimizer = SGD.optimizer(reference.parameters(), **SGD.optimizer_params)
    torch.manual_seed(0)
    numbers = StageRandomness(torch.device("cpu"), 0, *draws)
    for batch in batches:
        optimizer.zero_grad()
        with numbers.drawn():
            loss = criterion(reference(batch), batch)
        loss.backward()
        optimizer.step()
    for name, value in reference.state_dict().items():
        torch.testing.assert_close(state[name], value)


class WritesToItsInput(nn.Module):
    """And has a layer whose buffers enter its result and change with every call."""

    def __init__(self):
        super().__init__()
        self.first = nn.utils.parametrizations.spectral_norm(nn.Linear(5, 9))
        self.last = nn.Linear(9, 5)

    def forward(self, x):
        x.mul_(2)
        return self.last(torch.tanh(self.first(x)))


@pytest.mark.parametrize("parts", [1, 3])
def test_what_a_forward_writes_to_is_computed_again_from_what_it_was(tmp_path, parts):
    torch.manual_seed(0)
    model = WritesToItsInput()
    batches = [torch.randn(6, 5) for _ in range(4)]
    states = []
    for recompute in (False, True):
        settings = settings_for(
            batches,
            lambda outputs, batch: outputs.square().mean(),
            SGD,
            schedule="sync",
            recompute=recompute,
        )
        folder = tmp_path / str(recompute)
        copied = copy.deepcopy(model)
        with pipeline(copied, (batches[0],), folder, settings, stages=2, parts=parts) as cluster:
            for batch in batches:
                cluster.train(batch.clone(), item=batch)
            cluster.order("flush")
            states.append(cluster.state())
    for name, value in states[0].items():
        torch.testing.assert_close(states[1][name], value)


def test_numbers_drawn_beside_a_recomputation_are_noticed(tmp_path, caplog):
    """The Root's user draws from the generator that dropout draws from too."""
    model = nn.Sequential(nn.Linear(5, 9), nn.Dropout(0.5), nn.Linear(9, 5))
    batches = [torch.randn(6, 5) for _ in range(4)]
    settings = settings_for(
        batches, lambda outputs, batch: outputs.square().mean(), SGD, recompute=True
    )
    with pipeline(model, (batches[0],), tmp_path, settings, stages=2) as cluster:
        passes = cluster.root.runner._passes
        run = passes._run

        def disturbed(inputs):
            outputs = run(inputs)
            if not torch.is_grad_enabled():  # the first time only
                torch.rand(3)
            return outputs

        cluster.train(batches[0])
        cluster.order("flush")
        assert "could not be computed again" not in caplog.text
        passes._run = disturbed
        cluster.train(batches[1])
        cluster.order("flush")
    assert "could not be computed again" in caplog.text


class Shifted(nn.Module):
    """Gives its input and its parameter one gradient, in the same memory."""

    def __init__(self):
        super().__init__()
        self.first, self.shift = nn.Linear(3, 3), nn.Parameter(torch.zeros(3))

    def forward(self, x):
        return (self.first(x) + self.shift.view(1, 3)).square()


def test_what_is_sent_back_is_in_nobody_elses_memory(tmp_path):
    """The parameter's gradient is scaled and added to while the message is under way."""
    batches = [torch.randn(1, 3) for _ in range(2)]
    settings = settings_for(batches, lambda outputs, batch: outputs.mean(), SGD)
    with pipeline(Shifted(), (batches[0],), tmp_path, settings, cuts=[1]) as cluster:
        passes = cluster.runtimes[-1].runner._passes
        backward, shared = passes.backward, []

        def watched(item, gradients):
            found = backward(item, gradients)
            shared.extend(passes.versions.holds(gradient) for gradient in found.values())
            return found

        passes.backward = watched
        for batch in batches:
            cluster.train(batch)
        cluster.order("epoch")
    assert shared
    assert not any(shared)


def test_an_asynchronous_pipeline_learns(tmp_path):
    """Nothing is lost on the way: every batch is in some update, and the loss goes down."""
    torch.manual_seed(0)
    batches = words(batches=20)
    _, losses, meters = train(
        TiedModel(), tmp_path, batches, ADAM, epochs=4, stages=4, parts=3, most_in_flight=4
    )
    assert len(losses) == 80
    assert sum(losses[-10:]) < 0.8 * sum(losses[:10])
    assert [meter.backwards for meter in meters] == [240] * 4
    assert [meter.batches for meter in meters] == pytest.approx([80] * 4)
    assert meters[-1].worst_staleness == 0
    assert meters[0].worst_staleness <= 1


def test_stashing_every_version_is_possible(tmp_path):
    torch.manual_seed(0)
    batches = words(batches=12)
    _, _, meters = train(TiedModel(), tmp_path, batches, SGD, stages=4, max_versions=99)
    assert [meter.updates for meter in meters] == [12] * 4


def test_a_cut_connection_is_not_noticed_by_the_result(tmp_path):
    """Streams break in the middle of a synchronous run: the same weights to the last bit."""
    torch.manual_seed(0)
    model = TiedModel()
    reference = copy.deepcopy(model)
    batches = words(batches=12)
    settings = settings_for(batches, loss_of, SGD, schedule="sync")
    with pipeline(model, (batches[0],), tmp_path, settings, stages=3, parts=2) as cluster:
        for number, batch in enumerate(batches):
            cluster.train(batch)
            if number % 4 == 1:
                for runtime in cluster.runtimes:
                    address = runtime.place.listen
                    cluster.thread.loop.call_soon_threadsafe(cluster.hub.cut, address, number)
        cluster.order("epoch")
        state = cluster.state()
        assert sum(link.traffic.breaks for r in cluster.runtimes for link in r._links.values())
    one_machine(reference, batches, SGD)
    assert difference(state, reference) < 1e-5


# ---- when something goes wrong ----------------------------------------------------------------


def broken_pipeline(tmp_path, labels, criterion=loss_of, stages=3):
    settings = settings_for(labels, criterion, SGD)
    return pipeline(TiedModel(), (words()[0],), tmp_path, settings, stages=stages)


def fails_for_all(cluster, message):
    """The Root's caller gets the error, and so does everybody who waits elsewhere."""

    def train():
        for batch in words(batches=30):
            cluster.train(batch)
        cluster.order("epoch")

    with pytest.raises(RunError, match=message):
        train()
    for runtime in cluster.runtimes:
        with pytest.raises(RunError, match=message):
            runtime.user.wait_until_trained()


def test_other_data_on_the_leaf_is_an_error_for_everybody(tmp_path):
    labels = list(reversed(words()))
    with broken_pipeline(tmp_path, labels) as cluster:
        fails_for_all(cluster, "not on the same batch")
        assert isinstance(cluster.runtimes[-1].user.failure, DataError)
        assert isinstance(cluster.root.user.failure, PeerError)
        assert cluster.root.user.failure.node == "node_2"
        assert "node_2" in str(cluster.root.user.failure)


def test_too_few_labels_are_an_error(tmp_path):
    with broken_pipeline(tmp_path, words()[:2]) as cluster:
        fails_for_all(cluster, "ends before the Root's data does")


def test_a_criterion_that_raises_is_named(tmp_path):
    def criterion(outputs, batch):
        raise KeyError("no such label")

    with broken_pipeline(tmp_path, words(), criterion) as cluster:
        fails_for_all(cluster, "node_2 failed: KeyError|KeyError")


@pytest.mark.parametrize("victim", [0, 1, 2])
def test_a_provider_that_dies_is_named_by_the_others(tmp_path, victim):
    settings = settings_for(words(batches=300), loss_of, SGD)
    with pipeline(TiedModel(), (words()[0],), tmp_path, settings, stages=3) as cluster:
        for batch in words():
            cluster.train(batch)
        dead = cluster.runtimes[victim]
        cluster.thread.call(dead._endpoint._network.close())
        dead._inbox.put(Stop())
        for number, runtime in enumerate(cluster.runtimes):
            if number != victim:
                waiting = threading.Thread(target=runtime.user.training_over.wait)
                waiting.start()
                waiting.join(20)
                assert not waiting.is_alive()
                assert isinstance(runtime.user.failure, PeerError)
                assert runtime.user.failure.node == f"node_{victim}"
                assert f"node_{victim}" in str(runtime.user.failure)


def test_validation_and_prediction_go_through_the_split_model(tmp_path):
    torch.manual_seed(0)
    model = TiedModel()
    batches = words(batches=3)
    targets = [batch.roll(1, 1) for batch in batches]
    items = list(zip(batches, targets, strict=True))
    leaf = {"test_labels": items, "accuracy_file": tmp_path / "val_accuracies.txt"}
    criterion = lambda outputs, batch: loss_of(outputs, batch[0])  # noqa: E731
    settings = settings_for(items, criterion, SGD, leaf=leaf)
    model.eval()
    with torch.no_grad():
        right = [model(x).argmax(-1) == y for x, y in items]
    expected = float(torch.cat(right).float().mean())
    with pipeline(model, (batches[0],), tmp_path, settings, stages=3) as cluster:
        for number, x in enumerate(batches):
            of = messages.MicroBatch(
                batch=number, part=0, parts=1, rows=6, batch_rows=6, update=0, closes_update=False
            )
            future = cluster.root.user.expect_result(number)
            cluster.root.user.submit(
                messages.Forward(of=of, task="validate", carried=(), proof=()), {0: x}
            )
            future.result(10)
        metrics = cluster.order("validation").metrics
        assert metrics["accuracy"] == pytest.approx(expected)
        of = messages.MicroBatch(
            batch=9, part=0, parts=1, rows=6, batch_rows=6, update=0, closes_update=False
        )
        future = cluster.root.user.expect_result(9)
        cluster.root.user.submit(
            messages.Forward(of=of, task="predict", carried=()), {0: batches[0]}
        )
        answer, tensors = future.result(10)
        found = structure.rebuild(msgspec.json.decode(answer.structure), lambda n: tensors[n])
        with torch.no_grad():
            torch.testing.assert_close(found, model(batches[0]))
    assert float((tmp_path / "val_accuracies.txt").read_text()) == pytest.approx(expected)


def test_compiled_stages_give_the_same_and_are_compiled_once(tmp_path, monkeypatch):
    """Every update installs other weights; that must not compile anything again."""
    # Everything but the generation of code, for which not every machine has a compiler.
    monkeypatch.setattr(torch, "compile", functools.partial(torch.compile, backend="aot_eager"))
    torch._dynamo.reset()
    counters = torch._dynamo.utils.counters
    counters.clear()
    torch.manual_seed(0)
    model = TiedModel()
    plain, compiled = (
        train(
            copy.deepcopy(model),
            tmp_path / str(compile),
            words(6),
            SGD,
            stages=3,
            parts=3,
            schedule="sync",
            compile=compile,
        )
        for compile in (False, True)
    )
    for name, value in plain[0].items():
        torch.testing.assert_close(compiled[0][name], value)
    assert counters["stats"]["unique_graphs"] == 3


def test_a_provider_does_not_leave_while_its_root_waits_for_other_clusters(tmp_path):
    batches = words()
    settings = settings_for(batches, loss_of, SGD)
    with pipeline(TiedModel(), (batches[0],), tmp_path, settings, stages=2) as cluster:
        leaf = cluster.runtimes[-1]
        assert not leaf.user.wait_for_goodbye(0.01)
        leaf.user.obeyed("average", 1)
        outcome = []
        waiting = threading.Thread(target=lambda: outcome.append(leaf.user.wait_for_goodbye(0.01)))
        waiting.start()
        waiting.join(0.2)
        assert not outcome
        leaf.user.replied(messages.Reply(order="average", number=1))
        waiting.join(10)
        assert outcome == [False]


def test_a_provider_that_cannot_average_says_so_and_frees_its_address(tmp_path, monkeypatch):
    """Making the rings takes memory for what they remember, and may fail."""

    def full(runtime, runner):
        raise MemoryError("no room for the base")

    batches = words()
    settings = settings_for(batches, loss_of, SGD)
    closed = []
    close = ProviderRuntime.close
    monkeypatch.setattr(ProviderRuntime, "_make_averager", full)
    monkeypatch.setattr(
        ProviderRuntime, "close", lambda self, flush_s: (closed.append(self), close(self, flush_s))
    )
    with (
        pytest.raises(MemoryError),
        pipeline(TiedModel(), (batches[0],), tmp_path, settings, stages=1),
    ):
        pass
    assert len(closed) == 1
