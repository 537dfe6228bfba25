"""What the dashboard's files must not contain; read as text, no browser needed."""

import re
from pathlib import Path

import pytest
from web.fake_server import WEB

OWN = sorted(
    path
    for path in WEB.rglob("*")
    if path.suffix in {".js", ".css", ".html", ".svg"} and "vendor" not in path.parts
)
HOSTS_THAT_ARE_NAMES = {"http://www.w3.org/2000/svg"}


def test_the_files_are_found() -> None:
    assert {"index.html", "main.js", "theme.css", "icon.svg"} <= {path.name for path in OWN}


@pytest.mark.parametrize("path", OWN, ids=lambda path: str(path.relative_to(WEB)))
def test_no_file_names_another_host(path: Path) -> None:
    found = set(re.findall(r"(?:https?:)?//[a-z0-9.-]+\.[a-z]+[^\s\"'`)]*", path.read_text()))
    assert found <= HOSTS_THAT_ARE_NAMES


@pytest.mark.parametrize("path", OWN, ids=lambda path: str(path.relative_to(WEB)))
def test_data_never_becomes_markup_or_code(path: Path) -> None:
    text = path.read_text()
    if path.name == "dom.js":
        text = text.replace("style|innerHTML|outerHTML|srcdoc|on.*", "")  # what it refuses
    for forbidden in (
        "innerHTML",
        "outerHTML",
        "insertAdjacentHTML",
        "document.write",
        "eval(",
        "new Function",
    ):
        assert forbidden not in text


def test_the_page_has_no_inline_script_or_style() -> None:
    page = (WEB / "index.html").read_text()
    assert not re.search(r"<style|\sstyle=|\son\w+=", page)
    for script in re.findall(r"<script[^>]*>(.*?)</script>", page, re.DOTALL):
        assert script.strip() == ""


@pytest.mark.parametrize("path", [p for p in OWN if p.suffix == ".js"], ids=lambda path: path.name)
def test_scripts_stay_small_and_say_what_they_are_for(path: Path) -> None:
    text = path.read_text()
    assert text.startswith("/**")
    assert len(text.splitlines()) <= 300


def test_the_foreign_part_has_its_licence() -> None:
    folder = WEB / "static" / "vendor" / "uplot"
    assert "MIT License" in (folder / "LICENSE").read_text()
    assert "1.6.32" in (folder / "uPlot.iife.min.js").read_text(encoding="utf-8")[:400]
