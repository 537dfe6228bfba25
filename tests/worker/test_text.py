"""A language model from a text file: windows, transforms, a structured output, micro-batches."""

import pytest
import torch
from msgspec.structs import replace
from runs import TRAINING, plan_run, prepare, started
from torch import nn

from ravnest.api.jobs import LossSpec, Named, Recipe
from ravnest.data.batches import Batches, Reading
from ravnest.data.dividing import divide
from ravnest.data.reading import PartReader
from ravnest.data.text import next_token, text_windows
from ravnest.data.writing import write_data
from ravnest.recipes.criterion import build_criterion


class Words(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(128, 12)
        self.mix = nn.Linear(12, 12)
        self.head = nn.Linear(12, 128)

    def forward(self, tokens):
        hidden = torch.relu(self.mix(self.embed(tokens)))
        return {"scores": self.head(hidden), "hidden": hidden}


def make_words():
    torch.manual_seed(1)
    return Words()


def test_a_text_is_learnt_as_plain_torch_learns_it(tmp_path):
    """Spaces do not count, so the parts of a batch have different numbers of targets."""
    (tmp_path / "a.txt").write_text("a raven and its nest, high in a tree; " * 12)
    data = write_data(text_windows(tmp_path / "a.txt", 8), tmp_path / "data", shard_bytes=200)
    given, wanted = next_token()
    recipe = Recipe(
        inputs=(replace(given, argument="tokens"),),
        losses=(
            LossSpec(
                name="cross_entropy",
                params={"ignore_index": ord(" ")},
                output=("scores",),
                target=wanted,
            ),
        ),
        optimizer=Named(name="sgd", params={"lr": 0.5}),
    )
    run = plan_run(
        tmp_path / "run",
        make_words(),
        example=torch.zeros(8, 8, dtype=torch.int64),
        micro_batches=4,
    )
    prepare(run, data, recipe=recipe, training=TRAINING)
    with started(run) as processes:
        for process in processes.values():
            assert process.end().outcome == "done", process.log()
    model, criterion = make_words(), build_criterion(recipe)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    reader = PartReader(divide(data.spec, 0, 1, ("tokens",)), data.folder)
    batches = Batches(
        reader, {"x": given, "target_0": wanted}, Reading(TRAINING.batch_size, TRAINING.seed)
    )
    losses = []
    for _ in range(TRAINING.epochs):
        for batch in batches:
            loss = criterion(model(batch["x"]), batch)
            losses.append(float(loss.detach()))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    for name, value in run.trained().items():
        torch.testing.assert_close(value, model.state_dict()[name], rtol=1e-5, atol=1e-5)
    (root,) = [process for process in processes.values() if process.points("train/loss")]
    assert [point.value for point in root.points("train/loss")] == pytest.approx(losses, rel=1e-4)
    spans = [span for report in root.reports for span in report.spans if span.kind == "forward"]
    assert {span.part for span in spans} == {0, 1, 2, 3}
