"""The new tree of decision 029, made from this one: python tools/restructure/run.py CLONE

Moves and merges modules and renames symbols as `tables.py` says, in a clone of the repository; then
applies `fixes/`, which are what no table says: lines that got too long, descriptions of packages,
ARCHITECTURE.md. The clone is complete afterwards but for what its tests find. All of this folder
goes when the step is done.
"""

import shutil
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent


def main(clone: Path) -> None:
    def run(*command: object) -> None:
        subprocess.run([sys.executable, *map(str, command)], cwd=clone, check=True)

    def tidy() -> None:
        for arguments in (("check", "--fix", "-q"), ("format", "-q")):
            subprocess.run([sys.executable, "-m", "ruff", *arguments, "."], cwd=clone, check=False)

    run(HERE / "moving.py", HERE / "tables.py", ".")
    for folder in sorted((clone / "src" / "ravnest").rglob("*")):
        if folder.is_dir() and any(folder.glob("*.py")):
            (folder / "__init__.py").touch()
    tidy()
    for fix in sorted((HERE / "fixes").glob("*.py")):
        run(fix)
    shutil.copy(HERE / "fixes" / "ARCHITECTURE.md", clone / "ARCHITECTURE.md")
    tidy()


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve())
