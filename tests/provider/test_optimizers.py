"""Optimizers by name."""

import copy

import pytest
import torch
from pipelines import TiedModel, pipeline, settings_for
from torch import nn

from ravnest.errors import NodeError
from ravnest.provider.compute.optimizers import NAMED, Muon, optimizer_named, orthogonal
from ravnest.provider.compute.updating import Updater, UpdateSettings
from ravnest.provider.compute.versions import WeightVersions


def net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(16, 3))


def backward(model, seed):
    torch.manual_seed(seed)
    model.zero_grad()
    model(torch.randn(5, 1, 4, 4)).square().mean().backward()


def test_names_and_classes():
    assert optimizer_named("AdamW") is torch.optim.AdamW
    assert optimizer_named(torch.optim.SGD) is torch.optim.SGD
    assert optimizer_named(None) is None
    with pytest.raises(NodeError, match=r"adagrod.*muon"):
        optimizer_named("adagrod")


@pytest.mark.parametrize("name", NAMED)
def test_every_name_trains(name):
    model = net()
    optimizer = NAMED[name](model.parameters(), lr=0.01)
    losses = []
    for _ in range(5):
        backward(model, 1)
        optimizer.step()
        torch.manual_seed(1)
        losses.append(model(torch.randn(5, 1, 4, 4)).square().mean().item())
    assert losses == sorted(losses, reverse=True)


def test_muon_is_torchs_muon_and_torchs_adamw():
    """But for half the digits, with which torch orthogonalises."""
    mine, theirs = net(), net()
    one = Muon(mine.parameters(), lr=0.01, weight_decay=0.1)
    kernel, matrix = theirs[0].weight, theirs[3].weight
    flat = nn.Parameter(kernel.data.view(4, -1))
    others = [theirs[0].bias, theirs[3].bias]
    parts = [
        torch.optim.Muon([flat, matrix], lr=0.01, adjust_lr_fn="match_rms_adamw", weight_decay=0.1),
        torch.optim.AdamW(others, lr=0.01, weight_decay=0.1),
    ]
    for step in range(3):
        backward(mine, step)
        one.step()
        backward(theirs, step)
        flat.grad = kernel.grad.reshape(4, -1)
        for part in parts:
            part.step()
    for ours, plain in zip(mine.parameters(), theirs.parameters(), strict=True):
        assert torch.allclose(ours, plain, atol=2e-3)


def test_what_muon_remembers_is_there_to_be_seen():
    """Averaging between clusters finds an optimizer's state by parameter."""
    model = net()
    optimizer = Muon(model.parameters(), lr=0.1)
    backward(model, 0)
    optimizer.step()
    kinds = [set(optimizer.state[parameter]) for parameter in model.parameters()]
    assert kinds == [{"momentum_buffer"}, {"step", "exp_avg", "exp_avg_sq"}] * 2
    assert len(optimizer.state_dict()["state"]) == 4
    for parameter in model.parameters():
        moments = (kind for kind in optimizer.state[parameter] if kind != "step")
        assert all(optimizer.state[parameter][kind].shape == parameter.shape for kind in moments)


def test_muon_takes_the_hidden_matrices_of_each_stage_and_adamw_the_rest(tmp_path):
    """The embedding, which is the head as well, looks like a matrix and is none; nor are vectors.
    So it is with what is remembered, which shows who has made the step."""
    torch.manual_seed(0)
    model, batches = TiedModel(), [torch.randint(0, 11, (4, 5)) for _ in range(3)]

    def loss_of(outputs, batch):
        return nn.functional.cross_entropy(outputs.flatten(0, 1), batch.roll(1, 1).flatten())

    update = UpdateSettings(optimizer=optimizer_named("muon"), optimizer_params={"lr": 0.01})
    settings = settings_for(batches, loss_of, update, schedule="sync")
    by_muon, by_adamw, in_groups = set(), set(), {}
    with pipeline(model, (batches[0],), tmp_path, settings, stages=3) as cluster:
        for batch in batches:
            cluster.train(batch)
        cluster.order("epoch")
        for runtime in cluster.runtimes:
            runner = runtime.runner
            names = {id(tensor): name for name, tensor in runner._passes.stage.tensors().items()}
            optimizer = runner._updater.optimizer
            for group in optimizer.param_groups:
                in_groups |= {names[id(p)]: group["name"] for p in group["params"]}
            for parameter, state in optimizer.state.items():
                users = by_muon if "momentum_buffer" in state else by_adamw
                users.add(names[id(parameter)])
    hidden = {f"layers.{number}.weight" for number in range(4)}
    assert by_muon == hidden
    assert by_adamw == {name for name, _ in model.named_parameters()} - hidden
    assert {name for name, group in in_groups.items() if group != "others"} == hidden


def test_stacks_of_matrices_are_made_orthogonal_one_by_one():
    torch.manual_seed(0)
    stack = torch.randn(3, 4, 6)
    for whole, one in zip(orthogonal(stack), stack, strict=True):
        assert torch.allclose(whole, orthogonal(one), atol=1e-5)
        assert torch.linalg.svdvals(whole).sub(1).abs().max() < 0.4
    parameter = nn.Parameter(torch.zeros(3, 4, 6))
    parameter.grad = stack
    optimizer = Muon([{"params": [parameter], "name": "stack"}], lr=1.0, weight_decay=0.0)
    optimizer.step()
    steps = [torch.linalg.svdvals(one) for one in parameter.data]
    assert all((one / (0.2 * 6**0.5)).sub(1).abs().max() < 0.4 for one in steps)


def test_muon_follows_schedulers_and_saves_its_state():
    model = net()
    optimizer = Muon(model.parameters(), lr=1.0)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
    backward(model, 0)
    optimizer.step()
    schedule.step()
    assert [group["lr"] for group in optimizer.param_groups] == [0.5, 0.5]
    again = copy.deepcopy(model)
    other = Muon(again.parameters(), lr=1.0)
    other.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    assert other.param_groups[0]["lr"] == 0.5
    for which, stepping in ((model, optimizer), (again, other)):
        backward(which, 1)
        stepping.step()
    assert all(map(torch.equal, model.parameters(), again.parameters()))


def test_muon_follows_weights_that_move():
    """Updates with micro-batches in flight put the weights into other memory."""
    settings = UpdateSettings(optimizer=Muon, optimizer_params={"lr": 0.1})
    plain, moving = net(), net()
    reference = Muon(plain.parameters(), lr=0.1)
    versions = WeightVersions(moving)
    matrices = {p: "matrix" for p in versions.masters if p.dim() >= 2}
    updater = Updater(versions, versions.masters, settings, matrices=matrices)
    for step in range(3):
        backward(plain, step)
        reference.step()
        with versions.collect_gradients(step):
            torch.manual_seed(step)
            moving(torch.randn(5, 1, 4, 4)).square().mean().backward()
        updater.apply(step + 1, update=step, batches=1, in_place=False)
        versions.release(step)
    for expected, found in zip(plain.parameters(), versions.masters, strict=True):
        assert torch.allclose(expected, found, atol=1e-6)


# ---- updates and schedules --------------------------------------------------------------------


def updater_with(**settings):
    torch.manual_seed(0)
    model = net()
    versions = WeightVersions(model)
    settings = {"optimizer": torch.optim.SGD, "optimizer_params": {"lr": 1.0}} | settings
    return Updater(versions, versions.masters, UpdateSettings(**settings))


def test_a_schedule_is_stepped_once_for_each_update_that_one_makes_up_for():
    """Stages coalesce differently; their learning rates stay together all the same."""
    halving = {"lr_scheduler": torch.optim.lr_scheduler.ExponentialLR}
    halving |= {"lr_scheduler_params": {"gamma": 0.5}, "lr_step_on_epoch_change": False}
    one_by_one, coalesced = updater_with(**halving), updater_with(**halving)
    for update in range(6):
        one_by_one.apply(update + 1, update=update, batches=1, in_place=True)
    for version, update in enumerate((0, 3, 5)):
        coalesced.apply(version + 1, update=update, batches=1, in_place=True)
    assert one_by_one.learning_rate == coalesced.learning_rate == 0.5**6


@pytest.mark.parametrize("per_epoch", [True, False])
def test_a_plateau_is_seen_by_the_losses(per_epoch):
    updater = updater_with(
        lr_scheduler=torch.optim.lr_scheduler.ReduceLROnPlateau,
        lr_scheduler_params={"patience": 0, "factor": 0.1},
        lr_step_on_epoch_change=per_epoch,
    )
    rates = []
    for update, loss in enumerate((3.0, 2.0, 2.0)):
        updater.heard_loss(update, loss)
        updater.apply(update + 1, update=update, batches=1, in_place=True)
        updater.epoch_ended()
        rates.append(updater.learning_rate)
    assert rates == pytest.approx([1.0, 1.0, 0.1])


def test_stages_that_coalesce_differently_see_the_same_plateau():
    """Of every update the mean loss of its own batches, whatever has been heard of since."""
    settings = {"lr_scheduler": torch.optim.lr_scheduler.ReduceLROnPlateau}
    settings |= {"lr_scheduler_params": {"patience": 0, "factor": 0.5}}
    settings |= {"lr_step_on_epoch_change": False}
    losses = [3.0, 2.0, 2.5, 1.0, 2.0, 0.5, 3.0, 4.0]
    rates = []
    for made in (range(8), (0, 2, 3, 7), (1, 4, 5, 6, 7)):
        updater = updater_with(**settings)
        heard, seen = 0, {}
        for version, update in enumerate(made):
            while heard <= min(update + 1, 7):  # one more than this update is of
                updater.heard_loss(heard, losses[heard])
                heard += 1
            updater.apply(version + 1, update=update, batches=1, in_place=True)
            seen[update] = updater.learning_rate
        rates.append(seen)
    for other in rates[1:]:
        assert other.items() <= rates[0].items()
    assert rates[0][7] < 1


def test_the_norm_of_sparse_and_of_half_gradients_is_that_of_dense_ones():
    """Rows that come twice are added up first; squares of half precision would overflow."""
    sparse = nn.Embedding(5, 3, sparse=True)
    sparse(torch.tensor([1, 1, 2])).sum().backward()
    half = nn.Parameter(torch.ones(4, dtype=torch.float16))
    half.grad = torch.full((4,), 3e4, dtype=torch.float16)
    for parameter, expected in ((sparse.weight, 15.0), (half, 4 * 9e8)):
        module = nn.Module()
        module.register_parameter("only", parameter)
        versions = WeightVersions(module)
        updater = Updater(versions, versions.masters, UpdateSettings(optimizer=torch.optim.SGD))
        assert updater.squared_norm(1.0) == pytest.approx(expected, rel=1e-3)


def test_the_norm_of_double_gradients_is_as_precise_as_they_are():
    weight = nn.Parameter(torch.zeros(3, dtype=torch.float64))
    weight.grad = torch.tensor([1.0, 1e-6, 0.0], dtype=torch.float64)
    module = nn.Module()
    module.register_parameter("only", weight)
    versions = WeightVersions(module)
    updater = Updater(versions, versions.masters, UpdateSettings(optimizer=torch.optim.SGD))
    assert updater.squared_norm(1.0) == pytest.approx(1 + 1e-12, rel=1e-15)


def test_training_without_an_optimizer_is_refused():
    updater = updater_with(optimizer=None)
    with pytest.raises(NodeError, match="nothing to train with"):
        updater.apply(1, update=0, batches=1, in_place=True)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"optimizer": torch.optim.LBFGS}, "needs no closure"),
        ({"optimizer_params": {"lr": -1.0}}, "'SGD' cannot be made from optimizer_params"),
        ({"optimizer_params": {"rate": 1.0}}, "'SGD' cannot be made from optimizer_params"),
        ({"lr_scheduler": torch.optim.lr_scheduler.StepLR}, "cannot be made from lr_scheduler_par"),
    ],
)
def test_optimizers_and_schedules_that_cannot_work_are_refused(settings, message):
    with pytest.raises(NodeError, match=message):
        updater_with(**settings)
