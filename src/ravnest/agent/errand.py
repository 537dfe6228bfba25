"""One assignment on this machine: its folder, its paths, its worker, its results.

Does what it is told, one step after another; what comes next is decided in `errands.py`.
"""

import asyncio
import contextlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import msgspec

from ravnest.agent.addresses import Dialling, join_host_port
from ravnest.agent.fetching import bring_back, fetch
from ravnest.agent.folders import AssignmentFolder
from ravnest.agent.identity import Identity
from ravnest.agent.keeping import KeptFiles
from ravnest.agent.machine import Load, threads_of
from ravnest.agent.pacing import Bucket
from ravnest.agent.peers import PeerListener, find
from ravnest.agent.results import has_saved
from ravnest.agent.settings import AgentSettings
from ravnest.agent.sharing import Machine
from ravnest.agent.tasks import in_words
from ravnest.agent.thinning import Thinning
from ravnest.agent.tunnel import Tunnels
from ravnest.agent.worker import Worker
from ravnest.api.limits import FileRef
from ravnest.api.work import Assignment, WorkEnd, WorkOrder, WorkReport
from ravnest.client.answers import AnswerError
from ravnest.client.http import HttpClient
from ravnest.errors import JobError, RavnestError
from ravnest.ports import free_ports
from ravnest.sandbox.bubblewrap import Policy, sandboxed, why_not
from ravnest.sandbox.environment import compute_environment
from ravnest.sandbox.memory_limit import is_limited_by_system

_TELL_EVERY = 0.2


@dataclass
class Surroundings:
    """What all assignments of an agent share."""

    settings: AgentSettings
    identity: Identity
    client: HttpClient
    device: str
    listener: PeerListener | None
    memory_bytes: int = 0
    """Most that a worker may take; 0 is no limit."""
    device_share: float = 1.0
    """Of the device's memory, that it may take."""
    machine: Machine = field(default_factory=Machine)
    """With the other providers on it."""
    up: Bucket | None = None
    down: Bucket | None = None
    report_s: float = 1.0
    clock_offset_s: float = 0.0
    worker_command: Callable[[AssignmentFolder], list[str]] | None = None
    """For tests: another program than `ravnest.worker`."""
    dialling: Dialling = field(init=False)
    """Made by the agent: its channel knows where the server is."""

    @property
    def is_processor(self) -> bool:
        """Also one of several workers on it: cpu:0, cpu:1."""
        return self.device.startswith("cpu")


def reason_against(assignment: Assignment, settings: AgentSettings) -> str | None:
    """Why an assignment cannot be taken, if the owner wants a sandbox and there is none."""
    is_script = assignment.script is not None and settings.caps.scripts == "sandboxed"
    if not is_script and not settings.require_sandbox:
        return None
    what = "scripts are allowed" if is_script else "foreign graphs run here"
    reason = why_not()
    return None if reason is None else f"{what} in a sandbox only, and {reason}"


class Errand:
    def __init__(
        self, assignment: Assignment, folder: AssignmentFolder, around: Surroundings
    ) -> None:
        self.assignment = assignment
        self.folder = folder
        self._around = around
        self._tunnels = Tunnels(around.client, assignment.id, up=around.up, down=around.down)
        self._direct: dict[str, str] = {}
        self._relayed: dict[str, str] = {}
        self._listen: tuple[str, int] | None = None
        self.worker: Worker | None = None
        self._reports: Thinning | None = None
        self.task: asyncio.Task[None] | None = None
        """What is being done about it: it is prepared, its worker runs, its results go back."""
        self.is_finished = False
        """The worker has trained all that there was to train."""
        self.undelivered: str | None = None
        """Why there are results that the server does not have and will not get."""

    # ---- before ----

    async def prepare(self, on_share: Callable[[float], None]) -> tuple[int, ...]:
        """Everything but the start; returns the neighbours that only the server reaches."""
        try:
            return await self._prepare(on_share)
        except (RavnestError, OSError):
            raise
        except Exception as error:  # whatever is in it was made elsewhere
            # No JobError: nobody knows that it is the assignment's fault, and that it stays so.
            raise RavnestError(in_words(error)) from error

    async def _prepare(self, on_share: Callable[[float], None]) -> tuple[int, ...]:
        around, loop = self._around, asyncio.get_running_loop()
        self.folder.begin(around.identity)
        self._admit(each.provider for each in self.assignment.neighbours)
        await self._take_port()
        told = 0.0

        def share(value: float) -> None:
            """Called by threads."""
            nonlocal told
            if value >= told + _TELL_EVERY:
                told = value
                loop.call_soon_threadsafe(on_share, value)

        await fetch(
            around.client,
            self.assignment,
            self.folder,
            KeptFiles(around.settings.home),
            on_share=share,
            bucket=around.down,
        )
        self.folder.place_document(self.assignment)
        relayed = await self._find_neighbours()
        tunnels = await self._tunnels.open(relayed)
        names = {each.provider: each.plan_address for each in self.assignment.neighbours}
        self._relayed = {names[provider]: local for provider, local in tunnels.items()}
        return tuple(relayed)

    def _admit(self, providers: Iterable[int]) -> None:
        """While they look for a way to this machine, its agent answers them."""
        if self._around.listener is not None:
            self._around.listener.admit_neighbours(self.assignment.id, providers)

    async def _find_neighbours(self) -> list[int]:
        identity, dialling = self._around.identity, self._around.dialling

        async def one(provider: int, plan_address: str, addresses: tuple[str, ...]) -> int | None:
            near = self._around.machine.place_of(provider)
            places = (*near, *addresses)
            found = await find(identity, provider, places, dialling, measure=False)
            if found is None:
                return provider
            self._direct[plan_address] = found.address
            return None

        tried = await asyncio.gather(
            *(
                one(each.provider, each.plan_address, each.addresses)
                for each in self.assignment.neighbours
            )
        )
        return [provider for provider in tried if provider is not None]

    # ---- the worker ----

    def start(self, on_report: Callable[[WorkReport], None], *, paused: bool) -> Worker:
        """The worker can be steered and ended from now on; `work` makes it run."""
        settings = self._around.settings
        command = self._command()
        self._reports = Thinning(self._around.report_s, on_report)
        self.worker = Worker(
            self.folder,
            environment=compute_environment(
                threads_of(settings.caps), home=self.folder.path.resolve()
            ),
            nice=settings.nice,
            command=command,
            in_sandbox=self._is_in_sandbox(),
            memory_bytes=self._around.memory_bytes,
            on_report=self._reports.take,
            epochs_done=self.assignment.epochs_done,
            paused=paused,
        )
        return self.worker

    async def work(self, worker: Worker) -> WorkEnd:
        try:
            self._listen = await self._give_port()
            self._give_order()
            end = await worker.run()
        except OSError as error:  # a disk that is full
            end = self._failed(f"the worker cannot be started: {error}")
        except Exception as error:  # what it has said was made elsewhere
            end = self._failed(f"the agent does not understand it: {in_words(error)}")
        finally:
            self.worker = None
            if self._reports is not None:
                self._reports.finish()
            await self._tunnels.close()
            await self._take_port()
        end = self._checked(end)
        # Without a record, the next agent says that this one was restarted.
        with contextlib.suppress(OSError):
            self.folder.record_end(end)
        return end

    def _failed(self, reason: str) -> WorkEnd:
        done = self.assignment.epochs_done
        return WorkEnd(outcome="failed", epochs_done=done, reason=reason)

    async def _give_port(self) -> tuple[str, int]:
        """The port on which this machine is known is the worker's as long as it runs."""
        listener = self._around.listener
        if listener is None or not listener.is_open:
            return "127.0.0.1", free_ports(1)[0]
        await listener.close()
        return listener.host, listener.port

    async def _take_port(self) -> None:
        """If somebody else has it meanwhile, neighbours come through the server."""
        if self._around.listener is not None:
            with contextlib.suppress(OSError):
                await self._around.listener.open()

    def watch(self, load: Load) -> int:
        """Bytes that the worker uses. The system keeps a worker to its limit, but for a script,
        whose processes have the limit each: all of them together are looked at here."""
        worker, most = self.worker, self._around.memory_bytes
        if worker is None:
            return 0
        worker.trim_log()
        used = load.process_memory(worker.pid)
        is_limited = self._is_limited_by_system and self.assignment.script is None
        if most and used > most and not is_limited:
            worker.kill_for_memory()
        return max(used, worker.memory_bytes)

    @property
    def _is_limited_by_system(self) -> bool:
        """Libraries of GPUs take addresses for all the memory there is, which that limit counts."""
        return self._around.is_processor and is_limited_by_system()

    def _give_order(self) -> None:
        around = self._around
        assert self._listen is not None
        self.folder.give_order(
            WorkOrder(
                assignment=self.assignment,
                listen=join_host_port(*self._listen),
                routes={**self._direct, **self._relayed},
                device="cpu" if around.is_processor else around.device,
                threads=threads_of(around.settings.caps),
                bandwidth_mbps=around.settings.caps.bandwidth_mbps,
                memory_bytes=around.memory_bytes if around.is_processor else 0,
                device_share=around.device_share,
                report_s=around.report_s,
                clock_offset_s=around.clock_offset_s,
            ),
            around.identity,
        )

    def _is_in_sandbox(self) -> bool:
        """Wherever there can be one, unless the owner trusts scripts with everything."""
        settings = self._around.settings
        trusted = self.assignment.script is not None and settings.caps.scripts == "always"
        return why_not() is None and (settings.require_sandbox or not trusted)

    def _command(self) -> list[str]:
        program = self._around.worker_command or Worker.command_for
        command = program(self.folder)
        if not self._is_in_sandbox():
            return command
        settings = self._around.settings
        policy = Policy(
            self.folder.path.resolve(),
            hidden=settings.hidden,
            memory_bytes=self._around.memory_bytes or None,
            nice=settings.nice,
            cores=settings.caps.threads,
        )
        return sandboxed(command, policy)

    def _checked(self, end: WorkEnd) -> WorkEnd:
        if end.saved and not has_saved(self.folder.package):
            return msgspec.structs.replace(
                end, outcome="failed", saved=False, reason="the worker has saved nothing"
            )
        return end

    def accept(self, call: str) -> None:
        """A neighbour calls through the server."""
        if self._listen is not None:
            host, port = self._listen
            local = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
            self._tunnels.accept(call, local, port)

    async def bring_back(
        self, end: WorkEnd, on_delay: Callable[[str], None]
    ) -> tuple[WorkEnd, tuple[FileRef, ...]]:
        """Results to the server, however long it is away or cannot take them. What it does not
        want at all is kept on this machine."""
        around, loop = self._around, asyncio.get_running_loop()

        def delayed(reason: str) -> None:
            loop.call_soon_threadsafe(on_delay, reason)

        try:
            results = await bring_back(
                around.client, self.assignment, self.folder, on_delay=delayed, bucket=around.up
            )
            self.is_finished = end.outcome == "done"
            return end, results
        except AnswerError as error:
            self.undelivered = f"the server did not take the results: {error}"
        except JobError as error:
            self.undelivered = str(error)
        except OSError as error:
            self.undelivered = f"the results cannot be read on the provider's disk: {error}"
        except Exception as error:  # they may be anything
            self.undelivered = f"the results cannot be brought back: {in_words(error)}"
        failed = msgspec.structs.replace(
            end, outcome="failed", saved=False, reason=self.undelivered
        )
        return failed, ()

    def cancel(self) -> None:
        """What is being done about it, unless that is who asks."""
        if self.task is not None and self.task is not asyncio.current_task():
            self.task.cancel()

    async def close(self) -> None:
        self._admit(())
        await self._tunnels.close()

    def forget_files(self) -> None:
        """Those kept for another run: at once if there will be none, else after a day. Not for the
        event loop's thread."""
        kept = KeptFiles(self._around.settings.home)
        if self.is_finished:
            kept.drop(self.assignment.job)
        else:
            kept.leave(self.assignment.job, self.assignment.files)
