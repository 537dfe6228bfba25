"""A device to test on where there is none: `toy`, and its queues played as badly as is allowed.

Torch has one place for a device that is not its own, for the whole process. Where it cannot be
filled from Python, the tests that need the device are left out.
"""

import pytest
from torch.utils import backend_registration

_IS_POSSIBLE = hasattr(backend_registration, "_setup_privateuseone_for_python_backend")


def register() -> None:
    if _IS_POSSIBLE:
        import devices.toy  # noqa: F401


def requires_toy() -> None:
    """At the head of a test file."""
    if not _IS_POSSIBLE:
        pytest.skip("this torch takes no devices from Python", allow_module_level=True)
