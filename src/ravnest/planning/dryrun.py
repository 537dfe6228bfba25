"""`ravnest plan`: run a user's script up to its call of `clusterize`, and stop with the plan.

The script is the user's own and runs as `python SCRIPT` would run it. Inside it, `clusterize` asks
here whether it is being tried out, and if so hands its plan over instead of writing files.
"""

import runpy
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ravnest.errors import PlanError
from ravnest.plan import Plan


class _DeliveredError(BaseException):
    """Ends the script; not an Exception, so that no handler there stops it."""


@dataclass(frozen=True)
class Overrides:
    """What the command line wants different from the script, and whether this is a trial."""

    pool: Path | None = None
    min_cluster_size: int | None = None
    max_clusters: int | None = None
    dry: bool = False
    plans: list[Plan] = field(default_factory=list)

    def deliver(self, plan: Plan) -> None:
        """In a trial, end the script here, or whichever of its threads has come to this."""
        if self.dry:
            self.plans.append(plan)
            raise _DeliveredError


_in_force = [Overrides()]
"""The last one counts. Not a context variable: threads of the script must see it too."""


def current() -> Overrides:
    return _in_force[-1]


def plan_script(
    script: Path,
    args: Sequence[str] = (),
    *,
    pool: Path | None = None,
    min_cluster_size: int | None = None,
    max_clusters: int | None = None,
) -> Plan:
    """The plan that the script's `clusterize` would make."""
    overrides = Overrides(pool, min_cluster_size, max_clusters, dry=True)
    _in_force.append(overrides)
    argv, path = sys.argv, list(sys.path)
    sys.argv = [str(script), *args]
    sys.path.insert(0, str(script.resolve().parent))
    try:
        runpy.run_path(str(script), run_name="__main__")
    except _DeliveredError:
        pass
    except SystemExit as ended:
        if ended.code:  # the script failed; it chose how to say so
            raise
    finally:
        sys.argv, sys.path[:] = argv, path
        _in_force.remove(overrides)
    if overrides.plans:
        return overrides.plans[0]
    raise PlanError(f"{script} ended without calling clusterize(model=…, example_args=…)")
