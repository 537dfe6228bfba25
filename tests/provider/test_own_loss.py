"""Models that compute their loss themselves, of labels that are among their inputs."""

import copy

import pytest
import torch
from pipelines import pipeline, settings_for
from test_leaf import part
from torch import nn

from ravnest.errors import NodeError
from ravnest.provider.compute.updating import UpdateSettings
from ravnest.provider.criterion import OwnLoss, PartLoss, criterion_of
from ravnest.provider.leaf import Leaf, LeafSettings

SGD = UpdateSettings(optimizer=torch.optim.SGD, optimizer_params={"lr": 0.2, "momentum": 0.9})


class Judges(nn.Module):
    """Returns its loss, alone or with other things."""

    def __init__(self, returns):
        super().__init__()
        self.first, self.last, self.returns = nn.Linear(4, 8), nn.Linear(8, 3), returns

    def forward(self, x, labels):
        logits = self.last(torch.relu(self.first(x)))
        loss = nn.functional.cross_entropy(logits, labels)
        if self.returns == "loss":
            return loss
        return (loss, logits) if self.returns == "tuple" else {"loss": loss, "logits": logits}


@pytest.mark.parametrize(("returns", "parts"), [("loss", 3), ("tuple", 1), ("dict", 2)])
def test_a_model_that_returns_its_loss_trains_as_on_one_machine(tmp_path, returns, parts):
    """Batches of seven rows: parts are of different sizes. The Leaf has no labels at all."""
    torch.manual_seed(0)
    model = Judges(returns)
    reference = copy.deepcopy(model)
    batches = [(torch.randn(7, 4), torch.randint(0, 3, (7,))) for _ in range(6)]
    settings = settings_for(None, criterion_of("output"), SGD, schedule="sync")
    with pipeline(model, batches[0], tmp_path, settings, stages=2, parts=parts) as cluster:
        for batch in batches:
            cluster.train(*batch)
        cluster.order("epoch")
        state, losses = cluster.state(), cluster.losses
    optimizer = SGD.optimizer(reference.parameters(), **SGD.optimizer_params)
    for batch, found in zip(batches, losses, strict=True):
        loss = OwnLoss()(reference(*batch))
        assert found == pytest.approx(loss.item(), abs=1e-5)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    for name, value in reference.named_parameters():
        torch.testing.assert_close(state[name], value.detach())


def test_it_judges_by_that_loss_and_by_labels_if_there_are_any(tmp_path):
    loss, logits = torch.tensor(0.5), torch.eye(3)
    right = {"loss": 0.5, "accuracy": pytest.approx(2 / 3)}
    for outputs, labels, expected in (
        ({"loss": loss, "logits": logits}, None, {"loss": 0.5}),
        ({"loss": loss, "logits": logits}, [torch.tensor([0, 1, 1])], right),
        ((loss, logits), [torch.tensor([0, 1, 1])], right),
    ):
        leaf = Leaf(LeafSettings(criterion=OwnLoss(), test_labels=labels))
        leaf.judge(outputs, part(0, 3), ())
        assert leaf.validation_ended() == expected


@pytest.mark.parametrize(
    "outputs",
    [torch.rand(8, 3), {"logits": torch.rand(8, 3)}, (torch.rand(8), torch.tensor(1.0)), (), 3.0],
)
def test_a_model_without_a_loss_is_refused(outputs):
    with pytest.raises(NodeError, match=r'criterion="output" takes the loss.*single number'):
        OwnLoss()(outputs)


def test_names_that_mean_nothing_are_refused():
    with pytest.raises(NodeError, match=r"criterion is 'outputs'; expected criterion"):
        criterion_of("outputs")
    assert criterion_of(None) is None
    assert criterion_of(nn.functional.mse_loss) is nn.functional.mse_loss


def test_a_criterion_that_is_given_a_loss_says_what_to_do():
    of = part(0, 4)
    with pytest.raises(NodeError, match=r'a single number.*Node\(criterion="output"\)'):
        PartLoss(nn.CrossEntropyLoss())(torch.tensor(1.0), *[torch.arange(4)] * 2, of)
