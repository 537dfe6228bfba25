"""From a command line to a provider at work: measure, enrol if need be, listen, run."""

import asyncio
import contextlib
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from ravnest.agent.addresses import advertised, join_host_port, literals, split_host_port
from ravnest.agent.agent import Agent
from ravnest.agent.channel import Pauses
from ravnest.agent.errand import Surroundings
from ravnest.agent.folders import AssignmentFolder, WorkFolders
from ravnest.agent.identity import (
    DEVICES,
    Identity,
    check_token,
    enrol,
    fits,
    forget,
    home_of_device,
    load_identity,
    only_agent,
)
from ravnest.agent.instructions import Show
from ravnest.agent.machine import (
    a_name,
    device_share,
    facts_of,
    free_disk,
    measure_speeds,
    memory_for_training,
    share_of,
    threads_of,
    with_default_cap,
)
from ravnest.agent.measuring import Measuring
from ravnest.agent.pacing import Bucket
from ravnest.agent.peers import PeerListener
from ravnest.agent.rendezvous import Rendezvous
from ravnest.agent.settings import AgentSettings
from ravnest.agent.sharing import Machine
from ravnest.agent.tasks import in_words
from ravnest.agent.workload import Speed
from ravnest.api.control import HAS_LEFT
from ravnest.api.limits import plain
from ravnest.api.machine import MachineFacts, provider_name
from ravnest.api.tokens import Token
from ravnest.api.work import offered_bytes
from ravnest.descriptors import allow_many_files
from ravnest.errors import NodeError, ServerError, TokenError
from ravnest.sandbox.bubblewrap import remedy, why_not

WorkerCommand = Callable[[AssignmentFolder], list[str]]


@dataclass
class Slot:
    """One provider of this process: a device, and a home of its own."""

    settings: AgentSettings
    speed: Speed
    facts: MachineFacts
    show: Show
    memory_bytes: int
    place: int
    """Among all."""
    identity: Identity | None = None
    is_new: bool = False


async def join(
    settings: AgentSettings,
    token: Token | None,
    show: Show,
    *,
    speeds: Sequence[Speed] | None = None,
    worker_command: WorkerCommand | None = None,
    pauses: Pauses | None = None,
    on_agent: Callable[[Agent], None] = lambda _: None,
) -> int | None:
    """Until all agents end; returns the number of the signal that made them end at once, if any.

    `speeds`, `worker_command` and `pauses` replace, in tests, what takes long.
    """
    if token is None and load_identity(settings.home, settings.address) is None:
        raise TokenError(
            f"this machine has not joined {settings.address} yet: add --token with the token that "
            "`ravnest server` printed there"
        )
    no_sandbox = await asyncio.to_thread(why_not) or ""
    if no_sandbox and settings.require_sandbox:
        raise NodeError(f"--require-sandbox: {no_sandbox}; {remedy()}")
    allow_many_files()
    settings.home.mkdir(parents=True, exist_ok=True, mode=0o700)
    with contextlib.ExitStack() as stack:
        stack.enter_context(await _entered(settings))
        if token is not None and _known(settings, token) is None:
            await asyncio.to_thread(check_token, settings.address, token)
        if speeds is None:
            show("measuring", "measuring this machine …")
            speeds = await measure_speeds(settings.device, threads_of(settings.caps))
            speeds = usable(speeds, show, all_of_them=settings.device is not None)
        slots = slots_of(settings, speeds, no_sandbox, show)
        for slot in slots[1:]:
            stack.enter_context(await _entered(slot.settings))
        for slot in slots:
            _tell(slot, slots, settings)
        _tell_of_sandbox(no_sandbox, show)
        # Before the first one works: each knows from the beginning who else is here.
        for slot in slots:
            await _enrol(slot, token)
        crew = Crew(slots, token, on_agent, worker_command, pauses)
        with _signals(crew.leave) as struck:
            await crew.run()
        return struck[1] if len(struck) > 1 else None


async def _entered(settings: AgentSettings) -> contextlib.ExitStack:
    """Nobody else works in that home meanwhile, and it is in order. Before anything is written:
    what a script has left may have filled the disk."""
    for folder in (settings.home.parent, settings.home) if settings.within else ():
        folder.mkdir(exist_ok=True, mode=0o700)
    with contextlib.ExitStack() as stack:
        stack.enter_context(only_agent(settings.home))
        folders = WorkFolders(settings.home)
        with contextlib.suppress(OSError):
            await asyncio.to_thread(folders.empty)
        folders.shut()
        return stack.pop_all()


def usable(speeds: Sequence[Speed], show: Show, *, all_of_them: bool) -> list[Speed]:
    """A card that is broken, or full, keeps the others from nothing, unless its owner has named
    it."""
    broken = [f"{each.device} cannot be used: {each.problem}" for each in speeds if each.problem]
    found = [each for each in speeds if not each.problem]
    if broken and (all_of_them or not found):
        raise NodeError(broken[0])
    for problem in broken:
        show("left out", problem)
    return found


def slots_of(
    settings: AgentSettings, speeds: Sequence[Speed], no_sandbox: str, show: Show
) -> list[Slot]:
    """One for each device. The first has the home that a machine with one device has."""
    several, shared = len(speeds) > 1, share_of(settings.caps, len(speeds))
    slots = []
    for place, speed in enumerate(speeds):
        caps, most = with_default_cap(shared, speed, len(speeds))
        own = replace(settings, caps=caps)
        if several:
            name = a_name(f"{settings.name[:80]}/{speed.device}")
            own = replace(own, name=name, is_named=True, listen=_listen_at(settings.listen, place))
            own = replace(own, advertise=tuple(_moved(at, place) for at in settings.advertise))
        elif (settings.home / DEVICES).is_dir():
            own = replace(own, is_named=True)  # it was one of several before
        if place:
            folder = home_of_device(settings.home, speed.device)
            own = replace(own, home=folder, within=settings.home)
        facts = facts_of(speed, no_sandbox)
        slots.append(Slot(own, speed, facts, _shown(show, speed, several), most, place))
    return slots


def _shown(show: Show, speed: Speed, several: bool) -> Show:
    if not several:
        return show
    return lambda event, text: show(event, f"{speed.device}: {text}")


def _listen_at(listen: str | None, place: int) -> str | None:
    return None if listen is None else _moved(listen, place, "--listen")


def _moved(address: str, place: int, option: str = "--advertise") -> str:
    """The next port for the next provider, unless any will do."""
    host, port = split_host_port(address, option)
    return join_host_port(host, port + place if port else 0)


def _tell(slot: Slot, slots: Sequence[Slot], settings: AgentSettings) -> None:
    speed, caps = slot.speed, slot.settings.caps
    name = f" ({speed.device_name})" if speed.device_name else ""
    threads = threads_of(caps)
    with_threads = "1 thread" if threads == 1 else f"{threads} threads"
    rates = "".join(f", {rate:.0f} in {name}" for name, rate in speed.rates.items())
    # As the server shows it.
    offered = offered_bytes(memory_for_training(caps, speed), speed.device_memory_bytes)
    slot.show(
        "measured",
        f"{speed.device}{name}: {speed.gflops:.0f} GFLOP/s{rates} with {with_threads}, "
        f"{offered / 1e9:.1f} GB of memory offered, "
        f"{free_disk(settings.home) / 1e9:.0f} GB of disk",
    )
    given = settings.caps.memory_bytes is not None
    whose = "--memory" if given else "80 % of what is free; --memory changes it"
    if len(slots) > 1:
        whose += f", divided by {len(slots)}"
    text = f"a worker may take at most {slot.memory_bytes / 1e9:.1f} GB of memory ({whose})"
    if speed.device_memory_bytes:
        most = caps.device_memory_bytes
        limit = "all that is free" if most is None else f"at most {most / 1e9:.1f} GB"
        text += f", and {limit} on {speed.device} (--gpu-memory)"
    slot.show("memory", text)


def _tell_of_sandbox(no_sandbox: str, show: Show) -> None:
    if no_sandbox:
        show(
            "sandbox",
            f"WARNING: foreign graphs run here without a sandbox: {no_sandbox}. They are checked, "
            "but an error in torch could give them everything that this user may do. "
            f"To have a sandbox: {remedy()}; --require-sandbox refuses to run without",
        )
    else:
        show("sandbox", "foreign graphs run in a sandbox")


def _known(settings: AgentSettings, token: Token | None) -> Identity | None:
    """The stored one, if it is of the server that the token is of."""
    identity = load_identity(settings.home, settings.address)
    return identity if identity and (token is None or fits(identity, token)) else None


async def _enrol(slot: Slot, token: Token | None) -> None:
    """With the stored identity, if it is of this server; else with a new one for the token."""
    settings = slot.settings
    slot.identity, slot.is_new = _known(settings, token), False
    if slot.identity is not None:
        return
    if token is None:
        raise TokenError(
            f"{slot.speed.device} of this machine has not joined {settings.address} yet: add "
            "--token, or name the devices that have (--devices)"
        )
    slot.identity = await asyncio.to_thread(
        lambda: enrol(
            settings.home,
            settings.address,
            token,
            name=settings.name,
            facts=slot.facts,
            caps=settings.caps,
        )
    )
    slot.is_new = True
    name = provider_name(slot.identity.provider)
    slot.show("enrolled", f"enrolled at {settings.address} as {name}")


class Crew:
    """The agents of all slots, each until it ends; the others go on without one that has."""

    def __init__(
        self,
        slots: Sequence[Slot],
        token: Token | None,
        on_agent: Callable[[Agent], None],
        worker_command: WorkerCommand | None,
        pauses: Pauses | None,
    ) -> None:
        self._slots, self._token = slots, token
        self._on_agent, self._worker_command, self._pauses = on_agent, worker_command, pauses
        whole = sum(slot.settings.caps.bandwidth_mbps or 0.0 for slot in slots)
        self._machine = Machine(whole or None)
        self._agents: dict[int, Agent] = {}
        self._leaving: bool | None = None
        """At once, or in good order; None while nobody wants to."""

    async def run(self) -> None:
        named = [slot.identity.provider for slot in self._slots if slot.identity]
        self._machine.expect(named)
        tasks = [asyncio.create_task(self._watched(slot)) for slot in self._slots]
        try:
            ends = await asyncio.gather(*tasks, return_exceptions=True)
        finally:
            for task in tasks:
                task.cancel()
        for end in ends:
            if isinstance(end, BaseException):
                raise end

    def leave(self, *, now: bool) -> None:
        self._leaving = now
        for agent in list(self._agents.values()):
            agent.leave(now=now)

    async def _watched(self, slot: Slot) -> None:
        try:
            await self._serve(slot)
        except Exception as error:
            if len(self._slots) > 1:  # the others go on, perhaps for days
                slot.show("ended", f"does not take part any more: {in_words(error)}")
            raise

    async def _serve(self, slot: Slot) -> None:
        while True:
            assert slot.identity is not None
            agent = await self._run(slot, slot.identity)
            if agent.is_rejected:
                # The credential is of no use any more; the next time a token is asked for.
                forget(slot.identity)
            if agent.problem == HAS_LEFT:
                slot.show("left", HAS_LEFT)
                return
            if agent.is_rejected and self._token is not None and not slot.is_new:
                slot.show("rejected", f"{agent.problem}; joining anew with the token")
                await _enrol(slot, self._token)
                continue
            if agent.problem is not None:
                raise ServerError(plain(agent.problem))  # in words of the server, perhaps
            slot.show("goodbye", "goodbye")
            return

    async def _run(self, slot: Slot, identity: Identity) -> Agent:
        settings, machine = slot.settings, self._machine
        alone = len(self._slots) == 1
        listener, addresses = await _listen(settings, identity, machine.down, alone=alone)
        if addresses:
            shown = ", ".join(addresses)
            slot.show("listening", f"other providers may reach this one at {shown}")
        near = None if alone or listener is None else _place_here(listener)
        gone = machine.settle(identity.provider, near)
        known_at = (*addresses, *(() if near is None else (near,)))
        present = Rendezvous(identity.authority).present(identity.provider, known_at)
        with identity.client(settings.address) as client, present:
            around = Surroundings(
                settings,
                identity,
                client,
                slot.speed.device,
                listener,
                memory_bytes=slot.memory_bytes,
                device_share=device_share(settings.caps, slot.speed),
                machine=machine,
                up=machine.up,
                down=machine.down,
                worker_command=self._worker_command,
            )
            measuring = Measuring(slot.speed, settings.caps, addresses, identity.provider, machine)
            agent = Agent(around, slot.facts, measuring, slot.show, self._pauses)
            self._agents[slot.place] = agent
            self._on_agent(agent)
            if self._leaving is not None:
                agent.leave(now=self._leaving)
            try:
                await agent.run()
            finally:
                del self._agents[slot.place]
                gone()
        return agent


def _place_here(listener: PeerListener) -> str:
    """Where the others on this machine reach it."""
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(listener.host, listener.host)
    return join_host_port(host, listener.port)


async def _listen(
    settings: AgentSettings, identity: Identity, down: Bucket | None, *, alone: bool
) -> tuple[PeerListener | None, tuple[str, ...]]:
    if settings.listen is None:
        if alone:
            return None, ()
        listener = PeerListener(identity, "127.0.0.1", 0, down)  # for the others on this machine
        await listener.open()
        return listener, ()
    host, port = split_host_port(settings.listen, "--listen")
    # The same as last time, if it is free: others know it there.
    listener = PeerListener(identity, host, port or identity.port or 0, down)
    try:
        await listener.open()
    except OSError as error:
        if port:
            raise ServerError(f"--listen {settings.listen}: {error.strerror or error}") from error
        listener = PeerListener(identity, host, 0, down)
        await listener.open()
    # Worth nothing but time: a disk that is full is emptied once the agent runs.
    with contextlib.suppress(OSError):
        identity.remember_port(listener.port)
    told = [split_host_port(each, "--advertise") for each in settings.advertise]
    return listener, await asyncio.to_thread(_reached_at, settings, told, host, listener.port)


def _reached_at(
    settings: AgentSettings, told: Sequence[tuple[str, int]], host: str, port: int
) -> tuple[str, ...]:
    if not told:
        return advertised(settings.address, host, port)
    return tuple(each for place in told for each in literals(*place, "--advertise"))


@contextlib.contextmanager
def _signals(leave: Callable[..., None]) -> Iterator[list[int]]:
    """The first one: in good order. The second one: at once. Yields those that came."""
    struck: list[int] = []

    def strike(number: int) -> None:
        struck.append(number)
        leave(now=len(struck) > 1)

    loop, numbers = asyncio.get_running_loop(), [signal.SIGINT, signal.SIGTERM]
    if sys.platform != "win32":
        numbers.append(signal.SIGHUP)
    with contextlib.ExitStack() as stack:
        for number in numbers:
            # Not on Windows, and not outside the main thread.
            with contextlib.suppress(NotImplementedError, RuntimeError, ValueError):
                loop.add_signal_handler(number, strike, int(number))
                stack.callback(loop.remove_signal_handler, number)
        yield struck
