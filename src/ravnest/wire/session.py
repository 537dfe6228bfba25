"""Exactly once and in order, over streams that may break: bookkeeping for one link.

Frames are numbered. The sender keeps each until the receiver has acknowledged it, and sends those
again after a break; the receiver drops what it has seen. A window of bytes that the receiver has
not used up yet holds a sender back that is faster than the receiver.

Pure: no clock, no sockets, no threads. Whoever drives it calls in one thread.
"""

from collections import deque
from dataclasses import dataclass

from ravnest.errors import WireError
from ravnest.wire.framing import Ack, Frame


@dataclass(frozen=True, slots=True)
class Window:
    """How much may be under way unused. One frame is always allowed, whatever its size."""

    bytes: int = 256 << 20
    frames: int = 1024

    def allows(self, size: int, others: int, others_bytes: int) -> bool:
        """Whether a frame of that size may go while so many others are under way. The peer tells
        what it has used up only when more than half of the window is open: up to there a frame may
        go whatever its size, or both sides would wait."""
        beyond_half = 2 * others_bytes > self.bytes
        full = beyond_half and others_bytes + size > self.bytes
        return not others or not (full or others >= self.frames)


class Session:
    """Both directions of one link, across any number of streams."""

    def __init__(self, window: Window | None = None) -> None:
        self._window = window or Window()
        self._kept: deque[Frame] = deque()  # sent or waiting, not acknowledged
        self._next = 0  # index in _kept of the next frame to send
        self._sizes: deque[int] = deque()  # of frames sent and not used up by the peer
        self._under_way = 0  # their sum
        self._consumed_by_peer = 0
        self._submitted = 0
        self.words = 0
        """Kept frames without tensors."""
        self._received = 0
        self._consumed = 0
        self._told = Ack(0, 0)

    # ---- sending ----

    def next_sequence(self) -> int:
        return self._submitted + 1

    def submit(self, frame: Frame) -> None:
        if frame.sequence != self.next_sequence():
            raise ValueError(f"frame {frame.sequence} submitted after {self._submitted}")
        self._submitted = frame.sequence
        self._kept.append(frame)
        self.words += not frame.body

    def take(self) -> Frame | None:
        """The next frame to put on the stream, if there is one and the window allows it."""
        if self._next >= len(self._kept):
            return None
        frame = self._kept[self._next]
        position = frame.sequence - self._consumed_by_peer
        if position > len(self._sizes):  # not a repetition after a break
            if not self._window.allows(frame.size, len(self._sizes), self._under_way):
                return None
            self._sizes.append(frame.size)
            self._under_way += frame.size
        self._next += 1
        return frame

    def acknowledged(self, ack: Ack) -> None:
        sent = self._submitted - len(self._kept) + self._next
        if ack.received > sent:
            raise WireError(f"the peer acknowledges frame {ack.received}, {sent} were sent")
        self._forget(ack.received)
        while self._consumed_by_peer < ack.consumed:
            self._consumed_by_peer += 1
            self._under_way -= self._sizes.popleft()

    def _forget(self, received: int) -> None:
        while self._kept and self._kept[0].sequence <= received:
            self.words -= not self._kept.popleft().body
            self._next -= 1

    def drop_everything(self) -> None:
        """Nothing more will be sent, nor sent again."""
        self._kept.clear()
        self._next = self.words = 0

    @property
    def has_unsent(self) -> bool:
        """Something waits to be put on a stream."""
        return self._next < len(self._kept)

    @property
    def everything_arrived(self) -> bool:
        return not self._kept

    # ---- receiving ----

    def accept(self, sequence: int) -> bool:
        """Whether this frame is to be delivered; False if it is a repetition."""
        if sequence <= self._received:
            return False
        if sequence != self._received + 1:
            raise WireError(f"frame {sequence} came after frame {self._received}")
        self._received = sequence
        return True

    def consume(self) -> None:
        """The oldest delivered frame not yet used up is used up now."""
        self._consumed += 1
        assert self._consumed <= self._received

    def ack(self) -> Ack:
        """What to tell the peer; remembered as told."""
        self._told = Ack(self._received, self._consumed)
        return self._told

    @property
    def ack_is_due(self) -> bool:
        return self._told != Ack(self._received, self._consumed)

    @property
    def received(self) -> int:
        return self._received

    # ---- breaks ----

    def resume(self, received_by_peer: int) -> None:
        """A new stream is up; go on after what the peer has."""
        first_kept = self._submitted - len(self._kept) + 1
        sent = first_kept - 1 + self._next
        if not first_kept - 1 <= received_by_peer <= sent:
            raise WireError(
                f"the peer says that it has {received_by_peer} frames; "
                f"it can have {first_kept - 1} to {sent}"
            )
        self._forget(received_by_peer)
        self._next = 0
        self._told = Ack(-1, -1)  # what was said last may not have arrived

    def drop_unsent(self) -> None:
        """Forget what has not been put on a stream yet: something more urgent is to be said."""
        unsent = len(self._kept) - self._next
        for _ in range(unsent):
            self.words -= not self._kept.pop().body
        self._submitted -= unsent
