"""Parameters that several stages hold: one owner, copies that follow it.

The first stage that holds such a parameter owns it: it alone has it in its optimizer. Stages with a
copy send their gradients back to the owner with every batch, just before the batch's last
gradients, so the owner has them when it makes its update; the new values travel forward again ahead
of the micro-batches that were computed with them.

An owner that had to wait with an update has parts of the next batch among its own gradients, and of
the copies' it has whole batches. Until then these are kept apart, and are taken in by the update
that their batch belongs to, divided by as many batches as they are of.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import nn

from ravnest.errors import PackageError, WireError
from ravnest.stage.graph import StageGraph, TensorSpec
from ravnest.stage.local import added
from ravnest.wire.messages import TiedGradient, TiedWeights


@dataclass
class _Contribution:
    """Of the copies, to one update."""

    batches: int = 0
    sums: dict[str, torch.Tensor] = field(default_factory=dict)
    loss_scale: float = 1.0


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
        self._contributions: defaultdict[int, _Contribution] = defaultdict(_Contribution)

    # ---- on a stage with copies ----

    def gradients_to_send(
        self, update: int, loss_scale: float
    ) -> list[tuple[TiedGradient, tuple[torch.Tensor, ...]]]:
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
            message = TiedGradient(names=names, owner=owner, update=update, loss_scale=loss_scale)
            found.append((message, tuple(gradients)))
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

    def gradients_arrived(self, message: TiedGradient, values: Sequence[torch.Tensor]) -> None:
        found = self._contributions[message.update]
        for name, value in zip(message.names, values, strict=True):
            if name not in self.owned:
                raise WireError(f"a gradient of {name!r} came to a stage that does not own it")
            master = self._masters[name]
            moved = value.to(master.device, master.dtype)
            if moved.shape != master.shape:
                raise WireError(f"the gradient of {name!r} has shape {list(moved.shape)}")
            if message.loss_scale != found.loss_scale and found.sums:
                moved = moved * (found.loss_scale / message.loss_scale)
            else:
                found.loss_scale = message.loss_scale
            known = found.sums.get(name)
            found.sums[name] = moved if known is None else added(known, moved)

    def batch_ended(self, update: int) -> None:
        """All of its gradients are here, the copies' and the owner's."""
        if self.owned:
            self._contributions[update].batches += 1

    def contributed(
        self, update: int, batches: float, loss_scale: float
    ) -> dict[nn.Parameter, torch.Tensor]:
        """What copies add to the owner's own gradients up to this update, if these are sums over so
        many batches, and so many times too large."""
        due = [found for number, found in self._contributions.items() if number <= update]
        weight = batches / max(1, sum(found.batches for found in due))
        gradients: dict[nn.Parameter, torch.Tensor] = {}
        for found in due:
            factor = weight * loss_scale / found.loss_scale
            for name, value in found.sums.items():
                master, scaled = self._masters[name], value if factor == 1.0 else value * factor
                known = gradients.get(master)
                gradients[master] = scaled if known is None else added(known, scaled)
        return gradients

    def take_in(self, update: int, batches: float, loss_scale: float) -> None:
        """Add it: the update is about to be made."""
        for master, value in self.contributed(update, batches, loss_scale).items():
            master.grad = value if master.grad is None else added(master.grad, value)
        for number in [number for number in self._contributions if number <= update]:
            del self._contributions[number]

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
