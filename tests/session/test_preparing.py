"""From a request to what is sent: chosen columns, tried rows, files; and mistakes found in time."""

import logging

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

from ravnest.api.jobs import InputSpec, Named
from ravnest.data.text import TokenWindows
from ravnest.errors import CaptureError, JobError, RavnestError
from ravnest.planning.handover.studying import study_package
from ravnest.session.preparing import prepare
from ravnest.session.request import JobRequest

ROWS = 40


class TwoInputs(nn.Module):
    """Returns what language models return: a mapping with the scores in it."""

    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(20, 8)
        self.scores = nn.Linear(8, 3)

    def forward(self, tokens, mask):
        mixed = (self.words(tokens) * mask.unsqueeze(-1)).mean(1)
        return {"hidden": mixed, "logits": self.scores(mixed)}


class Next(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(30, 8)
        self.scores = nn.Linear(8, 30)

    def forward(self, tokens):
        return self.scores(self.words(tokens))


def images(dtype=torch.float32, classes=10):
    torch.manual_seed(3)
    pixels = torch.randint(0, 256, (ROWS, 1, 4, 4))
    return pixels.to(dtype), torch.randint(classes, (ROWS,))


def classifier(classes=10):
    return nn.Sequential(nn.Flatten(), nn.Linear(16, 8), nn.ReLU(), nn.Linear(8, classes))


@pytest.fixture
def prepared(tmp_path):
    """Prepares a classifier of small images, or whatever else is said."""

    def make(**said):
        usual = {"model": classifier(), "example_args": (torch.rand(8, 1, 4, 4),), "batch_size": 8}
        return prepare(JobRequest.of({**usual, **said}), tmp_path)

    return make


def test_the_obvious_is_chosen_for_a_pair(prepared, tmp_path):
    """And what is sent is complete: every file is there, with the size and hash that was said."""
    found = prepared(data=images(), validation=images(), epochs=3, max_clusters=2)
    spec = found.spec
    assert [one.field for one in spec.recipe.inputs] == ["x"]
    assert spec.recipe.losses[0].target == InputSpec(field="y")
    assert (spec.train.rows, spec.validation.rows) == (ROWS, ROWS)
    assert (spec.training.epochs, spec.planning.max_clusters) == (3, 2)
    assert spec.name == "Sequential"
    assert {ref.sha256 for ref, _ in found.files} == set(spec.files())
    assert all(path.stat().st_size == ref.size for ref, path in found.files)
    study_package(tmp_path / "model")


def test_equal_requests_make_equal_files(tmp_path):
    """That is why a submission that broke off can be repeated without sending everything again."""
    made = []
    for name in ("one", "other"):
        torch.manual_seed(0)
        request = {"model": classifier(), "example_args": torch.rand(8, 1, 4, 4), "data": images()}
        made.append(prepare(JobRequest.of(request), tmp_path / name))
    assert {ref.sha256 for ref, _ in made[0].files} == {ref.sha256 for ref, _ in made[1].files}


@pytest.mark.parametrize(
    ("dtype", "expected"),
    [
        (torch.float32, ()),
        (torch.uint8, (Named(name="scale", params={"factor": 1 / 255}),)),
        (torch.float64, (Named(name="cast", params={"dtype": "float32"}),)),
    ],
)
def test_types_are_converted_to_what_the_model_was_tried_with(prepared, dtype, expected):
    found = prepared(data=images(dtype))
    assert found.spec.recipe.inputs[0].transforms == expected


def test_columns_go_to_arguments_of_the_same_name(prepared):
    data = {
        "label": np.zeros(ROWS, dtype=np.int64),
        "mask": np.ones((ROWS, 5), dtype=np.float32),
        "tokens": np.zeros((ROWS, 5), dtype=np.int32),
    }
    example = {"tokens": torch.zeros(4, 5, dtype=torch.int64), "mask": torch.ones(4, 5)}
    said = {"model": TwoInputs(), "example_args": (), "example_kwargs": example, "data": data}
    recipe = prepared(**said).spec.recipe
    assert {one.argument: one.field for one in recipe.inputs} == {
        "tokens": "tokens",
        "mask": "mask",
    }
    assert recipe.losses[0].target.field == "label"
    assert recipe.losses[0].output == ("logits",)


def test_what_is_said_counts(prepared):
    pixels, labels = images()
    found = prepared(
        data={"picture": pixels, "kind": labels, "other": labels},
        inputs=("picture", ["flatten", ("reshape", {"shape": [1, 4, 4]})]),
        target="kind",
        loss=[
            {"name": "cross_entropy", "label_smoothing": 0.1, "weight": 0.5},
            {"name": "cross_entropy", "target": "other"},
        ],
        optimizer=torch.optim.SGD,
        optimizer_params={"lr": 0.5},
        schedule=("step", {"step_size": 2}),
        metrics=["accuracy", ("top_k", {"k": 2})],
    )
    recipe = found.spec.recipe
    assert [one.name for one in recipe.inputs[0].transforms] == ["flatten", "reshape"]
    assert [(one.target.field, one.weight) for one in recipe.losses] == [
        ("kind", 0.5),
        ("other", 1),
    ]
    assert recipe.losses[0].params == {"label_smoothing": 0.1}
    assert recipe.optimizer.params["lr"] == 0.5
    assert recipe.schedule.name == "step"
    assert [one.name for one in recipe.metrics] == ["accuracy", "top_k"]


class Judges(nn.Module):
    """Returns what models of transformers return if they are given labels."""

    def __init__(self):
        super().__init__()
        self.scores = nn.Linear(4, 3)

    def forward(self, x, labels):
        logits = self.scores(x)
        return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}


def test_a_model_that_computes_its_loss_itself_can_be_handed_over(prepared):
    x, labels = torch.rand(ROWS, 4), torch.randint(3, (ROWS,))
    found = prepared(
        model=Judges(),
        example_args=(x[:8], labels[:8]),
        data={"x": x, "labels": labels},
        loss="output",
    )
    (loss,) = found.spec.recipe.losses
    assert (loss.name, loss.output, loss.target.field) == ("output", ("loss",), "labels")
    assert {one.argument for one in found.spec.recipe.inputs} == {"x", "labels"}


def test_text_is_learnt_token_by_token(prepared):
    windows = TokenWindows(np.arange(300) % 30, 6)
    example = torch.zeros(4, 6, dtype=torch.int64)
    recipe = prepared(model=Next(), example_args=(example,), data=windows).spec.recipe
    assert recipe.inputs[0].field == recipe.losses[0].target.field == "tokens"


def test_folders_are_what_the_model_takes(prepared, tmp_path, caplog):
    from PIL import Image

    caplog.set_level("INFO", "ravnest.session")
    for kind in ("cats", "dogs"):
        (tmp_path / "pictures" / kind).mkdir(parents=True)
        for number in range(6):
            Image.new("L", (9, 7), number).save(tmp_path / "pictures" / kind / f"{number}.png")
    found = prepared(data=str(tmp_path / "pictures"), validation=str(tmp_path / "pictures"))
    shapes = {one.name: one.shape for one in found.spec.train.fields}
    assert shapes == {"image": (1, 4, 4), "label": ()}
    assert "images 1x4x4, divided by 255, classes 0=cats, 1=dogs" in caplog.messages
    assert found.spec.legend.classes == ("cats", "dogs")
    (tmp_path / "texts").mkdir()
    (tmp_path / "texts" / "a.txt").write_bytes(bytes(range(30)) * 5)
    example = torch.zeros(4, 6, dtype=torch.int64)
    again = JobRequest.of(
        {"model": Next(), "example_args": (example,), "data": str(tmp_path / "texts")}
    )
    assert prepare(again, tmp_path / "second").spec.train.fields[0].shape == (7,)
    told = "text in windows of 7 tokens: the model sees 6 and learns the next one after each"
    assert told in caplog.messages


def test_a_wrong_path_is_said_before_the_model_is_captured(prepared, tmp_path, caplog):
    caplog.set_level("INFO", "ravnest.session")
    with pytest.raises(JobError, match="pictures does not exist"):
        prepared(data=str(tmp_path / "pictures"))
    (tmp_path / "pictures").mkdir()
    with pytest.raises(JobError, match="pictures is empty"):
        prepared(data=str(tmp_path / "pictures"))
    assert not caplog.messages


def test_a_share_of_the_rows_can_be_held_out(prepared):
    spec = prepared(data=TensorDataset(*images()), validation=0.25).spec
    assert (spec.train.rows, spec.validation.rows) == (30, 10)


def test_a_script_goes_along_instead_of_a_recipe(prepared, tmp_path):
    script = tmp_path / "train.py"
    script.write_text("print('training')")
    spec = prepared(data=images(), script=script, script_arguments=["--fast"]).spec
    assert spec.recipe is None
    assert spec.script.arguments == ("--fast",)
    assert spec.script.file.path == "script.py"


def test_a_model_may_have_more_classes_than_the_type_of_its_labels(prepared):
    pixels, labels = images()
    found = prepared(model=classifier(300), data=(pixels, (labels + 150).to(torch.uint8)))
    assert found.spec.train.fields[1].dtype == "uint8"


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
@pytest.mark.parametrize("turned", [lambda model: model, torch.jit.script], ids=["as is", "script"])
def test_a_job_without_a_name_is_called_like_its_model(prepared, turned):
    assert prepared(model=turned(classifier()), data=images()).spec.name == "Sequential"


@pytest.mark.parametrize("name", ["my job!", "two\nlines", "", "-", 7, "x" * 101])
def test_a_name_that_cannot_be_is_found_before_the_model_is_captured(prepared, name):
    with pytest.raises(
        JobError, match=r"^name is .*letters, digits, spaces.* begin with a letter, a digit or _$"
    ):
        prepared(model="no model", data=images(), name=name)


def test_a_last_batch_that_is_too_small_is_said(prepared, caplog):
    model = nn.Sequential(nn.Flatten(), nn.Linear(16, 8), nn.BatchNorm1d(8), nn.Linear(8, 10))
    with caplog.at_level(logging.WARNING, logger="ravnest"):
        prepared(model=model, data=images(), batch_size=13)
    assert "would have 1 of the 2 rows" in caplog.text


def test_numbers_that_are_none_are_said(prepared, caplog):
    x, y = images()
    x[30, 0, 0, 0] = float("inf")
    prepared(data=(x, y), validation=images())
    (said,) = [one.getMessage() for one in caplog.records if "infinite" in one.getMessage()]
    assert said == ("data: the field 'x' has 1 number that is NaN or infinite, the first in row 30")


def test_a_table_of_numbers_is_a_dataset(prepared, tmp_path):
    lines = [f"{n},{n / 8},{n % 2}" for n in range(ROWS)]
    (tmp_path / "table.csv").write_text("\n".join(["size,weight,sort", *lines]))
    found = prepared(
        model=nn.Linear(2, 2),
        example_args=torch.rand(8, 2),
        data=str(tmp_path / "table.csv"),
        validation=0.25,
        target="sort",
    )
    assert found.spec.recipe.losses[0].target == InputSpec(field="sort")
    assert [(one.name, one.dtype) for one in found.spec.train.fields] == [
        ("x", "float32"),
        ("sort", "int64"),
    ]


WRONG = {
    "classes that are no whole numbers": (
        {"data": (images()[0], images()[1].float())},
        r"'y' holds float32; class numbers must be whole: give y\.long\(\)",
    ),
    "a class too many": ({"data": images(classes=12)}, "has the class 1[01], .* for 10 of them"),
    "a class too many to validate with": (
        {"data": images(), "validation": images(classes=12)},
        "validation: the field 'y' has the class 1[01], .* for 10 of them",
    ),
    "a class too many behind shares of classes": (
        {
            "data": {"x": images()[0], "shares": torch.rand(ROWS, 10), "y": images(classes=12)[1]},
            "inputs": "x",
            "loss": [
                {"name": "cross_entropy", "target": "shares"},
                {"name": "cross_entropy", "target": "y"},
            ],
        },
        "'y' has the class 1[01], .* for 10 of them",
    ),
    "the model fails": (
        {"data": (torch.rand(ROWS, 1, 5, 5), images()[1])},
        r"does not suit the model: .*\[8, 1, 5, 5\]|shape",
    ),
    "the loss fails": ({"data": (images()[0], torch.rand(ROWS, 3)), "loss": "mse"}, "shape"),
    "no number": ({"data": (images()[0] * float("nan"), images()[1])}, "is nan"),
    "which is the target?": (
        {"data": {"a": images()[0], "b": images()[1], "c": images()[1]}},
        r"a, b, c is to be learnt\? Say target=",
    ),
    "which are the inputs?": (
        {"data": {"a": images()[0], "b": images()[1], "y": images()[1]}},
        "the model takes input, and the data has a, b, y; say which",
    ),
    "no such field": ({"data": images(), "inputs": "z"}, "no field 'z'"),
    "no such argument": ({"data": images(), "inputs": {"image": "x"}}, "no input 'image'"),
    "no column at all": ({"data": images(), "inputs": [3]}, "3 names no column"),
    "other validation": ({"data": images(), "validation": images()[0]}, "must be the same"),
    "another loss": ({"data": images(), "loss": nn.CTCLoss()}, "names are bce"),
    "a metric of fractions": (
        {"data": (images()[0], torch.rand(ROWS, 10)), "loss": "mse", "metrics": ["accuracy"]},
        "needs whole numbers",
    ),
    "no data": ({"data": None}, "a job needs data"),
    "a bad pace": ({"data": images(), "schedule_per": "day"}, "handed over: .*schedule_per"),
    "a bad start": ({"data": images(), "start": "soon"}, "start is 'soon'"),
    "no script": ({"data": images(), "script": "nowhere.py"}, "there is no such file"),
    "ragged rows": ({"data": ([[1.0], [1.0, 2.0]], [0, 1])}, "no array"),
}


@pytest.mark.parametrize(("said", "message"), WRONG.values(), ids=list(WRONG))
def test_what_does_not_fit_is_found_before_anything_is_sent(prepared, said, message):
    with pytest.raises(JobError, match=message):
        prepared(**said)


def test_a_model_without_weights_says_where_to_take_them_from(prepared):
    with torch.device("meta"):
        model, example = classifier(), torch.rand(8, 1, 4, 4)
    with pytest.raises(CaptureError, match="weights="):
        prepared(model=model, example_args=(example,), data=images())


def test_arguments_must_be_single_tensors(prepared):
    class Pair(nn.Module):
        def __init__(self):
            super().__init__()
            self.line = nn.Linear(4, 2)

        def forward(self, pair):
            return self.line(pair[0] + pair[1])

    example = ((torch.rand(4, 4), torch.rand(4, 4)),)
    with pytest.raises(RavnestError, match="'pair' is no single tensor"):
        prepared(model=Pair(), example_args=example, data=images())
