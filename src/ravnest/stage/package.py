"""The files of one stage on disk: written once by the planner, checked fully before use.

    manifest.json          what the package is, with size and SHA-256 of the other files
    graph.json             the operators (see graph.py)
    weights.safetensors    parameters, buffers and constants under the user's own names
    trained.json           says which of these files are the trained weights, with size and hash
    trained-*.safetensors  parameters, buffers and constants after training

Reading a package runs nothing that it contains. Sizes are checked before bytes are read, hashes
before bytes are parsed, names and shapes before tensors are used. Files are plain files: a link
would let a package name what lies elsewhere.

The graph is hashed and parsed from one read. Weights can be too large for that; they are hashed
when the package is loaded and read when the module is built, so in between nobody but the provider
itself may write to the directory. A built module holds copies and does not look back.
"""

import contextlib
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import nn

from ravnest.errors import PackageError
from ravnest.stage.checking import Limits as Limits
from ravnest.stage.checking import check_graph
from ravnest.stage.files import check_file, entry_of, plain_file, read_document, sha256_of
from ravnest.stage.graph import GRAPH_FORMAT, FileEntry, Manifest, StageGraph, TensorSpec
from ravnest.stage.module import StageModule
from ravnest.stage.operators import dtype_name

MANIFEST = "manifest.json"
GRAPH = "graph.json"
WEIGHTS = "weights.safetensors"
TRAINED_FILES = "trained-*.safetensors"
TRAINED_MANIFEST = "trained.json"
EARLIER_MANIFEST = "trained-before.json"
_TRAINED_NAME = re.compile(r"trained-[0-9a-f]{16}\.safetensors")


@dataclass(frozen=True)
class StagePackage:
    """A package whose every part has been checked."""

    directory: Path
    manifest: Manifest
    graph: StageGraph
    limits: Limits = field(default_factory=Limits)

    def module(
        self,
        device: torch.device | str = "cpu",
        *,
        model: nn.Module | None = None,
        trained: bool = False,
    ) -> StageModule:
        """The runnable stage, with its initial or its trained weights.

        `model` is needed only by a stage that was cut at module boundaries.
        """
        path = self.directory / WEIGHTS
        if trained:
            path = check_trained(self)
        elif WEIGHTS not in {entry.name for entry in self.manifest.files}:
            raise PackageError(
                f"stage package {self.directory} was planned without weights: "
                "give them when planning, or load trained ones"
            )
        weights = load_weights(path, self.graph, device)
        return StageModule(self.graph, weights, device, model)


def write_package(
    directory: Path,
    graph: StageGraph,
    weights: Mapping[str, torch.Tensor] | None,
    *,
    plan_id: str,
    cluster: int,
) -> None:
    """Write a complete package; `weights=None` leaves them out (a model planned without them)."""
    directory.mkdir(parents=True)
    graph_path = directory / GRAPH
    graph_path.write_bytes(msgspec.json.encode(graph))
    files = [entry_of(graph_path)]
    if weights is not None:
        _save_weights(directory / WEIGHTS, graph, weights)
        files.append(entry_of(directory / WEIGHTS))
    _write_manifest(directory / MANIFEST, graph, files, plan_id=plan_id, cluster=cluster)


def save_trained(
    package: StagePackage, tensors: Mapping[str, torch.Tensor], save_id: str = ""
) -> None:
    """Keep a stage's trained tensors beside its package.

    The new file is complete under a name of its own before trained.json is replaced, and the result
    before stays as well until `settle_trained`: the other stages may not come to save theirs, and
    only stages of the same save make a model.
    """
    directory = package.directory
    temporary = directory / "trained.new"
    temporary.unlink(missing_ok=True)  # whatever it is, it must not be written through
    _save_weights(temporary, package.graph, tensors)
    path = directory / TRAINED_FILES.replace("*", sha256_of(temporary)[:16])
    os.replace(temporary, path)
    _keep_as_earlier(package)
    _write_manifest(
        directory / TRAINED_MANIFEST,
        package.graph,
        [entry_of(path)],
        plan_id=package.manifest.plan_id,
        cluster=package.manifest.cluster,
        save_id=save_id,
    )
    _remove_unlisted(package)


def settle_trained(package: StagePackage) -> None:
    """All stages have what was saved last: forget what was saved before."""
    (package.directory / EARLIER_MANIFEST).unlink(missing_ok=True)
    _remove_unlisted(package)


def _keep_as_earlier(package: StagePackage) -> None:
    """Copied, so that trained.json is there at every moment; only if it can be believed."""
    with contextlib.suppress(PackageError):
        check_trained(package)
        pending = package.directory / (EARLIER_MANIFEST + ".new")
        pending.unlink(missing_ok=True)
        pending.write_bytes((package.directory / TRAINED_MANIFEST).read_bytes())
        os.replace(pending, package.directory / EARLIER_MANIFEST)


def _remove_unlisted(package: StagePackage) -> None:
    listed = set()
    for name in (TRAINED_MANIFEST, EARLIER_MANIFEST):
        with contextlib.suppress(PackageError, OSError):
            found = _manifest(package.directory / name, package.limits)
            listed |= {entry.name for entry in found.files}
    for older in package.directory.glob(TRAINED_FILES):
        if older.name not in listed:
            older.unlink()


def trained_saves(package: StagePackage) -> dict[str, Path]:
    """The file of each save of this stage that is there and whole, the last one first."""
    found: dict[str, Path] = {}
    for name in (TRAINED_MANIFEST, EARLIER_MANIFEST):
        with contextlib.suppress(PackageError):
            manifest, path = _trained(package, name)
            found.setdefault(manifest.save_id, path)
    return found


def load_package(directory: Path, limits: Limits | None = None) -> StagePackage:
    """Read and check a package; whatever is unexpected is a `PackageError` that says what."""
    limits = limits or Limits()
    directory = Path(directory)
    try:
        manifest = _manifest(directory / MANIFEST, limits)
        listed = [entry.name for entry in manifest.files]
        if listed not in ([GRAPH], [GRAPH, WEIGHTS]):
            names = ", ".join(name[:100] for name in listed[:5])
            raise PackageError(
                f"the manifest must list {GRAPH} and then possibly {WEIGHTS}, not: {names}"
            )
        graph = read_document(
            directory / GRAPH,
            StageGraph,
            format=GRAPH_FORMAT,
            limit=limits.graph_bytes,
            entry=manifest.files[0],
        )
        check_graph(graph, limits)
        if (graph.stage, graph.stages) != (manifest.stage, manifest.stages):
            raise PackageError("graph and manifest name different stages")
        for entry in manifest.files[1:]:
            check_file(directory / entry.name, entry, limits.weight_bytes)
    except PackageError as error:
        raise PackageError(f"stage package {directory}: {error}") from error.__cause__
    except OSError as error:
        raise PackageError(f"stage package {directory} cannot be read: {error}") from error
    return StagePackage(directory, manifest, graph, limits)


def check_trained(package: StagePackage, limits: Limits | None = None) -> Path:
    """The file of the trained weights; refused if damaged or of another plan or stage."""
    return _trained(package, TRAINED_MANIFEST, limits)[1]


def _trained(
    package: StagePackage, manifest: str, limits: Limits | None = None
) -> tuple[Manifest, Path]:
    limits = limits or package.limits
    path = package.directory / manifest
    try:
        found = _manifest(path, limits)
        for name in ("plan_id", "cluster", "stage", "stages"):
            theirs, ours = getattr(found, name), getattr(package.manifest, name)
            if theirs != ours:
                raise PackageError(f"belongs to {name} {theirs!r}, this package to {ours!r}")
        names = [entry.name for entry in found.files]
        if len(names) != 1 or not _TRAINED_NAME.fullmatch(names[0]):
            raise PackageError(f"{manifest} does not list just one {TRAINED_FILES}")
        path = package.directory / names[0]
        check_file(path, found.files[0], limits.weight_bytes)
    except PackageError as error:
        raise PackageError(f"{path}: {error}") from error.__cause__
    except OSError as error:
        raise PackageError(f"{path} cannot be read: {error}") from error
    return found, path


def load_weights(
    path: Path, graph: StageGraph, device: torch.device | str = "cpu", *, mapped: bool = False
) -> dict[str, torch.Tensor]:
    """The stage's tensors, each with the shape and type its graph states.

    `mapped` leaves them in the file until they are read, for a file that nobody will change; what
    is written to them stays in memory and never reaches it.
    """
    try:
        plain_file(path)
        with safe_open(path, framework="pt") as file:
            stored = set(file.keys())
            if unknown := stored - {spec.name for spec in graph.tensors}:
                raise PackageError(f"an unknown tensor {min(unknown)[:100]!r}")
            if missing := {spec.name for spec in graph.tensors} - stored:
                raise PackageError(f"tensor {min(missing)[:100]!r} is missing")
            weights = {}
            for spec in graph.tensors:
                tensor = file.get_tensor(spec.name)
                check_tensor(tensor, spec)
                # A copy: the file is mapped, and a change to it would change the stage.
                weights[spec.name] = tensor.to(device, copy=not mapped)
            return weights
    except PackageError as error:
        raise PackageError(f"{path}: {error}") from error.__cause__
    except (SafetensorError, OSError) as error:
        raise PackageError(f"{path} cannot be read: {error}") from error


def check_tensor(tensor: torch.Tensor, spec: TensorSpec) -> None:
    """Refuse a tensor of another shape or type than the graph states."""
    if tuple(tensor.shape) != spec.shape or dtype_name(tensor.dtype) != spec.dtype:
        found = f"{dtype_name(tensor.dtype)}{list(tensor.shape)}"
        wanted = f"{spec.dtype}{list(spec.shape)}"
        raise PackageError(f"tensor {spec.name[:100]!r} is {found}, expected {wanted}")


def _save_weights(path: Path, graph: StageGraph, weights: Mapping[str, torch.Tensor]) -> None:
    tensors = {}
    for spec in graph.tensors:
        if spec.name not in weights:
            raise PackageError(f"{path}: tensor {spec.name[:100]!r} is missing")
        tensor = weights[spec.name].detach().cpu().contiguous()
        check_tensor(tensor, spec)
        if tensor.dtype is torch.complex128:
            raise PackageError(
                f"tensor {spec.name[:100]!r} is complex128, which safetensors cannot hold: "
                "use complex64, or two real tensors with torch.view_as_complex"
            )
        # safetensors refuses tensors that share memory, e.g. two views of one buffer.
        shares = tensor.untyped_storage().nbytes() != tensor.numel() * tensor.element_size()
        tensors[spec.name] = tensor.clone() if shares else tensor
    save_file(tensors, path)


def _write_manifest(
    path: Path,
    graph: StageGraph,
    files: list[FileEntry],
    *,
    plan_id: str,
    cluster: int,
    save_id: str = "",
) -> None:
    manifest = Manifest(
        format=GRAPH_FORMAT,
        plan_id=plan_id,
        cluster=cluster,
        stage=graph.stage,
        stages=graph.stages,
        torch=str(torch.__version__),
        files=tuple(files),
        save_id=save_id,
    )
    temporary = path.with_name(path.name + ".new")
    temporary.unlink(missing_ok=True)
    temporary.write_bytes(msgspec.json.format(msgspec.json.encode(manifest)))
    os.replace(temporary, path)


def _manifest(path: Path, limits: Limits) -> Manifest:
    return read_document(path, Manifest, format=GRAPH_FORMAT, limit=limits.manifest_bytes)
