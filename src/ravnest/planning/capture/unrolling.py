"""Stacked recurrent networks, one operator per layer.

torch runs an LSTM, GRU or RNN of any depth as a single operator, which no cut can divide. Layer
after layer, with the dropout in between written out, it computes the same and can be cut.
"""

import operator
from collections.abc import Callable
from typing import Any

import torch

from ravnest.planning.capture.program import Op, Value

_STATES = {
    torch.ops.aten.lstm.input: 2,
    torch.ops.aten.gru.input: 1,
    torch.ops.aten.rnn_tanh.input: 1,
    torch.ops.aten.rnn_relu.input: 1,
}
"""Operator → how many states it carries: hidden, and for an LSTM cell as well."""


def unroll_recurrent(ops: list[Op], fresh: Callable[[], int]) -> list[Op]:
    """The same operators with stacked recurrent ones replaced; values keep their numbers."""
    stacked = {op.out: op for op in ops if op.target in _STATES and op.args[4] > 1}
    parts: dict[int, dict[int, int]] = {number: {} for number in stacked}
    for op in ops:
        if _is_part(op, stacked):
            parts[op.args[0].number][op.args[1]] = op.out
    result: list[Op] = []
    for op in ops:
        if op.out in stacked:
            result.extend(_Unrolled(op, parts[op.out], fresh).ops)
        elif not _is_part(op, stacked):
            result.append(op)
    return result


def _is_part(op: Op, stacked: dict[int, Op]) -> bool:
    """Does this operator pick one of the results of a stacked one?"""
    if op.target is not operator.getitem or not isinstance(op.args[0], Value):
        return False
    return op.args[0].number in stacked


class _Unrolled:
    """The layers of one stacked operator."""

    def __init__(self, op: Op, parts: dict[int, int], fresh: Callable[[], int]) -> None:
        self.op = op
        self.parts = parts
        """Which result (0 the output, then the states) has which value number."""
        self.fresh = fresh
        self.ops: list[Op] = []
        self._write()

    def _write(self) -> None:
        source, states, weights, biases, layers, dropout, train, both_ways, batch_first = (
            self.op.args
        )
        count = _STATES[self.op.target]
        given = list(states) if count == 2 else [states]
        ends: list[list[Value]] = [[] for _ in range(count)]
        share = len(weights) // layers
        for layer in range(layers):
            own = [self._slice(state, layer, layers, number) for number, state in enumerate(given)]
            last = layer == layers - 1
            mine = weights[layer * share : (layer + 1) * share]
            args = (source, own if count == 2 else own[0], mine, biases, 1, 0.0, train, both_ways)
            results = self._add(self.op.target, (*args, batch_first), self._layer_example(layers))
            source = self._pick(results, 0, self.op.example[0], self.parts.get(0) if last else None)
            for number in range(count):
                example = self._state_example(number, layers)
                ends[number].append(self._pick(results, number + 1, example, None))
            if dropout and train and not last:
                between = torch.ops.aten.dropout.default
                source = self._add(between, (source, dropout, train), self.op.example[0])
        for number, pieces in enumerate(ends):
            self._add(
                torch.ops.aten.cat.default,
                (pieces, 0),
                self.op.example[number + 1],
                self.parts.get(number + 1),
            )

    def _slice(self, state: Any, layer: int, layers: int, number: int) -> Value:
        rows = int(self.op.example[number + 1].shape[0]) // layers
        args = (state, 0, layer * rows, (layer + 1) * rows)
        return self._add(torch.ops.aten.slice.Tensor, args, self._state_example(number, layers))

    def _state_example(self, number: int, layers: int) -> torch.Tensor:
        whole: torch.Tensor = self.op.example[number + 1]
        return whole[: int(whole.shape[0]) // layers]

    def _layer_example(self, layers: int) -> tuple[Any, ...]:
        states = [self._state_example(n, layers) for n in range(_STATES[self.op.target])]
        return (self.op.example[0], *states)

    def _pick(self, results: Value, index: int, example: Any, number: int | None) -> Value:
        return self._add(operator.getitem, (results, index), example, number)

    def _add(
        self, target: Any, args: tuple[Any, ...], example: Any, number: int | None = None
    ) -> Value:
        op = Op(
            out=self.fresh() if number is None else number,
            target=target,
            args=args,
            kwargs={},
            example=example,
            context=self.op.context,
            path=self.op.path,
            source=self.op.source,
            region=self.op.region,
        )
        self.ops.append(op)
        return Value(op.out)
