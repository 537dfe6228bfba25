"""`--config`: what a command is told in a file, against what it is told otherwise."""

import os
import re
import tomllib
from pathlib import Path

import pytest

from ravnest.agent import joining
from ravnest.api.work import ALLOWED_OPERATORS
from ravnest.cli import main
from ravnest.cli.join import command as join_command
from ravnest.cli.server import command as server_command
from ravnest.server import running
from ravnest.server.service.files import Quota

EVERYTHING = """
host = "127.0.0.1"
port = 9470
public = ["train.example.org", "192.0.2.10"]
data = "kept"
store = "postgresql://ravnest@localhost/ravnest"
name = "shed"
dashboard = "token"
insecure = true
behind-proxy = true
require-sandbox = true
allow-operator = ["aten.binomial.default"]
max-upload = "2G"
quota = 5_000_000
owner-quota = "1M"
owner-jobs = 7
reserve = "2M"
token-hours = 1.5
away = 60
settle = 0.5
standstill = 45
check-seconds = 20
plan_seconds = 90
plan-memory = "4G"
print-json = true
"""


@pytest.fixture
def served(monkeypatch, tmp_path):
    """Records what `serve` is called with."""
    monkeypatch.setenv("RAVNEST_HOME", str(tmp_path / "home"))
    monkeypatch.setenv(ALLOWED_OPERATORS, "")  # the command sets it for its processes

    class Served:
        async def __call__(self, options, listening, ready, *, store, token_hours):
            self.options, self.listening = options, listening
            self.store, self.token_hours = store, token_hours

    recorder = Served()
    monkeypatch.setattr(running, "serve", recorder)
    return recorder


@pytest.fixture
def written(tmp_path):
    def write(text: str) -> str:
        path = tmp_path / "server.toml"
        path.write_text(text, encoding="utf-8")
        return str(path)

    return write


def test_every_option_of_a_server_can_be_in_its_file(served, written, tmp_path):
    names = {param.name for param in server_command.params} - {"config"}
    assert {key.replace("-", "_") for key in tomllib.loads(EVERYTHING)} == names
    assert main(["server", "--config", written(EVERYTHING)]) == 0
    options, listening = served.options, served.listening
    assert (listening.host, listening.port, listening.tls) == ("127.0.0.1", 9470, False)
    assert {"train.example.org", "192.0.2.10"} <= set(options.names)
    assert (options.folder, options.name) == (tmp_path / "kept", "shed")
    assert options.dashboard == "token"
    assert options.behind_proxy
    assert options.require_sandbox
    assert os.environ[ALLOWED_OPERATORS] == "aten.binomial.default"
    assert options.most_upload_bytes == 2_000_000_000
    assert options.quota == Quota(5_000_000, 1_000_000, 2_000_000)
    assert options.owner_jobs == 7
    assert (options.settings.away_s, options.settings.settle_s) == (60.0, 0.5)
    assert options.settings.standstill_s == 45.0
    assert (options.work.seconds, options.work.memory_bytes) == (90.0, 4_000_000_000)
    assert options.work.check_seconds == 20.0
    assert served.store == "postgresql://ravnest@localhost/ravnest"
    assert served.token_hours == 1.5


def test_what_is_typed_wins_over_the_environment_and_that_over_the_file(
    served, written, monkeypatch
):
    path = written('port = 1\nname = "file"\naway = 7\n')
    monkeypatch.setenv("RAVNEST_SERVER_NAME", "environment")
    monkeypatch.setenv("RAVNEST_SERVER_PORT", "2")
    assert main(["server", "--config", path, "--port", "3"]) == 0
    assert served.listening.port == 3
    assert served.options.name == "environment"
    assert served.options.settings.away_s == 7.0


def test_the_file_itself_may_be_named_by_the_environment(served, written, monkeypatch):
    monkeypatch.setenv("RAVNEST_SERVER_CONFIG", written("port = 4"))
    assert main(["server"]) == 0
    assert served.listening.port == 4


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("prot = 8470", "sets 'prot', which is no option; did you mean port?"),
        ("max_uplaod = 1", "did you mean max-upload?"),
        ("zzz = 1", "there are allow-operator, away, behind-proxy, check-seconds,"),
        ('config = "x.toml"', "sets 'config', which is no option"),
        ("[server]\nport = 1", "sets 'server', which is no option"),
        ("port = [1, 2]", "port is a list; it takes one value only"),
        ("[port]\na = 1", "port is a table"),
        ("port = ", "is no TOML"),
        ("port = 70000", "Invalid value for '--port'"),
        ("port = true", "Invalid value for '--port'"),
        ("port = 8470.5", "Invalid value for '--port'"),
        ("insecure = 7", "Invalid value for '--insecure'"),
        ('dashboard = "nobody"', "Invalid value for '--dashboard'"),
        ("standstill = nan", "Invalid value for '--standstill'"),
        ("settle = inf", "Invalid value for '--settle'"),
        ('quota = "1e999G"', "Invalid value for '--quota'"),
        ("token-hours = 1e300", "Invalid value for '--token-hours'"),
        ("port = " + "[" * 5000, "is no TOML"),
    ],
)
def test_what_is_wrong_in_the_file_is_named_with_the_file(served, written, capsys, text, said):
    path = written(text)
    assert main(["server", "--config", path]) == 2
    errors = " ".join(capsys.readouterr().err.split())
    assert said in errors
    assert path in errors
    assert not hasattr(served, "options")


def test_a_file_that_is_not_there_is_named(served, tmp_path, capsys):
    assert main(["server", "--config", str(tmp_path / "none.toml")]) == 2
    assert "none.toml" in capsys.readouterr().err


def test_a_provider_may_be_told_everything_in_a_file_too(written, monkeypatch, tmp_path):
    told = []

    async def join(settings, token, show):
        told.append(settings)

    monkeypatch.setattr(joining, "join", join)
    text = 'url = "host:1"\nmemory = 1.5\nhours = "9:00-17:30"\nadvertise = "203.0.113.7:99"\n'
    assert main(["join", "--config", written(text + 'home = "~/x"\n')]) == 0
    (settings,) = told
    assert str(settings.address) == "https://host:1"
    assert settings.caps.memory_bytes == 1_500_000_000
    assert settings.caps.hours == "09:00-17:30"
    assert settings.advertise == ("203.0.113.7:99",)
    assert settings.home == Path.home() / "x"


def test_a_provider_that_is_told_no_server_is_told_where_to_name_one(written, capsys):
    assert main(["join", "--config", written("memory = 1.5\n")]) == 2
    errors = " ".join(capsys.readouterr().err.split())
    assert "ravnest join https://host:port" in errors
    assert 'url = "https://host:port"' in errors
    assert main(["join", "--help"]) == 0
    assert "ravnest join [OPTIONS] [URL]" in capsys.readouterr().out


def test_the_files_in_the_documentation_are_read(served, written, monkeypatch):
    text = (Path(__file__).parents[2] / "docs" / "server.md").read_text(encoding="utf-8")
    shown = re.findall(r"^```toml\n(# ravnest .*?)^```$", text, re.MULTILINE | re.DOTALL)
    assert len(shown) == 2
    commands = {"server": server_command, "join": join_command}
    for file in shown:
        name = file.split()[2]
        with commands[name].make_context(name, ["--config", written(file)]) as ctx:
            for key, value in tomllib.loads(file).items():
                given = ctx.params[key.replace("-", "_")]
                assert given, f"{key} = {value}"
