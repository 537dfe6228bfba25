"""What each order of the Root means to one stage.

How orders and replies travel from stage to stage is not known here (see runner.py), and neither is
when it is an order's turn (see schedule/).
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import msgspec

from ravnest.provider.averaging.share import Share
from ravnest.provider.compute.updating import Updater
from ravnest.provider.leaf import Leaf
from ravnest.provider.meter import Meter
from ravnest.provider.schedule.pipeline import CommandReady
from ravnest.wire import messages


class Saving(Protocol):
    """Where the trained stage goes."""

    def save(self, token: str) -> None: ...
    def settle(self) -> None:
        """Every stage of the cluster has saved: what was saved before is not needed any more."""
        ...


@dataclass(frozen=True, slots=True)
class Commands:
    """One stage's part in whatever is ordered."""

    stage: int
    updater: Updater
    leaf: Leaf | None
    share: Share | None
    saving: Saving
    meter: Meter
    clock: Callable[[], float]

    def obey(self, command: CommandReady) -> dict[str, float]:
        """Carry it out; what this stage found goes into the reply, if it is the last one."""
        match command.name:
            case "epoch":
                self.updater.epoch_ended()
                if self.share is not None:
                    self.share.epoch_ended()
                if self.leaf is not None:
                    self.leaf.epoch_ended()
                self.meter.epochs += 1
            case "validation" if self.leaf is not None:
                return self.leaf.validation_ended()
            case "reset" if self.leaf is not None:
                self.leaf.forget()
            case "average" if self.share is not None:
                self.share.end()
            case "save":
                self.saving.save(command.token)
            case _:
                pass
        return {}

    def finish(self, reply: messages.Reply, then: Callable[[messages.Reply], None]) -> None:
        """Everybody from here on has carried it out; `then` with what is to be said of it."""
        match reply.order:
            case "average" if self.share is not None:
                # Stages meet their counterparts at the same time, whichever is told first.
                self.share.when_met(lambda: then(reply))
            case "epoch":
                metrics = {**self.meter.epoch(self.stage, self.clock()), **reply.metrics}
                then(msgspec.structs.replace(reply, metrics=metrics))
            case "save":
                self.saving.settle()
                then(reply)
            case _:
                then(reply)
