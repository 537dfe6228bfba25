"""Whoever opens a package of the server is told what is where."""

from pathlib import Path

import pytest

from ravnest import server
from ravnest.server import service, state
from ravnest.server.service import api


@pytest.mark.parametrize(
    "package", [server, service, api, state], ids=lambda package: package.__name__
)
def test_a_package_says_what_each_of_its_modules_is_for(package):
    rooms = [path for path in Path(package.__file__).parent.iterdir() if path.name[0] not in "_."]
    names = {path.name if path.suffix else f"{path.name}/" for path in rooms}
    assert {name for name in names if name not in package.__doc__} == set()
