"""Ravnest: train one PyTorch model across many unequal machines on the internet."""

from importlib.metadata import PackageNotFoundError, version

try:
    __version__ = version("ravnest")
except PackageNotFoundError:  # run from a source tree that was never installed
    __version__ = "0+unknown"
