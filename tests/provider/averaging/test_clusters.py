"""Clusters with different cuts train the same model, and stay one model."""

import copy
import threading

import pytest
import torch
from cluster_runs import (
    Normed,
    alone,
    assert_same_bytes,
    cross,
    feed,
    mean_of,
    rows,
    settings,
    square,
    unplug,
    words,
)
from clusters import clusters
from pipelines import TiedModel
from torch import nn

from ravnest.errors import RunError
from ravnest.provider.averaging.fragments import Fragment
from ravnest.provider.averaging.outer import Nesterov
from ravnest.provider.averaging.settings import Averaging
from ravnest.provider.averaging.share import Outcome, Rules, Share
from ravnest.provider.averaging.vectors import Layout, Vectors
from ravnest.provider.compute.optimizers import Muon
from ravnest.provider.compute.updating import UpdateSettings

SGD = UpdateSettings(optimizer=torch.optim.SGD, optimizer_params={"lr": 0.1, "momentum": 0.9})
ADAM = UpdateSettings(optimizer=torch.optim.Adam, optimizer_params={"lr": 0.01})
MUON = UpdateSettings(optimizer=Muon, optimizer_params={"lr": 0.01})
NEVER = 10**9
SOON = Averaging(connect_s=20, resume_s=2)
"""Who is not there is given up before the test is."""


@pytest.mark.parametrize("stages", [(2, 3), (1, 2, 4), (2, 3, 1, 4, 2)])
def test_the_last_round_is_the_plain_mean_and_leaves_no_difference(tmp_path, stages):
    torch.manual_seed(0)
    model = Normed()
    data = [rows(c, batches=3 + c) for c in range(len(stages))]
    wanted = mean_of(
        [alone(model, data[c], square, SGD) for c in range(len(stages))],
        [8.0 * len(data[c]) for c in range(len(stages))],
    )
    with clusters(
        model, (data[0][0],), tmp_path, settings(data, square, SGD, NEVER), stages
    ) as made:
        assert len(made.rings) >= max(stages)
        made.all(feed(data))
        states = made.states()
    assert_same_bytes(states)
    for name, tensor in wanted.items():
        torch.testing.assert_close(states[0][name], tensor, atol=1e-6, rtol=1e-6)
    for c, state in enumerate(states):
        assert state["norms.0.num_batches_tracked"] == len(data[c]), "it is what has been seen here"


def test_tied_weights_follow_the_mean_on_all_stages(tmp_path):
    torch.manual_seed(0)
    model = TiedModel()
    data = [words(c) for c in range(2)]
    with clusters(
        model, (data[0][0],), tmp_path, settings(data, cross, ADAM, NEVER), (2, 3)
    ) as made:
        made.all(feed(data))
        assert_same_bytes(made.states())
        outputs = made.all(lambda cluster, c: predict(cluster, data[0][0]))
    assert torch.equal(outputs[0], outputs[1])


def predict(cluster, batch):
    from ravnest.wire import messages

    values, rows = cluster.inputs.bind((batch,), {}, "eval")
    of = cluster.numbers.without_gradients(rows)
    future = cluster.root.user.expect_result(of.batch)
    cluster.root.user.submit(messages.Forward(of=of, task="predict", carried=(), proof=()), values)
    return future.result(20)[1][0]


@pytest.mark.parametrize("stages", [(2, 3), (1, 2, 3)])
def test_blocking_rounds_are_local_sgd(tmp_path, stages):
    """Every two updates all clusters go on from the mean: the same as doing so in one process."""
    torch.manual_seed(0)
    model = TiedModel()
    members = range(len(stages))
    data = [words(c) for c in members]
    models = [copy.deepcopy(model) for _ in members]
    optimizers = [torch.optim.SGD(m.parameters(), lr=0.1, momentum=0.9) for m in models]
    for number in range(6):
        for c in members:
            optimizers[c].zero_grad()
            cross(models[c](data[c][number]), data[c][number]).backward()
            optimizers[c].step()
        if number % 2 == 1:
            mean = mean_of([m.state_dict() for m in models], [1.0] * len(models))
            for each in models:
                each.load_state_dict(mean)
    averaging = Averaging(mode="blocking")
    given = settings(data, cross, SGD, 2, blocking=True)
    with clusters(model, (data[0][0],), tmp_path, given, stages, averaging) as made:
        made.all(feed(data))
        states = made.states()
        rounds = made.each[0].runtimes[0].runner.meter.rounds
    assert rounds >= 3
    assert_same_bytes(states)
    for name, tensor in models[0].state_dict().items():
        if name in states[0]:
            torch.testing.assert_close(states[0][name], tensor, atol=2e-6, rtol=1e-5)


@pytest.mark.parametrize(("stages", "every"), [((5, 5), 1), ((4, 2), 1), ((1, 5), 2)])
def test_deep_pipelines_get_to_their_meetings(tmp_path, stages, every):
    """More updates in flight than there are weight versions: some wait for later ones to return,
    which later stages must not keep until they have met."""
    torch.manual_seed(0)
    model = Normed()
    data = [rows(c, batches=12) for c in range(2)]
    given = settings(data, square, SGD, every, blocking=True, schedule="async")
    averaging = Averaging(connect_s=30, mode="blocking")
    with clusters(model, (data[0][0],), tmp_path, given, stages, averaging) as made:
        made.all(feed(data))
        assert_same_bytes(made.states())
        rounds = made.each[0].runtimes[-1].runner.meter.rounds
    assert rounds >= 12 // every


def test_blocking_rounds_do_not_wait_for_clusters_that_have_finished(tmp_path):
    torch.manual_seed(0)
    model = TiedModel()
    data = [words(0, batches=3), words(1, batches=12)]
    given = settings(data, cross, SGD, 2, blocking=True, schedule="async")
    with clusters(
        model, (data[0][0],), tmp_path, given, (2, 3), Averaging(mode="blocking")
    ) as made:
        made.all(feed(data))
        assert made.each[1].runtimes[0].runner.meter.rounds >= 6
        assert_same_bytes(made.states())


@pytest.mark.parametrize("fragments", [1, 3])
@pytest.mark.parametrize("outer", [None, Nesterov(0.7, 0.5)])
def test_rounds_in_the_background_keep_clusters_together(tmp_path, fragments, outer):
    torch.manual_seed(0)
    model = TiedModel()
    data = [words(c, batches=40) for c in range(3)]
    averaging = Averaging(fragments=fragments, outer=outer)
    given = settings(data, cross, ADAM, 4, schedule="async")
    with clusters(model, (data[0][0],), tmp_path, given, (2, 3, 1), averaging, parts=2) as made:
        made.all(feed(data, epochs=2))
        rounds = [made.each[c].runtimes[0].runner.meter.rounds for c in range(3)]
        losses = [cluster.losses for cluster in made.each]
        assert_same_bytes(made.states())
    assert min(rounds) > 1
    for found in losses:
        assert sum(found[-10:]) < 0.8 * sum(found[:10])


@pytest.mark.parametrize("codec", ["auto", "int8", "int4", "topk", "zstd"])
def test_compressed_rounds_learn_and_end_with_the_same_bytes(tmp_path, codec):
    torch.manual_seed(0)
    model = TiedModel(words=60, width=24)
    data = [words(c, batches=40) for c in range(3)]
    given = settings(data, cross, ADAM, 2, schedule="async")
    with clusters(model, (data[0][0],), tmp_path, given, (2, 3, 1), codec=codec) as made:
        made.all(feed(data, epochs=2))
        states, losses = made.states(), [cluster.losses for cluster in made.each]
        assert min(cluster.runtimes[0].runner.meter.rounds for cluster in made.each) > 1
    assert_same_bytes(states)
    for found in losses:
        assert sum(found[-10:]) < 0.8 * sum(found[:10])


@pytest.mark.parametrize("update", [ADAM, MUON])
def test_optimizer_state_is_averaged_if_asked_for(tmp_path, update):
    torch.manual_seed(0)
    model = Normed()
    data = [rows(c) for c in range(2)]
    given = settings(data, square, update, NEVER, average_optim=True)
    with clusters(model, (data[0][0],), tmp_path, given, (2, 3)) as made:
        made.all(feed(data))
        moments = []
        for cluster in made.each:
            found = {}
            for runtime in cluster.runtimes:
                share = runtime.runner.share
                for name in share._parameters:
                    found |= runtime.user.ask(lambda s=share, n=name: s._moments([n]))
            moments.append(found)
    hidden = 4 if update is MUON else 0  # the last of the five matrices is the head
    assert len(moments[0]) == len(list(model.parameters())) - hidden
    kept = 0.999 ** len(data[0])
    for name, value in moments[0].items():
        assert name.endswith("/exp_avg_sq")
        least, most = torch.minimum(value, moments[1][name]), torch.maximum(value, moments[1][name])
        assert (least >= 0).all()
        # The mean, or what updates without gradients would have left of the own one.
        assert (most > 0).any()
        assert (least >= (most / kept / 2) * 0.999).all()


def test_once_per_epoch_is_the_default_and_clusters_do_not_multiply_it(tmp_path):
    torch.manual_seed(0)
    model = TiedModel()
    data = [words(c, batches=12) for c in range(3)]
    given = settings(data, cross, SGD, None, schedule="async")
    together = threading.Barrier(3, timeout=60)

    def work(cluster, c):
        for _ in range(4):
            for batch in data[c]:
                cluster.train(batch)
            together.wait()
            cluster.order("epoch")
            together.wait()
        cluster.order("average")

    with clusters(model, (data[0][0],), tmp_path, given, (1, 1, 1)) as made:
        made.all(work)
        rounds = [made.each[c].runtimes[0].runner.meter.rounds for c in range(3)]
        per_ring = [count / len(made.rings) for count in rounds]
    # Three clusters that each asked for one per epoch would make thirteen with the last.
    assert all(1 <= count <= 9 for count in per_ring)


@pytest.mark.parametrize("victim", [0, 1])
def test_a_cluster_that_dies_costs_rounds_and_not_the_run(tmp_path, victim):
    torch.manual_seed(0)
    model = TiedModel()
    data = [words(c, batches=30) for c in range(3)]
    given = settings(data, cross, ADAM, 3, schedule="async")

    def work(cluster, c):
        for number, batch in enumerate(data[c]):
            cluster.train(batch)
            if c == victim and number == 10:
                unplug(cluster)
                return
        cluster.order("epoch")
        cluster.order("average")

    with clusters(model, (data[0][0],), tmp_path, given, (2, 3, 2), SOON) as made:
        made.all(work)
        survivors = [made.each[c] for c in range(3) if c != victim]
        assert_same_bytes([cluster.state() for cluster in survivors])
        assert all(len(cluster.losses) == 30 for cluster in survivors)


def test_the_last_one_left_trains_on(tmp_path):
    torch.manual_seed(0)
    model = TiedModel()
    data = [words(c, batches=20) for c in range(2)]
    given = settings(data, cross, ADAM, 3, schedule="async")

    def work(cluster, c):
        for number, batch in enumerate(data[c]):
            cluster.train(batch)
            if c == 0 and number == 8:
                unplug(cluster)
                return
        cluster.order("average")
        cluster.order("save")

    with clusters(model, (data[0][0],), tmp_path, given, (2, 2), SOON) as made:
        made.all(work)
        assert len(made.each[1].losses) == 20


def test_weights_that_are_not_finite_end_their_cluster_and_not_the_others(tmp_path):
    torch.manual_seed(0)
    model = TiedModel()
    data = [words(c, batches=12) for c in range(2)]
    given = settings(data, cross, SGD, 2, schedule="async")
    with clusters(model, (data[0][0],), tmp_path, given, (2, 2), SOON) as made:
        poisoned = made.each[1].runtimes[0]

        def work(cluster, c):
            if c == 1:
                share = poisoned.runner.share
                master = next(iter(share._parameters.values()))
                poisoned.user.ask(lambda: master.data.fill_(float("nan")))
            for batch in data[c]:
                cluster.train(batch)
            cluster.order("epoch")
            cluster.order("average")

        def tolerant(cluster, c):
            try:
                work(cluster, c)
            except RunError as error:
                return str(error)
            return None

        outcomes = made.all(tolerant)
        assert outcomes[0] is None
        assert "not finite" in outcomes[1]
        assert all(t.isfinite().all() for t in made.each[0].state().values())


class Masked(nn.Module):
    """Attention of letters to those before them, with a mask as many models have it."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(11, 8)
        self.mixers = nn.ModuleList(nn.Linear(8, 8) for _ in range(4))
        self.register_buffer("mask", torch.full((5, 5), float("-inf")).triu(1))
        self.register_buffer("unset", torch.full((2,), float("nan")))
        self.head = nn.Linear(8, 11)

    def forward(self, words):
        x = self.embedding(words)
        for mixer in self.mixers:
            scores = x @ x.transpose(1, 2) + self.mask
            x = x + mixer(scores.softmax(-1) @ x)
        return self.head(x)


@pytest.mark.parametrize("codec", [None, "int8"])
def test_buffers_that_are_infinite_stay_as_they_are(tmp_path, codec):
    torch.manual_seed(0)
    model = Masked()
    data = [words(c, batches=8) for c in range(3)]
    given = settings(data, cross, SGD, 2)
    options = {"averaging": Averaging(connect_s=30, outer=Nesterov(0.9, 0.3)), "codec": codec}
    with clusters(model, (data[0][0],), tmp_path, given, (2, 1, 3), **options) as made:
        made.all(feed(data, epochs=2))
        states = made.states()
    for state in states:
        assert torch.equal(state["mask"], model.mask)
        assert all(v.isfinite().all() for k, v in state.items() if k not in ("mask", "unset"))
        assert torch.equal(state["head.weight"], states[0]["head.weight"])


def test_statistics_that_turn_into_nan_end_their_cluster():
    stats = {"weight": torch.ones(3), "mean": torch.tensor([0.0, float("inf")])}
    fragment = Fragment.starting_from(Layout.of(stats, ["weight"]), stats)
    assert not fragment.fault_in(fragment.layout.gather(stats))
    stats["mean"][0] = float("nan")
    assert "NaN in buffers among 'mean'" in fragment.fault_in(fragment.layout.gather(stats))
    stats["weight"][1] = float("inf")
    assert "not finite" in fragment.fault_in(fragment.layout.gather(stats))


def test_statistics_that_turn_infinite_end_their_cluster():
    stats = {"weight": torch.ones(3), "variance": torch.ones(2)}
    fragment = Fragment.starting_from(Layout.of(stats, ["weight"]), stats)
    assert not fragment.fault_in(fragment.layout.gather(stats))
    stats["variance"][1] = float("inf")
    assert "an infinity in buffers" in fragment.fault_in(fragment.layout.gather(stats))


def test_training_may_go_on_after_a_meeting(tmp_path):
    torch.manual_seed(0)
    model = TiedModel()
    data = [words(c, batches=8) for c in range(2)]
    given = settings(data, cross, ADAM, 3, schedule="async")

    def work(cluster, c):
        for half in (data[c][:4], data[c][4:]):
            for batch in half:
                cluster.train(batch)
            cluster.order("average")
            cluster.order("save")

    with clusters(model, (data[0][0],), tmp_path, given, (2, 3)) as made:
        made.all(work)
        assert_same_bytes(made.states())


def test_a_snapshot_waits_for_the_outcome_of_the_round_before():
    """Otherwise what that one changes would be brought, and applied, a second time."""
    weights = {"w": nn.Parameter(torch.tensor([1.0]))}

    class Stage:
        def tensors(self):
            return dict(weights)

    share = Share(Stage(), weights, lambda: None, Rules(1, blocking=False))
    layout = Layout.of(weights, {"w"})
    share.add_ring(0, [layout])
    change = Vectors(torch.tensor([1.0]), torch.empty(0, dtype=torch.float64))
    share.averaged(
        Outcome(0, (0,), ((layout, change),), (layout.rest_of(change),), (), False, 0.0, 0)
    )
    taken = []
    share.when_up_to_date(lambda: taken.append(share.snapshot(0, (0,)).vectors[0].single.item()))
    assert taken == []
    share.apply()
    assert taken == [2.0]
    share.when_up_to_date(lambda: taken.append("at once"))
    assert taken == [2.0, "at once"]


def test_moments_keep_what_they_have_learnt_while_their_mean_was_made():
    weights = {"w": nn.Parameter(torch.tensor([1.0, 2.0]))}
    optimizer = torch.optim.Adam(weights.values())
    weights["w"].grad = torch.tensor([1.0, 1.0])
    optimizer.step()
    state = optimizer.state[weights["w"]]
    state["exp_avg_sq"].copy_(torch.tensor([0.25, 0.01]))

    class Stage:
        def tensors(self):
            return dict(weights)

    rules = Rules(1, blocking=False)
    share = Share(Stage(), weights, lambda: optimizer, rules, average_optim=True)
    layout = Layout.of(weights, {"w"})
    share.add_ring(0, [layout])
    moments = Layout.of(share._moments(["w"]))
    nothing = torch.empty(0, dtype=torch.float64)
    change = torch.tensor([0.5, -0.02])
    unchanged = (layout, Vectors(torch.zeros(2), nothing))
    outcome = ((moments, Vectors(change, nothing)),)
    rest = (layout.rest_of(unchanged[1]),)
    share.averaged(Outcome(0, (0,), (unchanged,), rest, outcome, False, 0.0, 10**6))
    share.apply()
    assert state["exp_avg_sq"].tolist() == [
        0.75,
        0.0,
    ]  # long forgotten, and no variance is negative
