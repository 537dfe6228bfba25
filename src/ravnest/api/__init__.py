"""What server, agents, requesters and pages say to each other: plain data with limits.

Only structures live here, with the ranges that hold for whatever is decoded. Who sends what to whom
is in the file of each pair; how it travels is known to `server`, `agent` and `session` alone.
"""

VERSION = 1
"""Of the protocol; in the path of every request (`/api/v1`)."""
