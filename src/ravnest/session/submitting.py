"""From a request to a job on the server: prepared, uploaded by content, submitted.

Files that the server has are not sent again, so a submission that broke off is simply repeated:
rows are shuffled by the seed, and equal requests make equal files. The last step, which makes the
job, has a key: if its answer is lost it is sent again, and makes no second job. So it is when the
server has no room for it at the moment, or ends.
"""

import logging
import secrets
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from ravnest.api.limits import encode
from ravnest.api.requests import SUBMISSION_KEY
from ravnest.api.views import JobView
from ravnest.client.answers import AnswerError
from ravnest.client.http import BrokenOffError, HttpClient
from ravnest.client.transfers import delay_s, upload_blob
from ravnest.planning.figures import quantity, size
from ravnest.session.preparing import Prepared, prepare
from ravnest.session.request import JobRequest

logger = logging.getLogger("ravnest.session")

CHECKED_S = 1800.0
_TRIED_S = 1800.0
"""How long the server may say that this is not the moment."""
_ATTEMPTS = 6
"""In a row that break off, of a server that has not said that it would be back."""
_LATER = frozenset({429, 503})
"""Too much at once, a server that ends, or one behind a proxy that is not there yet."""
_FIRST_WAIT = 4
"""As if so many attempts had been made: no sooner than a server says (Retry-After)."""

Progress = Callable[[str, int, int], None]
"""(what, bytes done, bytes in all)"""


def submit(client: HttpClient, request: JobRequest, progress: Progress | None = None) -> JobView:
    with tempfile.TemporaryDirectory(prefix="ravnest-submit-") as folder:
        prepared = prepare(request, Path(folder))
        send_files(client, prepared, progress)
        logger.info("the server checks the model …")
        return _post(client, prepared)


def _post(client: HttpClient, prepared: Prepared) -> JobView:
    """The server answers when it has checked the model, which may take it a while. Whatever of the
    answer was lost is asked for again, under the same key."""
    headers = {"Content-Type": "application/json", SUBMISSION_KEY: secrets.token_hex(16)}
    content = encode(prepared.spec)
    broken = waits = 0
    ends_at = time.monotonic() + _TRIED_S
    while True:
        try:
            with client.open(
                "POST", "/jobs", content=content, headers=headers, timeout_s=CHECKED_S
            ) as answer:
                return client.read("/jobs", answer, JobView)
        except BrokenOffError:
            broken += 1
            enough = time.monotonic() > ends_at if waits else broken == _ATTEMPTS
            if enough or client.closed.wait(delay_s(broken - 1)):
                raise
        except AnswerError as error:
            if error.status not in _LATER or time.monotonic() > ends_at:
                raise
            if not waits:
                # As a warning, which a script shows that has set up no logging: it stands still.
                logger.warning("%s; trying again for up to %.0f min …", error, _TRIED_S / 60)
            broken, waits = 0, waits + 1
            if client.closed.wait(delay_s(_FIRST_WAIT + waits - 1)):
                raise


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
