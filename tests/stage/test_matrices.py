"""Embeddings, heads and hidden matrices are told apart by the operators that use them."""

import msgspec
import torch
from torch import nn

from ravnest.planning.study import study
from ravnest.stage.graph import StageGraph
from ravnest.stage.matrices import MATRIX, STACK, hidden_matrices


class Words(nn.Module):
    """A small language model with everything that looks like a matrix and is none."""

    def __init__(self, *, tied=False):
        super().__init__()
        self.words = nn.Embedding(11, 8)
        self.places = nn.Parameter(torch.randn(1, 5, 8))
        self.norm = nn.LayerNorm((5, 8))
        self.up, self.down = nn.Linear(8, 16), nn.Linear(16, 8)
        self.experts = nn.Parameter(torch.randn(2, 8, 8))
        self.head = nn.Linear(8, 11)
        if tied:
            self.head.weight = self.words.weight

    def forward(self, words):
        x = self.norm(self.words(words) + self.places)
        x = x + self.down(torch.relu(self.up(x)))
        halves = torch.stack((x, x)).flatten(1, 2)
        x = x + torch.bmm(halves, self.experts).sum(0).view_as(x)
        return torch.log_softmax(self.head(x), -1)


WORDS = torch.tensor([[1, 2, 3, 4, 5], [5, 4, 3, 2, 1]])
HIDDEN = {"up.weight": MATRIX, "down.weight": MATRIX, "experts": STACK}


def stages_of(model, *inputs, cuts=()):
    return study(model, inputs).stages(cuts)


def test_what_a_language_model_hides():
    (whole,) = stages_of(Words(), WORDS)
    assert hidden_matrices(whole) == HIDDEN


def test_a_tied_head_is_an_embedding_wherever_it_is_held():
    (whole,) = stages_of(Words(tied=True), WORDS)
    assert hidden_matrices(whole) == HIDDEN
    studied = study(Words(tied=True), (WORDS,))
    places = [p for p, place in enumerate(studied.places) if place is not None][1:-1]
    found = {}
    for graph in studied.stages([places[len(places) // 2]]):
        found |= hidden_matrices(graph)
    assert found == HIDDEN


def test_every_cut_finds_the_same():
    studied = study(Words(), (WORDS,))
    places = [p for p, place in enumerate(studied.places) if place is not None][1:-1]
    for place in places:
        found = {}
        for graph in studied.stages([place]):
            found |= hidden_matrices(graph)
        assert found == HIDDEN


def test_an_older_package_is_judged_by_what_its_stage_knows():
    studied = study(Words(), (WORDS,))
    place = [p for p, place in enumerate(studied.places) if place is not None][-2]
    found = {}
    for graph in studied.stages([place]):
        document = msgspec.json.decode(msgspec.json.encode(graph))
        for spec in document["tensors"]:
            spec.pop("hidden", None)
        found |= hidden_matrices(msgspec.convert(document, StageGraph))
    assert found == HIDDEN | {"head.weight": MATRIX}  # nothing but a softmax follows


def test_kernels_and_several_heads():
    class Pictures(nn.Module):
        def __init__(self):
            super().__init__()
            self.stem = nn.Conv2d(3, 4, 3)
            self.each = nn.Conv2d(4, 4, 3, groups=4)
            self.mix = nn.Conv2d(4, 8, 1)
            self.body = nn.Linear(8, 8)
            self.one, self.two = nn.Linear(8, 2), nn.Linear(8, 3)

        def forward(self, x):
            x = self.mix(self.each(self.stem(x)).relu()).amax((2, 3))
            x = x + self.body(x)
            return self.one(x), self.two(x).softmax(-1)

    (whole,) = stages_of(Pictures(), torch.randn(2, 3, 8, 8))
    assert hidden_matrices(whole) == dict.fromkeys(
        ("stem.weight", "mix.weight", "body.weight"), MATRIX
    )
