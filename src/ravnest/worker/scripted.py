"""In the process of somebody's script: its Trainer reports as that of a recipe does.

Where to, the worker says in the environment (see ravnest.worker.script); from there it goes the way
of all reports. A script in which no Trainer is made reports nothing, and trains all the same.
"""

import atexit
import logging
import os

import msgspec

from ravnest.callbacks import Callback
from ravnest.node import Node
from ravnest.provider.compute.device_memory import Room
from ravnest.provider.surroundings import REPORTS
from ravnest.worker.hearing import ReportsTo
from ravnest.worker.journal import Journal, Notes
from ravnest.worker.reporting import Reporter
from ravnest.worker.speech import Speech


def begin_reports(node: Node, batches_per_epoch: int | None, first_epoch: int) -> list[Callback]:
    """Callbacks for the first Trainer of this process; there are none for a second one."""
    said = os.environ.pop(REPORTS, None)
    if said is None or node.telemetry is None:
        return []
    to = msgspec.json.decode(said, type=ReportsTo)
    # Processes that the script starts have nothing to say there.
    os.set_inheritable(to.descriptor, False)
    notes = Notes()
    logging.getLogger("ravnest").addHandler(notes)
    journal = None
    if node.is_root:
        journal = Journal(
            None,
            batches_per_epoch=batches_per_epoch or 0,
            epochs_before=first_epoch,
            clock_offset_s=to.clock_offset_s,
        )
    reporter = Reporter(
        Speech(os.fdopen(to.descriptor, "wb", buffering=0)),
        node.telemetry,
        notes,
        journal=journal,
        every_s=to.every_s,
        clock_offset_s=to.clock_offset_s,
        epochs_before=first_epoch,
        device_bytes=Room(node.device).used,
    )
    atexit.register(reporter.stop)
    reporter.start()
    return [] if journal is None else [journal]
