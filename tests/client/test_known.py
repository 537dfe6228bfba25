"""Which server and which token are meant."""

import errno
import stat
import threading

import filelock
import pytest
from certificates import Authority
from scripted import Scripted

from ravnest.api import DEFAULT_PORT
from ravnest.api.tokens import Token
from ravnest.api.trust_anchor import TrustAnchor
from ravnest.client import known
from ravnest.client.address import ServerAddress
from ravnest.client.known import Access, find_access, open_client, remember
from ravnest.errors import ServerError, TokenError
from ravnest.locks import only_one

AUTHORITY = TrustAnchor(Authority().certificate)
FIRST, SECOND, OPERATOR = (
    str(Token.make("requester", of)) for of in (*[AUTHORITY.fingerprint] * 2, bytes(16))
)


def test_without_anything_the_two_options_are_named(tmp_path):
    with pytest.raises(ServerError, match=r"--server .*RAVNEST_SERVER.*--token .*RAVNEST_TOKEN"):
        find_access(environment={}, folder=tmp_path)


def test_what_is_said_wins_over_the_environment_which_wins_over_what_is_known(tmp_path):
    remember(Access(ServerAddress("known", 1), FIRST, AUTHORITY), tmp_path)
    environment = {"RAVNEST_SERVER": "from.environment:2", "RAVNEST_TOKEN": SECOND}
    options = {"folder": tmp_path, "environment": environment}
    assert find_access("said:3", OPERATOR, **options).address.host == "said"
    assert find_access("said:3", OPERATOR, **options).token == OPERATOR
    assert find_access(**options) == Access(ServerAddress("from.environment", 2), SECOND)
    options["environment"] = {}
    assert find_access(**options) == Access(ServerAddress("known", 1), FIRST, AUTHORITY)


def test_the_last_one_used_is_meant(tmp_path):
    remember(Access(ServerAddress("older", 1), FIRST), tmp_path)
    remember(Access(ServerAddress("newer", 1, "http"), SECOND), tmp_path)
    found = find_access(environment={}, folder=tmp_path)
    assert found.address == ServerAddress("newer", 1, "http")
    assert find_access("older:1", environment={}, folder=tmp_path).token == FIRST


def test_localhost_and_its_address_are_one_server_if_it_can_be_recognised(tmp_path):
    remember(Access(ServerAddress("localhost", 1), FIRST, AUTHORITY), tmp_path)
    remember(Access(ServerAddress("127.0.0.1", 2, "http"), FIRST), tmp_path)
    options = {"folder": tmp_path, "environment": {}, "insecure": True}
    found = find_access("https://127.0.0.1:1", **options)
    assert found == Access(ServerAddress("127.0.0.1", 1), FIRST, AUTHORITY)
    assert find_access("https://127.0.0.1:2", **options).token is None
    assert find_access("http://localhost:2", **options).token is None


def test_an_authority_is_not_used_with_another_servers_token(tmp_path):
    remember(Access(ServerAddress("known", 1), FIRST, AUTHORITY), tmp_path)
    options = {"folder": tmp_path, "environment": {}}
    assert find_access("known:1", SECOND, **options).authority == AUTHORITY
    assert find_access("known:1", OPERATOR, **options).authority is None


def test_on_the_servers_own_machine_nothing_has_to_be_said(tmp_path):
    (tmp_path / "server").mkdir()
    (tmp_path / "server" / "operator.token").write_text(OPERATOR + "\n")
    options = {"folder": tmp_path, "environment": {}}
    assert find_access(**options) == Access(ServerAddress("127.0.0.1", DEFAULT_PORT), OPERATOR)
    (tmp_path / "server" / "address").write_text("https://127.0.0.1:9\n")
    assert find_access(**options).address.port == 9
    # Nobody else gets it, other programs of this machine among them.
    for other in ("elsewhere:1", "127.0.0.1:10", "http://127.0.0.1:9", "http://localhost:9"):
        assert find_access(other, insecure=True, **options).token is None


def test_all_addresses_of_the_server_on_this_machine_are_recognised(tmp_path):
    (tmp_path / "server").mkdir()
    (tmp_path / "server" / "operator.token").write_text(OPERATOR + "\n")
    known = ["https://127.0.0.1:9", "https://192.0.2.10:9", "https://Train.example.org:9"]
    (tmp_path / "server" / "address").write_text("\n".join(known))
    options = {"folder": tmp_path, "environment": {}}
    assert find_access(**options).address.host == "127.0.0.1"
    for own in ("https://192.0.2.10:9", "train.example.org:9"):
        assert find_access(own, **options).token == OPERATOR
    for other in ("192.0.2.10:10", "192.0.2.11:9", "http://192.0.2.10:9"):
        assert find_access(other, insecure=True, **options).token is None


def test_a_machine_that_has_only_joined_is_told_what_looking_takes(tmp_path):
    for name, text in {"a": '{"server": "https://192.0.2.10:9", "provider": 3}', "b": "{"}.items():
        (tmp_path / "provider" / "identity" / name).mkdir(parents=True)
        (tmp_path / "provider" / "identity" / name / "identity.json").write_text(text)
    with pytest.raises(ServerError, match=r"provider of https://192.0.2.10:9 .*make viewer"):
        find_access(environment={}, folder=tmp_path)


def test_tokens_are_kept_from_other_users(tmp_path):
    folder = tmp_path / "new"
    remember(Access(ServerAddress("known", 1), FIRST), folder)
    path = folder / "servers.json"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700


def test_a_damaged_file_is_named(tmp_path):
    (tmp_path / "servers.json").write_text("{")
    with pytest.raises(ServerError, match=r"servers\.json cannot be understood .* remove it"):
        find_access(environment={}, folder=tmp_path)


def test_a_slip_in_a_token_is_found_before_anybody_is_asked(tmp_path):
    with pytest.raises(TokenError, match="copied completely"):
        find_access("host:1", FIRST[:-3], environment={}, folder=tmp_path)


def test_the_first_conversation_fetches_the_authority_and_the_next_one_has_it(tmp_path):
    with Scripted() as server:
        access = find_access(
            str(server.address), str(server.token()), environment={}, folder=tmp_path
        )
        with open_client(access) as client:
            remember(Access(access.address, access.token, client.authority), tmp_path)
        assert [path for _, path, _ in server.seen] == ["/api/v1/authority"]
        again = find_access(environment={}, folder=tmp_path)
        assert again.authority.pem == server.pem
        open_client(again).close()
        assert len(server.seen) == 1


def test_without_a_token_a_server_cannot_be_recognised():
    with pytest.raises(TokenError, match=r"--token"):
        open_client(Access(ServerAddress("host", 1)))


def test_two_commands_at_once_lose_nothing(tmp_path, monkeypatch):
    """One read, the other one wrote, and the first wrote what it had read."""
    read, others, moved = known.read_known, [], threading.Event()

    def another():
        remember(second, tmp_path)
        moved.set()

    def while_another_one_runs(folder):
        found = read(folder)
        if not others:
            others.append(threading.Thread(target=another))
            others[0].start()
            assert moved.wait(30), "it is neither done, nor does it wait for the first one"
        return found

    def in_line(lock, **options):
        if threading.current_thread() in others:
            moved.set()
        return only_one(lock, **options)

    first, second = (Access(ServerAddress(host, 1), FIRST) for host in ("first", "second"))
    monkeypatch.setattr(known, "read_known", while_another_one_runs)
    monkeypatch.setattr(known, "only_one", in_line)
    remember(first, tmp_path)
    others[0].join(30)
    assert set(read(tmp_path).servers) == {"https://first:1", "https://second:1"}


def test_a_command_that_hangs_does_not_hold_up_others_for_ever(tmp_path, monkeypatch):
    monkeypatch.setattr(known, "_LOCKED_S", 0.0)
    with (
        only_one(tmp_path / "servers.lock", otherwise=ServerError("unused")),
        pytest.raises(ServerError, match=r"another command of Ravnest has held .*servers.lock"),
    ):
        remember(Access(ServerAddress("known", 1), FIRST), tmp_path)


def test_a_home_without_locks_is_used_without_them(tmp_path, monkeypatch):
    def acquire(*_, **__):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(filelock.FileLock, "acquire", acquire)
    for host in ("first", "second"):
        remember(Access(ServerAddress(host, 1), FIRST), tmp_path)
    assert set(known.read_known(tmp_path).servers) == {"https://first:1", "https://second:1"}
