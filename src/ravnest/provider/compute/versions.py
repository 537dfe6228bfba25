"""The weights of a stage in several versions, without copying more than there is a reason to.

Autograd remembers the tensors a forward used, so a micro-batch in flight keeps its version alive by
itself; all that is needed is that nobody writes to them. Each version is therefore a set of leaf
tensors of its own (`leaves`) over storage that is not written to while the version is in use:

    masters   the parameters that the optimizer knows; always the newest values
    leaves    what forwards of one version use; the newest ones share storage with the masters

An update while nothing is in flight writes in place and copies nothing. Otherwise the masters move
to other storage first, the values are copied over, and the old storage is left to its version. When
that is not needed any more its storage is kept for the next move: two versions never cost more than
twice the weights.
"""

from collections import defaultdict

import torch
from torch import nn


class WeightVersions:
    """Trainable parameters of one stage. Versions count up from 0."""

    def __init__(self, stage: nn.Module) -> None:
        places: defaultdict[nn.Parameter, list[tuple[nn.Module, str]]] = defaultdict(list)
        for module in stage.modules():
            for name, parameter in module._parameters.items():
                if parameter is not None and parameter.requires_grad:
                    places[parameter].append((module, name))
        self.masters = list(places)
        self._places = list(places.values())
        self._leaves: dict[int, list[nn.Parameter]] = {}
        self._spare: list[torch.Tensor] = []
        self._newest = 0
        self._install(0)

    def _install(self, version: int) -> None:
        """Let forwards from now on use leaves of their own over the masters' storage."""
        # `.data` is an alias with a version counter of its own: what the optimizer does to a master
        # is not held against those who used the leaf before.
        leaves = [nn.Parameter(master.data) for master in self.masters]
        for leaf, places in zip(leaves, self._places, strict=True):
            for module, name in places:
                module._parameters[name] = leaf
        self._leaves[version] = leaves
        self._newest = version

    def prepare_update(self, *, in_place: bool) -> None:
        """Before the optimizer writes to the masters."""
        if in_place:
            return
        spare, self._spare = self._spare, []
        with torch.no_grad():
            for number, master in enumerate(self.masters):
                target = spare[number] if spare else torch.empty_like(master)
                master.data = target.copy_(master.data)

    def finish_update(self, version: int, *, in_place: bool) -> None:
        """After the optimizer has written to the masters."""
        if in_place and self._are_where_they_were():
            self._leaves[version] = self._leaves.pop(self._newest)
            self._newest = version
        else:
            if in_place:
                del self._leaves[self._newest]
            self._install(version)

    def _are_where_they_were(self) -> bool:
        """Some optimizers put new tensors into the parameters instead of writing to the old."""
        leaves = self._leaves[self._newest]
        return all(
            master.data_ptr() == leaf.data_ptr()
            for master, leaf in zip(self.masters, leaves, strict=True)
        )

    def holds(self, tensor: torch.Tensor) -> bool:
        """Whether a parameter's gradient lies in the memory of this tensor: where an input and a
        parameter were added, autograd gives both the same one, and one of them is written to."""
        if tensor.layout is not torch.strided:
            return False
        where = tensor.untyped_storage().data_ptr()
        return any(
            master.grad is not None
            and master.grad.layout is torch.strided
            and master.grad.untyped_storage().data_ptr() == where
            for master in self.masters
        )

    def release(self, version: int) -> None:
        """Nobody is going to use this version again."""
        leaves = self._leaves.pop(version)
        if not self._spare:
            self._spare = [leaf.data for leaf in leaves]

    def collect_gradients(self, version: int, done: set[int] | None = None) -> "_Collecting":
        """While active, a backward of this version adds to the masters' gradients. If it fails
        half-way, `done` has the places of those that it has added to already."""
        return _Collecting(self.masters, self._leaves[version], set() if done is None else done)

    def used(self, version: int) -> "_Used":
        """While active, forwards use this version; for computing activations again."""
        return _Used(self._places, self._leaves[version], self._leaves[self._newest])

    @property
    def bytes_to_move(self) -> int:
        """That an update which must not write in place allocates."""
        if self._spare:
            return 0
        return sum(master.numel() * master.element_size() for master in self.masters)

    @property
    def alive(self) -> int:
        return len(self._leaves)


class _Collecting:
    """Lends the masters' gradient tensors to the leaves: autograd adds to them where they are."""

    def __init__(
        self, masters: list[nn.Parameter], leaves: list[nn.Parameter], done: set[int]
    ) -> None:
        self._masters, self._leaves, self._done = masters, leaves, done
        self._before: list[tuple[torch.Tensor | None, int]] = []

    def __enter__(self) -> "_Collecting":
        for master, leaf in zip(self._masters, self._leaves, strict=True):
            leaf.grad = master.grad
            self._before.append(_seen(leaf))
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        pairs = zip(self._masters, self._leaves, strict=True)
        for place, (master, leaf) in enumerate(pairs):
            if kind is not None:
                (grad, version), (was, before) = _seen(leaf), self._before[place]
                if grad is not was or version != before:
                    self._done.add(place)
            master.grad = leaf.grad
            leaf.grad = None
        self._before = []

    @property
    def missing(self) -> list[torch.Tensor]:
        """Leaves whose gradients an earlier attempt has not added. Autograd adds to each once in a
        backward, with everything there is to add."""
        return [leaf for place, leaf in enumerate(self._leaves) if place not in self._done]


def _seen(leaf: nn.Parameter) -> tuple[torch.Tensor | None, int]:
    grad = leaf.grad
    return grad, -1 if grad is None else grad._version


class _Used:
    def __init__(
        self,
        places: list[list[tuple[nn.Module, str]]],
        wanted: list[nn.Parameter],
        newest: list[nn.Parameter],
    ) -> None:
        self._places, self._wanted, self._newest = places, wanted, newest

    def __enter__(self) -> None:
        self._put(self._wanted)

    def __exit__(self, *exception: object) -> None:
        self._put(self._newest)

    def _put(self, leaves: list[nn.Parameter]) -> None:
        for leaf, places in zip(leaves, self._places, strict=True):
            for module, name in places:
                module._parameters[name] = leaf
