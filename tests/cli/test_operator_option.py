"""`--allow-operator`: what an owner allows reaches the processes that load packages."""

import os
import subprocess
import sys

import click
import pytest
from click.testing import CliRunner

from ravnest.api.work import ALLOWED_OPERATORS
from ravnest.cli import join, server
from ravnest.cli.operator_option import allow_operator_option
from ravnest.sandbox.environment import compute_environment

NAMES = "aten.binomial.default,aten.logcumsumexp.default"
ASK = "from ravnest.stage.operators import is_allowed; print(is_allowed('aten.binomial.default'))"


@pytest.fixture(autouse=True)
def environment(monkeypatch):
    monkeypatch.setenv(ALLOWED_OPERATORS, "")
    monkeypatch.delenv(ALLOWED_OPERATORS)


@allow_operator_option
@click.command()
def command() -> None:
    click.echo(os.environ.get(ALLOWED_OPERATORS, "none"))


def test_names_go_into_the_environment():
    several = [word for name in NAMES.split(",") for word in ("--allow-operator", name)]
    assert CliRunner().invoke(command, several).output.strip() == NAMES
    assert {"--allow-operator"} <= {o for p in join.command.params for o in p.opts}
    assert {"--allow-operator"} <= {o for p in server.command.params for o in p.opts}


@pytest.mark.parametrize("name", ["aten.add", "aten.add.Tensor,x", "a.b.c\n", "ä.b.c", ""])
def test_anything_but_a_full_name_is_refused(name):
    found = CliRunner().invoke(command, ["--allow-operator", name])
    assert found.exit_code == 2
    assert "expected a name such as" in found.output


@pytest.mark.parametrize(("names", "allowed"), [(NAMES, "True"), ("", "False")])
def test_a_process_that_loads_packages_reads_them(monkeypatch, names, allowed):
    monkeypatch.setenv(ALLOWED_OPERATORS, names)
    environment = compute_environment(1)
    found = subprocess.check_output([sys.executable, "-c", ASK], env=environment, text=True)
    assert found.strip() == allowed
