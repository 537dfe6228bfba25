"""Chunks around a ring: whatever the order they come in, everybody ends with the same mean."""

import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ravnest.errors import WireError
from ravnest.provider.averaging.course import Course, Division, Mean, Step, Sum


def play(members, elements, chunk_elements, seed):
    """Every link delivers in order, links take turns at random; returns results and bytes sent."""
    dice = random.Random(seed)
    division = Division(elements, members, chunk_elements)
    rng = np.random.default_rng(seed)
    own = [rng.integers(-99, 99, elements).astype(np.float64) for _ in range(members)]
    results = [np.full(elements, np.nan) for _ in range(members)]
    courses = [Course(division, member) for member in range(members)]
    links = [[] for _ in range(members)]  # links[i]: from i to i + 1
    sent = [0] * members
    for member, course in enumerate(courses):
        for item in course.begin():
            start, stop = division.chunk(item.segment, item.chunk)
            links[member].append((item, own[member][start:stop]))
    while any(links):
        sender = dice.choice([k for k, link in enumerate(links) if link])
        item, payload = links[sender].pop(0)
        sent[sender] += len(payload)
        member = (sender + 1) % members
        start, stop = division.chunk(item.segment, item.chunk)
        assert stop - start == len(payload)
        courses[member].admit(item)
        step = courses[member].arrived(item)
        if step.add:
            payload = payload + own[member][start:stop]
        if step.finish:
            payload = payload / members
        if step.keep:
            results[member][start:stop] = payload
        if step.onward is not None:
            links[member].append((step.onward, payload))
    assert all(course.is_done for course in courses)
    return own, results, sent


@settings(max_examples=150, deadline=None)
@given(
    st.integers(2, 7),
    st.integers(0, 400),
    st.integers(1, 60),
    st.integers(0, 10**6),
)
def test_all_end_with_the_mean(members, elements, chunk_elements, seed):
    own, results, sent = play(members, elements, chunk_elements, seed)
    expected = np.mean(own, axis=0)
    for result in results:
        assert result.tobytes() == results[0].tobytes()
        np.testing.assert_allclose(result, expected, atol=1e-9)
    # No link carries more than 2 (m - 1) / m of the vector, but for segments that are not equal.
    assert max(sent) <= 2 * (members - 1) * -(-elements // members)


@pytest.mark.parametrize(
    "stray",
    [
        Sum(0, 0, 1),  # is for member 1
        Sum(1, 0, 0),
        Sum(1, 0, 3),
        Sum(1, 99, 1),
        Sum(7, 0, 1),
        Mean(0, 0, 3),
        Mean(0, -1, 1),
    ],
)
def test_what_does_not_belong_is_refused(stray):
    with pytest.raises(WireError, match="does not belong to member 2"):
        Course(Division(30, 3, 4), 2).admit(stray)


def test_nothing_is_taken_twice():
    course = Course(Division(30, 3, 4), 2)
    course.admit(Sum(1, 0, 1))
    step = course.arrived(Sum(1, 0, 1))
    assert step == Step(add=True, finish=False, keep=False, onward=Sum(1, 0, 2))
    with pytest.raises(WireError, match="came twice"):
        course.admit(Sum(1, 0, 1))
