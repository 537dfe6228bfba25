"""What server, agents, requesters and pages say to each other: plain data with limits.

Only structures live here, with the ranges that hold for whatever is decoded. Who sends what to whom
is in the file of each pair; how it travels is known to `server`, `agent` and `session` alone.
"""

VERSION = 1
"""Of the protocol; in the path of every request (`/api/v1`)."""

DEFAULT_PORT = 8470
"""Of a server; what an address without a port means."""
SERVER_NAME = "ravnest-server"
"""In the certificate of every server: clients verify this name, whatever address they dialled."""
