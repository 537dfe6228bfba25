"""The pool file: what people write by hand is read as they meant it, or refused by name."""

import json
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ravnest.errors import PoolError
from ravnest.plan import ProviderSpec
from ravnest.planning.pool import parse_pool, read_pool, strip_comments

# The sample of the documentation, its closing comment included, with hosts filled in.
SAMPLE = """{
    "0":{
        "IP":"10.0.0.1:8080",
        "benchmarks":{
            "ram":8,
            "bandwidth":20
        }
    },
    "1":{
        "IP":"10.0.0.2:8080",
        "benchmarks":{
            "ram":16,
            "bandwidth":10
        }
    },
    "2":{
        "IP":"10.0.0.3:8080",
        "benchmarks":{
            "ram":8,
            "bandwidth":10
        }
    }
    // Add as many nodes as you need here
}
"""


@pytest.fixture
def path(tmp_path):
    return tmp_path / "node_configs.json"


def entry(address="h:1", **figures):
    return {"IP": address, "benchmarks": {"ram": 8, "bandwidth": 20} | figures}


# ---- what is accepted -------------------------------------------------------------------------


def test_the_sample_of_the_documentation(path):
    """GB and Mbit/s become bytes and stay Mbit/s; figures not given have their documented value."""
    path.write_text(SAMPLE)
    first, second, third = read_pool(path)
    assert first == ProviderSpec(
        id=0,
        address="10.0.0.1:8080",
        memory_bytes=8_000_000_000,
        bandwidth_mbps=20,
        gflops=50,
        latency_ms=0,
    )
    assert (second.id, second.memory_bytes, second.bandwidth_mbps) == (1, 16_000_000_000, 10)
    assert third.address == "10.0.0.3:8080"
    assert first.bytes_per_s == 2_500_000


def test_optional_figures_are_used():
    (provider,) = parse_pool({"0": entry(ram=0.5, gflops=12.5, latency=0)}, "pool")
    assert (provider.memory_bytes, provider.gflops, provider.latency_ms) == (500_000_000, 12.5, 0)
    (provider,) = parse_pool({"0": entry(latency=30)}, "pool")
    assert provider.latency_ms == 30


def test_measured_links_come_sorted_as_numbers():
    entries = {"1": entry("h:1", links={"10": 5, "9": 2.5}), "9": entry("h:9", links={}),
               "10": entry("h:10")}  # fmt: skip
    pool = parse_pool(entries, "pool")
    assert [provider.links for provider in pool] == [((9, 2.5), (10, 5.0)), (), ()]


@pytest.mark.parametrize(
    ("links", "told"),
    [
        ([90], "speeds measured to other providers"),
        (None, "speeds measured to other providers"),
        ({"1": 90}, "names the provider itself"),
        ({"7": 90}, "names provider '7', which the pool does not have"),
        ({"02": 90}, "names provider '02', which the pool does not have"),
        ({"2": "fast"}, "'2' is 'fast'; expected a number in Mbit/s"),
        ({"2": True}, "expected a number in Mbit/s"),
        ({"2": 0}, "must be greater than 0 Mbit/s"),
        ({"2": 1e12}, "no machine has that"),
    ],
)
def test_wrong_links_are_refused_by_name(links, told):
    with pytest.raises(PoolError, match=re.escape(told)) as caught:
        parse_pool({"1": entry("h:1", links=links), "2": entry("h:2")}, "pool")
    assert "provider '1'" in str(caught.value)
    assert "'links'" in str(caught.value)


def test_ids_may_have_gaps_and_come_sorted_as_numbers():
    entries = {name: entry(f"h:{name}") for name in ("10", "9", "700", "1")}
    assert [provider.id for provider in parse_pool(entries, "pool")] == [1, 9, 10, 700]


COMMENTED = [
    '{"0": {"IP": "h:1", // the first\n "benchmarks": {"ram": 8, "bandwidth": 20}}}',
    '// top\n{"0": {"IP": "h:1", "benchmarks": {"ram": 8, "bandwidth": 20}}} // end',
    '{"0": {"IP": "h:1", "benchmarks": {"ram": 8, "bandwidth": 20,},},}',
    '{"0": {"IP": "h:1", "benchmarks": {"ram": 8, "bandwidth": 20, // in Mbit/s\n}}, // }\n}',
    # A row of slashes could be read as comments in exponentially many ways.
    '{"0": {"IP": "h:1", "benchmarks": {"ram": 8, ' + "/" * 200 + '\n "bandwidth": 20}}}',
    '{"0": {"IP": "h:1", ' + "// " * 200 + '\n "benchmarks": {"ram": 8, "bandwidth": 20}}}',
    '\ufeff{"0": {"IP": "h:1",\r\n "benchmarks": {"ram": 8, "bandwidth": 20}}} // Windows\r\n',
]


@pytest.mark.parametrize("text", COMMENTED)
def test_comments_and_trailing_commas(path, text):
    path.write_bytes(text.encode())
    assert read_pool(path) == parse_pool({"0": entry()}, "pool")


@pytest.mark.parametrize(
    "text", ['"http://h"', '["a,]", ",}", "//"]', r'"\"// no comment"', r'["\\", "//,]"]']
)
def test_strings_keep_their_slashes_and_commas(text):
    """Comments and trailing commas inside a string are part of the string."""
    assert strip_comments(text) == text


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text('ab"\\/,:{}[] \n') | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text('ab"\\/,'), inner),
    max_leaves=12,
)


@settings(deadline=None)
@given(value=JSON_VALUES, indent=st.sampled_from([None, 2]), ascii_only=st.booleans())
def test_valid_json_keeps_its_meaning(value, indent, ascii_only):
    text = json.dumps(value, indent=indent, ensure_ascii=ascii_only)
    assert json.loads(strip_comments(text)) == value


@settings(deadline=None)
@given(value=JSON_VALUES, data=st.data())
def test_decoration_does_not_change_the_meaning(value, data):
    """Comments anywhere between two tokens and a comma after any last item; nothing moves."""
    text = decorated(value, data.draw)
    stripped = strip_comments(text)
    assert json.loads(stripped) == value
    assert len(stripped) == len(text)


def decorated(value, draw):
    def gap():
        comment = st.text('ab"\\/,:{}[] ', max_size=8).map(lambda text: f"//{text}\n")
        return "".join(draw(st.lists(st.sampled_from([" ", "\n"]) | comment, max_size=2)))

    if isinstance(value, list | dict):
        opening, closing = "[]" if isinstance(value, list) else "{}"
        if isinstance(value, list):
            items = [decorated(item, draw) for item in value]
        else:
            items = [
                f"{json.dumps(key)}{gap()}:{gap()}{decorated(item, draw)}"
                for key, item in value.items()
            ]
        comma = draw(st.sampled_from(["", ","])) if items else ""
        inside = f"{gap()},{gap()}".join(items)
        return f"{opening}{gap()}{inside}{gap()}{comma}{gap()}{closing}"
    return json.dumps(value)


# ---- what is refused, and how -----------------------------------------------------------------


def test_a_missing_file_is_named_with_an_example(path):
    with pytest.raises(PoolError, match=r"no file .*node_configs\.json.*\"benchmarks\""):
        read_pool(path)


def test_a_folder_in_its_place_cannot_be_read(path):
    path.mkdir()
    with pytest.raises(PoolError, match="cannot be read"):
        read_pool(path)


UNREADABLE = {
    "not UTF-8": (b'{"0": "\xff"}', "cannot be read"),
    "broken": (b'{\n "0": 1,\n "1" 2}', r'line 3, column 6\):\n    "1" 2}$'),
    "broken after a comment": (b'{"0": 1, // one\n "1" 2 // two\n}', r'\n    "1" 2 // two$'),
    "a long line": (b'{"0" ' + b"1" * 500 + b"}", r"\n    .{100}…$"),
    "shell comment": (b'{\n # one\n "0": 1}', r"only // comments.*line 2.*\n    # one$"),
    "shell comment after a value": (b'{"0": 1 # one\n}', "only // comments"),
    "C comment": (b'{"0": 1, /* one */ "1": 2}', "only // comments"),
    "cut off": (b'{"0": {"IP": "h:1"', "not valid JSON"),
    "comma twice": (b'{"0": 1,,}', "not valid JSON"),
    "empty": (b"", "the file is empty"),
    "only a comment": (b"// nothing yet", "the file is empty"),
    "id twice": (b'{"0": 1, "0": 2}', "'0' is given twice"),
    "figure twice": (b'{"0": {"benchmarks": {"ram": 8, "ram": 16}}}', "'ram' is given twice"),
    "endless digits": (b'{"0": ' + b"1" * 10_000 + b"}", "digits"),
    "endless brackets": (b"[" * 100_000, "recursion"),
    "a list": (b"[]", "must map provider ids"),
    "nobody": (b"{}", "must map provider ids"),
}


@pytest.mark.parametrize(("content", "message"), UNREADABLE.values(), ids=list(UNREADABLE))
def test_an_unusable_file_is_refused_by_name(path, content, message):
    path.write_bytes(content)
    with pytest.raises(PoolError, match=message) as caught:
        read_pool(path)
    assert str(path) in str(caught.value)
    assert caught.value.__cause__ is None  # a second traceback would say the same in other words
    assert caught.value.__suppress_context__ or caught.value.__context__ is None


@pytest.mark.parametrize("key", ["a", "", "-1", "01", "1.0", "٣", "²", " 1", "1" * 10, "1" * 9999])
def test_an_id_is_a_plain_whole_number(key):
    with pytest.raises(PoolError, match="whole numbers"):
        parse_pool({key: entry()}, "pool")


ADDRESSES = {
    "missing": None,
    "not a string": 8080,
    "no port": "10.0.0.1",
    "no host": ":8080",
    "empty port": "h:",
    "port 0": "h:0",
    "port too large": "h:65536",
    "port negative": "h:-1",
    "port not a number": "h:http",
    "port in other digits": "h:٣",
    "port as an exponent": "h:²",
    "port with zeros": "h:08080",
    "slash": "a/b:1",
    "backslash": "a\\b:1",
    "parent folder": "../../etc:1",
    "dots only": "..:1",
    "NUL": "a\0b:1",
    "newline": "a\nb:1",
    "newline at the end": "h:1\n",
    "space": "my host:1",
    "a URL": "http://h:1",
    "IPv6 without brackets": "::1:8080",
    "too long for a folder": "h" * 250 + ":1",
    "a quote": "h'):1",
}


@pytest.mark.parametrize("address", ADDRESSES.values(), ids=list(ADDRESSES))
def test_a_bad_address_is_refused(address):
    """The address becomes the name of a folder, so nothing in it may lead elsewhere."""
    with pytest.raises(PoolError, match=r"provider '7'.*'IP'"):
        parse_pool({"7": entry(address)}, "pool")


@pytest.mark.parametrize(
    "address", ["h:1", "gpu-1.example_x.org:65535", "[::1]:80", "[fe80::1%e]:9"]
)
def test_good_addresses_are_kept_as_they_are(address):
    assert parse_pool({"0": entry(address)}, "pool")[0].address == address


@pytest.mark.parametrize("other", ["h:1", "H:1"])
def test_two_providers_cannot_share_an_address(other):
    with pytest.raises(PoolError, match="providers 3 and 5 have the same address"):
        parse_pool({"3": entry("h:1"), "5": entry(other)}, "pool")


WRONG_FIGURES = [-1, -0.5, "8", None, True, [8], float("nan"), float("inf"), 1e30, 1e-30, 10**400]


@pytest.mark.parametrize("value", WRONG_FIGURES, ids=lambda value: str(value)[:10])
@pytest.mark.parametrize("name", ["ram", "bandwidth", "gflops", "latency"])
def test_a_figure_that_makes_no_sense_is_refused(name, value):
    with pytest.raises(PoolError, match=f"provider '0': '{name}' is "):
        parse_pool({"0": entry(**{name: value})}, "pool")


@pytest.mark.parametrize("name", ["ram", "bandwidth", "gflops"])
def test_zero_is_refused_where_it_would_stop_everything(name):
    with pytest.raises(PoolError, match=f"'{name}' is 0; it must be greater than 0"):
        parse_pool({"0": entry(**{name: 0})}, "pool")


@pytest.mark.parametrize("constant", ["NaN", "Infinity", "-Infinity", "1e999"])
def test_constants_that_json_lets_through_are_refused(path, constant):
    path.write_text(
        f'{{"0": {{"IP": "h:1", "benchmarks": {{"ram": {constant}, "bandwidth": 1}}}}}}'
    )
    with pytest.raises(PoolError, match="'ram' is"):
        read_pool(path)


INCOMPLETE = {
    "not an object": ("h:1", "must be an object"),
    "no benchmarks": ({"IP": "h:1"}, "lacks 'benchmarks'"),
    "no ram": ({"IP": "h:1", "benchmarks": {"bandwidth": 1}}, r"'ram' \(in GB\)"),
    "no bandwidth": ({"IP": "h:1", "benchmarks": {"ram": 1}}, r"'bandwidth' \(in Mbit/s\)"),
    "unknown figure": (entry(vram=8), "unknown benchmark 'vram'; known are bandwidth, gflops"),
    "misplaced figure": ({**entry(), "gflops": 100}, "unknown key 'gflops'"),
}


@pytest.mark.parametrize(("given_entry", "message"), INCOMPLETE.values(), ids=list(INCOMPLETE))
def test_an_entry_has_what_it_needs_and_nothing_unknown(given_entry, message):
    with pytest.raises(PoolError, match=message):
        parse_pool({"0": given_entry}, "pool")
