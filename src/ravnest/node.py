"""`Node`: one provider, as the documentation describes it.

The same script runs on every provider; its role follows from its name. A Root is fed by the script,
a Stem or Leaf serves in the background whatever the script does, until the Root says goodbye.
"""

import contextlib
import os
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from pathlib import Path
from typing import Any, Literal, NamedTuple

import msgspec
import torch
from torch import nn

from ravnest.errors import NodeError, RavnestError
from ravnest.provider.assembly import StageSettings, build_runner
from ravnest.provider.averaging.settings import Averaging
from ravnest.provider.averaging.share import Rules
from ravnest.provider.compression import Compression
from ravnest.provider.compute.device_memory import Room
from ravnest.provider.compute.optimizers import optimizer_named
from ravnest.provider.compute.updating import UpdateSettings
from ravnest.provider.control import Control
from ravnest.provider.criterion import OwnLoss, criterion_of
from ravnest.provider.document import read_document
from ravnest.provider.inputs import BatchInputs
from ravnest.provider.leaf import LeafSettings, Metric
from ravnest.provider.lifetime import Lifetime
from ravnest.provider.numbering import BatchNumbers
from ravnest.provider.options import (
    at_least_two,
    made_with,
    micro_batches_of,
    most_in_flight,
    one_of,
    own_loader,
    positive,
    positive_number,
    precision_named,
    seconds,
    unknown_argument,
    usable_device,
)
from ravnest.provider.place import Place, Rings
from ravnest.provider.proof import proof_of, token_digest, tokens_in
from ravnest.provider.runner import StageRunner
from ravnest.provider.runtime import ProviderRuntime
from ravnest.provider.shards import WHOLE, Shard, shard
from ravnest.provider.surroundings import surroundings
from ravnest.provider.telemetry import Telemetry
from ravnest.rundir import RunDir, file_of_cluster
from ravnest.stage import structure
from ravnest.stage.package import Limits, load_package
from ravnest.wire import messages
from ravnest.wire.networks import network_for
from ravnest.wire.peers import Patience
from ravnest.wire.routes import Routes, split_address
from ravnest.wire.security import TlsFiles

_RESULTS_UNDER_WAY = 16
_WATCHED_BATCHES = 16
"""With which the Leaf is told what the model is given."""
_FINISHED_KEPT = 1 << 16
"""A loop of the user's own may never ask for them."""


class FinishedBatch(NamedTuple):
    """One that has been trained on."""

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
        criterion: Callable[[Any, Any], torch.Tensor] | Literal["output"] | None = None,
        update_frequency: int = 1,
        reduce_factor: int | None = None,
        labels: Any = None,
        test_labels: Any = None,
        device: torch.device | str = torch.device("cpu"),
        loss_filename: str = "losses.txt",
        compression: bool | str | Mapping[str, bool | str | None] = False,
        average_optim: bool = False,
        *,
        averaging: Averaging | None = None,
        shard_data: bool = True,
        schedule: Literal["async", "sync"] = "async",
        micro_batches: int | Literal["auto"] = "auto",
        max_versions: int = 2,
        max_in_flight: int | None = None,
        clip_grad_norm: float | None = None,
        clip_grad_value: float | None = None,
        look_ahead: bool = True,
        precision: str | None = None,
        loss_scale: float | None = None,
        recompute: bool | Literal["auto"] = "auto",
        compile: bool = False,
        metrics: Mapping[str, Metric] | None = None,
        reconstructs: bool = False,
        transport: Literal["grpc", "tcp"] = "grpc",
        tls: TlsFiles | None = None,
        routes: Mapping[str, str] | None = None,
        listen: str | None = None,
        bandwidth_mbps: float | None = None,
        telemetry: bool = False,
        patience: Patience | None = None,
        farewell_s: float = 600.0,
        node_data: str | Path | None = None,
        package_limits: Limits | None = None,
        start: bool = True,
        **kwargs: Any,
    ) -> None:
        if kwargs:
            raise NodeError(unknown_argument("Node", next(iter(kwargs)), Node.__init__))
        self.name = name or os.environ.get("RAVNEST_NODE", "")
        self.run = RunDir(node_data or os.environ.get("RAVNEST_NODE_DATA", "node_data"))
        self.document = read_document(self.run, self.name)
        self.update_frequency = positive("update_frequency", update_frequency)
        self.micro_batches = micro_batches_of(self.document, micro_batches)
        self.device = usable_device(device)
        self.averaging = made_with(Averaging, "averaging", averaging) or Averaging()
        several = self.document.ring_size > 1
        share = Shard(self.cluster_id, self.document.ring_size) if several else WHOLE
        packing = Compression.of(compression)
        self.criterion = criterion = criterion_of(criterion)
        farewell_s = seconds("farewell_s", farewell_s)
        self._model = model
        self._package = load_package(Path(self.document.template_path), package_limits)
        if self._package.manifest.plan_id != self.document.plan_id:
            raise NodeError(f"{self.document.template_path} belongs to another plan; plan again")
        self._graph = self._package.graph
        # Where Root and Leaf are one provider they may have been given one loader.
        both = self.is_root and self.is_leaf
        self.settings = StageSettings(
            update=UpdateSettings(
                optimizer=optimizer_named(optimizer),
                optimizer_params=dict(optimizer_params or {}),
                lr_scheduler=lr_scheduler,
                lr_scheduler_params=dict(lr_scheduler_params or {}),
                lr_step_on_epoch_change=lr_step_on_epoch_change,
                clip_norm=positive_number("clip_grad_norm", clip_grad_norm),
                clip_value=positive_number("clip_grad_value", clip_grad_value),
                look_ahead=bool(look_ahead),
            ),
            leaf=LeafSettings(
                criterion=criterion,
                labels=own_loader(labels) if both else labels,
                test_labels=own_loader(test_labels) if both else test_labels,
                metrics=dict(metrics or {}),
                reconstructs=bool(reconstructs),
                loss_file=file_of_cluster(loss_filename, self.cluster_id),
                accuracy_file=file_of_cluster("val_accuracies.txt", self.cluster_id),
                shard=share if shard_data else WHOLE,
            ),
            schedule=one_of("schedule", schedule, ("async", "sync")),
            micro_batches=self.micro_batches,
            max_versions=at_least_two("max_versions", max_versions),
            most_in_flight=most_in_flight(self.document, max_in_flight, self.micro_batches),
            precision=precision_named(precision, loss_scale),
            recompute=self.document.recompute if recompute == "auto" else bool(recompute),
            compile=compile,
            averaging=self._averaging_rules(reduce_factor) if several else None,
            average_optim=bool(average_optim),
            compression=packing,
        )
        around = surroundings()
        if around.device_share is not None:
            Room(self.device).limit(around.device_share)
        listen = around.listen if listen is None else listen
        if listen is not None:
            split_address(listen, "listen")
        self._listen = listen or self.document.listen
        speed = around.bandwidth_mbps if bandwidth_mbps is None else bandwidth_mbps
        self._make_network = network_for(
            transport,
            tls or around.tls,
            Routes(around.routes if routes is None else routes),
            positive_number("bandwidth_mbps", speed),
        )
        self._patience = made_with(Patience, "patience", patience) or around.patience
        self.telemetry = Telemetry() if telemetry or around.is_watched else None
        """What this provider is doing: `telemetry.drain()` from time to time."""
        self._inputs = BatchInputs(self._graph)
        self._numbers = BatchNumbers(
            micro_batches=self.micro_batches,
            update_frequency=self.update_frequency,
            least_rows=self._graph.train.least_rows,
        )
        self._validating: deque[Future[Any]] = deque()
        self._is_training = False
        """Micro-batches are on their way, and stages have put their weights ahead of them."""
        self._has_met = False
        self._trained_since_meeting = False
        self.stages: dict[str, float] = {}
        """How the stages spent the last epoch: busy/<stage>, staleness/<stage>."""
        self._finished: deque[FinishedBatch] = deque(maxlen=_FINISHED_KEPT)
        self._lifetime = Lifetime(
            self.name,
            self._make_runtime,
            is_root=self.is_root,
            farewell_s=farewell_s,
            owes_round=lambda: self._trained_since_meeting,
        )
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

    # ---- start and end ----

    def start(self) -> None:
        """Load the stage, listen, and call the neighbours; returns at once."""
        self._lifetime.start()

    def close(self) -> None:
        """The end of this provider's part. A Root says goodbye to the others; the others serve
        until it has."""
        self._lifetime.close()

    def __enter__(self) -> "Node":
        self.start()
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self._lifetime.leave_block(error)

    def give_up(self, error: BaseException) -> None:
        """End the run for everybody because the script does not go on with it."""
        self._lifetime.give_up(error)

    @property
    def runtime(self) -> ProviderRuntime:
        return self._lifetime.runtime

    @property
    def failure(self) -> RavnestError | None:
        """What has ended the run, if something has. A `PeerError` is the fault of another provider,
        and its `node` says of which; anything else is this one's own."""
        return self._lifetime.failure

    def _make_runtime(self) -> ProviderRuntime:
        document = self.document
        return ProviderRuntime(
            Place(
                run=document.plan_id,
                node=self.name,
                listen=self._listen,
                previous=document.previous,
                next=document.next,
            ),
            self._make_network,
            self._make_runner,
            patience=self._patience,
            queue_limit=4 * self.micro_batches + 4,
            on_batch=self._batch_done,
            rings=Rings(document.rings, self.averaging, self.settings.compression),
            telemetry=self.telemetry,
        )

    def _averaging_rules(self, reduce_factor: int | None) -> Rules:
        every = None if reduce_factor is None else positive("reduce_factor", reduce_factor)
        return Rules(every, self.averaging.mode == "blocking")

    def _make_runner(self, runtime: ProviderRuntime) -> StageRunner:
        stage = self._package.module(self.device, model=self._model)
        return build_runner(
            self._package, stage, self.settings, runtime.user, telemetry=self.telemetry
        )

    def _batch_done(self, of: messages.MicroBatch, loss: float | None) -> None:
        if self.is_root:
            self._finished.append(FinishedBatch(of.batch_rows, loss, time.monotonic()))

    def finished_batches(self) -> Iterator[FinishedBatch]:
        """Every batch trained on since the last time; at the Root."""
        with contextlib.suppress(IndexError):
            while True:
                yield self._finished.popleft()

    @property
    def input_names(self) -> tuple[str, ...]:
        """What the model calls its inputs; on the Root."""
        return tuple(argument.name for argument in self._graph.arguments)

    def set_lr_scheduler(self, factory: Callable[..., Any], params: Mapping[str, Any]) -> None:
        """Use this schedule from now on."""
        runtime = self.runtime
        runner = runtime.runner
        assert runner is not None
        runtime.user.ask(lambda: runner.set_lr_scheduler(factory, params))

    def check_can_train(self) -> None:
        """An error now rather than with the first batch, if something is missing for training."""
        settings = self.settings
        if settings.update.optimizer is None:
            raise NodeError(
                "there is nothing to train with: give Node an optimizer, such as "
                "optimizer=torch.optim.AdamW, optimizer_params={'lr': 1e-3}"
            )
        needed = ("criterion",) if isinstance(self.criterion, OwnLoss) else ("criterion", "labels")
        for name in needed if self.is_leaf else ():
            if getattr(settings.leaf, name) is None:
                raise NodeError(f"the Leaf cannot train without {name}: Node(…, {name}=…)")

    def shard(self, loader: Any) -> Any:
        """The batches of this cluster: with several clusters, each trains on every m-th one of the
        same loader. `Trainer` does this with its `train_loader`; a loop of your own over another
        loader has to."""
        return shard(loader, self.settings.leaf.shard)

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
        values, rows = self._inputs.bind(tensors, kwargs, "train")
        proof = proof_of(list(values.values()) if proof_of_item is None else proof_of_item)
        self._trained_since_meeting = self.document.ring_size > 1
        self._is_training = True
        with self._lifetime.interruptible() as user:
            for of, first, last in self._numbers.training(rows):
                message = messages.Forward(of=of, task="train", carried=())
                if of.part == 0:
                    given = list(values.values()) if of.batch < _WATCHED_BATCHES else ()
                    tokens = tuple(token_digest(tensor) for tensor in tokens_in(given))
                    message = msgspec.structs.replace(message, proof=proof, tokens=tokens)
                user.submit(message, self._inputs.rows(values, first, last, rows))

    def wait_for_backwards(self) -> None:
        """The end of an epoch: wait until every batch has been trained on, everywhere."""
        if not self.is_root:
            return
        with self._lifetime.interruptible() as user:
            self.stages = dict(user.order("epoch").metrics)
        self._numbers.update_ended()

    def flush(self) -> None:
        """Wait until every batch so far has been trained on, everywhere, in the middle of an epoch;
        an update that has begun is made with the batches there are."""
        if self.is_root:
            with self._lifetime.interruptible() as user:
                user.order("flush")
            self._numbers.update_ended()

    def wait_while_paused(self, control: Control) -> None:
        """Feed nothing until `control` lets go; raises if the run fails meanwhile."""
        if self.is_root:
            with self._lifetime.interruptible() as user:
                user.wait_for_call(control.when_not_paused)

    def synchronize(self) -> None:
        """The end of training with several clusters: wait for the others and average once more.
        Afterwards all of them hold the same weights. Part of saving, of `finish_training` and, if
        there was training, of `close`; again it does nothing without training in between."""
        owes = self._trained_since_meeting or not self._has_met
        if self.is_root and owes and self.document.ring_size > 1:
            self._trained_since_meeting, self._has_met = False, True
            with self._lifetime.interruptible() as user:
                user.order("average")
            self._numbers.update_ended()

    def finish_training(self) -> None:
        """Let the other providers' `train()` return; they go on serving evaluations."""
        if self.is_root:
            self.synchronize()
            with self._lifetime.interruptible() as user:
                user.order("done")

    def serve_until_trained(self) -> None:
        """On a Stem or Leaf: return when the Root says that training is over."""
        with self._lifetime.interruptible() as user:
            user.wait_until_trained()

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
        values, rows = self._inputs.bind(tensors, kwargs, "eval")
        proof = proof_of(list(values.values()) if item is None else item)
        of = self._numbers.without_gradients(rows)
        with self._lifetime.interruptible() as user:
            if self._is_training:
                user.order("settle")
                self._is_training = False
            future = user.expect_result(of.batch)
            user.submit(messages.Forward(of=of, task=task, carried=(), proof=proof), values)
            if task == "validate":
                self._validating.append(future)
                while len(self._validating) > _RESULTS_UNDER_WAY:
                    user.wait_for(self._validating.popleft())
                return None
            answer, tensors_found = user.wait_for(future)
        shape = msgspec.json.decode(answer.structure)
        return structure.rebuild(shape, lambda number: tensors_found[number])

    def finish_validation(self) -> dict[str, float]:
        """What the Leaf found over all batches given since the last time."""
        if not self.is_root:
            return {}
        with self._lifetime.interruptible() as user:
            self._validating.clear()
            return dict(user.order("validation").metrics)

    # ---- results ----

    def trigger_save_submodel(self) -> None:
        """Have every provider of the cluster save its trained stage."""
        if self.is_root:
            self.synchronize()
            with self._lifetime.interruptible() as user:
                user.order("save")

    # ---- documented names of things that happen by themselves ----

    def init_server(self, *args: Any, **kwargs: Any) -> None:
        """Prepare to be called by others; part of `start`."""
        self.start()

    def start_grpc_server(self) -> None:
        """Listen for the neighbours; part of `start`."""
        self.start()

    def check_load_forward_buffer(self) -> None:
        """Look after what has arrived; the compute thread does so all the time."""
        self.runtime.user.check()

    def reset(self) -> None:
        """Forget losses and validation results that nobody has asked for; weights stay."""
        self.runtime.user.check()
        if self.is_root:
            with self._lifetime.interruptible() as user:
                user.order("reset")
        self._validating.clear()
        self.stages = {}
        for _ in self.finished_batches():
            pass
