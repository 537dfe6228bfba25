"""What is refused while it is decoded, and what is cleaned before it is shown."""

import msgspec
import pytest

from ravnest.api.limits import Address, FilePath, Identifier, Label, Name, Sha256, Word, plain
from ravnest.api.work import Point


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


def test_names_of_curves_are_plain():
    point = Point("eval/top_5@0", 1, 0.5, 2.0, 3.0)
    assert msgspec.json.decode(msgspec.json.encode(point), type=Point) == point
    with pytest.raises(msgspec.ValidationError):
        msgspec.json.decode(b'["\\u001b]0;x", 1, 0.5, 2.0, 3.0]', type=Point)


def test_text_that_would_steer_a_terminal_is_shown_as_what_it_is():
    assert plain("a\x1b[31mb\r\nc\td") == "a\ufffd[31mb\nc\td"
    assert plain("\u202egnp.exe") == "\ufffdgnp.exe"
