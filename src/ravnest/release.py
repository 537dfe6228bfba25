"""Which release of Ravnest this is."""

from importlib.metadata import PackageNotFoundError, version

try:
    VERSION = version("ravnest")
except PackageNotFoundError:  # run from a source tree that was never installed
    VERSION = "0+unknown"
