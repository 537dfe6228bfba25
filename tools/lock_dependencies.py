"""Lock what a server or a provider installs, each package by version and by hash.

    python tools/lock_dependencies.py > requirements.lock        (options are passed on to pip)
    pip install --require-hashes -r requirements.lock

A lock is for machines of one kind: the same system, processor and Python. The builds of torch are
different for others, and so are their hashes: each kind has a lock of its own, made on one of them.
"""

import json
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]


def report(requirements: list[str], options: list[str]) -> dict[str, Any]:
    """What pip would install on a machine like this one that has nothing yet."""
    pip = [sys.executable, "-m", "pip", "install", "--dry-run", "--ignore-installed", "--quiet"]
    done = subprocess.run(
        [*pip, "--report", "-", *options, *requirements], stdout=subprocess.PIPE, check=False
    )
    if done.returncode:
        raise SystemExit("error: pip has found no set of packages; see above")
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def locked(found: dict[str, Any]) -> str:
    """As a file of requirements. Every package has a hash, or there is no lock."""
    entries = {}
    for package in found["install"]:
        name, version = package["metadata"]["name"], package["metadata"]["version"]
        sha256 = package["download_info"].get("archive_info", {}).get("hashes", {}).get("sha256")
        if sha256 is None:
            raise SystemExit(f"error: pip knows no hash of {name} {version}: it is no archive")
        entries[name.lower()] = f"{name}=={version} \\\n    --hash=sha256:{sha256}\n"
    return "".join(entries[name] for name in sorted(entries))


def main(options: list[str], root: Path = ROOT) -> None:
    project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    pinned = ["--constraint", str(root / "constraints.txt")]
    sys.stdout.write(locked(report(project["dependencies"], [*pinned, *options])))


if __name__ == "__main__":
    main(sys.argv[1:])
