"""Numbers that a model draws in Python, of which a graph would repeat one draw for ever.

Some of them do not matter: layer drop is written as `if random.uniform(0, 1) < self.layerdrop`, and
its probability may be 0. So a model that draws is captured twice more, while the generators give
the least numbers that there are, and the largest. Where all three graphs are equal, none of them
holds a draw.
"""

import contextlib
import random
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import numpy as np

from ravnest.errors import CaptureError

_T = TypeVar("_T")
_WORDS, _EXTREME = 624, 600
_LEAST, _LARGEST = 0, 0x12DD9BB3
"""Words of a Mersenne Twister's state that it gives as 32 zeros, and as 32 ones."""


def undrawn(capture: Callable[[], _T], described: Callable[[_T], Any]) -> _T:
    """What is captured, if it does not depend on draws; `described` says what may not differ."""
    with _restored():
        before = _states()
        found = capture()
        if _states() == before:
            return found
        wanted = described(found)
        for word in (_LEAST, _LARGEST):
            _set(word)
            if described(capture()) != wanted:
                raise frozen_randomness("Python's `random` or from NumPy")
        return found


def frozen_randomness(source: str) -> CaptureError:
    return CaptureError(
        f"the model draws random numbers from {source} in its forward (layer drop is a common "
        "reason). A captured graph would repeat one draw for ever. Draw with torch, inside tensor "
        "operations and without a generator of your own, or set the drop probability to 0."
    )


def _set(word: int) -> None:
    """Other numbers follow, for code that draws until it has one that it likes."""
    others = random.Random(word)
    rest = [others.getrandbits(32) for _ in range(_WORDS - _EXTREME)]
    words = (*(word,) * _EXTREME, *rest)
    random.setstate((3, (*words, 0), None))
    np.random.set_state(("MT19937", np.array(words, dtype=np.uint32), 0, 0, 0.0))


def _states() -> tuple[Any, ...]:
    kind, keys, *rest = np.random.get_state()
    return (random.getstate(), kind, np.asarray(keys).tobytes(), *rest)


@contextlib.contextmanager
def _restored() -> Iterator[None]:
    state, numpy_state = random.getstate(), np.random.get_state()
    try:
        yield
    finally:
        random.setstate(state)
        np.random.set_state(numpy_state)
