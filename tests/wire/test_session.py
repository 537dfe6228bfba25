"""Exactly once and in order, whatever breaks: the bookkeeping of a link on its own."""

from collections import deque

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ravnest.errors import WireError
from ravnest.wire.framing import Ack, Frame
from ravnest.wire.session import Session, Window


def frame(session, size=10):
    return Frame(session.next_sequence(), b"", (bytes(size),))


class Pair:
    """Two sessions and the wire between them; deliveries of either side are written down."""

    def __init__(self, window=None):
        self.ends = (Session(window), Session(window))
        self.wires = (deque(), deque())  # frames on their way to end 0 and end 1
        self.delivered = ([], [])
        self.sent = [0, 0]

    def submit(self, end, size=10):
        self.ends[end].submit(frame(self.ends[end], size))
        self.sent[end] += 1

    def send(self, end):
        taken = self.ends[end].take()
        if taken is not None:
            self.wires[1 - end].append((taken, self.ends[end].ack()))

    def receive(self, end):
        if not self.wires[end]:
            return
        taken, ack = self.wires[end].popleft()
        self.ends[end].acknowledged(ack)
        if self.ends[end].accept(taken.sequence):
            self.delivered[end].append(taken.sequence)

    def use(self, end):
        if len(self.delivered[end]) > self.ends[end]._consumed:
            self.ends[end].consume()

    def tell(self, end):
        """An acknowledgement without a frame."""
        self.ends[1 - end].acknowledged(self.ends[end].ack())

    def break_off(self):
        for wire in self.wires:
            wire.clear()
        known = [end.received for end in self.ends]
        self.ends[0].resume(known[1])
        self.ends[1].resume(known[0])


ACTIONS = st.lists(
    st.one_of(
        st.tuples(
            st.sampled_from(["submit", "send", "send", "receive", "receive", "use", "tell"]),
            st.integers(0, 1),
        ),
        st.just(("break_off", None)),
    ),
    max_size=120,
)


@settings(max_examples=300, deadline=None)
@given(ACTIONS)
def test_any_history_ends_with_everything_delivered_once(actions):
    pair = Pair(Window(bytes=35, frames=3))
    for name, end in actions:
        pair.break_off() if end is None else getattr(pair, name)(end)
    pair.break_off()
    for _ in range(2 * sum(pair.sent) + 10):
        for end in (0, 1):
            pair.send(end)
        for end in (0, 1):
            pair.receive(end)
            pair.use(end)
            pair.tell(end)
    for end in (0, 1):
        assert pair.delivered[1 - end] == list(range(1, pair.sent[end] + 1))
        assert pair.ends[end].everything_arrived


def test_a_slow_receiver_holds_the_sender_back():
    pair = Pair(Window(bytes=25, frames=100))
    for _ in range(4):
        pair.submit(0)
    for _ in range(4):
        pair.send(0)
    assert len(pair.wires[1]) == 2
    pair.receive(1)
    pair.receive(1)
    pair.tell(1)
    pair.send(0)
    assert not pair.wires[1], "received, but not used up: there is no room yet"
    pair.use(1)
    pair.tell(1)
    pair.send(0)
    assert len(pair.wires[1]) == 1


def test_a_frame_larger_than_the_window_goes_alone():
    pair = Pair(Window(bytes=25, frames=100))
    pair.submit(0, size=1000)
    pair.submit(0)
    pair.send(0)
    pair.send(0)
    assert len(pair.wires[1]) == 1


def test_the_number_of_frames_is_limited_too():
    pair = Pair(Window(bytes=10**6, frames=2))
    for _ in range(5):
        pair.submit(0, size=0)
        pair.send(0)
    assert len(pair.wires[1]) == 2


def test_a_gap_is_refused():
    session = Session()
    assert session.accept(1)
    with pytest.raises(WireError, match="frame 3 came after frame 1"):
        session.accept(3)


def test_impossible_acknowledgements_are_refused():
    session = Session()
    session.submit(frame(session))
    with pytest.raises(WireError, match="acknowledges frame 1, 0 were sent"):
        session.acknowledged(Ack(1, 0))
    with pytest.raises(WireError, match="it can have 0 to 0"):
        session.resume(1)
