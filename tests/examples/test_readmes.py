"""What the READMEs of the examples say is true of the scripts beside them."""

import re

import pytest
from example_runs import EXAMPLES

from ravnest.planning.pool import read_pool

FOLDERS = sorted(path.parent for path in EXAMPLES.glob("*/train.py"))
OF_RAVNEST = {"--nodes", "--help"}


def test_every_example_is_in_the_index():
    index = (EXAMPLES / "README.md").read_text(encoding="utf-8")
    linked = re.findall(r"^\| \[(\w+)\]\(\1/\)", index, re.MULTILINE)
    assert sorted(linked) == [folder.name for folder in FOLDERS]


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_the_pool_has_the_providers_that_are_started(folder):
    pool = read_pool(folder / "node_data" / "node_configs.json")
    for file in ("README.md", "train.py"):
        text = (folder / file).read_text(encoding="utf-8")
        started = re.findall(r"^ *ravnest run train\.py.* --nodes (\d+)", text, re.MULTILINE)
        assert started
        assert {int(count) for count in started} == {len(pool)}, file


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_every_option_is_explained_and_exists(folder):
    script = (folder / "train.py").read_text(encoding="utf-8")
    readme = (folder / "README.md").read_text(encoding="utf-8")
    known = set(re.findall(r'add_argument\(\s*"(--[\w-]+)"', script))
    named = set(re.findall(r"(?<![\w-])--[a-z][\w-]*", readme)) - OF_RAVNEST
    assert known == named


def test_the_scripts_are_short_enough_to_be_read():
    for path in EXAMPLES.glob("*/*.py"):
        assert len(path.read_text(encoding="utf-8").splitlines()) < 220, path
