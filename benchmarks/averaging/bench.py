"""How fast are rounds, and what do they cost training?

    python3 dev.py bench averaging

Rings of 2 and 4 processes beside gloo's all_reduce; then, as root, two members across an emulated
wide-area link, and two clusters that train while they average. hivemind, where it is installed, is
timed by `hivemind_peer.py`.
"""

import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.averaging import line, rings, training


def main() -> None:
    rings.main()
    if os.geteuid() != 0:
        print("the rest needs root: network namespaces")
        return
    line.main()
    training.main()


if __name__ == "__main__":
    main()
