"""From a request to a job on the server: prepared, uploaded by content, submitted.

Files that the server has are not sent again, so a submission that broke off is simply repeated:
rows are shuffled by the seed, and equal requests make equal files.
"""

import logging
import tempfile
from collections.abc import Callable
from pathlib import Path

from ravnest.api.views import JobView
from ravnest.client.http import HttpClient
from ravnest.client.transfers import upload_blob
from ravnest.planning.figures import quantity, size
from ravnest.session.preparing import Prepared, prepare
from ravnest.session.request import JobRequest

logger = logging.getLogger("ravnest.session")

Progress = Callable[[str, int, int], None]
"""(what, bytes done, bytes in all)"""


def submit(client: HttpClient, request: JobRequest, progress: Progress | None = None) -> JobView:
    with tempfile.TemporaryDirectory(prefix="ravnest-submit-") as folder:
        prepared = prepare(request, Path(folder))
        send_files(client, prepared, progress)
        return client.post("/jobs", prepared.spec, JobView)


def send_files(client: HttpClient, prepared: Prepared, progress: Progress | None = None) -> None:
    """Those that the server does not have yet."""
    total = sum(ref.size for ref, _ in prepared.files)
    logger.info("sending %s in %s …", size(total), quantity(len(prepared.files), "file"))
    done = 0
    for ref, path in prepared.files:
        before = done

        def so_far(bytes_done: int, before: int = before, name: str = ref.path) -> None:
            if progress is not None:
                progress(name, before + bytes_done, total)

        upload_blob(client, path, sha256=ref.sha256, progress=so_far)
        done += ref.size
