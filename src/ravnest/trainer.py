"""`Trainer`: the training loop, the same on every provider; subclass it for a loop of your own."""

import functools
import logging
import os
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch

from ravnest.callbacks import Callback, CallbackList, Progress
from ravnest.errors import NodeError
from ravnest.node import Node
from ravnest.provider.control import Control
from ravnest.provider.criterion import OwnLoss
from ravnest.provider.leaf import score_of
from ravnest.provider.options import made_with, not_negative, positive
from ravnest.provider.surroundings import REPORTS

logger = logging.getLogger("ravnest")


class _ServedError(BaseException):
    """Leaves a Stem's or Leaf's `train()`: its part is done, the rest is the Root's."""


class Trainer:
    """Feeds the data to a Root; on a Stem or Leaf, serves until the Root has trained."""

    def __init__(
        self,
        node: Node | None = None,
        lr_scheduler: Callable[..., Any] | None = None,
        lr_scheduler_params: Mapping[str, Any] | None = None,
        train_loader: Any = None,
        val_loader: Any = None,
        val_freq: int = 1,
        save: bool = False,
        epochs: int = 1,
        batch_size: int = 64,
        step_size: int = 1,
        inputs_dtype: torch.dtype | None = None,
        *,
        callbacks: Iterable[Callback] = (),
        control: Control | None = None,
        first_epoch: int = 0,
    ) -> None:
        if node is None:
            raise NodeError("Trainer needs a node: Trainer(node=Node(…), …)")
        self.node = node
        self.lr_scheduler = lr_scheduler
        self.lr_scheduler_params = dict(lr_scheduler_params or {})
        if train_loader is not None:
            train_loader = node.shard(train_loader)
        self.train_loader = train_loader
        self.val_loader = val_loader
        self.val_freq = positive("val_freq", val_freq)
        self.save = save
        self.epochs = epochs
        self.batch_size = batch_size
        self.step_size = step_size
        self.inputs_dtype = inputs_dtype
        self.n_forwards = 0
        self.metrics: dict[str, float] = {}
        self.control = made_with(Control, "control", control)
        self.first_epoch = not_negative("first_epoch", first_epoch)
        self.epochs_done = first_epoch
        """Whole ones, with those of earlier runs."""
        self.batches_done = 0
        """Of an epoch that was stopped in the middle."""
        self.was_stopped = False
        leaf = node.settings.leaf
        needs_labels = node.is_leaf and not isinstance(leaf.criterion, OwnLoss)
        if val_loader is not None and needs_labels and leaf.test_labels is None:
            raise NodeError(
                "there is a val_loader, but nothing to compare with: Node(…, test_labels=…) needs "
                "the same data on the Leaf"
            )
        self.progress = Progress(
            epochs=epochs,
            epoch=first_epoch,
            first_epoch=first_epoch,
            batches_per_epoch=_length(train_loader),
            cluster=node.cluster_id,
            clusters=node.document.ring_size,
        )
        self.callbacks = CallbackList([*callbacks, *self._reporting()])
        self._in_train = False
        self._began = 0.0

    def _reporting(self) -> list[Callback]:
        """For whoever has started this program and wants to know how it goes."""
        if REPORTS not in os.environ:
            return []
        from ravnest.worker.scripted import begin_reports

        return begin_reports(self.node, self.progress.batches_per_epoch, self.first_epoch)

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "train" in cls.__dict__:
            cls.train = _returning_when_served(cls.train)  # type: ignore[method-assign]

    def prelim_checks(self) -> None:
        """First call in every `train()`. On a Stem or Leaf it serves until training is over, and
        `train()` returns from there."""
        self.node.check_can_train()
        if self.lr_scheduler is not None:
            self.node.set_lr_scheduler(self.lr_scheduler, self.lr_scheduler_params)
            self.lr_scheduler = None
        if self.node.is_root:
            return
        self.node.serve_until_trained()
        if self._in_train:
            raise _ServedError

    def train(self) -> None:
        """All epochs, with validation in between and the result saved at the end as asked for."""
        self.prelim_checks()
        if self.train_loader is None:
            raise NodeError("the Root needs a train_loader: Trainer(…, train_loader=…)")
        progress = self.progress
        self._began = time.monotonic()
        self.callbacks.on_train_begin(progress)
        try:
            for epoch in range(self.first_epoch, self.epochs):
                if not self.goes_on():
                    break
                progress.epoch = epoch
                self._train_epoch()
            self._finish()
        finally:
            self.callbacks.on_train_end(progress)

    def goes_on(self) -> bool:
        """To be asked before every batch: waits while training is paused; False once it is to be
        stopped."""
        if self.control is not None and not self.was_stopped:
            self._wait_while_paused(self.control)
            self.was_stopped = self.control.is_stopped
        return not self.was_stopped

    def _wait_while_paused(self, control: Control) -> None:
        if control.is_paused:
            logger.info("%s: training is paused", self.node.name)
            self._tell_callbacks()
            self.node.wait_while_paused(control)
            logger.info("%s: training goes on", self.node.name)

    def _train_epoch(self) -> None:
        progress = self.progress
        self.callbacks.on_epoch_begin(progress)
        for batch in self.train_loader:
            if not self.goes_on():
                self.node.flush()
                self._tell_callbacks()
                return
            self._train_on(batch)
            self.batches_done += 1
        self.node.wait_for_backwards()
        self.epochs_done, self.batches_done = progress.epoch + 1, 0
        self._tell_callbacks()
        progress.stages = self.node.stages
        self.callbacks.on_epoch_end(progress)
        if progress.epoch + 1 == self.epochs:
            self.node.synchronize()
        if self.val_loader is not None and (progress.epoch + 1) % self.val_freq == 0:
            self.evaluate()

    def _finish(self) -> None:
        if self.save:
            self.node.trigger_save_submodel()
        self.node.finish_training()

    def _train_on(self, batch: Any) -> None:
        self.node.forward_compute(self._inputs(batch), data_id=self.n_forwards, proof_of_item=batch)
        self.n_forwards += 1
        self._tell_callbacks()

    def _tell_callbacks(self) -> None:
        """Of every batch that has come back since the last time."""
        progress = self.progress
        for batch in self.node.finished_batches():
            progress.step += 1
            progress.samples += batch.rows
            progress.loss = batch.loss
            progress.seconds = batch.at - self._began
            progress.samples_per_second = progress.samples / max(progress.seconds, 1e-9)
            self.callbacks.on_step_end(progress)

    def evaluate(self) -> float | None:
        """Accuracy over the validation data, through the split model, or the first of the metrics
        that Node was given; all of them are kept in `metrics`. None on a Stem or Leaf, and if there
        is nothing but a loss."""
        if not self.node.is_root:
            return None
        if self.val_loader is None:
            raise NodeError("evaluate needs a val_loader: Trainer(…, val_loader=…)")
        for batch in self.val_loader:
            self.node.no_grad_forward_compute(
                self._inputs(batch), output_type="val_accuracy", proof_of_item=batch
            )
        self.metrics = self.progress.metrics = self.node.finish_validation()
        self.callbacks.on_evaluate(self.progress)
        return score_of(self.metrics)

    def pred(self, data: Any) -> Any:
        """The model's output for these inputs, on the Root; None elsewhere."""
        return self.node.no_grad_forward_compute(self._cast(data))

    def _inputs(self, batch: Any) -> Any:
        """What of a batch goes into the model: everything but the labels."""
        names = self.node.input_names
        if isinstance(batch, Mapping):
            return {name: self._cast(batch[name]) for name in names if name in batch}
        if isinstance(batch, tuple | list):
            inputs = tuple(batch[: len(names)])
            return tuple(self._cast(value) for value in inputs)
        return self._cast(batch)

    def _cast(self, value: Any) -> Any:
        if self.inputs_dtype is not None and isinstance(value, torch.Tensor):
            return value.to(self.inputs_dtype)
        return value


def _length(loader: Any) -> int | None:
    try:
        return len(loader)
    except TypeError:
        return None


def _returning_when_served(train: Callable[..., Any]) -> Callable[..., Any]:
    """A `train()` in which `prelim_checks` may end a Stem's or Leaf's part."""

    @functools.wraps(train)
    def wrapped(self: Trainer, *args: Any, **kwargs: Any) -> Any:
        self._in_train, before = True, self._in_train
        try:
            return train(self, *args, **kwargs)
        except _ServedError:
            if before:
                raise
            return None
        except SystemExit as leaving:  # which does not look like a failure from outside
            self.node.give_up(leaving)
            raise
        finally:
            self._in_train = before

    return wrapped


Trainer.train = _returning_when_served(Trainer.train)  # type: ignore[method-assign]
