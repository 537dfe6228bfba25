"""Parameters that several stages hold: one owner, copies that follow it.

The first stage that holds such a parameter owns it: it alone has it in its optimizer. Stages with a
copy send their gradients back to the owner with every batch, just before the batch's last
gradients, so the owner has them when it makes its update; the new values travel forward again ahead
of the micro-batches that were computed with them.
"""

from collections.abc import Sequence

import torch
from torch import nn

from ravnest.errors import PackageError, WireError
from ravnest.stage.graph import StageGraph, TensorSpec
from ravnest.stage.local import added
from ravnest.wire.messages import TiedGradient, TiedWeights


class TiedParameters:
    """This stage's view of the parameters it shares with others."""

    def __init__(self, graph: StageGraph, masters: dict[str, nn.Parameter]) -> None:
        self._stage = graph.stage
        shared = [spec for spec in graph.tensors if spec.trainable and len(spec.stages) > 1]
        for spec in shared:
            if spec.owner != (graph.stage == min(spec.stages)):
                raise PackageError(f"{spec.name!r} must be owned by the first stage that holds it")
        self._masters = masters
        self.owned = {spec.name: spec for spec in shared if spec.owner}
        self.copies = {spec.name: spec for spec in shared if not spec.owner}
        self._waiting: dict[str, torch.Tensor] = {}

    # ---- on a stage with copies ----

    def gradients_to_send(self) -> list[tuple[TiedGradient, tuple[torch.Tensor, ...]]]:
        """Take this batch's gradients of the copies, one message per owner."""
        by_owner: dict[int, list[TensorSpec]] = {}
        for spec in self.copies.values():
            if self._masters[spec.name].grad is not None:
                by_owner.setdefault(min(spec.stages), []).append(spec)
        found = []
        for owner, specs in by_owner.items():
            gradients = []
            for spec in specs:
                gradient = self._masters[spec.name].grad
                assert gradient is not None
                gradients.append(gradient)
                self._masters[spec.name].grad = None
            names = tuple(spec.name for spec in specs)
            found.append((TiedGradient(names=names, owner=owner), tuple(gradients)))
        return found

    def weights_arrived(self, names: Sequence[str], values: Sequence[torch.Tensor]) -> None:
        for name, value in zip(names, values, strict=True):
            if name in self.copies:
                self._waiting[name] = value

    @property
    def has_news(self) -> bool:
        return bool(self._waiting)

    def adopt(self) -> None:
        """Write the newest values into the masters; nobody may be using them."""
        with torch.no_grad():
            for name, value in self._waiting.items():
                self._masters[name].copy_(value)
        self._waiting.clear()

    # ---- on the owner ----

    def gradients_arrived(self, names: Sequence[str], values: Sequence[torch.Tensor]) -> None:
        for name, value in zip(names, values, strict=True):
            if name not in self.owned:
                raise WireError(f"a gradient of {name!r} came to a stage that does not own it")
            master = self._masters[name]
            moved = value.to(master.device, master.dtype)
            if moved.shape != master.shape:
                raise WireError(f"the gradient of {name!r} has shape {list(moved.shape)}")
            master.grad = moved if master.grad is None else added(master.grad, moved)

    def weights_to_send(self) -> tuple[TiedWeights, tuple[torch.Tensor, ...]] | None:
        """Copies, because the optimizer writes to the originals while these are under way."""
        if not self.owned:
            return None
        values = tuple(self._masters[name].detach().clone() for name in self.owned)
        return TiedWeights(names=tuple(self.owned)), values

    def is_for_later(self, names: Sequence[str], stages: int) -> bool:
        """Whether a later stage may hold a copy of one of these."""
        known = [self.copies[name] for name in names if name in self.copies]
        if len(known) < len(names):
            return self._stage + 1 < stages
        return any(max(spec.stages) > self._stage for spec in known)
