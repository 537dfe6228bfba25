"""From a command line to a provider at work: measure, enrol if need be, listen, run."""

import asyncio
import contextlib
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from ravnest.agent.addresses import advertised, literals, split_host_port
from ravnest.agent.agent import Agent
from ravnest.agent.channel import Pauses
from ravnest.agent.errand import Surroundings
from ravnest.agent.folders import AssignmentFolder, WorkFolders
from ravnest.agent.identity import (
    Identity,
    check_token,
    enrol,
    fits,
    forget,
    load_identity,
    only_agent,
)
from ravnest.agent.instructions import Show
from ravnest.agent.machine import (
    facts_of,
    free_disk,
    measure_speed,
    memory_for_training,
    threads_of,
    with_default_cap,
)
from ravnest.agent.measuring import Measuring
from ravnest.agent.pacing import Bucket, bucket_of
from ravnest.agent.peers import PeerListener
from ravnest.agent.rendezvous import Rendezvous
from ravnest.agent.settings import AgentSettings
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


async def join(
    settings: AgentSettings,
    token: Token | None,
    show: Show,
    *,
    speed: Speed | None = None,
    worker_command: WorkerCommand | None = None,
    pauses: Pauses | None = None,
    on_agent: Callable[[Agent], None] = lambda _: None,
) -> int | None:
    """Until the agent ends; returns the number of the signal that made it end at once, if any.

    `speed`, `worker_command` and `pauses` replace, in tests, what takes long.
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
    with only_agent(settings.home):
        # Before anything is written: what a script has left may have filled the disk.
        folders = WorkFolders(settings.home)
        with contextlib.suppress(OSError):
            await asyncio.to_thread(folders.empty)
        folders.shut()
        if token is not None and _known(settings, token) is None:
            await asyncio.to_thread(check_token, settings.address, token)
        if speed is None:
            speed = await _measured(settings, show)
        facts = facts_of(speed, no_sandbox)
        settings, memory_bytes = _limited(settings, speed, no_sandbox, show)
        while True:
            identity, is_new = await asyncio.to_thread(_identity, settings, token, facts, show)
            agent, struck = await _run(
                settings,
                identity,
                speed,
                facts,
                show,
                memory_bytes=memory_bytes,
                worker_command=worker_command,
                pauses=pauses,
                on_agent=on_agent,
            )
            if agent.is_rejected:
                # The credential is of no use any more; the next time a token is asked for.
                forget(identity)
            if agent.problem == HAS_LEFT:
                show("left", HAS_LEFT)
                return struck
            if agent.is_rejected and token is not None and not is_new:
                show("rejected", f"{agent.problem}; joining anew with the token")
                continue
            if agent.problem is not None:
                raise ServerError(plain(agent.problem))  # in words of the server, perhaps
            show("goodbye", "goodbye")
            return struck


async def _measured(settings: AgentSettings, show: Show) -> Speed:
    show("measuring", "measuring this machine …")
    threads = threads_of(settings.caps)
    speed = await measure_speed(settings.device, threads)
    name = f" ({speed.device_name})" if speed.device_name else ""
    with_threads = "1 thread" if threads == 1 else f"{threads} threads"
    # As the server shows it.
    caps, _ = with_default_cap(settings.caps, speed)
    for_a_stage = memory_for_training(caps, speed)
    offered = offered_bytes(for_a_stage, speed.device_memory_bytes)
    show(
        "measured",
        f"{speed.device}{name}: {speed.gflops:.0f} GFLOP/s with {with_threads}, "
        f"{offered / 1e9:.1f} GB of memory offered, "
        f"{free_disk(settings.home) / 1e9:.0f} GB of disk",
    )
    return speed


def _limited(
    settings: AgentSettings, speed: Speed, no_sandbox: str, show: Show
) -> tuple[AgentSettings, int]:
    """With the cap that holds where the owner gave none, and the bytes a worker may take; says how
    foreign graphs are kept from this machine."""
    caps, most = with_default_cap(settings.caps, speed)
    if most:
        whose = "--memory" if caps == settings.caps else "80 % of what is free; --memory changes it"
        show("memory", f"a worker may take at most {most / 1e9:.1f} GB of memory ({whose})")
    if no_sandbox:
        show(
            "sandbox",
            f"WARNING: foreign graphs run here without a sandbox: {no_sandbox}. They are checked, "
            "but an error in torch could give them everything that this user may do. "
            f"To have a sandbox: {remedy()}; --require-sandbox refuses to run without",
        )
    else:
        show("sandbox", "foreign graphs run in a sandbox")
    return replace(settings, caps=caps), most


def _known(settings: AgentSettings, token: Token | None) -> Identity | None:
    """The stored one, if it is of the server that the token is of."""
    identity = load_identity(settings.home, settings.address)
    return identity if identity and (token is None or fits(identity, token)) else None


def _identity(
    settings: AgentSettings, token: Token | None, facts: MachineFacts, show: Show
) -> tuple[Identity, bool]:
    """The stored one, if it is of this server; else a new one for the token."""
    identity = _known(settings, token)
    if identity is not None:
        return identity, False
    assert token is not None, "looked at before"
    identity = enrol(
        settings.home,
        settings.address,
        token,
        name=settings.name,
        facts=facts,
        caps=settings.caps,
    )
    show("enrolled", f"enrolled at {settings.address} as {provider_name(identity.provider)}")
    return identity, True


async def _run(
    settings: AgentSettings,
    identity: Identity,
    speed: Speed,
    facts: MachineFacts,
    show: Show,
    *,
    memory_bytes: int,
    worker_command: WorkerCommand | None,
    pauses: Pauses | None,
    on_agent: Callable[[Agent], None],
) -> tuple[Agent, int | None]:
    caps = settings.caps
    up, down = bucket_of(caps.bandwidth_mbps), bucket_of(caps.bandwidth_mbps)
    listener, addresses = await _listen(settings, identity, down)
    if addresses:
        show("listening", f"other providers may reach this one at {', '.join(addresses)}")
    present = Rendezvous(identity.authority).present(identity.provider, addresses)
    with identity.client(settings.address) as client, present:
        around = Surroundings(
            settings,
            identity,
            client,
            speed.device,
            listener,
            memory_bytes=memory_bytes,
            up=up,
            down=down,
            worker_command=worker_command,
        )
        agent = Agent(around, facts, Measuring(speed, caps, addresses), show, pauses)
        on_agent(agent)
        with _signals(agent) as struck:
            await agent.run()
    return agent, struck[1] if len(struck) > 1 else None


async def _listen(
    settings: AgentSettings, identity: Identity, down: Bucket | None
) -> tuple[PeerListener | None, tuple[str, ...]]:
    if settings.listen is None:
        return None, ()
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
def _signals(agent: Agent) -> Iterator[list[int]]:
    """The first one: in good order. The second one: at once. Yields those that came."""
    struck: list[int] = []

    def strike(number: int) -> None:
        struck.append(number)
        agent.leave(now=len(struck) > 1)

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
