"""An overflow in half precision is the batch's, as on one machine with torch's GradScaler."""

import copy

import pytest
import torch
from pipelines import pipeline, settings_for
from torch import nn

from ravnest.provider import scaling
from ravnest.provider.compute.passes import Precision
from ravnest.provider.compute.updating import UpdateSettings
from ravnest.provider.scaling import LossScale

SGD = UpdateSettings(optimizer=torch.optim.SGD, optimizer_params={"lr": 0.05, "momentum": 0.9})
LOUD, ROWS = 30000.0, 6


class Loud(nn.Module):
    """The gradient of its ear overflows where the input is loud, and no other one does."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(4, 8), nn.Linear(8, 8)
        self.third, self.last = nn.Linear(8, 8), nn.Linear(8, 2)
        self.ear = nn.Parameter(torch.randn(8, 1))

    def forward(self, x, loudness):
        x = torch.tanh(self.second(torch.tanh(self.first(x))))
        heard = nn.functional.linear(loudness, self.ear - self.ear.detach())  # nothing
        return self.last(torch.tanh(self.third(x) + heard))


def data(loud, batches=12):
    torch.manual_seed(5)
    return [
        (
            torch.randn(ROWS, 4),
            torch.full((ROWS, 1), LOUD if k in loud else 1.0),
            torch.rand(ROWS, 2),
        )
        for k in range(batches)
    ]


def criterion(outputs, batch):
    return (outputs.float() - batch[2]).square().mean()


def one_machine(model, batches, update, scaler, every=1, clip=None):
    """Plain PyTorch, and how many steps it made."""
    optimizer = update.optimizer(model.parameters(), **update.optimizer_params)
    steps, scales = [], []
    optimizer.register_step_post_hook(lambda *_: steps.append(1))
    for number, batch in enumerate(batches):
        with torch.autocast("cpu", torch.float16):
            loss = criterion(model(*batch[:2]), batch) / every
        scaler.scale(loss).backward()
        if (number + 1) % every == 0:
            scaler.unscale_(optimizer)
            if update.clip_value is not None:
                nn.utils.clip_grad_value_(model.parameters(), update.clip_value)
            if update.clip_norm is not None:
                nn.utils.clip_grad_norm_(model.parameters(), update.clip_norm)
            scaler.step(optimizer)
            scaler.update()
            scales.append(scaler.get_scale())
            optimizer.zero_grad()
    return len(steps), scales


def train(model, folder, batches, update, precision, **more):
    """Fused weights, the steps that each stage's optimizer made, and each stage's scale."""
    build = {key: more.pop(key) for key in ("stages", "parts", "update_frequency") if key in more}
    settings = settings_for(batches, criterion, update, precision=precision, **more)
    with pipeline(model, batches[0][:2], folder, settings, **build) as cluster:
        steps = [[] for _ in cluster.runtimes]
        for runtime, made in zip(cluster.runtimes, steps, strict=True):
            optimizer = runtime.runner._updater.optimizer
            optimizer.register_step_post_hook(lambda *_, made=made: made.append(1))
        for batch in batches:
            cluster.train(*batch[:2], item=batch)
        cluster.order("epoch")
        scale = cluster.runtimes[-1].runner._passes.scale.value
        return cluster.state(), [len(made) for made in steps], scale


def scaler(first, interval=2000):
    return torch.amp.GradScaler("cpu", init_scale=first, growth_interval=interval)


@pytest.mark.parametrize(
    ("stages", "parts", "every", "update"),
    [
        (3, 1, 1, SGD),
        (4, 2, 1, SGD),
        (3, 2, 2, SGD),
        (1, 1, 1, SGD),
        (4, 1, 1, UpdateSettings(torch.optim.AdamW, {"lr": 0.01}, clip_norm=0.5)),
        (3, 1, 1, UpdateSettings(torch.optim.AdamW, {"lr": 0.01}, clip_value=0.1)),
    ],
    ids=["3 stages", "4, in parts", "3, accumulated", "1", "clipped norm", "clipped values"],
)
def test_a_synchronous_pipeline_is_one_machine_with_a_scaler(
    tmp_path, monkeypatch, stages, parts, every, update
):
    """It halves where one stage overflows, leaves that update out everywhere, and grows again."""
    monkeypatch.setattr(scaling, "GROWS_AFTER", 3)
    torch.manual_seed(0)
    model = Loud()
    reference = copy.deepcopy(model)
    batches = data(loud=(2, 3, 9))
    precision = Precision(torch.float16, 2.0**12, adapts=True)
    state, steps, scale = train(
        model,
        tmp_path,
        batches,
        update,
        precision,
        schedule="sync",
        stages=stages,
        parts=parts,
        update_frequency=every,
    )
    expected, scales = one_machine(reference, batches, update, scaler(2.0**12, 3), every)
    assert expected < len(batches) // every
    assert steps == [expected] * stages
    assert scale == scales[-1]
    for name, value in reference.named_parameters():
        torch.testing.assert_close(state[name], value.detach(), rtol=2e-2, atol=2e-3)


def test_a_clipped_overflow_is_left_out(tmp_path):
    """Clamping makes finite numbers of infinite ones."""
    torch.manual_seed(0)
    model = Loud()
    before = copy.deepcopy(model.state_dict())
    update = UpdateSettings(torch.optim.SGD, {"lr": 1.0}, clip_value=0.5)
    precision = Precision(torch.float16, loss_scale=2.0**12)
    batches = data(loud=range(3), batches=3)
    state, _, _ = train(model, tmp_path, batches, update, precision, stages=2, schedule="sync")
    for name, value in before.items():
        assert torch.equal(state[name], value)


def test_an_asynchronous_pipeline_halves_once_for_what_is_in_flight(tmp_path):
    """Batches under way overflow with the scale of the first one, which says nothing new."""
    torch.manual_seed(0)
    batches = data(loud=(), batches=60)
    precision = Precision(torch.float16, 2.0**22, adapts=True)
    state, steps, scale = train(Loud(), tmp_path, batches, SGD, precision, stages=4)
    assert min(steps) >= 5
    assert 2.0**12 <= scale <= 2.0**17
    assert all(value.isfinite().all() for value in state.values())


def test_gradients_of_several_scales_add_up(tmp_path):
    """The scale changes in the middle of an update: what was collected follows it."""
    torch.manual_seed(0)
    batches = data(loud=(), batches=4)
    states = []
    for changes in (False, True):
        torch.manual_seed(0)
        model = Loud().double()
        doubled = [tuple(value.double() for value in batch) for batch in batches]
        settings = settings_for(
            doubled, lambda o, b: (o - b[2]).square().mean(), SGD, precision=Precision(None, 8.0)
        )
        folder = tmp_path / str(changes)
        with pipeline(
            model, doubled[0][:2], folder, settings, stages=3, update_frequency=4
        ) as cluster:
            for batch in doubled:
                cluster.train(*batch[:2], item=batch)
                cluster.order("validation")
                if changes:
                    cluster.runtimes[-1].runner._passes.scale.value *= 4
            cluster.order("epoch")
            states.append(cluster.state())
    for name, value in states[0].items():
        torch.testing.assert_close(states[1][name], value)


def test_the_scale_follows_torchs_rule():
    found, expected = LossScale(1024.0, adapts=True), scaler(1024.0, scaling.GROWS_AFTER)
    weight = nn.Parameter(torch.ones(1))
    optimizer = torch.optim.SGD([weight], lr=0.0)
    for number in range(3 * scaling.GROWS_AFTER // 2):
        finite = number not in (3, 4, 1500)
        expected.scale(weight.sum()).backward()
        if not finite:
            weight.grad.fill_(torch.inf)
        expected.step(optimizer)
        expected.update()
        optimizer.zero_grad()
        found.heard(found.value, finite=finite)
    assert found.value == expected.get_scale()


def test_old_news_and_a_fixed_scale_change_nothing():
    scale = LossScale(1024.0, adapts=True)
    scale.heard(1024.0, finite=False)
    scale.heard(1024.0, finite=False)
    assert scale.value == 512.0
    fixed = LossScale(1024.0, adapts=False)
    fixed.heard(1024.0, finite=False)
    assert fixed.value == 1024.0
    for _ in range(5000):  # a model that gives nothing but NaN must not bring it to zero
        scale.heard(scale.value, finite=False)
    assert scale.value > 0
