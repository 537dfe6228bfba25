"""The ways to call `clusterize`: forms of the inputs, options, and that the model is left alone."""

import copy
import random

import numpy as np
import pytest
import torch
from pools import Mixed, Mlp, run_clusterize, seeded, word_batches, write_pool
from torch import nn

from ravnest import clusterize

BATCH = torch.rand(4, 32, generator=torch.Generator().manual_seed(1))


class KeywordOnly(nn.Module):
    """Takes its inputs by name and returns a dictionary."""

    def __init__(self):
        super().__init__()
        self.mlp = Mlp(4)

    def forward(self, *, x, scale):
        return {"y": self.mlp(x) * scale}


def test_a_model_that_takes_keywords_only(tmp_path):
    model = seeded(KeywordOnly)
    inputs = {"x": BATCH, "scale": torch.tensor(2.0)}
    planned = run_clusterize(model, (), write_pool(tmp_path, 2), example_kwargs=inputs)
    torch.testing.assert_close(planned.pipeline()(**inputs)["y"], model(**inputs)["y"].detach())


@pytest.mark.parametrize("given", [BATCH, [BATCH], (BATCH,)], ids=["tensor", "list", "tuple"])
def test_one_tensor_needs_no_tuple(tmp_path, given):
    planned = run_clusterize(seeded(Mlp), given, write_pool(tmp_path, 2))
    assert planned.plan.model.batch_size == 4
    torch.testing.assert_close(planned.pipeline()(BATCH), seeded(Mlp)(BATCH).detach())


def test_pass_data_measures_and_still_cuts_right(tmp_path):
    planned = run_clusterize(seeded(Mlp), (BATCH,), write_pool(tmp_path, 3), pass_data=True)
    torch.testing.assert_close(planned.pipeline()(BATCH), seeded(Mlp)(BATCH).detach())
    assert all(stage.compute_s > 0 for _, stage in planned.stages)


@pytest.mark.parametrize(
    ("optimizer", "factor"),
    [("sgd", 0), ("momentum", 1), ("adam", 2), ("AdamW", 2), (0.5, 0.5)],
)
def test_the_optimizer_decides_how_much_state_is_predicted(tmp_path, optimizer, factor):
    planned = run_clusterize(seeded(Mlp), BATCH, write_pool(tmp_path, 2), optimizer=optimizer)
    for _, stage in planned.stages:
        assert stage.memory.gradients == 4 * stage.parameters
        assert stage.memory.optimizer == int(factor * stage.memory.gradients)


def test_the_folder_is_node_data_here_by_default(tmp_path, monkeypatch, capsys):
    write_pool(tmp_path / "node_data", 1)
    monkeypatch.chdir(tmp_path)
    clusterize(seeded(Mlp), BATCH)
    assert list(tmp_path.glob("node_data/cluster_0/*/manifest.json"))
    assert "Node(0, Cluster(0))" in capsys.readouterr().out


@pytest.mark.parametrize("training", [True, False])
def test_the_model_is_left_as_it_was(tmp_path, training):
    """Values, identities, flags and gradients, after everything that planning does with it."""
    model = seeded(Mixed).train(training)
    model.norm.train(not training)
    for parameter in model.parameters():
        parameter.grad = torch.full_like(parameter, 3.0) if parameter.requires_grad else None
    before, tensors = copy.deepcopy(model), model.state_dict(keep_vars=True)
    run_clusterize(model, (word_batches(1)[0],), write_pool(tmp_path, 2), pass_data=True)
    assert [m.training for m in model.modules()] == [m.training for m in before.modules()]
    for name, old in before.state_dict(keep_vars=True).items():
        found = model.state_dict(keep_vars=True)[name]
        assert found is tensors[name], name
        assert torch.equal(found, old), name
        assert found.requires_grad == old.requires_grad, name
        untouched = found.grad is None if not old.requires_grad else bool((found.grad == 3).all())
        assert untouched, name


@pytest.mark.parametrize("pass_data", [False, True])
def test_the_random_generators_are_left_as_they_were(tmp_path, pass_data):
    """Planning draws numbers of its own; the user's next draw must not depend on that."""
    folder = write_pool(tmp_path, 2)
    before = generators()
    run_clusterize(seeded(Mlp), BATCH, folder, pass_data=pass_data)
    assert generators() == before


def generators():
    numpy_state = np.random.get_state()
    return (
        torch.get_rng_state().tolist(),
        random.getstate(),
        (numpy_state[1].tolist(), *numpy_state[2:]),
    )
