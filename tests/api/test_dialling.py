"""Which addresses may be dialled because somebody else has named them: every range, both sides."""

import ipaddress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ravnest.api.dialling import (
    LOWEST_PORT,
    MOST_ENDPOINTS,
    MOST_HOSTS,
    PRIVATE,
    Endpoint,
    Reach,
    bare_ip,
    between,
    chosen,
    from_here,
    may_dial,
    scope_of,
    why_not,
)

SCOPES = {
    "global": "1.1.1.1 9.255.255.255 11.0.0.0 100.63.255.255 100.128.0.0 172.15.0.1 172.32.0.0 "
    "192.167.0.1 192.169.0.0 223.255.255.255 2600::1 2a00:1450::1",
    "private": "10.0.0.0 10.255.255.255 172.16.0.1 172.31.255.255 192.168.0.1 100.64.0.1 "
    "100.127.255.255 fc00::1 fdff:ffff::1 fd00:ec3::254",
    "loopback": "127.0.0.1 127.255.255.255 ::1",
    "never": "0.0.0.0 0.1.2.3 169.254.0.1 169.254.169.254 224.0.0.1 239.255.255.255 240.0.0.1 "
    "255.255.255.255 192.0.0.192 192.0.2.1 192.88.99.1 198.18.0.1 198.19.255.255 198.51.100.1 "
    "203.0.113.1 100.100.100.200 168.63.129.16 :: ff02::1 fe80::1 fe80::a9fe:a9fe febf::1 fec0::1 "
    "fd00:ec2::254 fd20:ce::254 fd00:42::42 fd00:c1::a9fe:a9fe fd00:a9fe:a9fe::1 "
    "fd00:100::100:200 2001:db8::1 3fff::1 100::1 5f00::1 4000::1 e000::1 "
    # IPv4 inside IPv6: mapped, compatible, NAT64 (both), 6to4, Teredo, ISATAP.
    "::ffff:127.0.0.1 ::ffff:1.1.1.1 ::7f00:1 64:ff9b::a9fe:a9fe 64:ff9b:1::a00:1 2002:7f00:1::1 "
    "2002:a00:5::1 2001:0:4136:e378:8000:63bf:3fff:fdd2 2600::5efe:10.0.0.5 "
    "2600::200:5efe:10.0.0.5 fe80::5efe:10.0.0.5 fd12::5efe:10.0.0.5",
}


@pytest.mark.parametrize(
    ("text", "scope"), [(text, scope) for scope in SCOPES for text in SCOPES[scope].split()]
)
def test_every_range_has_its_scope(text, scope):
    assert scope_of(ipaddress.ip_address(text)) == scope


@pytest.mark.parametrize(
    ("address", "canonical"),
    [
        ("1.2.3.4:1", "1.2.3.4:1"),
        ("1.2.3.4:65535", "1.2.3.4:65535"),
        ("[2600:0:0::0001]:80", "[2600::1]:80"),
        ("[2A00::B]:80", "[2a00::b]:80"),
    ],
)
def test_a_literal_has_one_spelling(address, canonical):
    assert str(Endpoint.parse(address)) == canonical


NO_LITERALS = [
    *(
        "localhost:22",
        "example.org:80",
        "a:1",
        "1.2.3.4",
        "1.2.3.4:",
        ":80",
        "1.2.3.4:0",
        "1.2.3.4:65536",
    ),
    *(
        "1.2.3.4:-1",
        "1.2.3.4:+80",
        "1.2.3.4:080",
        "1.2.3.4:8_0",
        "1.2.3.4:\uff18\uff10",
        "1.2.3:80",
    ),
    *("0x7f.1:80", "2130706433:80", "0177.0.0.1:80", "127.1:80", "01.2.3.4:80", "\uff11.0.0.1:80"),
    *("[1.2.3.4]:80", "2600::1:80", "[2600::1:80", "2600::1]:80", "[]:80", "[fe80::1%lo]:80"),
    *("[2600::1%25eth0]:80", "[2600::1]x:80", "1.2.3.4/8:80", "[2600::/32]:80"),
    *("", ":", " 1.2.3.4:80", "1.2.3.4:80\n", "1.2.3.4 :80", "\0:1"),
]


@pytest.mark.parametrize(
    "address",
    NO_LITERALS,
)
def test_what_is_no_literal_is_no_endpoint(address):
    assert Endpoint.parse(address) is None
    assert "no literal" in may_dial(address, HOME, HOME, lan=True)


HOME, AWAY, SIX = map(bare_ip, ("8.8.8.8", "9.9.9.9", "2600:1:2:3::4"))
LAN, OTHER_ON_LAN = map(bare_ip, ("192.168.1.6", "192.168.1.7"))
LOCAL, LOCAL_SIX = map(bare_ip, ("127.0.0.1", "::1"))
UNKNOWN = None

MAY = [
    # what is named, who has named it, who would dial it
    ("9.9.9.9:7700", AWAY, HOME),
    ("9.9.9.9:443", AWAY, HOME),  # a low port, where it connects from
    ("7.7.7.7:7700", AWAY, HOME),  # several lines, or IPv6 beside IPv4: see decision 022
    ("[2600::9]:7700", AWAY, HOME),
    ("7.7.7.7:7700", UNKNOWN, UNKNOWN),
    ("192.168.1.9:7700", HOME, HOME),  # behind one router
    ("[fd12::1]:7700", HOME, HOME),
    ("100.64.1.1:7700", HOME, HOME),
    ("192.168.1.9:7700", SIX, bare_ip("2600:1:2:3::99")),  # the same first 64 bits
    ("[2600:1:2:3::9]:7700", SIX, bare_ip("2600:1:2:3::99")),  # of their own household
    ("8.8.8.8:7700", HOME, HOME),
    ("192.168.1.6:7700", LAN, OTHER_ON_LAN),  # a server on a LAN
    ("127.0.0.1:7700", LOCAL, LOCAL),  # several agents on the server's machine, or a proxy's
    ("[::1]:7700", LOCAL, LOCAL_SIX),
]
MAY_NOT = [
    ("7.7.7.7:443", AWAY, HOME, "port 443"),
    ("7.7.7.7:443", UNKNOWN, UNKNOWN, "port 443"),
    ("192.168.1.9:80", HOME, HOME, "port 80"),
    ("10.0.0.5:22", AWAY, HOME, "port 22"),
    ("8.8.8.8:7700", AWAY, HOME, "private"),  # the dialler's own router, from inside
    ("8.8.8.8:80", HOME, HOME, "port 80"),
    ("[2600:1:2:3::9]:9100", AWAY, SIX, "private"),  # behind its firewall
    ("10.0.0.5:7700", AWAY, HOME, "private"),
    ("100.64.1.1:7700", AWAY, HOME, "private"),
    ("[fd12::1]:7700", AWAY, HOME, "private"),
    ("192.168.1.9:7700", SIX, bare_ip("2600:1:2:4::99"), "private"),
    ("192.168.1.9:7700", UNKNOWN, UNKNOWN, "private"),
    ("192.168.1.9:7700", HOME, UNKNOWN, "private"),
    ("192.168.1.1:7700", LAN, OTHER_ON_LAN, "private"),
    ("192.168.1.9:7700", LAN, LAN, "private"),  # it may be a proxy, and they anywhere
    ("192.168.1.9:7700", LOCAL, LOCAL, "private"),
    ("192.168.1.5:7700", LAN, OTHER_ON_LAN, "private"),
    ("192.168.1.6:80", LAN, OTHER_ON_LAN, "port 80"),
    ("127.0.0.1:80", LOCAL, LOCAL, "port 80"),
    ("192.168.1.5:7700", LOCAL, LAN, "private"),  # loopback is that of a tunnel as well
    ("127.0.0.1:6379", AWAY, HOME, "loopback"),
    ("127.0.0.1:6379", HOME, HOME, "loopback"),
    ("127.0.0.1:6379", LAN, LOCAL, "loopback"),
    ("127.0.0.1:6379", LOCAL, LAN, "loopback"),
    ("127.0.0.1:6379", UNKNOWN, UNKNOWN, "loopback"),
    ("127.0.0.1:6379", LAN, LAN, "loopback"),
    ("[::1]:6379", AWAY, HOME, "loopback"),
]


@pytest.mark.parametrize(("address", "target", "dialler"), MAY)
@pytest.mark.parametrize("lan", [False, True])
def test_what_the_server_hands_out(address, target, dialler, lan):
    assert may_dial(address, target, dialler, lan=lan) is None


@pytest.mark.parametrize(("address", "target", "dialler", "reason"), MAY_NOT)
def test_what_the_server_keeps_to_itself(address, target, dialler, reason):
    assert reason in may_dial(address, target, dialler)
    # The owner's --lan is about private addresses, and not about the services of systems there.
    assert (may_dial(address, target, dialler, lan=True) is None) == (reason == "private")


@pytest.mark.parametrize("never", SCOPES["never"].split())
@pytest.mark.parametrize("port", [80, 7700])
def test_some_are_dialled_in_no_case(never, port):
    endpoint = Endpoint(ipaddress.ip_address(never), port)
    here = endpoint.ip
    for who in (HOME, LAN, LOCAL, here):
        assert may_dial(str(endpoint), here, who, lan=True) is not None
    ours = [ipaddress.ip_interface(f"{never}/8"), ipaddress.ip_interface("127.0.0.1/8")]
    assert why_not(endpoint, from_here(endpoint.ip, ours, here=[endpoint], lan=True)) is not None


OURS = [
    *map(ipaddress.ip_interface, ("127.0.0.1/8", "192.168.1.6/24", "8.8.8.8/24", "::1/128")),
    *map(ipaddress.ip_interface, ("2600:1:2:3::4/64", "9.9.9.9/32", "172.17.0.1/16")),
]


@pytest.mark.parametrize(
    ("address", "server", "answer"),
    [
        ("7.7.7.7:7700", "1.1.1.1", True),
        ("7.7.7.7:443", "1.1.1.1", True),  # the server has judged that
        ("192.168.1.9:7700", "1.1.1.1", True),
        ("192.168.1.9:80", "1.1.1.1", False),
        ("192.168.2.9:7700", "1.1.1.1", False),
        ("10.0.0.5:7700", "1.1.1.1", False),
        ("192.168.2.9:7700", "192.168.7.7", True),  # a private server has its agents there
        ("10.0.0.5:7700", "192.168.7.7", False),
        ("127.0.0.1:7700", "1.1.1.1", False),
        ("127.0.0.1:7700", "192.168.1.5", False),
        ("127.0.0.1:7700", None, False),
        ("127.0.0.1:7700", "127.0.0.1", False),  # wherever the server is
        ("[::1]:7700", "192.168.1.6", False),
        ("169.254.169.254:8080", "169.254.169.254", False),
        ("8.8.8.8:7700", "1.1.1.1", False),  # this machine, past its firewall
        ("9.9.9.9:7700", "1.1.1.1", False),
        ("[2600:1:2:3::4]:7700", "1.1.1.1", False),
        ("192.168.1.6:7700", "192.168.1.5", False),
        ("172.17.0.1:7700", "1.1.1.1", False),
        ("8.8.8.9:7700", "1.1.1.1", True),  # beside it
        ("8.8.8.9:443", "1.1.1.1", False),
        ("[2600:1:2:3::9]:443", "1.1.1.1", False),
    ],
)
def test_what_an_agent_dials_whatever_its_server_says(address, server, answer):
    here = server and ipaddress.ip_address(server)
    endpoint = Endpoint.parse(address)
    assert (why_not(endpoint, from_here(here, OURS)) is None) == answer
    is_own = endpoint.ip in [each.ip for each in OURS]
    if scope_of(endpoint.ip) == "private" and endpoint.port > 1024 and not is_own:
        assert why_not(endpoint, from_here(here, OURS, lan=True)) is None


@pytest.mark.parametrize("address", ["127.0.0.1:7700", "[::1]:7700", "8.8.8.8:7700"])
def test_on_its_own_machine_an_agent_dials_what_a_provider_has_proven_there(address):
    here = [Endpoint.parse(address), Endpoint.parse("127.0.0.1:22")]
    reach = from_here(None, OURS, here=here)
    assert why_not(here[0], reach) is None
    assert "port 22" in why_not(here[1], reach)
    for other in ("127.0.0.1:7701", "127.0.0.2:7700", "8.8.8.8:7701", "192.168.1.6:7700"):
        assert "loopback" in why_not(Endpoint.parse(other), reach)


@pytest.mark.parametrize(
    ("text", "ip"),
    [
        ("1.2.3.4", "1.2.3.4"),
        ("::ffff:1.2.3.4", "1.2.3.4"),
        ("fe80::1%eth0", "fe80::1"),
        ("unknown", None),
        ("", None),
    ],
)
def test_the_ends_of_a_connection(text, ip):
    assert bare_ip(text) == (ip and ipaddress.ip_address(ip))


def test_one_provider_has_few_hosts_and_few_ports():
    reach = Reach()
    hosts = [f"7.7.7.{n}:7700" for n in range(16)]
    assert [str(one) for one in chosen(hosts, reach)] == hosts[:MOST_HOSTS]
    ports = [f"7.7.7.7:{7700 + n}" for n in range(16)]
    assert [str(one) for one in chosen([*ports, *ports], reach)] == ports[:MOST_ENDPOINTS]
    # Privacy addresses of one IPv6 host.
    six = [f"[2600::{n}]:7700" for n in range(1, 6)]
    assert [str(one) for one in chosen([*six, "7.7.7.7:1024"], reach)] == [*six, "7.7.7.7:1024"]
    # What is not dialled takes nobody's place.
    assert len(chosen(["name:1"] * 9 + ["127.0.0.1:1"] * 9 + hosts, reach)) == MOST_HOSTS


IPS = st.ip_addresses()
TRICKY = st.sampled_from(
    [ipaddress.ip_address(text) for texts in SCOPES.values() for text in texts.split()]
)
EMBEDDED = st.builds(
    lambda prefix, inner: ipaddress.IPv6Address(prefix | int(inner)),
    st.sampled_from([0, 0xFFFF << 32, 0x64FF9B << 96, (0x2600 << 112) | (0x5EFE << 32)]),
    st.ip_addresses(v=4),
)
ANY = IPS | TRICKY | EMBEDDED
SOURCE = st.none() | ANY


@given(ip=ANY)
def test_what_counts_as_global_is_so_for_python_too(ip):
    if scope_of(ip) == "global":
        assert ip.is_global
        assert not any((ip.is_multicast, ip.is_reserved, ip.is_link_local, ip.is_loopback))
        if ip.version == 6:
            assert ip.ipv4_mapped is ip.sixtofour is ip.teredo is None
    if ip.is_loopback:
        assert scope_of(ip) == "loopback" or ip.version == 6  # ::ffff:127.0.0.1 in newer Pythons
    if ip.is_link_local or ip.is_multicast or ip.is_unspecified:
        assert scope_of(ip) == "never"


@given(ip=ANY, port=st.integers(1, 65535), target=SOURCE, dialler=SOURCE, lan=st.booleans())
def test_no_pair_of_agents_gets_what_no_rule_allows(ip, port, target, dialler, lan):
    endpoint = Endpoint(ip, port)
    assert Endpoint.parse(str(endpoint)) == endpoint
    if may_dial(str(endpoint), target, dialler, lan=lan) is not None:
        return
    match scope_of(ip):
        case "loopback":
            assert scope_of(target) == scope_of(dialler) == "loopback"
            assert port >= LOWEST_PORT
        case "private":
            assert lan or ip == target or between(target, dialler).networks[:5] == PRIVATE
            assert port >= LOWEST_PORT
        case scope:
            assert scope == "global"


@given(texts=st.lists(st.text(max_size=20) | ANY.map(lambda ip: f"{ip}:7700"), max_size=16))
def test_whatever_is_named_is_literal_and_few(texts):
    found = chosen(texts, Reach(networks=PRIVATE, maybe_here=True, low_ports=True))
    assert len(found) <= MOST_ENDPOINTS
    assert len({one.site for one in found}) <= MOST_HOSTS
    assert "never" not in {scope_of(one.ip) for one in found}
