"""What is refused while it is decoded, and what is cleaned before it is shown."""

import msgspec
import pytest
from msgspec.structs import replace

from ravnest.api.control import (
    Ended,
    Leaving,
    Refused,
    Rejected,
    Steer,
    agent_decoder,
    server_decoder,
)
from ravnest.api.limits import (
    Address,
    FilePath,
    Identifier,
    Label,
    Name,
    Parameters,
    Sha256,
    Word,
    plain,
)
from ravnest.api.work import Point, RoundReport, Span, WorkEnd


@pytest.mark.parametrize(
    ("kind", "good"),
    [
        (Name, "ada's".replace("'", "-")),
        (Identifier, "a1-2"),
        (Word, "cross_entropy"),
        (Label, "Core i7 (12 cores)"),
        (Sha256, "0" * 64),
        (FilePath, "data/train/x-00001.safetensors"),
        (Address, "[fe80::1]:80"),
    ],
)
def test_one_line_is_taken_and_a_second_one_is_not(kind, good):
    assert msgspec.json.decode(msgspec.json.encode(good), type=kind) == good
    for bad in (good + "\n", good + "\n" + good, good + "\x1b[2J", "\r" + good):
        with pytest.raises(msgspec.ValidationError):
            msgspec.json.decode(msgspec.json.encode(bad), type=kind)


@pytest.mark.parametrize(
    "path", ["../x", "a/../b", "/etc/passwd", "a//b", ".hidden", "a/.b", "a\\b", "", "a/b/c/d/e/f"]
)
def test_a_path_leads_nowhere_else(path):
    with pytest.raises(msgspec.ValidationError):
        msgspec.json.decode(msgspec.json.encode(path), type=FilePath)


LONG = "\N{SNOWMAN}" * 5000


@pytest.mark.parametrize(
    "params",
    [
        {"a" * 101: 1},  # compared with all that is known
        {"no word": 1},
        {"mode": "x" * 4001},
        {"shape": [1] * ((1 << 20) + 1)},
        {"names": ["x" * 4001]},
        {f"p{number}": 1 for number in range(65)},
    ],
    ids=lambda params: f"{params}"[:40],
)
def test_parameters_are_few_and_short(params):
    assert msgspec.json.decode(b'{"a.b": [1, "x"], "c": null}', type=Parameters)
    with pytest.raises(msgspec.ValidationError):
        msgspec.json.decode(msgspec.json.encode(params), type=Parameters)


@pytest.mark.parametrize(
    ("decoder", "message"),
    [
        (server_decoder, Steer(assignment="a", action="stop", reason=LONG)),
        (server_decoder, Rejected(reason=LONG, final=False)),
        (agent_decoder, Refused(assignment="a", reason=LONG)),
        (agent_decoder, Leaving(reason=LONG)),
        (agent_decoder, Ended(assignment="a", end=WorkEnd(outcome="failed", reason=LONG))),
        (msgspec.json.Decoder(WorkEnd), replace(WorkEnd(outcome="failed"), reason=LONG)),
    ],
)
def test_a_reason_of_any_length_makes_a_message_that_is_understood(decoder, message):
    """Limits are looked at where a message is decoded: one that was too long broke the line, and
    again each time it was said."""
    assert decoder.decode(msgspec.json.encode(message)) == message


@pytest.mark.parametrize("port", [0, 1, 80, 9999, 10000, 59999, 64999, 65000, 65535])
def test_ports_that_there_are(port):
    assert msgspec.convert(f"host:{port}", Address) == f"host:{port}"


@pytest.mark.parametrize("port", ["65536", "65540", "66000", "70000", "99999", "080", "-1", ""])
def test_ports_that_there_are_not(port):
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert(f"host:{port}", Address)


def test_labels_do_not_turn_the_direction_of_writing():
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert("\u202eUPG", Label)


HONEST_POINT = ["train/loss", 1, 0.5, 2.0, 3.0]
HONEST_ROUND = {
    "ring": 0,
    "number": 1,
    "began": 1.0,
    "ended": 2.0,
    "members": 2,
    "outcome": "applied",
}


@pytest.mark.parametrize(
    ("kind", "honest", "lies"),
    [
        (Point, HONEST_POINT, {0: "\x1b]0;x", 1: -1, 2: 1e308, 3: -1e308}),
        (
            Span,
            ["forward", -1, -1, 1.0, 2.0],
            {0: "meet me at", 1: 10**18, 2: -2, 3: -1e308, 4: 1e308},
        ),
        (RoundReport, HONEST_ROUND, {"began": -1.0, "ended": 1e308, "outcome": "\x1b[31m"}),
        (WorkEnd, {"outcome": "done", "metrics": {"eval/f1": 0.5}}, {"metrics": {"\x1b[31m": 1.0}}),
    ],
)
def test_what_workers_say_is_within_reason(kind, honest, lies):
    """Others show it: in terminals, on pages, in arithmetic of their own."""
    msgspec.convert(honest, kind)
    for place, lie in lies.items():
        said = honest.copy()
        said[place] = lie
        with pytest.raises(msgspec.ValidationError):
            msgspec.convert(said, kind)


def test_names_of_curves_are_plain():
    point = Point("eval/top_5@0", 1, 0.5, 2.0, 3.0)
    assert msgspec.json.decode(msgspec.json.encode(point), type=Point) == point
    with pytest.raises(msgspec.ValidationError):
        msgspec.json.decode(b'["\\u001b]0;x", 1, 0.5, 2.0, 3.0]', type=Point)


def test_text_that_would_steer_a_terminal_is_shown_as_what_it_is():
    assert plain("a\x1b[31mb\r\nc\td") == "a\ufffd[31mb\nc\td"
    assert plain("\u202egnp.exe") == "\ufffdgnp.exe"
