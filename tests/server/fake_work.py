"""What fake agents do with an assignment: fetch it as real ones do, hand back its weights."""

import hashlib
from pathlib import Path

from fake_agent import FakeAgent

from ravnest.api.limits import FileRef
from ravnest.api.work import Assignment
from ravnest.stage.package import load_package, load_weights, save_trained


async def fetch(agent: FakeAgent, assignment: Assignment, folder: Path) -> None:
    """Every file of the assignment, checked."""
    async with agent.http() as client:
        for file in assignment.files:
            answer = await client.get(f"assignments/{assignment.id}/files/{file.sha256}")
            assert answer.status_code == 200, answer.text
            assert hashlib.sha256(answer.content).hexdigest() == file.sha256
            target = folder / file.path
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(answer.content)


async def train(
    agent: FakeAgent, assignment: Assignment, folder: Path, *, save: str = "s1", add: float = 0.01
) -> list[FileRef]:
    """Pretend to have trained: every weight is larger by `add`. Upload the result."""
    package = load_package(folder / "package")
    weights = load_weights(folder / "package" / "weights.safetensors", package.graph)
    changed = {
        name: tensor + add if tensor.is_floating_point() else tensor
        for name, tensor in weights.items()
    }
    save_trained(package, changed, save_id=save)
    names = [p.name for p in (folder / "package").iterdir() if p.name.startswith("trained")]
    content = {name: (folder / "package" / name).read_bytes() for name in sorted(names)}
    return await agent.bring_back(assignment, content)
