"""Every exception Ravnest raises on purpose, in one tree.

    RavnestError
    ├── CaptureError    the model cannot be cut without risking a wrong result
    ├── PoolError       the description of the providers is missing, broken or contradictory
    ├── PlanError       no plan fits this model on this pool
    ├── RunDirError     the folder of a run is in use by another process
    ├── PackageError    a stage package is damaged, foreign, too large or not allowed
    ├── FusionError     the trained stages do not add up to one model
    ├── InputError      a batch does not suit the model as it was planned
    ├── NodeError       a Node or Trainer was given something it cannot work with
    ├── TokenError      a token or credential is none, or is not accepted
    ├── JobError        a job cannot be submitted, or not be steered like that
    ├── ServerError     the server cannot be reached, is not who it should be, or says no
    └── RunError        a run that had begun cannot go on
        ├── WireError   what arrived over the network is damaged, foreign or too large
        ├── OperatorError  an operator of a stage has failed on what it was given
        ├── PeerError   another provider cannot be reached, has died or has failed
        └── DataError   Root and Leaf are not on the same batch

Those above `RunError` are `ValueError`s as well: each one says that a value given by the user was
refused, and its message names that value and what to do about it.

A reason travels from a worker to the server and to everyone who looks at a job, and torch writes
values of tensors into its error texts ("index 4711 is out of bounds"). What leaves a process says
what failed, on which kinds and shapes of tensors, and the type of the error; torch's own text stays
behind as the error's cause, which only the log of this machine shows.
"""

import contextlib
from collections.abc import Iterable, Iterator
from typing import Any


class RavnestError(Exception):
    """Base class: catch this to catch everything Ravnest reports deliberately."""


class CaptureError(RavnestError, ValueError):
    """The model cannot be captured as a graph; the message names the place and a remedy."""


class PoolError(RavnestError, ValueError):
    """The pool of providers is described wrongly."""


class PlanError(RavnestError, ValueError):
    """The model cannot be placed on this pool; the message holds both figures."""


class RunDirError(RavnestError, ValueError):
    """The folder of a run cannot be used now."""


class PackageError(RavnestError, ValueError):
    """A stage package was refused."""


class FusionError(RavnestError, ValueError):
    """Trained stages are missing or belong to different models."""

    stage: int | None = None
    """The one that is at fault, if it is one alone."""


class InputError(RavnestError, ValueError):
    """What was given to the model is not what it was planned for; the message names the input."""


class NodeError(RavnestError, ValueError):
    """A Node or Trainer cannot be made from these arguments."""


class TokenError(RavnestError, ValueError):
    """A token is malformed, expired, spent, revoked or of the wrong role."""


class JobError(RavnestError, ValueError):
    """A job was refused; the message names the part of it and the reason."""


class ServerError(RavnestError, ValueError):
    """The conversation with a server failed."""


class RunError(RavnestError, RuntimeError):
    """A run that had begun cannot go on."""


class WireError(RunError):
    """Bytes from the network were refused."""


class OperatorError(RunError):
    """An operator failed; the message holds no values of tensors, its cause may."""


class PeerError(RunError):
    """Another provider is gone, and the message names it."""

    def __init__(self, message: str, *, node: str | None = None) -> None:
        super().__init__(message)
        self.node = node
        """The one that failed first, as far as is known here."""


class DataError(RunError):
    """Root and Leaf do not read the same data in the same order, or not what was announced."""


def text_without_values(error: BaseException) -> str:
    """What of an error may leave this machine."""
    if isinstance(error, RavnestError):
        return str(error)
    if isinstance(error, OSError) and error.strerror:
        return f"{type(error).__name__}: {error.strerror}"
    if isinstance(error, MemoryError) or "allocate memory" in str(error):
        return "not enough memory"
    return f"{type(error).__name__} (the log of this machine has its text)"


@contextlib.contextmanager
def no_values_in_errors(what: str, *operands: Any) -> Iterator[None]:
    """Turns an error of torch inside the block into one that may leave this machine."""
    try:
        yield
    except RavnestError:
        raise
    except Exception as error:
        reason = text_without_values(error)
        raise OperatorError(f"{what}{described(operands)}: {reason}") from error


def described(operands: Iterable[Any]) -> str:
    """Kinds and shapes of the first few tensors: ` on float32[8, 5], int64[8]`."""
    tensors = [value for value in operands if hasattr(value, "dtype") and hasattr(value, "shape")]
    kinds = (f"{value.dtype}{list(value.shape)}".removeprefix("torch.") for value in tensors[:8])
    return f" on {', '.join(kinds)}" if tensors else ""
