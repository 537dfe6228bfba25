"""Who was the cause of a failure: this node, or the one that a chain of messages ends with."""

import re

from ravnest.errors import PeerError

_OTHER = re.compile(
    r"(?P<node>node_\d+)(?: \([^)]*\))? "
    r"(?:failed: |is gone|has left|refuses|sent something unreadable)"
)
_CONNECTION = re.compile(r"the connection to (?P<node>node_\d+)(?: \([^)]*\))? failed")


def culprit(error: BaseException, me: str) -> str | None:
    """The node that failed first, if it was not this one."""
    node = error.node if isinstance(error, PeerError) else None
    return None if node == me else node


def culprit_of(text: str, me: str) -> str | None:
    """Of what a script says last: of `node_1 failed: node_2 (10.0.0.7:1) is gone: …` node_2."""
    found = None
    while match := _OTHER.match(text) or _CONNECTION.match(text):
        found = match["node"]
        text = text[match.end() :]
    return None if found == me else found
