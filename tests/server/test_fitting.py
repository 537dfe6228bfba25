"""What is refused at submission rather than on somebody's machine."""

import msgspec
import pytest
import torch
from a_job import BATCH, ROWS, make_job
from torch import nn

from ravnest.api.jobs import FieldSpec, Named
from ravnest.data.writing import write_data
from ravnest.errors import JobError, NodeError
from ravnest.planning.handover import take_model, write_model
from ravnest.planning.study import study
from ravnest.provider.compression import Compression
from ravnest.server.planjob import fitting
from ravnest.server.planjob.fitting import check_inputs, check_losses
from ravnest.server.planjob.outcome import PlanOrder
from ravnest.server.planjob.tasks import check
from ravnest.server.service.api.checking import COMPRESSIONS, check_job
from ravnest.wire.codecs.registry import CODECS

replace = msgspec.structs.replace


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    folder = tmp_path_factory.mktemp("job")
    return make_job(folder)[0], folder / "model"


def with_loss(spec, **changes):
    loss = replace(spec.recipe.losses[0], **changes)
    return replace(spec, recipe=replace(spec.recipe, losses=(loss,)))


def with_column(spec, name, **changes):
    fields = tuple(
        replace(column, **changes) if column.name == name else column
        for column in spec.train.fields
    )
    return replace(spec, train=replace(spec.train, fields=fields))


def checked(spec, model, tmp_path):
    check(PlanOrder(task="check", spec=spec, model=str(model)), tmp_path)


def test_a_job_that_fits_is_accepted(made, tmp_path):
    checked(*made, tmp_path)
    checked(with_loss(made[0], params={"weight": [1.0, 2.0, 3.0]}), made[1], tmp_path)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"dtype": "int64"}, "'x' is float32, and the field 'x' gives int64.*cast"),
        ({"shape": (17,)}, r"'x' takes rows of shape \[16\], and the field 'x' gives \[17\]"),
        ({"shape": (4, 4)}, r"takes rows of shape \[16\], and the field 'x' gives \[4, 4\]"),
    ],
)
def test_a_column_must_be_what_the_model_takes(made, tmp_path, changes, says):
    with pytest.raises(JobError, match=says):
        checked(with_column(made[0], "x", **changes), made[1], tmp_path)


def test_transforms_count_for_what_a_column_gives(made):
    spec = with_column(made[0], "x", shape=(4, 4))
    reshape = Named(name="reshape", params={"shape": [16]})
    recipe = spec.recipe
    recipe = replace(recipe, inputs=(replace(recipe.inputs[0], transforms=(reshape,)),))
    check_inputs(recipe, spec.train, take_model(made[1]).graph)


def test_validation_is_checked_as_training_is(made, tmp_path):
    fields = (FieldSpec(name="x", dtype="float64", shape=(16,)), made[0].train.fields[1])
    spec = replace(made[0], validation=replace(made[0].validation, fields=fields))
    with pytest.raises(JobError, match="float64"):
        checked(spec, made[1], tmp_path)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"params": {"weight": [1.0, 2.0]}}, "'cross_entropy' with 'y': 2 weights for 3 classes"),
        ({"name": "mse"}, r"the output has shape \[8, 3\] and the target \[8\]"),
        ({"output": ("logits",)}, "has no 'logits'"),
    ],
)
def test_a_loss_must_be_able_to_compare_what_it_is_given(made, tmp_path, changes, says):
    with pytest.raises(JobError, match=says):
        checked(with_loss(made[0], **changes), made[1], tmp_path)


class TwoOutputs(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(16, 3)

    def forward(self, x):
        return {"scores": self.layer(x), "rest": (x,)}


def test_outputs_are_found_by_their_path(tmp_path):
    x, y = torch.randn(ROWS, 16), torch.randint(0, 3, (ROWS,))
    write_model(tmp_path / "model", study(TwoOutputs(), (x[:BATCH],)))
    graph = take_model(tmp_path / "model").graph
    spec = make_job(tmp_path / "job")[0]
    data = write_data({"x": x, "y": y}, tmp_path / "d", split="train").spec
    right = with_loss(spec, output=("scores",))
    check_losses(right.recipe, [data], graph, BATCH)
    wrong = with_loss(spec, output=("scores",), params={"weight": [1.0] * 4})
    with pytest.raises(JobError, match="4 weights for 3 classes"):
        check_losses(wrong.recipe, [data], graph, BATCH)


def test_a_model_is_run_once_however_many_datasets_there_are(tmp_path, monkeypatch):
    """A graph may have very many operators."""
    spec, runs = make_job(tmp_path / "job")[0], []
    assert spec.validation is not None
    outputs = fitting._outputs
    monkeypatch.setattr(fitting, "_outputs", lambda *given: runs.append(given) or outputs(*given))
    check(PlanOrder(task="check", spec=spec, model=str(tmp_path / "job" / "model")), tmp_path)
    assert len(runs) == 1


@pytest.mark.parametrize("name", ["int9", "topk"])
def test_a_compression_that_does_not_exist_or_loses_something_is_refused(made, name):
    spec = replace(made[0], training=replace(made[0].training, compression=name))
    with pytest.raises(JobError, match=f"compression is '{name}'; it can be true, false, auto, fp"):
        check_job(spec)


def test_the_known_compressions_are_those_of_the_providers(made):
    for name in COMPRESSIONS:
        check_job(replace(made[0], training=replace(made[0].training, compression=name)))
        Compression.of(name)
    for name in set(CODECS) - set(COMPRESSIONS):
        with pytest.raises(NodeError):
            Compression.of(name)
