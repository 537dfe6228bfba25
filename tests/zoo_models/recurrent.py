"""Hand-written recurrent networks: fused layers, cells in a Python loop, several layers deep."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from zoo_models.entry import ZooEntry, floats, inputs, integers

_VOCABULARY = 50


class Tagger(nn.Module):
    """A fused recurrent layer that labels every token and returns its final state too."""

    def __init__(self, layer: type[nn.LSTM] | type[nn.GRU] | type[nn.RNN], layers: int = 2) -> None:
        super().__init__()
        self.embed = nn.Embedding(_VOCABULARY, 24)
        self.project = nn.Linear(24, 24)
        self.recurrent = layer(24, 32, num_layers=layers, dropout=0.1, batch_first=True)
        self.norm = nn.LayerNorm(32)
        self.head = nn.Linear(32, 7)

    def forward(self, ids: Tensor) -> tuple[Tensor, Tensor | tuple[Tensor, Tensor]]:
        hidden, state = self.recurrent(torch.tanh(self.project(self.embed(ids))))
        return self.head(self.norm(hidden)), state


class BidirectionalClassifier(nn.Module):
    """A bidirectional LSTM read out at its mean, with a projection of the hidden state."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(_VOCABULARY, 16, padding_idx=0)
        self.lower = nn.LSTM(16, 20, batch_first=True, bidirectional=True)
        self.upper = nn.LSTM(40, 20, batch_first=True, bidirectional=True, proj_size=12)
        self.dropout = nn.Dropout(0.2)
        self.hidden = nn.Linear(24, 24)
        self.head = nn.Linear(24, 3)

    def forward(self, ids: Tensor) -> Tensor:
        x, _ = self.lower(self.embed(ids))
        x, _ = self.upper(self.dropout(x))
        return self.head(torch.relu(self.hidden(x.mean(dim=1))))


class CellLoop(nn.Module):
    """Two cells stepped over time in Python, with the batch size read from the input."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.embed = nn.Linear(6, width)
        self.lstm = nn.LSTMCell(width, width)
        self.gru = nn.GRUCell(width, width)
        self.head = nn.Linear(width, 4)

    def forward(self, x: Tensor) -> Tensor:
        batch, steps, _ = x.shape
        h = x.new_zeros(batch, self.lstm.hidden_size)
        c, top = torch.zeros_like(h), torch.zeros_like(h)
        outputs = []
        for step in range(steps):
            h, c = self.lstm(self.embed(x[:, step]), (h, c))
            top = self.gru(h, top)
            outputs.append(self.head(top))
        return torch.stack(outputs, dim=1)


class ConvolutionalRecurrent(nn.Module):
    """A convolutional front end, a GRU with a learned initial state, attention over time."""

    def __init__(self) -> None:
        super().__init__()
        self.front = nn.Sequential(
            nn.Conv1d(4, 16, 3, padding=1), nn.BatchNorm1d(16), nn.ReLU(inplace=True)
        )
        self.start = nn.Parameter(torch.zeros(1, 1, 16))
        self.recurrent = nn.GRU(16, 16, batch_first=True)
        self.score = nn.Linear(16, 1)
        self.head = nn.Sequential(nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 5))

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        features = self.front(x).transpose(1, 2)
        start = self.start.expand(-1, x.shape[0], -1).contiguous()
        hidden, last = self.recurrent(features, start)
        weights = self.score(hidden).softmax(dim=1)
        return {"logits": self.head((weights * hidden).sum(dim=1)), "last": last.squeeze(0)}


def lstm_tagger() -> nn.Module:
    return Tagger(nn.LSTM)


def gru_tagger() -> nn.Module:
    return Tagger(nn.GRU)


def elman_tagger() -> nn.Module:
    return Tagger(nn.RNN)


_TOKENS = inputs(integers(_VOCABULARY, 5))

ENTRIES = (
    ZooEntry("lstm", lstm_tagger, _TOKENS),
    ZooEntry("gru", gru_tagger, _TOKENS),
    ZooEntry("elman_rnn", elman_tagger, _TOKENS),
    ZooEntry("bidirectional_lstm", BidirectionalClassifier, _TOKENS),
    ZooEntry("cell_loop", CellLoop, inputs(floats(5, 6))),
    ZooEntry("conv_recurrent", ConvolutionalRecurrent, inputs(floats(4, 5))),
)
