"""`python -m ravnest` is the same program as `ravnest`."""

import sys

from ravnest.cli import main

if __name__ == "__main__":
    sys.exit(main())
