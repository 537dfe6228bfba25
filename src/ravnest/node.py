"""`Node`: one provider, as the documentation describes it.

The same script runs on every provider; its role follows from its name. A Root is fed by the script,
a Stem or Leaf serves in the background whatever the script does, until the Root says goodbye.
"""

import atexit
import contextlib
import copy
import logging
import os
import queue
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any, Literal, NamedTuple

import msgspec
import torch
from torch import nn
from torch.utils.data import DataLoader

from ravnest.errors import NodeError, RunError
from ravnest.provider.assembly import StageSettings, build_runner
from ravnest.provider.batches import part_bounds
from ravnest.provider.compute.optimizers import optimizer_named
from ravnest.provider.compute.passes import Precision
from ravnest.provider.compute.updating import UpdateSettings
from ravnest.provider.document import read_document
from ravnest.provider.leaf import LeafSettings, Metric
from ravnest.provider.proof import proof_of
from ravnest.provider.runner import StageRunner
from ravnest.provider.runtime import Place, ProviderRuntime
from ravnest.rundir import RunDir
from ravnest.stage import structure
from ravnest.stage.graph import Mode
from ravnest.stage.local import bind_inputs, check_batch
from ravnest.stage.package import load_package
from ravnest.wire import messages
from ravnest.wire.grpc_network import GrpcNetwork
from ravnest.wire.link import Patience
from ravnest.wire.security import TlsFiles

logger = logging.getLogger("ravnest")
_PRECISIONS = {None: None, "bf16": torch.bfloat16, "fp16": torch.float16}
_RESULTS_UNDER_WAY = 16
_FP16_SCALE = 4096.0


class FinishedBatch(NamedTuple):
    rows: int
    loss: float | None
    at: float
    """By the clock of time.monotonic."""


class Node:
    """A provider's end of a training run."""

    def __init__(
        self,
        name: str | None = None,
        model: nn.Module | None = None,
        optimizer: Callable[..., torch.optim.Optimizer] | str | None = None,
        optimizer_params: Mapping[str, Any] | None = None,
        lr_scheduler: Callable[..., Any] | None = None,
        lr_scheduler_params: Mapping[str, Any] | None = None,
        lr_step_on_epoch_change: bool = True,
        criterion: Callable[[Any, Any], torch.Tensor] | None = None,
        update_frequency: int = 1,
        reduce_factor: int | None = None,
        labels: Any = None,
        test_labels: Any = None,
        device: torch.device | str = torch.device("cpu"),
        loss_filename: str = "losses.txt",
        compression: bool | str = False,
        average_optim: bool = False,
        *,
        schedule: Literal["async", "sync"] = "async",
        micro_batches: int | Literal["auto"] = "auto",
        max_versions: int = 2,
        max_in_flight: int | None = None,
        clip_grad_norm: float | None = None,
        clip_grad_value: float | None = None,
        precision: str | None = None,
        loss_scale: float | None = None,
        compile: bool = False,
        metrics: Mapping[str, Metric] | None = None,
        tls: TlsFiles | None = None,
        patience: Patience | None = None,
        farewell_s: float = 600.0,
        node_data: str | Path = "node_data",
        start: bool = True,
        **kwargs: Any,
    ) -> None:
        if kwargs:
            raise NodeError(f"Node does not know the argument {next(iter(kwargs))!r}")
        self.name = name or os.environ.get("RAVNEST_NODE", "")
        self.run = RunDir(node_data)
        self.document = read_document(self.run, self.name)
        self.update_frequency = _positive("update_frequency", update_frequency)
        self.micro_batches = (
            self.document.micro_batches
            if micro_batches == "auto"
            else _positive("micro_batches", micro_batches)
        )
        self.device = torch.device(device)
        for argument, given in {
            "reduce_factor": reduce_factor,
            "compression": compression,
            "average_optim": average_optim,
        }.items():
            if given:
                logger.warning("%s=%r has no effect in this release", argument, given)
        self.criterion = criterion
        self._farewell_s = farewell_s
        self._model = model
        self._package = load_package(Path(self.document.template_path))
        if self._package.manifest.plan_id != self.document.plan_id:
            raise NodeError(f"{self.document.template_path} belongs to another plan; plan again")
        self._graph = self._package.graph
        self._settings = StageSettings(
            update=UpdateSettings(
                optimizer=optimizer_named(optimizer),
                optimizer_params=dict(optimizer_params or {}),
                lr_scheduler=lr_scheduler,
                lr_scheduler_params=dict(lr_scheduler_params or {}),
                lr_step_on_epoch_change=lr_step_on_epoch_change,
                clip_norm=clip_grad_norm,
                clip_value=clip_grad_value,
            ),
            leaf=LeafSettings(
                criterion=criterion,
                labels=self._own(labels),
                test_labels=self._own(test_labels),
                metrics=dict(metrics or {}),
                loss_file=self._file(loss_filename),
                accuracy_file=self._file("val_accuracies.txt"),
            ),
            schedule=_one_of("schedule", schedule, ("async", "sync")),
            micro_batches=self.micro_batches,
            max_versions=max_versions,
            most_in_flight=self._most_in_flight(max_in_flight),
            precision=_precision(precision, loss_scale),
            compile=compile,
        )
        self._tls = tls.read() if tls is not None else None
        self._patience = patience
        self._batch = 0
        self._batches_in_update = 0
        self._update = 0
        self._validating: deque[Future[Any]] = deque()
        self.stages: dict[str, float] = {}
        """How the stages spent the last epoch: busy/<stage>, staleness/<stage>."""
        self._finished: queue.SimpleQueue[FinishedBatch] = queue.SimpleQueue()
        self._runtime: ProviderRuntime | None = None
        if start:
            self.start()

    # ---- who this is ----

    @property
    def is_root(self) -> bool:
        return self._graph.is_first

    @property
    def is_leaf(self) -> bool:
        return self._graph.is_last

    @property
    def node_type(self) -> str:
        return self.document.node_type

    @property
    def cluster_id(self) -> int:
        return self.document.rank

    def _most_in_flight(self, wanted: int | None) -> int | None:
        """What the user says, else what memory has room for."""
        fits = self.document.most_in_flight
        if wanted is not None or fits is None:
            return wanted
        return max(1, fits * self.micro_batches // self.document.micro_batches)

    def _file(self, name: str) -> Path:
        """Every cluster has a Leaf, and they may share a folder."""
        path = Path(name)
        cluster = self.document.rank
        return path if cluster == 0 else path.with_stem(f"{path.stem}_cluster_{cluster}")

    def _own(self, loader: Any) -> Any:
        """The Leaf's reading of the data. Where Root and Leaf are one provider they may have been
        given one loader, whose generator must not be drawn from twice."""
        if not (self.is_root and self.is_leaf and isinstance(loader, DataLoader)):
            return loader
        return copy.deepcopy(loader, {id(loader.dataset): loader.dataset})

    # ---- start and end ----

    def start(self) -> None:
        """Load the stage, listen, and call the neighbours; returns at once."""
        if self._runtime is not None:
            return
        document = self.document
        self._runtime = ProviderRuntime(
            Place(
                run=f"{document.plan_id}/{document.rank}",
                node=self.name,
                listen=document.listen,
                previous=document.previous,
                next=document.next,
            ),
            lambda: GrpcNetwork(self._tls),
            self._make_runner,
            patience=self._patience,
            queue_limit=4 * self.micro_batches + 4,
            on_batch=self._batch_done,
        )
        self._runtime.start()
        atexit.register(self._at_exit)

    def _make_runner(self, runtime: ProviderRuntime) -> StageRunner:
        stage = self._package.module(self.device, model=self._model)
        return build_runner(self._package, stage, self._settings, runtime)

    def _batch_done(self, of: messages.MicroBatch, loss: float | None) -> None:
        if self.is_root:
            self._finished.put(FinishedBatch(of.batch_rows, loss, time.monotonic()))

    def finished_batches(self) -> Iterator[FinishedBatch]:
        """Every batch trained on since the last time; at the Root."""
        with contextlib.suppress(queue.Empty):
            while True:
                yield self._finished.get_nowait()

    def close(self) -> None:
        """The end of this provider's part. A Root says goodbye to the others; the others serve
        until it has."""
        runtime, self._runtime = self._runtime, None
        if runtime is None:
            return
        atexit.unregister(self._at_exit)
        try:
            if runtime.failure is None:
                if self.is_root:
                    runtime.order("goodbye")
                elif not runtime.wait_for_goodbye(self._farewell_s):
                    logger.warning(
                        "%s: nothing heard from the Root for %g s; leaving",
                        self.name,
                        self._farewell_s,
                    )
        except KeyboardInterrupt:
            runtime.abort("interrupted")
            raise
        finally:
            runtime.close()

    def _at_exit(self) -> None:
        runtime = self._runtime
        if runtime is None:
            return
        unhandled = getattr(sys, "last_value", None)
        if unhandled is not None:
            runtime.abort(f"its script ended with {type(unhandled).__name__}: {unhandled}")
        failed_before = runtime.failure is not None
        try:
            self.close()
        except RunError as error:
            logger.error("%s: %s", self.name, error)
        if runtime.failure is not None and not failed_before:
            # The script has ended without noticing; its exit code must still tell.
            logger.error("%s: %s", self.name, runtime.failure)
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(1)

    def __enter__(self) -> "Node":
        self.start()
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is not None and self._runtime is not None:
            self._runtime.abort(f"its script ended with {type(error).__name__}: {error}")
        self.close()

    @property
    def runtime(self) -> ProviderRuntime:
        if self._runtime is None:
            raise NodeError(f"{self.name} has been closed, or was never started")
        return self._runtime

    @contextlib.contextmanager
    def _interruptible(self) -> Iterator[ProviderRuntime]:
        """Ctrl-C while waiting ends the run for everybody."""
        runtime = self.runtime
        try:
            yield runtime
        except KeyboardInterrupt:
            runtime.abort("interrupted")
            raise

    @property
    def input_names(self) -> tuple[str, ...]:
        """What the model calls its inputs; on the Root."""
        return tuple(argument.name for argument in self._graph.arguments)

    def set_lr_scheduler(self, factory: Callable[..., Any], params: Mapping[str, Any]) -> None:
        """Use this schedule from now on."""
        runtime = self.runtime
        runner = runtime.runner
        assert runner is not None
        runtime.ask(lambda: runner.set_lr_scheduler(factory, params))

    # ---- training, on the Root ----

    def forward_compute(
        self,
        tensors: Any = None,
        data_id: int | None = None,
        *,
        proof_of_item: Any = None,
        **kwargs: Any,
    ) -> None:
        """Send one batch on its way; its gradients come back by themselves.

        `tensors` are the model's positional inputs (one, or a sequence), keywords its keyword
        inputs. Returns as soon as there is room for the next batch. On a Stem or Leaf it does
        nothing: they are fed by their neighbours.
        """
        if not self.is_root:
            return
        values, rows = self._bind(tensors, kwargs, "train")
        proof = proof_of(list(values.values()) if proof_of_item is None else proof_of_item)
        closes = self._batches_in_update + 1 == self.update_frequency
        parts = max(1, min(self.micro_batches, rows // self._graph.train.least_rows))
        with self._interruptible() as runtime:
            for part, (first, last) in enumerate(part_bounds(rows, parts)):
                of = messages.MicroBatch(
                    batch=self._batch,
                    part=part,
                    parts=parts,
                    rows=last - first,
                    batch_rows=rows,
                    update=self._update,
                    closes_update=closes and part + 1 == parts,
                )
                message = messages.Forward(
                    of=of, task="train", carried=(), proof=proof if part == 0 else ()
                )
                runtime.submit(message, self._rows(values, first, last, rows))
        self._batch += 1
        self._batches_in_update += 1
        if closes:
            self._end_update()

    def _end_update(self) -> None:
        self._update += 1
        self._batches_in_update = 0

    def _bind(
        self, tensors: Any, kwargs: Mapping[str, Any], mode: Mode
    ) -> tuple[dict[int, Any], int]:
        graph = self._graph
        args: Sequence[Any]
        named = {_plain_name(name, graph): value for name, value in kwargs.items()}
        if tensors is None:
            args = ()
        elif isinstance(tensors, Mapping):
            args, named = (), {**tensors, **named}
        elif isinstance(tensors, tuple | list) and _are_arguments(tensors, graph):
            args = tensors
        else:
            args = (tensors,)
        values: dict[int, Any] = dict(bind_inputs(graph.arguments, args, named))
        check_batch(graph, values, mode)
        batched = [values[wire.value] for wire in graph.inputs if wire.shape[:1] == (-1,)]
        sized = batched or [v for v in values.values() if isinstance(v, torch.Tensor) and v.dim()]
        return values, int(sized[0].shape[0]) if sized else 1

    def _rows(self, values: dict[int, Any], first: int, last: int, rows: int) -> dict[int, Any]:
        if first == 0 and last == rows:
            return values
        open_values = {wire.value for wire in self._graph.inputs if wire.shape[:1] == (-1,)}
        return {
            number: value[first:last] if number in open_values else value
            for number, value in values.items()
        }

    def wait_for_backwards(self) -> None:
        """The end of an epoch: wait until every batch has been trained on, everywhere."""
        if not self.is_root:
            return
        with self._interruptible() as runtime:
            self.stages = dict(runtime.order("epoch").metrics)
        if self._batches_in_update:
            self._end_update()

    def finish_training(self) -> None:
        """Let the other providers' `train()` return; they go on serving evaluations."""
        if self.is_root:
            with self._interruptible() as runtime:
                runtime.order("done")

    def serve_until_trained(self) -> None:
        """On a Stem or Leaf: return when the Root says that training is over."""
        with self._interruptible() as runtime:
            runtime.wait_until_trained()

    # ---- evaluation, on the Root ----

    def no_grad_forward_compute(
        self, tensors: Any = None, output_type: str | None = None, **kwargs: Any
    ) -> Any:
        """A batch without gradients. Without `output_type` the model's output is returned; with one
        (such as "val_accuracy") the Leaf judges it by its `test_labels`, see `finish_validation`.
        """
        if not self.is_root:
            return None
        task: Literal["validate", "predict"] = "predict" if output_type is None else "validate"
        item = kwargs.pop("proof_of_item", None)
        values, rows = self._bind(tensors, kwargs, "eval")
        proof = proof_of(list(values.values()) if item is None else item)
        of = messages.MicroBatch(
            batch=self._batch,
            part=0,
            parts=1,
            rows=rows,
            batch_rows=rows,
            update=self._update,
            closes_update=False,
        )
        self._batch += 1
        with self._interruptible() as runtime:
            future = runtime.expect_result(of.batch)
            runtime.submit(messages.Forward(of=of, task=task, carried=(), proof=proof), values)
            if task == "validate":
                self._validating.append(future)
                while len(self._validating) > _RESULTS_UNDER_WAY:
                    self._validating.popleft().result()
                return None
            answer, tensors_found = future.result()
        shape = msgspec.json.decode(answer.structure)
        return structure.rebuild(shape, lambda number: tensors_found[number])

    def finish_validation(self) -> dict[str, float]:
        """What the Leaf found over all batches given since the last time."""
        if not self.is_root:
            return {}
        with self._interruptible() as runtime:
            self._validating.clear()
            return dict(runtime.order("validation").metrics)

    # ---- results ----

    def trigger_save_submodel(self) -> None:
        """Have every provider of the cluster save its trained stage."""
        if self.is_root:
            with self._interruptible() as runtime:
                runtime.order("save")

    # ---- documented names of things that happen by themselves ----

    def init_server(self, *args: Any, **kwargs: Any) -> None:
        """Prepare to be called by others; part of `start`."""
        self.start()

    def start_grpc_server(self) -> None:
        """Listen for the neighbours; part of `start`."""
        self.start()

    def check_load_forward_buffer(self) -> None:
        """Look after what has arrived; the compute thread does so all the time."""
        self.runtime.check()

    def reset(self) -> None:
        """Forget losses and validation results that nobody has asked for; weights stay."""
        self.runtime.check()
        self._validating.clear()
        self.stages = {}
        for _ in self.finished_batches():
            pass


def _precision(name: str | None, loss_scale: float | None) -> Precision:
    if loss_scale is not None and not loss_scale > 0:
        raise NodeError(f"loss_scale is {loss_scale!r}; expected a number above 0")
    autocast = _one_of("precision", name, _PRECISIONS, _PRECISIONS)
    usual = _FP16_SCALE if name == "fp16" else 1.0
    return Precision(autocast, usual if loss_scale is None else float(loss_scale))


def _positive(name: str, value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise NodeError(f"{name} is {value!r}; expected a whole number from 1")
    return value


def _one_of(name: str, value: Any, known: Any, meaning: Mapping[Any, Any] | None = None) -> Any:
    if value not in known:
        choices = ", ".join(repr(choice) for choice in known)
        raise NodeError(f"{name} is {value!r}; expected one of {choices}")
    return value if meaning is None else meaning[value]


def _plain_name(name: str, graph: Any) -> str:
    """`l_<name>_` is an older spelling of `<name>`."""
    names = {argument.name for argument in graph.arguments}
    older = name.startswith("l_") and name.endswith("_") and name not in names
    return name[2:-1] if older else name


def _are_arguments(tensors: Sequence[Any], graph: Any) -> bool:
    """A sequence is the model's arguments unless its only argument is a sequence itself."""
    if len(graph.arguments) != 1 or len(tensors) == 1:
        return True
    return isinstance(graph.arguments[0].structure, int)
