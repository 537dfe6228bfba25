"""A run whose workers are all there and do nothing any more is lost.

As long as one of them gets on, the others may be waiting for it: only the run as a whole is judged,
and only while it is to train. Reports are counted, not kept; after a restart the time begins anew.
"""

from collections.abc import Iterable

from ravnest.api.work import WorkReport
from ravnest.server.state import leaving_out, runs
from ravnest.server.state.effects import Wake
from ravnest.server.state.parts import own_part
from ravnest.server.state.records import Part, Run
from ravnest.server.state.words import counted
from ravnest.server.state.world import Pulse, World

_TRAFFIC_BYTES = 1 << 20
"""A large model is averaged for long over a slow line; less than this may be greetings."""


def reported(world: World, provider: int, assignment: str, report: WorkReport, now: float) -> None:
    part = own_part(world, provider, assignment)
    if part is None or not part.is_open:
        return
    pulse = world.pulses.setdefault(part.id, Pulse(advanced_at=now))
    pulse.reported_at = now
    count = report.epoch + report.step + report.samples + report.updates
    traffic = sum(link.sent + link.received for link in report.links)
    if (
        count > pulse.count
        or report.spans
        or any(ended.outcome == "applied" for ended in report.rounds)
        or traffic >= pulse.traffic + _TRAFFIC_BYTES
    ):
        pulse.count, pulse.traffic, pulse.advanced_at = count, traffic, now


def judge(world: World, run: Run, now: float) -> None:
    """Give the run up if it is time, and otherwise ask to be woken when it is."""
    parts = list(world.open_parts(run.job))
    if run.state != "running" or not _is_heard_of(world, run, parts):
        return
    ended = {part.cluster for part in world.of_run[run.job] if part.ended_at is not None}
    # Those whose mates are done have a limit of their own.
    judged = [part for part in parts if part.cluster not in ended]
    if not judged:
        return
    due = max(_advanced_at(world, part, now) for part in parts) + world.settings.standstill_s
    if now < due:
        world.order(Wake(at=due))
        return
    returning = [part for part in parts if now < world.returns_by(part, now)]
    if returning:
        reason = f"results are being brought back by {_names(world, returning)}"
        world.move(world.jobs[run.job], "running", reason)
        world.order(Wake(at=now + world.settings.standstill_s))
        return
    _give_up(world, judged, now)


def _is_heard_of(world: World, run: Run, parts: Iterable[Part]) -> bool:
    """Whether its workers tell how they get on; a script need not."""
    if not world.jobs[run.job].has_script:
        return True
    return any(part.id in world.pulses and world.pulses[part.id].count for part in parts)


def _advanced_at(world: World, part: Part, now: float) -> float:
    pulse = world.pulses.setdefault(part.id, Pulse(advanced_at=now))
    return world.since(pulse.advanced_at, now)


def _give_up(world: World, parts: list[Part], now: float) -> None:
    silent = [part for part in parts if _is_silent(world, part, now)]
    talking = [part for part in parts if part not in silent]
    minutes = counted(world.settings.standstill_s / 60, "minute")
    cause = f"no worker has got on for {minutes}: "
    if not talking:
        cause += "none reports any more"
    elif silent:
        last = max(talking, key=lambda part: world.pulses[part.id].reported_at or 0.0)
        cause += f"{_names(world, [last])} reported last, {_names(world, silent)} did not"
    else:
        cause += f"{_names(world, talking)} only reported"
    if not (silent and talking):
        # Who stood still first; the others had something left to do.
        first = min(parts, key=lambda part: world.pulses[part.id].advanced_at)
        runs.lose(world, first, cause, now)
        return
    for part in silent:
        if part.is_open:  # losing one may have ended the others
            leaving_out.lose(world, part, cause, now)


def _is_silent(world: World, part: Part, now: float) -> bool:
    heard = world.pulses[part.id].reported_at
    return heard is None or now - world.since(heard, now) > world.settings.standstill_s / 2


def _names(world: World, parts: Iterable[Part]) -> str:
    return ", ".join(world.called(part.provider) for part in parts)
