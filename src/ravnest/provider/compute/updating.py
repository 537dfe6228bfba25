"""From accumulated gradients to new weights: the user's optimizer, its schedule, clipping."""

import inspect
import logging
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from ravnest.errors import NodeError
from ravnest.provider.compute.optimizers import OptimizerFactory
from ravnest.provider.compute.room import Room, StepMemory
from ravnest.provider.compute.versions import WeightVersions
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


class Updater:
    """Owns the optimizer of one stage."""

    def __init__(
        self,
        versions: WeightVersions,
        owned: Sequence[nn.Parameter],
        settings: UpdateSettings,
        *,
        loss_scale: float = 1.0,
    ) -> None:
        self._versions = versions
        self._owned = list(owned)
        self._settings = settings
        self._loss_scale = loss_scale
        self.optimizer = self._make_optimizer()
        device = self._owned[0].device if self._owned else torch.device("cpu")
        self._step_memory = StepMemory(self.optimizer, Room(device))
        self.scheduler: Any = None
        self._updates = 0
        self._update_losses = _Mean()
        self._epoch_losses = _Mean()
        if settings.lr_scheduler is not None:
            self.set_scheduler(settings.lr_scheduler, settings.lr_scheduler_params)

    def _make_optimizer(self) -> torch.optim.Optimizer | None:
        factory, params = self._settings.optimizer, dict(self._settings.optimizer_params)
        if factory is None or not self._owned:
            return None
        name = getattr(factory, "__name__", factory)
        try:
            optimizer = factory(self._owned, **params)
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

    def needed_bytes(self, *, in_place: bool) -> int:
        """By the next update, beside what there is now."""
        return self._step_memory.needed() + (0 if in_place else self._versions.bytes_to_move)

    def squared_norm(self, batches: float) -> float:
        """Of this stage's own gradients, as they would be applied."""
        gradients = [p.grad for p in self._owned if p.grad is not None]
        if not gradients:
            return 0.0
        norms = torch._foreach_norm(gradients)
        total = float(torch.stack([n.float() for n in norms]).square().sum())
        return total / (batches * self._loss_scale) ** 2

    def apply(
        self,
        version: int,
        *,
        update: int,
        batches: float,
        in_place: bool,
        total_squared_norm: float | None = None,
        then: Callable[[], None] | None = None,
    ) -> None:
        """One optimizer step with the mean over the batches; makes `version`.

        `update` counts over the run. Where this one makes up for several that had to wait, the
        schedule goes on by as many steps: it is the same for all stages then. `then` may change the
        weights further, before anybody uses them.
        """
        if self.optimizer is None and self._owned:
            raise NodeError(
                "there is nothing to train with: give Node an optimizer, such as "
                "optimizer=torch.optim.AdamW, optimizer_params={'lr': 1e-3}"
            )
        self._versions.prepare_update(in_place=in_place)
        gradients = [p.grad for p in self._owned if p.grad is not None]
        factor = self._factor(batches, total_squared_norm)
        if gradients and factor != 1.0:
            torch._foreach_mul_(gradients, factor)
        if self._settings.clip_value is not None:
            nn.utils.clip_grad_value_(self._owned, self._settings.clip_value)
        if self.optimizer is not None and self._are_usable(gradients):
            # An optimizer of torch leaves nothing unwritten, and allocates more than the passes do.
            self._step_memory.prepare()
            with without_zero_fill():
                self.optimizer.step()
        if then is not None:
            then()
        for parameter in self._owned:  # those of copies are under way to their owner, or will be
            parameter.grad = None
        self._versions.finish_update(version, in_place=in_place)
        passed, self._updates = update + 1 - self._updates, update + 1
        if self.scheduler is not None and not self._settings.lr_step_on_epoch_change:
            metric = self._update_losses.take()
            for _ in range(passed):
                self._step_scheduler(metric)

    def heard_loss(self, loss: float) -> None:
        """Of one batch; every stage hears of it with the batch's last gradients."""
        self._update_losses.add(loss)
        self._epoch_losses.add(loss)

    def _step_scheduler(self, metric: float | None) -> None:
        if "metrics" not in inspect.signature(self.scheduler.step).parameters:
            self.scheduler.step()
        elif metric is not None:
            self.scheduler.step(metric)

    def _are_usable(self, gradients: Sequence[torch.Tensor]) -> bool:
        """Whether all are finite; looked at only where a scaled loss may have made them others."""
        if self._loss_scale == 1.0 or all(bool(g.isfinite().all()) for g in gradients):
            return True
        logger.warning(
            "an update is left out: gradients times loss_scale=%g do not fit into half precision. "
            "If this goes on, give Node a smaller loss_scale",
            self._loss_scale,
        )
        return False

    def _factor(self, batches: float, total_squared_norm: float | None) -> float:
        factor = 1.0 / (batches * self._loss_scale)
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
