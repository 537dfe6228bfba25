"""Does what the schedule says: the compute thread's work on one stage.

Everything that touches weights, activations or gradients happens here, on one thread, one event at
a time. Messages to the neighbours are handed to the links, which send them while this goes on.
"""

import itertools
import logging
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Protocol, TypeVar

import msgspec
import torch

from ravnest.errors import WireError
from ravnest.provider.averaging.share import Outcome, Share
from ravnest.provider.commands import Commands, Saving
from ravnest.provider.compression import Compression, Packing, leaving
from ravnest.provider.compute.copies import Copies, Sent, original
from ravnest.provider.compute.device_memory import Room, is_shortage, let_go
from ravnest.provider.compute.passes import Pass, StagePasses
from ravnest.provider.compute.updating import Updater
from ravnest.provider.leaf import Leaf
from ravnest.provider.meter import Meter
from ravnest.provider.norms import GradientNorms
from ravnest.provider.routing import (
    Onward,
    are_for,
    gradients_for_previous,
    pack_backward,
    pack_forward,
    unpack,
    unpack_gradients,
)
from ravnest.provider.schedule import pipeline as plan
from ravnest.provider.schedule.window import InFlightWindow, Trip
from ravnest.provider.telemetry import Telemetry
from ravnest.provider.tied import TiedParameters
from ravnest.stage import structure
from ravnest.wire import messages
from ravnest.wire.encoding import Parcel, opened

logger = logging.getLogger("ravnest")
T = TypeVar("T")
_AS_THEY_ARE = Packing(None)


class Outlet(Protocol):
    """Where messages to a neighbour go."""

    def send(self, parcel: Parcel) -> None: ...


class Observer(Protocol):
    """Is told what has happened, on the compute thread; must not take long."""

    def forwarded(self, of: messages.MicroBatch) -> None: ...
    def batch_done(self, of: messages.MicroBatch, loss: float | None) -> None: ...
    def obeyed(self, order: str, number: int) -> None: ...
    def replied(self, reply: messages.Reply) -> None: ...
    def result(self, message: messages.Result, tensors: tuple[torch.Tensor, ...]) -> None: ...


@dataclass(slots=True)
class _Work:
    """A micro-batch on this stage, from its arrival to its backward."""

    message: messages.Forward
    values: dict[int, Any]
    onward: Onward
    arrived_at: float
    item: Pass | None = None
    sent_at: float = 0.0
    served_s: float = 0.0
    """Spent computing on it."""
    gradients: dict[int, Any] | None = None
    later_norm: float = 0.0
    loss: float | None = None


class StageRunner:
    """One stage at work."""

    def __init__(
        self,
        *,
        passes: StagePasses,
        copies: Copies,
        updater: Updater,
        schedule: plan.StageSchedule,
        window: InFlightWindow,
        tied: TiedParameters,
        observer: Observer,
        leaf: Leaf | None,
        saving: Saving,
        norms: GradientNorms | None,
        share: Share | None = None,
        compression: Compression | None = None,
        telemetry: Telemetry | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.meter = Meter(clock())
        self.schedule = schedule
        self.window = window
        self.next: Outlet | None = None
        self.previous: Outlet | None = None
        self.copies = copies
        self._passes = passes
        self._updater = updater
        self._tied = tied
        self._observer = observer
        self._leaf = leaf
        self._norms = norms
        self.share = share
        """What is averaged with other clusters, if there are any."""
        codec = None if compression is None else compression.edges
        self._pack_forward, self._pack_backward = Packing(codec), Packing(codec)
        self._telemetry = telemetry
        self._clock = clock
        self._graph = graph = passes.stage.graph
        self._room = Room(copies.device)
        wires = graph.inputs if graph.is_first else graph.train.receives
        self._values = frozenset(wire.value for wire in (*wires, *graph.train.sends))
        """That this stage computes with when it trains, or has made for others."""
        self._commands = Commands(graph.stage, updater, leaf, share, saving, self.meter, clock)
        self._work: dict[plan.Key, _Work] = {}
        self._own_norm: float | None = None
        """Squared, of the gradients as they are; None if that has not been found out."""

    # ---- events ----

    def submit(self, message: messages.Forward, values: dict[int, Any]) -> None:
        """On the first stage: a micro-batch from the user."""
        self._enter(_Work(message, values, Onward(), self._clock()))

    def arrived(self, parcel: Parcel) -> None:
        """A message from a neighbour."""
        message = parcel.message
        match message:
            case messages.Forward():
                values, onward = unpack(message.carried, parcel.tensors, self._graph.stage)
                self._enter(_Work(message, values, onward, self._clock()))
            case messages.Backward():
                self._gradients_arrived(message, parcel.tensors)
            case messages.Command():
                self.command(message)
            case messages.TiedGradient():
                self._tied_gradient_arrived(message, parcel)
            case messages.TiedWeights():
                self._tied.weights_arrived(message.names, self._brought(parcel))
                if self.next is not None and self._tied.is_for_later(
                    message.names, self._graph.stages
                ):
                    self.next.send(_as_it_came(parcel))
            case messages.TotalNorm():
                self._total_norm_arrived(message)
                if self.next is not None:
                    self.next.send(parcel)
            case messages.Reply():
                self._reply(message)
            case messages.Result():
                if not self._hand_back(parcel):
                    self._observer.result(message, opened(parcel))
            case _:
                raise WireError(f"a {type(message).__name__} has no place in a running pipeline")

    def set_out(self, parcel: Parcel) -> Parcel:
        """With whatever this stage will compute with on its way to the device; from any thread."""
        ours = itertools.chain(
            are_for(parcel.message, self._graph.stage, self._values), itertools.repeat(False)
        )
        tensors = (
            self._set_out(tensor) if is_ours else tensor
            for tensor, is_ours in zip(parcel.tensors, ours, strict=False)
        )
        return replace(parcel, tensors=tuple(tensors))

    def _set_out(self, value: Any) -> Any:
        try:
            return self.copies.set_out(value)
        except Exception as error:
            if not is_shortage(error):
                raise
            return value  # it goes when it is needed

    def _brought(self, parcel: Parcel) -> tuple[torch.Tensor, ...]:
        return tuple(self.copies.brought(tensor) for tensor in parcel.tensors)

    def _hand_back(self, parcel: Parcel) -> bool:
        if self.previous is None:
            return False
        self.previous.send(parcel)
        return True

    def command(self, message: messages.Command) -> None:
        self.schedule.handle(
            plan.CommandReady(message.order, message.number, message.ends_update, message.token)
        )

    def _enter(self, work: _Work) -> None:
        of = work.message.of
        key = plan.Key(of.batch, of.part)
        self._work[key] = work
        self.schedule.handle(
            plan.ForwardReady(
                key,
                of.update,
                of.closes_update,
                weight=of.rows / max(of.batch_rows, 1),
                trains=work.message.task == "train",
            )
        )

    def _gradients_arrived(self, message: messages.Backward, tensors: tuple[Any, ...]) -> None:
        key = plan.Key(message.of.batch, message.of.part)
        work = self._work.get(key)
        if work is None or work.item is None or work.gradients is not None:
            raise WireError(f"gradients of {key}, which is not in flight here")
        work.gradients = unpack_gradients(message.carried, tensors)
        known = self._values | work.onward.payloads.keys()
        if unknown := work.gradients.keys() - known:
            raise WireError(f"a gradient of value {min(unknown)}, which this stage never sent")
        work.later_norm, work.loss = message.squared_norm, message.loss
        work.item.loss_scale = message.loss_scale
        now = self._clock()
        trip = Trip(now - work.sent_at, message.held_s, message.path_s, message.slowest_s)
        self.schedule.limit = self.window.returned(trip, now)
        self.schedule.handle(plan.BackwardReady(key))

    def _tied_gradient_arrived(self, message: messages.TiedGradient, parcel: Parcel) -> None:
        if message.owner == self._graph.stage:
            self._tied.gradients_arrived(message, self._brought(parcel))
        elif not self._hand_back(parcel):
            raise WireError("a tied gradient reached the first stage, which does not own it")

    def _total_norm_arrived(self, message: messages.TotalNorm) -> None:
        if self._norms is not None:
            self._norms.told(message.update, message.squared_norm)
        self._look_at_scale(message)
        self.schedule.handle(plan.UpdateAllowed(message.update))

    def _look_at_scale(self, message: messages.TotalNorm) -> None:
        if self._leaf is not None:
            finite = math.isfinite(message.squared_norm)
            self._passes.scale.heard(message.loss_scale, finite=finite)

    def averaged(self, outcome: Outcome) -> None:
        """A round with other clusters is over."""
        assert self.share is not None
        self.share.averaged(outcome)
        if self.schedule.newest_is_unused:
            self._apply_averages()

    def _apply_averages(self) -> None:
        assert self.share is not None
        started = self._clock()
        self.share.apply()
        if self._telemetry is not None:
            self._telemetry.did("average", -1, -1, started, self._clock())
        self.meter.rounds = self.share.rounds
        self._send_tied_weights()

    def set_lr_scheduler(self, factory: Callable[..., Any], params: Mapping[str, Any]) -> None:
        self._updater.set_scheduler(factory, params)

    def close(self) -> None:
        if self._leaf is not None:
            self._leaf.close()

    # ---- work ----

    def work(self) -> bool:
        """Do the next thing there is to do; False if there is nothing."""
        if self.schedule.newest_is_unused:
            if self.share is not None and self.share.has_news:
                self._apply_averages()
            if self._tied.has_news:
                self._tied.adopt()
        if self.share is not None and self.share.stands_still:
            self._note_wait()
            return False
        instruction = self.schedule.next()
        if instruction is None:
            self._note_wait()
            return False
        started = self._clock()
        match instruction:
            case plan.Forward():
                self._forward(instruction)
            case plan.Backward():
                self._backward(instruction)
            case plan.Update():
                self._update(instruction)
            case plan.Evaluate():
                self._evaluate(instruction)
            case plan.Obey():
                self._obey(instruction.command)
        ended = self._clock()
        self.meter.busy_s += ended - started
        if self._telemetry is not None:
            self._telemetry.did(*_described(instruction), started, ended)
        return True

    def _note_wait(self) -> None:
        if self._telemetry is not None:
            waits_for_others = self.share is not None and self.share.waits_for_others
            what = "clusters" if waits_for_others else self.schedule.awaits
            self._telemetry.waits(what, self._clock())

    def _forward(self, instruction: plan.Forward) -> None:
        work = self._work[instruction.key]
        started = self._clock()
        of = work.message.of
        work.item = item = self._first_pass(work, instruction.version)
        self.meter.forwards += 1
        if self._leaf is not None:
            leaf, told = self._leaf, work.message

            def loss(made: Any) -> torch.Tensor:
                return leaf.loss(made, of, told.proof, told.tokens)

            self._with_room(lambda: self._passes.with_loss(item, loss), of)
            self.copies.finish_pass()
            work.served_s = self._clock() - started
        else:
            assert item.outputs is not None
            self.copies.finish_pass()
            work.served_s = self._clock() - started
            self._send_on(work, {**item.inputs, **item.outputs}, self._graph.train.sends)
            self._passes.forget_values(item)
            work.sent_at = self._clock()
        self._observer.forwarded(of)

    def _first_pass(self, work: _Work, version: int) -> Pass:
        """Nobody but the pass holds the values; what they were before they came to the device is
        kept if that takes none of its memory."""
        copies, passes = self.copies, self._passes
        came = [work.values]
        before = {n: original(v) for n, v in work.values.items()} if copies.is_apart else {}
        again = (lambda: copies.bring(before)) if copies.is_apart else None
        work.values = {}

        def forward() -> Pass:
            return passes.forward(copies.bring(came.pop() if came else before), version, again)

        return self._with_room(forward, work.message.of)

    def _send_on(self, work: _Work, known: dict[int, Any], sends: Any) -> None:
        assert self.next is not None
        carried, tensors = pack_forward(sends, known, work.onward)
        message = msgspec.structs.replace(work.message, carried=carried)
        # Evaluation judges the model, not the codec.
        packing = self._pack_forward if message.task == "train" else _AS_THEY_ARE
        self._send_packed(self.next, packing, message, tensors)
        # Only which values went through here matters from now on, not what they were.
        work.onward.payloads = dict.fromkeys(work.onward.payloads)

    def _backward(self, instruction: plan.Backward) -> None:
        work = self._work.pop(instruction.key)
        item, of = work.item, work.message.of
        assert item is not None
        started = self._clock()
        self._own_norm = None
        self._updater.collects(item.loss_scale)
        # What is only handed on has no business on the device.
        bring, gradients = self.copies.brought, work.gradients or {}
        arrived = self._with_room(
            lambda: {n: bring(g) if n in self._values else g for n, g in gradients.items()}, of
        )
        own = self._with_room(lambda: self._passes.backward(item, arrived), of, item)
        self.copies.finish_pass()
        self.window.served(work.served_s + self._clock() - started)
        if instruction.frees_version:
            self._passes.versions.release(instruction.version)
        self.meter.came_back(instruction.staleness)
        if self._leaf is not None:
            assert item.loss is not None
            work.loss = self._leaf.finished_part(item.loss, of)
        if of.is_last_part:
            self._tied.batch_ended(of.update)
            if work.loss is not None:
                self._updater.heard_loss(of.update, work.loss)
        self._send_back(work, gradients_for_previous(own, arrived, work.onward))
        if self.share is not None:
            self.share.trained(of.rows)
        if of.is_last_part:
            self._observer.batch_done(of, work.loss)

    def _send_back(self, work: _Work, gradients: dict[int, Sent]) -> None:
        of, scale = work.message.of, self._updater.loss_scale
        norm = 0.0
        if self._norms is not None and of.is_last_part:
            self._norms.came_back(work.later_norm)
        if self.previous is None:
            return
        if of.is_last_part:
            for message, contribution in self._tied.gradients_to_send(of.update, scale):
                self.previous.send(Parcel(message, *self.copies.leave(contribution)))
            if self._norms is not None:
                batches = self.schedule.batches_accumulated
                more = self._tied.contributed(of.update, batches, scale)
                self._own_norm = self._updater.squared_norm(batches, more)
                norm = work.later_norm + self._own_norm
        carried, tensors = pack_backward(gradients)
        back = messages.Backward(
            of=of,
            carried=carried,
            loss_scale=scale,
            squared_norm=norm,
            loss=work.loss,
            held_s=self._clock() - work.arrived_at,
            path_s=self.window.path_s,
            slowest_s=self.window.slowest_s,
        )
        self._send_packed(self.previous, self._pack_backward, back, tensors)

    def _send_packed(
        self,
        outlet: Outlet,
        packing: Packing,
        message: messages.Message,
        tensors: tuple[Sent, ...],
    ) -> None:
        """Packed where they are: less has to leave the device then."""
        items, ready = leaving(packing.pack(tensors, outlet), self.copies.leave)
        outlet.send(Parcel(message, items, ready))

    def _with_room(self, act: Callable[[], T], of: messages.MicroBatch, *items: Pass) -> T:
        """A pass, which may lack memory on the device: then once more, without activations of the
        others and without keeping its own."""
        for again in (self._passes.recovers, False):
            try:
                return act()
            except Exception as error:
                if not is_shortage(error):
                    raise
                let_go(error)
                if not again:
                    self._room.sweep()
                    graph = self._graph
                    raise self._room.too_small(graph.stage, graph.stages, of) from error
                self._give_up_activations(*items)
        raise AssertionError("the second attempt returns or raises")

    def _give_up_activations(self, *items: Pass) -> None:
        in_flight = [work.item for work in self._work.values() if work.item is not None]
        self._passes.save_memory([*in_flight, *items])
        self._room.sweep()
        logger.warning(
            "stage %d lacks memory on %s: activations are computed again from now on, which takes "
            "longer",
            *(self._graph.stage, self._room.device),
        )

    def _update(self, instruction: plan.Update) -> None:
        share, free = self.share, self._room.free()
        self._tied.take_in(instruction.update, instruction.batches, self._updater.loss_scale)
        needed = self._updater.needed_bytes(in_place=instruction.in_place, lag=instruction.lag)
        if free is not None and free < needed and self._passes.recovers:
            self._give_up_activations()
        self._updater.apply(
            instruction.version,
            update=instruction.update,
            batches=instruction.batches,
            in_place=instruction.in_place,
            lag=instruction.lag,
            total_squared_norm=self._total_norm(instruction),
            then=share.apply if share is not None and share.has_news else None,
        )
        self.meter.updates += 1
        self.meter.batches += instruction.batches
        if self._tied.has_news:  # the new version is in nobody's use yet
            self._tied.adopt()
        if self._leaf is not None:
            self._leaf.updated()
        self._send_tied_weights()
        if share is not None:
            self.meter.rounds = share.rounds
            share.updated(instruction.update + 1)
            if share.stands_still:  # nothing is in flight then
                self._return_from_ahead()

    def _return_from_ahead(self) -> None:
        """Whoever looks at the weights between two batches finds the optimizer's own."""
        if self._updater.return_from_ahead():
            self._send_tied_weights()

    def _send_tied_weights(self) -> None:
        news = self._tied.weights_to_send()
        if news is not None and self.next is not None:
            message, tensors = news
            self.next.send(Parcel(message, *self.copies.leave(tensors)))

    def _total_norm(self, instruction: plan.Update) -> float | None:
        if self._norms is None:
            return None
        own = self._own_norm
        if own is None:
            own = self._updater.squared_norm(instruction.batches)
        total = self._norms.total(instruction.update, own)
        if self.previous is None:
            told = messages.TotalNorm(
                update=instruction.update,
                squared_norm=total,
                loss_scale=self._updater.loss_scale,
            )
            self._look_at_scale(told)
            if self.next is not None:
                self.next.send(Parcel(told))
        return total

    def _evaluate(self, instruction: plan.Evaluate) -> None:
        work = self._work.pop(instruction.key)
        message = work.message
        values = self._with_room(lambda: self.copies.bring(work.values), message.of)
        outputs, result = self._with_room(lambda: self._passes.evaluate(values), message.of)
        self._observer.forwarded(message.of)
        if self._leaf is None:
            self._send_on(work, {**values, **outputs}, self._graph.eval.sends)
            return
        leaves: list[torch.Tensor] = []
        answer = messages.Result(batch=message.of.batch)
        if message.task == "validate":
            self._leaf.judge(result, message.of, message.proof)
        else:
            shape = structure.flatten(result, leaves, "the model's output")
            answer = messages.Result(batch=message.of.batch, structure=msgspec.json.encode(shape))
        left, ready = self.copies.leave(leaves)
        if not self._hand_back(Parcel(answer, left, ready)):
            if ready is not None:
                ready()
            self._observer.result(answer, left)

    def _obey(self, command: plan.CommandReady) -> None:
        self.window.paused()
        self._return_from_ahead()
        metrics = self._commands.obey(command)
        self._observer.obeyed(command.name, command.number)
        order: Any = command.name
        if self.next is not None:
            message = messages.Command(order=order, number=command.number, token=command.token)
            self.next.send(Parcel(message))
        else:
            self._reply(messages.Reply(order=order, number=command.number, metrics=metrics))

    def _reply(self, reply: messages.Reply) -> None:
        """Everybody behind this stage has done what was ordered."""
        self._commands.finish(reply, self._reply_done)

    def _reply_done(self, reply: messages.Reply) -> None:
        self._hand_back(Parcel(reply))
        self._observer.replied(reply)


def _as_it_came(parcel: Parcel) -> Parcel:
    return replace(parcel, tensors=tuple(original(tensor) for tensor in parcel.tensors))


def _described(instruction: plan.Instruction) -> tuple[str, int, int]:
    """Its kind, batch and part, for those who look on."""
    match instruction:
        case plan.Forward(key):
            return "forward", key.batch, key.part
        case plan.Backward(key):
            return "backward", key.batch, key.part
        case plan.Evaluate(key):
            return "evaluate", key.batch, key.part
        case plan.Update(update):
            return "update", update, -1
        case plan.Obey(command):
            return command.name, -1, -1
