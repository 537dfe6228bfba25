"""What a user may say about rounds."""

import math
import re

import pytest

from ravnest.errors import NodeError
from ravnest.provider.averaging.outer import Nesterov
from ravnest.provider.averaging.settings import Averaging

NO_SENSE = {
    "mode": ("sometimes", None),
    "outer": ("nesterov", Nesterov, {"lr": 1}),
    "fragments": (0, 1.5, "x", None, math.nan, math.inf, True),
    "most_mbps": (0, "x", math.nan, True, 10**400),
    **dict.fromkeys(("connect_s", "resume_s", "round_s", "wait_s"), (0, -1, "x", None, math.nan)),
}


@pytest.mark.parametrize(
    ("name", "value"), [(name, value) for name, values in NO_SENSE.items() for value in values]
)
def test_settings_that_make_no_sense_are_refused(name, value):
    with pytest.raises(NodeError, match=f"^{name} is {re.escape(repr(value))}; expected "):
        Averaging(**{name: value})


@pytest.mark.parametrize(
    "settings",
    [
        {"lr": 0},
        {"lr": "x"},
        {"lr": math.inf},
        {"momentum": 1.0},
        {"momentum": -0.1},
        {"momentum": None},
    ],
    ids=str,
)
def test_so_are_those_of_the_outer_optimizer(settings):
    with pytest.raises(NodeError, match="Nesterov"):
        Nesterov(**settings)
