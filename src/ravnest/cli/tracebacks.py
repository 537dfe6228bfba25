"""Errors of a user's own file, shown as Python would show them."""

import traceback
from collections.abc import Iterable
from pathlib import Path
from types import TracebackType

PACKAGES = {
    "sklearn": "scikit-learn",
    "PIL": "pillow",
    "zstandard": "zstandard",
    "psycopg": "psycopg[binary]",
    "pynvml": "nvidia-ml-py",
}
"""Modules that Ravnest does not need, and the package that each of them comes in."""


def shown_from(scripts: Iterable[Path], error: BaseException) -> str:
    """The traceback as `python SCRIPT` would print it, without the frames of this program."""
    own = {str(script) for script in scripts}
    frames = _frames_from(own, error)
    shown = "".join(traceback.format_exception(error.with_traceback(frames)))
    name = error.name if isinstance(error, ModuleNotFoundError) else None
    missing = (name or "").partition(".")[0]
    package = PACKAGES.get(missing)
    return f"{shown}{missing} comes with: pip install '{package}'\n" if package else shown


def _frames_from(own: set[str], error: BaseException) -> TracebackType | None:
    frame = error.__traceback__
    while frame is not None and frame.tb_frame.f_code.co_filename not in own:
        frame = frame.tb_next
    return frame
