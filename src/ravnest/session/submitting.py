"""From a request to a job on the server: prepared, uploaded by content, submitted.

Files that the server has are not sent again, so a submission that broke off is simply repeated:
rows are shuffled by the seed, and equal requests make equal files.
"""

import logging
import tempfile
from collections.abc import Callable
from pathlib import Path

import msgspec

from ravnest.api.limits import encode
from ravnest.api.views import JobView
from ravnest.client.http import HttpClient
from ravnest.client.transfers import upload_blob
from ravnest.errors import ServerError
from ravnest.planning.figures import quantity, size
from ravnest.session.preparing import Prepared, prepare
from ravnest.session.request import JobRequest

logger = logging.getLogger("ravnest.session")

CHECKED_S = 1800.0

Progress = Callable[[str, int, int], None]
"""(what, bytes done, bytes in all)"""


def submit(client: HttpClient, request: JobRequest, progress: Progress | None = None) -> JobView:
    with tempfile.TemporaryDirectory(prefix="ravnest-submit-") as folder:
        prepared = prepare(request, Path(folder))
        send_files(client, prepared, progress)
        return _post(client, prepared)


def _post(client: HttpClient, prepared: Prepared) -> JobView:
    """The server answers when it has checked the model, which may take it a while."""
    headers = {"Content-Type": "application/json"}
    content = encode(prepared.spec)
    with client.open(
        "POST", "/jobs", content=content, headers=headers, timeout_s=CHECKED_S
    ) as answer:
        body = answer.read()
    try:
        return msgspec.json.decode(body, type=JobView)
    except msgspec.DecodeError as error:
        raise ServerError(
            f"{client.address} has taken the job, and answers with something this release does "
            f"not understand ({error}); do server and client have the same version?"
        ) from error


def send_files(client: HttpClient, prepared: Prepared, progress: Progress | None = None) -> None:
    """Those that the server does not have yet."""
    total = sum(ref.size for ref, _ in prepared.files)
    logger.info("uploading %s in %s …", size(total), quantity(len(prepared.files), "file"))
    done = 0
    for ref, path in prepared.files:
        before = done

        def so_far(bytes_done: int, before: int = before, name: str = ref.path) -> None:
            if progress is not None:
                progress(name, before + bytes_done, total)

        upload_blob(client, path, sha256=ref.sha256, progress=so_far)
        done += ref.size
