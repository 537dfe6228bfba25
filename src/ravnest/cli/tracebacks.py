"""Errors of a user's own file, shown as Python would show them."""

import traceback
from collections.abc import Iterable
from pathlib import Path
from types import TracebackType

EXTRAS = {
    "sklearn": "demo",
    "PIL": "images",
    "zstandard": "compression",
    "psycopg": "postgres",
    "pynvml": "gpu",
}
"""Modules that Ravnest does not need, and what it calls them in `pip install 'ravnest[…]'`."""


def shown_from(scripts: Iterable[Path], error: BaseException) -> str:
    """The traceback as `python SCRIPT` would print it, without the frames of this program."""
    own = {str(script) for script in scripts}
    frames = _frames_from(own, error)
    shown = "".join(traceback.format_exception(error.with_traceback(frames)))
    name = error.name if isinstance(error, ModuleNotFoundError) else None
    missing = (name or "").partition(".")[0]
    extra = EXTRAS.get(missing)
    return f"{shown}{missing} comes with: pip install 'ravnest[{extra}]'\n" if extra else shown


def _frames_from(own: set[str], error: BaseException) -> TracebackType | None:
    frame = error.__traceback__
    while frame is not None and frame.tb_frame.f_code.co_filename not in own:
        frame = frame.tb_next
    return frame
