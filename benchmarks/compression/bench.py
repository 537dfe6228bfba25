"""What do codecs save, and what do they cost: alone, between stages, and between clusters?
And what do they make of a thin link? That part is left out unless it is run by root.

    python3 dev.py bench compression

`--only codecs`, `edges`, `rings` or `thin_link` for one of the four. What runs come to is kept in a
folder if one is given, and is not made again; so the work can be done in several goes:
`--kept FOLDER --within SECONDS`.
"""

import argparse
import os
import runpy
import sys
import tempfile
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")
HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent), str(HERE.parent / "convergence")]

import edges  # noqa: E402
import kept  # noqa: E402
import rings  # noqa: E402
import thin_link  # noqa: E402


def show_edges(folder: Path, within_s: float, seeds: int, *, splits: bool) -> None:
    jobs = edges.jobs(seeds, 2 * seeds, splits=splits)
    found = kept.results(jobs, edges.train, folder, within_s)
    if len(found) < len(jobs):
        print(f"edges: {len(found)} of {len(jobs)} runs are done")
        return
    print(f"\ncharacter GPT, {edges.STAGES} stages, {edges.STEPS} steps, {seeds} seeds")
    edges.report(found, "gpt")
    print(f"digits CNN, {edges.STAGES} stages, {edges.EPOCHS} epochs, {2 * seeds} seeds")
    edges.report(found, "cnn")


def show_rings(folder: Path, within_s: float, seeds: int) -> None:
    jobs = rings.jobs(seeds)
    found = kept.results(jobs, rings.train, folder, within_s)
    if len(found) < len(jobs):
        print(f"rings: {len(found)} of {len(jobs)} runs are done")
        return
    print(f"\ncharacter GPT, clusters of {rings.STAGES} stages, {rings.STEPS} steps, {seeds} seeds")
    rings.report(found)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", choices=("codecs", "edges", "rings", "thin_link"))
    parser.add_argument("--kept", type=Path, help="keep what runs come to here, and use it")
    parser.add_argument("--within", type=float, default=float("inf"), metavar="SECONDS")
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument(
        "--splits", action="store_true", help="activations in one codec, gradients in another"
    )
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.kept or Path(temporary)
        folder.mkdir(exist_ok=True)
        if options.only in (None, "codecs"):
            # Python has a module of that name itself.
            runpy.run_path(str(HERE / "codecs.py"))["main"](4)
        if options.only in (None, "edges"):
            show_edges(folder, options.within, options.seeds, splits=options.splits)
        if options.only in (None, "rings"):
            show_rings(folder, options.within, options.seeds)
        if options.only in (None, "thin_link"):
            thin_link.main(["--kept", str(folder / "thin_link.jsonl")])


if __name__ == "__main__":
    main()
