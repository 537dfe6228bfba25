"""The lock of what an operator installs, made and used by pip itself, from a folder of wheels."""

import base64
import hashlib
import importlib.util
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

TOOL = Path(__file__).parents[1] / "tools" / "lock_dependencies.py"
spec = importlib.util.spec_from_file_location("lock_dependencies", TOOL)
lock_dependencies = importlib.util.module_from_spec(spec)
spec.loader.exec_module(lock_dependencies)


@pytest.fixture
def project(tmp_path, monkeypatch):
    """Its one dependency has another one. Pip asks no index."""
    for name in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "wheels"))
    (tmp_path / "wheels").mkdir()
    for name, version, needs in (
        ("Upper", "1.0", "lower>=1"),
        ("Upper", "2.0", "lower>=1"),
        ("lower", "1.5", None),
    ):
        make_wheel(tmp_path / "wheels", name, version, needs)
    (tmp_path / "pyproject.toml").write_text('[project]\ndependencies = ["upper>=1"]\n')
    (tmp_path / "constraints.txt").write_text("upper==1.0\n")
    return tmp_path


def make_wheel(folder, name, version, needs, code="x = 1\n"):
    info = f"{name}-{version}.dist-info"
    needed = f"Requires-Dist: {needs}\n" if needs else ""
    files = {
        f"{name.lower()}_module.py": code,
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{needed}",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    rows = [
        f"{path},sha256={base64.urlsafe_b64encode(digest).decode().rstrip('=')},{len(text)}"
        for path, text in files.items()
        for digest in [hashlib.sha256(text.encode()).digest()]
    ]
    files[f"{info}/RECORD"] = "\n".join([*rows, f"{info}/RECORD,,", ""])
    with zipfile.ZipFile(folder / f"{name}-{version}-py3-none-any.whl", "w") as wheel:
        for path, text in files.items():
            wheel.writestr(path, text)


def install(project):
    pip = [sys.executable, "-m", "pip", "install", "--require-hashes", "--no-cache-dir"]
    target = ["--target", str(project / "installed"), "-r", str(project / "requirements.lock")]
    return subprocess.run([*pip, *target], capture_output=True, text=True, check=False)


def test_every_package_is_locked_by_hash_and_another_one_is_refused(project, capsys):
    lock_dependencies.main([], project)
    text = capsys.readouterr().out
    expected = ""
    for name, version in (("lower", "1.5"), ("Upper", "1.0")):
        wheel = project / "wheels" / f"{name}-{version}-py3-none-any.whl"
        sha256 = hashlib.sha256(wheel.read_bytes()).hexdigest()
        expected += f"{name}=={version} \\\n    --hash=sha256:{sha256}\n"
    assert text == expected
    (project / "requirements.lock").write_text(text)
    assert install(project).returncode == 0
    make_wheel(project / "wheels", "lower", "1.5", None, "x = 'of somebody else'\n")
    refused = install(project)
    assert refused.returncode != 0
    assert "DO NOT MATCH" in refused.stderr


def test_a_package_without_a_hash_is_named():
    package = {"metadata": {"name": "odd", "version": "1"}, "download_info": {"dir_info": {}}}
    with pytest.raises(SystemExit, match="no hash of odd 1"):
        lock_dependencies.locked({"install": [package]})


def test_the_projects_own_dependencies_are_what_is_locked(monkeypatch, capsys):
    asked = []
    monkeypatch.setattr(
        lock_dependencies, "report", lambda *call: asked.append(call) or {"install": []}
    )
    lock_dependencies.main(["--pre"])
    ((requirements, options),) = asked
    assert any(each.startswith("torch>=") for each in requirements)
    assert any(each.startswith("cryptography>=") for each in requirements)
    assert options[-1] == "--pre"
