"""From accumulated gradients to new weights: the user's optimizer, its schedule, clipping."""

import functools
import inspect
import logging
import math
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from ravnest.errors import NodeError
from ravnest.provider.compute.ahead import LookAhead
from ravnest.provider.compute.device_memory import Room, StepMemory
from ravnest.provider.compute.optimizers import OptimizerFactory, grouped
from ravnest.provider.compute.versions import WeightVersions
from ravnest.stage.local import added
from ravnest.stage.zero_fill import without_zero_fill

logger = logging.getLogger("ravnest")


@dataclass(frozen=True)
class UpdateSettings:
    """What the user decides about updates. Classes or factories, called with the parameters."""

    optimizer: OptimizerFactory | None = None
    optimizer_params: Mapping[str, Any] = field(default_factory=dict)
    lr_scheduler: Callable[..., Any] | None = None
    lr_scheduler_params: Mapping[str, Any] = field(default_factory=dict)
    lr_step_on_epoch_change: bool = True
    clip_norm: float | None = None
    clip_value: float | None = None
    look_ahead: bool = True
    """Weights are put ahead as their gradients are old."""


class _Mean:
    """Of the losses since it was last asked for."""

    def __init__(self) -> None:
        self._sum, self._count = 0.0, 0

    def add(self, value: float) -> None:
        self._sum += value
        self._count += 1

    def take(self) -> float | None:
        mean = self._sum / self._count if self._count else None
        self._sum, self._count = 0.0, 0
        return mean


def _numbers(gradient: torch.Tensor) -> torch.Tensor:
    """All that are not zero, in a type in which their squares do not overflow."""
    values = gradient.coalesce().values() if gradient.is_sparse else gradient
    return values.float() if values.element_size() < 4 else values


class Updater:
    """Owns the optimizer of one stage."""

    def __init__(
        self,
        versions: WeightVersions,
        owned: Sequence[nn.Parameter],
        settings: UpdateSettings,
        *,
        matrices: Mapping[nn.Parameter, str] | None = None,
        scale_adapts: bool = False,
    ) -> None:
        """`matrices` are the hidden ones among the owned, for optimizers that treat them apart."""
        self._versions = versions
        self._owned = list(owned)
        self._matrices = dict(matrices or {})
        self._settings = settings
        self._scale_adapts = scale_adapts
        self.loss_scale = 1.0
        """The gradients collected so far are so many times too large."""
        self.optimizer = self._make_optimizer()
        device = self._owned[0].device if self._owned else torch.device("cpu")
        self._step_memory = StepMemory(self.optimizer, Room(device))
        self._ahead = LookAhead(self.optimizer if settings.look_ahead else None)
        self.scheduler: Any = None
        self._updates = 0
        self._update_losses: defaultdict[int, _Mean] = defaultdict(_Mean)
        self._epoch_losses = _Mean()
        if settings.lr_scheduler is not None:
            self.set_scheduler(settings.lr_scheduler, settings.lr_scheduler_params)

    def _make_optimizer(self) -> torch.optim.Optimizer | None:
        factory, params = self._settings.optimizer, dict(self._settings.optimizer_params)
        if factory is None or not self._owned:
            return None
        name = getattr(factory, "__name__", factory)
        try:
            optimizer = factory(self._as_wanted(factory), **params)
        except (TypeError, ValueError) as error:
            raise NodeError(
                f"the optimizer {name!r} cannot be made from optimizer_params={params!r}: {error}"
            ) from error
        closure = inspect.signature(optimizer.step).parameters.get("closure")
        if closure is not None and closure.default is inspect.Parameter.empty:
            raise NodeError(
                f"the optimizer {name!r} wants to compute the loss again within a step, which a "
                "pipeline cannot do; choose one whose step() needs no closure"
            )
        return optimizer

    def _as_wanted(self, factory: OptimizerFactory) -> Sequence[Any]:
        if getattr(factory, "tells_matrices", False):
            return grouped(self._owned, self._matrices)
        return self._owned

    def set_scheduler(self, factory: Callable[..., Any], params: Mapping[str, Any]) -> None:
        if self.optimizer is None:
            return
        try:
            self.scheduler = factory(self.optimizer, **params)
        except (TypeError, ValueError) as error:
            raise NodeError(
                f"the scheduler {getattr(factory, '__name__', factory)!r} cannot be made from "
                f"lr_scheduler_params={dict(params)!r}: {error}"
            ) from error

    def needed_bytes(self, *, in_place: bool, lag: float = 0.0) -> int:
        """By the next update, beside what there is now."""
        moved = 0 if in_place else self._versions.bytes_to_move
        return self._step_memory.needed() + self._ahead.needed(lag) + moved

    def collects(self, loss_scale: float) -> None:
        """What is collected from now on is so many times too large; what has been, is made so."""
        if loss_scale == self.loss_scale:
            return
        gradients = [p.grad for p in self._versions.masters if p.grad is not None]
        if gradients:
            torch._foreach_mul_(gradients, loss_scale / self.loss_scale)
        self.loss_scale = loss_scale

    def squared_norm(
        self, batches: float, more: Mapping[nn.Parameter, torch.Tensor] | None = None
    ) -> float:
        """Of this stage's own gradients, as they would be applied, with what is to be added to
        them. Not finite if one of them is not: the device is waited for once, for all of them."""
        given = {p: p.grad for p in self._owned if p.grad is not None}
        for parameter, gradient in (more or {}).items():
            own = given.get(parameter)
            given[parameter] = gradient if own is None else added(own, gradient)
        if not given:
            return 0.0
        norms = torch._foreach_norm([_numbers(gradient) for gradient in given.values()])
        finest = functools.reduce(torch.promote_types, (n.dtype for n in norms), torch.float32)
        found: list[float] = torch.stack([norm.to(finest) for norm in norms]).tolist()
        return sum(norm * norm for norm in found) / (batches * self.loss_scale) ** 2

    def apply(
        self,
        version: int,
        *,
        update: int,
        batches: float,
        in_place: bool,
        lag: float = 0.0,
        total_squared_norm: float | None = None,
        then: Callable[[], None] | None = None,
    ) -> None:
        """One optimizer step with the mean over the batches, whose gradients are `lag` steps old;
        makes `version`.

        `update` counts over the run. Where this one makes up for several that had to wait, the
        schedule goes on by as many steps: it is the same for all stages then. Without a finite norm
        the weights stay as they are, and everything else goes on. `then` may change them further,
        before anybody uses them.
        """
        if self.optimizer is None and self._owned:
            raise NodeError(
                "there is nothing to train with: give Node an optimizer, such as "
                "optimizer=torch.optim.AdamW, optimizer_params={'lr': 1e-3}"
            )
        self._versions.prepare_update(in_place=in_place)
        if total_squared_norm is not None and not math.isfinite(total_squared_norm):
            self._say_left_out()
        else:
            self._step(self._factor(batches, total_squared_norm), lag)
        if then is not None:
            then()
        for parameter in self._owned:  # those of copies are under way to their owner, or will be
            parameter.grad = None
        self._versions.finish_update(version, in_place=in_place)
        passed, self._updates = range(self._updates, update + 1), update + 1
        for number in passed:
            metric = self._update_losses.pop(number, _Mean()).take()
            if self.scheduler is not None and not self._settings.lr_step_on_epoch_change:
                self._step_scheduler(metric)

    def _step(self, factor: float, lag: float) -> None:
        gradients = [p.grad for p in self._owned if p.grad is not None]
        if gradients and factor != 1.0:
            torch._foreach_mul_(gradients, factor)
        if gradients and self._settings.clip_value is not None:
            nn.utils.clip_grad_value_(self._owned, self._settings.clip_value)
        if self.optimizer is not None:
            self._ahead.before_step(lag)
            self._step_memory.prepare()
            # An optimizer of torch leaves nothing unwritten, and allocates more than the passes do.
            with without_zero_fill():
                self.optimizer.step()
            self._ahead.after_step()

    def return_from_ahead(self) -> bool:
        """Have the weights stand where the optimizer left them, while nothing is in flight: to be
        saved, judged, or averaged as they are. Whether they have changed."""
        return self._ahead.return_()

    def heard_loss(self, update: int, loss: float) -> None:
        """Of one batch; every stage hears of it with the batch's last gradients, and so of the same
        losses for the same update."""
        self._update_losses[update].add(loss)
        self._epoch_losses.add(loss)

    def _step_scheduler(self, metric: float | None) -> None:
        if "metrics" not in inspect.signature(self.scheduler.step).parameters:
            self.scheduler.step()
        elif metric is not None:
            self.scheduler.step(metric)

    def _say_left_out(self) -> None:
        if self._scale_adapts:  # it is made smaller
            logger.info("an update is left out: gradients times %g do not fit", self.loss_scale)
        elif self.loss_scale != 1.0:
            logger.warning(
                "an update is left out: gradients times loss_scale=%g do not fit into half "
                "precision. If this goes on, give Node a smaller loss_scale, or none",
                self.loss_scale,
            )
        else:
            logger.warning(
                "an update is left out: the norm of its gradients, by which they were to be "
                "clipped, is infinite or not a number"
            )

    def _factor(self, batches: float, total_squared_norm: float | None) -> float:
        factor = 1.0 / (batches * self.loss_scale)
        limit = self._settings.clip_norm
        if limit is not None and total_squared_norm is not None:
            # The same formula as torch.nn.utils.clip_grad_norm_.
            factor *= min(1.0, limit / (math.sqrt(total_squared_norm) + 1e-6))
        return factor

    def epoch_ended(self) -> None:
        metric = self._epoch_losses.take()
        if self.scheduler is not None and self._settings.lr_step_on_epoch_change:
            self._step_scheduler(metric)

    @property
    def learning_rate(self) -> float | None:
        return None if self.optimizer is None else float(self.optimizer.param_groups[0]["lr"])
