"""A stage trained by a recipe: a Node and a Trainer, made of an order and nothing else."""

import contextlib
import logging
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from ravnest.api.jobs import Recipe
from ravnest.api.work import (
    MOST_LINKS,
    STOPPED_WITHIN_S,
    Assignment,
    Started,
    WorkEnd,
    WorkOrder,
)
from ravnest.errors import JobError, NodeError, RunError, text_without_values
from ravnest.node import Node
from ravnest.provider.averaging.settings import Averaging
from ravnest.provider.compute.device_memory import Room
from ravnest.provider.control import Control
from ravnest.recipes.criterion import build_criterion
from ravnest.recipes.metrics import build_metrics
from ravnest.recipes.optimizers import build_optimizer
from ravnest.recipes.randomness import key
from ravnest.recipes.schedules import build_schedule
from ravnest.sandbox.memory_limit import lacks_memory
from ravnest.stage.files import read_document
from ravnest.stage.graph import GRAPH_FORMAT, StageGraph
from ravnest.stage.package import GRAPH, Limits
from ravnest.trainer import Trainer
from ravnest.utils import set_seed
from ravnest.wire.peers import Patience
from ravnest.wire.security import TlsFiles
from ravnest.worker.blame import culprit
from ravnest.worker.feeding import Feed, feed
from ravnest.worker.journal import Journal, Notes
from ravnest.worker.reporting import Reporter
from ravnest.worker.saves import Saves
from ravnest.worker.speech import Speech
from ravnest.worker.steering import Action, Steering

logger = logging.getLogger("ravnest.worker")
CONNECT_S = 300.0
AWAY_S = 120.0
"""How long a neighbour may be away: the way to it may lead through a server that is restarted."""
LATE_S = 10.0
"""How long other clusters may be away once this one is told to stop: the reason may be that they
are lost."""
# Who waits longer than its agent does is killed, and what it has trained is lost.
assert LATE_S < AWAY_S < CONNECT_S < STOPPED_WITHIN_S / 2


def package_limits(order: WorkOrder) -> Limits:
    """The most that a package may ask for: a graph as large as the assignment says, and tensors
    that fit into the memory that the worker may take."""
    usual = Limits()
    sizes = {file.path: file.size for file in order.assignment.files}
    memory = order.memory_bytes or usual.weight_bytes
    return replace(
        usual,
        graph_bytes=min(usual.graph_bytes, sizes.get(f"package/{GRAPH}", usual.graph_bytes)),
        weight_bytes=min(usual.weight_bytes, memory),
        constant_elements=min(usual.constant_elements, memory),
    )


def most_rows(work: Assignment) -> int | None:
    """That a cluster can train on in this run. Clusters differ by a row at most, and a batch may be
    filled up."""
    left = work.training.epochs - work.epochs_done
    return (work.train_rows + work.training.batch_size) * left if work.train_rows else None


class RecipeTrainer(Trainer):
    """Judges the result whatever the number of epochs between two validations is."""

    _judged_after = -1

    def evaluate(self) -> float | None:
        self._judged_after = self.epochs_done
        return super().evaluate()

    def _finish(self) -> None:
        fresh = self._judged_after == self.epochs_done
        if self.val_loader is not None and not self.was_stopped and not fresh:
            self.node.synchronize()
            self.evaluate()
        super()._finish()


class Training:
    """Of one assignment; `run` from its beginning to its end."""

    def __init__(self, order: WorkOrder, folder: Path, speech: Speech, steering: Steering) -> None:
        work = order.assignment
        assert work.recipe is not None
        self._order, self._work = order, work
        self._recipe: Recipe = work.recipe
        self._folder = folder
        self._speech = speech
        self._steering = steering
        self._control = Control()
        self._notes = Notes()
        self._saves = Saves(folder / "package")
        self._node: Node | None = None
        self._trainer: RecipeTrainer | None = None
        self._journal: Journal | None = None
        self._reporter: Reporter | None = None

    def run(self) -> WorkEnd:
        logging.getLogger("ravnest").addHandler(self._notes)
        error: BaseException | None = None
        try:
            self._train()
        except Exception as found:
            logger.exception("the work has failed")
            error = found
        except SystemExit as leaving:
            error = RunError(f"the worker was ended ({leaving})")
        finally:
            if self._reporter is not None:
                self._reporter.stop()
        return self._end(error)

    def abort(self, reason: str) -> None:
        """From another thread: tell the others, and end."""
        if self._node is not None:
            with contextlib.suppress(NodeError):  # it has ended by itself
                self._node.runtime.abort(reason)

    # ---- from the beginning ----

    def _train(self) -> None:
        order, work = self._order, self._work
        set_seed(key(work.training.seed, work.cluster, work.stage, work.run) % 2**32)
        graph = read_document(
            self._folder / "package" / GRAPH,
            StageGraph,
            format=GRAPH_FORMAT,
            limit=package_limits(order).graph_bytes,
        )
        if (graph.stage, graph.stages) != (work.stage, work.stages):
            raise JobError(
                f"the order is about stage {work.stage} of {work.stages}, and the package is stage "
                f"{graph.stage} of {graph.stages}"
            )
        data = feed(work, self._recipe, graph, self._folder)
        self._node = node = self._make_node(data)
        if data.inputs is not None:
            self._journal = Journal(
                self._recipe,
                batches_per_epoch=data.batches_per_epoch,
                epochs_before=work.epochs_done,
                clock_offset_s=order.clock_offset_s,
            )
        self._trainer = trainer = self._make_trainer(node, data)
        with node:
            self._speech.say(Started())
            self._reporter = self._make_reporter(node)
            self._reporter.start()
            self._steering.obey_with(self._obey)
            trainer.train()

    def _make_node(self, data: Feed) -> Node:
        order, work, recipe = self._order, self._work, self._recipe
        training = work.training
        optimizer, optimizer_params = build_optimizer(recipe.optimizer)
        tls = self._folder / "tls"
        return Node(
            name=work.node,
            node_data=self._folder / "node_data",
            package_limits=package_limits(order),
            start=False,
            optimizer=optimizer,
            optimizer_params=optimizer_params,
            lr_scheduler=self._schedule(data),
            lr_step_on_epoch_change=recipe.schedule_per == "epoch",
            criterion=build_criterion(recipe),
            metrics=build_metrics(recipe),
            labels=data.targets,
            test_labels=data.validation_targets,
            shard_data=False,
            update_frequency=training.update_frequency,
            reduce_factor=training.reduce_factor,
            schedule=training.schedule,
            precision=training.precision,
            compression=training.compression,
            average_optim=training.average_optim,
            clip_grad_norm=training.clip_grad_norm,
            device=order.device,
            loss_filename=str(self._folder / "losses.txt"),
            tls=TlsFiles(
                tls / "ca.pem", tls / "certificate.pem", tls / "key.pem", names="provider"
            ),
            routes=order.routes,
            listen=order.listen,
            bandwidth_mbps=order.bandwidth_mbps,
            telemetry=True,
            patience=Patience(connect_s=CONNECT_S, resume_s=AWAY_S, nobody_s=AWAY_S),
            averaging=Averaging(
                connect_s=CONNECT_S, resume_s=AWAY_S, most_rows=most_rows(self._work)
            ),
        )

    def _schedule(self, data: Feed) -> Callable[..., Any] | None:
        """It goes on where an earlier run has ended."""
        recipe, training, done = self._recipe, self._work.training, self._work.epochs_done
        if recipe.schedule is None:
            return None
        if recipe.schedule_per == "epoch":
            return build_schedule(recipe.schedule, steps=training.epochs, done=done)
        if not data.batches_per_epoch:
            raise JobError(
                "the learning rate changes with every update, and this stage was not told how many "
                "there are: the order has no train_rows"
            )
        frequency = training.update_frequency
        return build_schedule(
            recipe.schedule,
            steps=data.updates(training.epochs, frequency),
            done=data.updates(done, frequency),
        )

    def _make_trainer(self, node: Node, data: Feed) -> RecipeTrainer:
        training = self._work.training
        return RecipeTrainer(
            node=node,
            train_loader=data.inputs,
            val_loader=data.validation_inputs,
            val_freq=training.validate_every or training.epochs,
            save=True,
            epochs=training.epochs,
            batch_size=training.batch_size,
            first_epoch=self._work.epochs_done,
            control=self._control,
            callbacks=[] if self._journal is None else [self._journal],
        )

    def _make_reporter(self, node: Node) -> Reporter:
        assert node.telemetry is not None
        return Reporter(
            self._speech,
            node.telemetry,
            self._notes,
            journal=self._journal,
            every_s=self._order.report_s,
            clock_offset_s=self._order.clock_offset_s,
            epochs_before=self._work.epochs_done,
            device_bytes=Room(node.device).used,
        )

    def _obey(self, action: Action) -> None:
        logger.info("the agent says: %s", action)
        match action:
            case "stop":
                self._control.stop()
                self._hurry()
            case "pause":
                self._control.pause()
            case "resume":
                self._control.resume()

    def _hurry(self) -> None:
        if self._node is not None:
            with contextlib.suppress(NodeError):  # it has ended by itself
                self._node.runtime.hurry(LATE_S)

    # ---- to the end ----

    def _end(self, error: BaseException | None) -> WorkEnd:
        work, saved = self._work, self._saves.is_new()
        done = self._epochs_done() if saved else work.epochs_done
        metrics = self._journal.metrics if self._journal is not None else {}
        telemetry = None if self._node is None else self._node.telemetry
        distrusts = () if telemetry is None else tuple(sorted(telemetry.distrusted)[:MOST_LINKS])
        if error is not None:
            text = text_without_values(error)
            return WorkEnd(
                outcome="failed",
                epochs_done=done,
                saved=saved,
                metrics=metrics,
                reason=text[:4000],
                culprit=culprit(error, work.node),
                out_of_memory=lacks_memory(error),
                distrusts=distrusts,
            )
        stopped = done < work.training.epochs
        return WorkEnd(
            outcome="stopped" if stopped else "done",
            epochs_done=done,
            saved=saved,
            metrics=metrics,
            reason="stopped before the last epoch" if stopped else "",
            distrusts=distrusts,
        )

    def _epochs_done(self) -> int:
        """A Root knows; others have seen the ends of epochs go by."""
        if self._trainer is not None and self._trainer.node.is_root:
            return self._trainer.epochs_done
        return self._reporter.epochs_done if self._reporter is not None else 0
