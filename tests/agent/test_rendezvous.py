"""Agents of one user find each other on one machine, and nothing else."""

import datetime
import os
import subprocess
import sys

import pytest

from ravnest.agent.rendezvous import Rendezvous
from ravnest.api.dialling import Endpoint
from ravnest.api.trust_anchor import TrustAnchor
from ravnest.server.authority import open_authority

PLACE, OTHER = Endpoint.parse("127.0.0.1:7700"), Endpoint.parse("127.0.0.1:7701")


def anchor(folder):
    return TrustAnchor(open_authority(folder, datetime.datetime.now(datetime.UTC)).certificate)


@pytest.fixture(scope="module")
def authority(tmp_path_factory):
    return anchor(tmp_path_factory.mktemp("authority"))


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "rendezvous"


def test_a_provider_is_here_at_its_addresses_as_long_as_it_runs(authority, folder):
    one, other = Rendezvous(authority, folder), Rendezvous(authority, folder)
    assert not other.has(7, PLACE)
    with one.present(7, [str(PLACE), "[::1]:7700", "nonsense"]):
        assert folder.stat().st_mode & 0o777 == 0o700
        assert other.has(7, PLACE)
        assert other.has(7, Endpoint.parse("[::1]:7700"))
        # Another port, another address, another provider.
        assert not other.has(7, OTHER)
        assert not other.has(7, Endpoint.parse("127.0.0.2:7700"))
        assert not other.has(8, PLACE)
    assert not other.has(7, PLACE)
    assert list(folder.iterdir()) == []


def test_providers_of_another_server_have_numbers_of_their_own(authority, folder, tmp_path):
    with Rendezvous(authority, folder).present(7, [str(PLACE)]):
        assert not Rendezvous(anchor(tmp_path / "elsewhere"), folder).has(7, PLACE)


KILLED = """
import os, sys, pathlib
from ravnest.agent.rendezvous import Rendezvous
from ravnest.api.trust_anchor import TrustAnchor
authority = TrustAnchor.parse(pathlib.Path(sys.argv[1]).read_bytes())
with Rendezvous(authority, pathlib.Path(sys.argv[2])).present(7, ["127.0.0.1:7700"]):
    print("here", flush=True)
    sys.stdin.read()
"""


def test_an_agent_that_was_killed_is_not_here(authority, folder, tmp_path):
    """Its port may be that of any other service by now."""
    (tmp_path / "ca.pem").write_text(authority.pem)
    command = [sys.executable, "-c", KILLED, str(tmp_path / "ca.pem"), str(folder)]
    here = Rendezvous(authority, folder)
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout.readline() == b"here\n"
        assert here.has(7, PLACE)
        process.kill()
        process.wait()
    assert len(list(folder.iterdir())) == 1
    assert not here.has(7, PLACE)
    # The next agent with this identity, at another port, takes that away.
    with here.present(7, [str(OTHER)]):
        assert len(list(folder.iterdir())) == 1
        assert here.has(7, OTHER)


def test_the_loopback_of_a_container_is_another_one(authority, folder, monkeypatch):
    """Two containers may share a folder; their loopback they do not."""
    here = Rendezvous(authority, folder)
    with here.present(7, [str(PLACE)]):
        monkeypatch.setattr("ravnest.agent.rendezvous._network", lambda: "another")
        assert not here.has(7, PLACE)


@pytest.mark.skipif(os.name != "posix", reason="each user has a temporary folder there")
@pytest.mark.parametrize("wrong", ["mode", "link", "owner"])
def test_a_folder_that_others_may_have_made_is_not_believed(authority, folder, monkeypatch, wrong):
    here = Rendezvous(authority, folder)
    with here.present(7, [str(PLACE)]):
        assert here.has(7, PLACE)
        if wrong == "mode":
            folder.chmod(0o755)
        elif wrong == "link":
            folder.rename(folder.parent / "theirs")
            folder.symlink_to(folder.parent / "theirs")
        else:
            monkeypatch.setattr(os, "getuid", lambda: folder.stat().st_uid + 1)
        assert not here.has(7, PLACE)


def test_nothing_is_written_to_the_folder_of_another_user(authority, folder, tmp_path):
    (tmp_path / "theirs").mkdir(mode=0o700)
    folder.symlink_to(tmp_path / "theirs")
    with Rendezvous(authority, folder).present(7, [str(PLACE)]):
        assert list(folder.iterdir()) == []


def test_without_a_folder_all_goes_through_the_relay(authority, tmp_path):
    (tmp_path / "file").write_text("")
    here = Rendezvous(authority, tmp_path / "file")
    with here.present(7, [str(PLACE)]):
        assert not here.has(7, PLACE)
