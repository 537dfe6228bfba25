"""The self-check can fail: it finds stages that do not compute what their model computes."""

import itertools
import os

import pytest
import torch
from pools import Mixed, Mlp, run_clusterize, seeded, word_batches, write_pool
from torch import nn

from ravnest.errors import CaptureError
from ravnest.planning import writing
from ravnest.planning.handover import study_package, write_model
from ravnest.planning.handover.received import ReceivedModel
from ravnest.planning.selfcheck import OneRowError, SelfCheck
from ravnest.planning.study import study

BATCH = torch.rand(4, 32, generator=torch.Generator().manual_seed(1))
MODELS = {"mlp": (Mlp, BATCH), "mixed": (Mixed, word_batches(1)[0])}


@pytest.fixture(scope="module", params=list(MODELS))
def checked(request, tmp_path_factory):
    """A studied model and its loaded stages."""
    kind, batch = MODELS[request.param]
    model = seeded(kind)
    folder = write_pool(tmp_path_factory.mktemp("node_data"), 2)
    planned = run_clusterize(model, (batch,), folder)
    studied = study(model, (batch,))
    if request.param == "mixed":
        studied.needs_two_rows("train")  # as its BatchNorm asks for
    return studied, planned


def test_right_stages_pass_again_and_again(checked):
    """The comparison leaves both sides as they were: buffers would drift apart otherwise."""
    studied, planned = checked
    stages = planned.pipeline().stages
    check = SelfCheck(studied)
    for _ in range(3):
        check(stages)


def test_one_wrong_weight_anywhere_is_found(checked):
    """Of each tensor that takes part, the one element that matters most, a little off."""
    studied, planned = checked
    check = SelfCheck(studied)
    pipeline = planned.pipeline()
    tried = 0
    for stage in pipeline.stages:
        for name, tensor in stage.tensors().items():
            if name == "unused" or not tensor.is_floating_point():
                continue
            check(pipeline.stages)  # leaves gradients behind, for the largest of which we look
            gradient = torch.ones_like(tensor) if tensor.grad is None else tensor.grad
            if name == "embed.weight":  # a word that the example has, whatever the head makes of it
                gradient = torch.zeros_like(gradient).index_fill_(0, MODELS["mixed"][1][:1], 1.0)
            element = gradient.abs().flatten().argmax()
            before = tensor.detach().clone()
            tensor.detach().view(-1)[element] += 0.02
            with pytest.raises(CaptureError, match="do not compute what the model computes"):
                check(pipeline.stages)
            tensor.detach().copy_(before)
            tried += 1
    assert tried >= 8


def test_a_changed_file_is_found_by_clusterize(tmp_path, monkeypatch):
    """The stages are compared as loaded from disk, so damage on the way there counts."""
    honest = writing.write_package

    def spoiling(directory, graph, weights, **facts):
        name = graph.tensors[-1].name
        honest(directory, graph, {**weights, name: weights[name] + 0.01}, **facts)

    monkeypatch.setattr(writing, "write_package", spoiling)
    with pytest.raises(CaptureError, match="do not compute what the model computes"):
        run_clusterize(seeded(Mlp), (BATCH,), write_pool(tmp_path, 2))
    run_clusterize(seeded(Mlp), (BATCH,), tmp_path, self_check=False)


class Counting(nn.Module):
    """Multiplies by how often it was called: a graph would repeat one count for ever."""

    def __init__(self):
        super().__init__()
        self.mlp = Mlp(4)
        self.counter = 0

    def forward(self, x):
        self.counter += 1
        return self.mlp(x) * self.counter


class Waning(nn.Module):
    """The same without an attribute that could be watched."""

    def __init__(self):
        super().__init__()
        self.mlp = Mlp(4)
        self.calls = itertools.count(1)

    def forward(self, x):
        return self.mlp(x) / next(self.calls)


@pytest.mark.parametrize("kind", [Counting, Waning])
def test_python_state_that_changes_is_refused_or_reported(tmp_path, caplog, kind):
    """Never without a word: the model is named in an error or in a warning."""
    model, folder = seeded(kind), write_pool(tmp_path, 2)
    said = refusal_of(model, folder) or caplog.text
    assert kind.__name__ in said


def refusal_of(model, folder):
    try:
        run_clusterize(model, (BATCH,), folder)
    except CaptureError as error:
        return str(error)
    return None


class Noisy(nn.Module):
    """Draws from a generator that no seed reaches."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(32, 32)

    def forward(self, x):
        entropy = int.from_bytes(os.urandom(2), "big")
        if x.sum() > -1e9:  # looks at values, so it cannot be captured and runs as it is
            return self.layer(x) + entropy
        return self.layer(x)


def test_a_model_that_never_gives_the_same_twice_is_refused(tmp_path):
    """As such, not as a wrong cut: the remedy is another one."""
    model = nn.Sequential(nn.Linear(32, 32), Noisy())
    with pytest.raises(CaptureError, match="different results for equal inputs"):
        run_clusterize(model, (BATCH,), write_pool(tmp_path, 2))
    run_clusterize(model, (BATCH,), tmp_path, self_check=False)


class Spent(nn.Module):
    """Uses a tensor that autograd may not keep: capture does not notice, running it does."""

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(32, 4), nn.Linear(32, 4)

    def forward(self, x):
        with torch.inference_mode():
            scale = self.first(x)
        return self.last(x) * scale


def test_a_model_that_fails_by_itself_is_named(tmp_path):
    with pytest.raises(CaptureError, match=r"Spent itself fails in train mode.*Inference tensors"):
        run_clusterize(seeded(Spent), (BATCH,), write_pool(tmp_path, 2))


@pytest.mark.parametrize("rows", [1, 8], ids=["a single row", "any batch"])
def test_what_is_said_of_a_model_that_was_handed_over_has_no_numbers_of_its_tensors(
    tmp_path, monkeypatch, caplog, rows
):
    """Torch's words came to all who see the job, as an error or, of single rows, as a warning."""

    def forward(self, x):
        if rows == 8 or len(x) == 1:
            raise IndexError("index 4711 is out of bounds")
        return answer(self, x)

    write_model(tmp_path / "model", study(seeded(Mlp), (BATCH,)))
    found, answer = study_package(tmp_path / "model"), ReceivedModel.forward
    monkeypatch.setattr(ReceivedModel, "forward", forward)
    with pytest.raises(CaptureError, match="IndexError") as raised:
        SelfCheck(found)([])
    assert isinstance(raised.value, OneRowError) == (rows == 1)
    assert "4711" not in str(raised.value)
    assert "4711" in caplog.text
