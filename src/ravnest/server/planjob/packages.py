"""What planning has made for each provider, as the process leaves it to the server: which files,
and where in its folder they are. The rest of an assignment is the server's own (assigning.py)."""

from collections.abc import Iterator
from pathlib import Path

import msgspec

from ravnest.api.limits import FileRef
from ravnest.plan import ClusterPlan, Plan, StagePlan
from ravnest.rundir import RunDir
from ravnest.server.planjob.outcome import MADE, MadeFile
from ravnest.stage.files import entry_of


def write_made(plan: Plan, run: RunDir, folder: Path) -> None:
    made = {
        stage.provider.id: tuple(_own_files(run, cluster, stage, folder))
        for cluster in plan.clusters
        for stage in cluster.stages
    }
    (folder / MADE).write_bytes(msgspec.json.encode(made))


def _own_files(
    run: RunDir, cluster: ClusterPlan, stage: StagePlan, folder: Path
) -> Iterator[MadeFile]:
    package = run.package_dir(cluster.id, stage.provider.address)
    found = {"node.json": run.node_file(stage.provider.id)}
    found |= {f"package/{path.name}": path for path in sorted(package.iterdir())}
    for name, path in found.items():
        entry = entry_of(path)
        file = FileRef(path=name, sha256=entry.sha256, size=entry.size)
        yield MadeFile(file=file, place=path.relative_to(folder).as_posix())
