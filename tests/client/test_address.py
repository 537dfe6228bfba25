import pytest

from ravnest.api import DEFAULT_PORT
from ravnest.client.address import ServerAddress
from ravnest.errors import ServerError


@pytest.mark.parametrize(
    ("text", "url"),
    [
        ("https://train.example.org:8443", "https://train.example.org:8443"),
        ("train.example.org:8443", "https://train.example.org:8443"),
        ("train.example.org", f"https://train.example.org:{DEFAULT_PORT}"),
        (" HTTPS://Train.Example.org:1/ ", "https://train.example.org:1"),
        ("203.0.113.7:65535", "https://203.0.113.7:65535"),
        ("[2001:db8::7]:443", "https://[2001:db8::7]:443"),
        ("https://[::1]", f"https://[::1]:{DEFAULT_PORT}"),
    ],
)
def test_what_people_type_is_understood(text, url):
    assert str(ServerAddress.parse(text)) == url


@pytest.mark.parametrize(
    "text",
    [
        "",
        "host:0",
        "host:65536",
        "host:port",
        "a b",
        "ftp://host",
        "https://",
        "https://host/path",
        "https://user@host",
        "[host]:80",
        "host?x",
        "-host",
    ],
)
def test_what_is_no_address_is_refused_by_name(text):
    with pytest.raises(ServerError) as refused:
        ServerAddress.parse(text)
    assert repr(text) in str(refused.value)


def test_an_ipv6_address_without_brackets_is_answered_with_the_right_spelling():
    with pytest.raises(ServerError, match=r"\[2001:db8::7\]"):
        ServerAddress.parse("2001:db8::7")


def test_plain_http_needs_consent():
    with pytest.raises(ServerError, match="--insecure"):
        ServerAddress.parse("http://host:80")
    assert str(ServerAddress.parse("http://host:80", insecure=True)) == "http://host:80"
    assert ServerAddress.parse("host:80", insecure=True).scheme == "http"
    assert ServerAddress.parse("https://host:80", insecure=True).scheme == "https"


def test_what_follows_from_an_address():
    six = ServerAddress.parse("[2001:db8::7]:443")
    assert six.host == "2001:db8::7"
    assert six.api == "https://[2001:db8::7]:443/api/v1"
    assert six.websocket_api == "wss://[2001:db8::7]:443/api/v1"
    assert six.folder == "2001_db8__7_443"
    local = [ServerAddress.parse(text).is_local for text in ("localhost", "127.0.0.5", "[::1]")]
    assert all(local)
    assert not ServerAddress.parse("203.0.113.7").is_local
    assert ServerAddress.parse("h:1", insecure=True).websocket_api == "ws://h:1/api/v1"
