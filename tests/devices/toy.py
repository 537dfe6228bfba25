"""A device in pure Python: plain tensors of `toy:0` and `toy:1`, whose memory is main memory.

A tensor of another device with real memory is a DLPack capsule with a changed label: torch takes it
for what the label says, and never looks at the memory itself. What torch does with such tensors
comes to one fallback, `_run`, which labels them as main memory, runs the operator of the CPU, and
labels what comes out. So every operator of the CPU is there, results are those of the CPU (but for
the last digits, where torch takes operators apart for a device and not for the CPU), and the only
thing that is different is what a real device would refuse: operators whose tensors lie in different
places, and, on a device like Apple's, double precision.

What this is not: it has no kernels, no speed and no memory of its own; autocast casts nothing;
autograd knows of `toy:0` only; of sparse tensors there is no more than can be made dense; and the
backward of complex numbers ends the process.
"""

import contextlib
import ctypes
import functools
import threading
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.utils import _pytree as pytree
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

COUNT = 2
_CPU, _EXTENSION = 1, 12  # as DLPack numbers the types of devices
_here = threading.local()


class DeviceError(RuntimeError):
    """What a real device would have refused."""


class Module:
    """What `torch.get_device_module` gives for it. Without queues: see `devices.queues`."""

    def __init__(self) -> None:
        self._generators = [torch.Generator() for _ in range(COUNT)]

    def is_available(self) -> bool:
        return True

    def is_initialized(self) -> bool:
        return True

    def _is_in_bad_fork(self) -> bool:
        return False

    def device_count(self) -> int:
        return COUNT

    def current_device(self) -> int:
        return getattr(_here, "device", 0)

    def set_device(self, device: Any) -> None:
        _here.device = device if isinstance(device, int) else _index(torch.device(device))

    def synchronize(self, device: Any = None) -> None: ...

    def get_amp_supported_dtype(self) -> list[torch.dtype]:
        return [torch.bfloat16, torch.float16]

    def manual_seed(self, seed: int) -> None:
        self.generator(None).manual_seed(seed)

    def manual_seed_all(self, seed: int) -> None:
        for generator in self._generators:
            generator.manual_seed(seed)

    def get_rng_state(self, device: Any = None) -> torch.Tensor:
        return self.generator(device).get_state()

    def set_rng_state(self, state: torch.Tensor, device: Any = None) -> None:
        self.generator(device).set_state(state)

    def generator(self, device: Any) -> torch.Generator:
        return self._generators[0 if device is None else _index(torch.device(device))]


MODULE = Module()
_setup_privateuseone_for_python_backend("toy", backend_module=MODULE)
TOY = torch.device("toy", 0)


def _index(device: torch.device) -> int:
    return MODULE.current_device() if device.index is None else device.index


# ---- labels ----

_pointer_of = ctypes.pythonapi.PyCapsule_GetPointer
_pointer_of.restype, _pointer_of.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
_LABEL = ctypes.sizeof(ctypes.c_void_p)
"""Where a DLPack tensor says which device it is on: after the pointer to its memory."""


def _relabelled(tensor: torch.Tensor, kind: int, index: int) -> torch.Tensor:
    """The same memory, as a tensor of another device."""
    tensor = tensor.detach()
    if tensor.is_conj():
        return _relabelled(tensor.conj(), kind, index).conj()
    if tensor.is_neg():
        return _relabelled(torch._neg_view(tensor), kind, index)._neg_view()
    capsule = torch._C._to_dlpack(tensor)
    label = (ctypes.c_int32 * 2).from_address(_pointer_of(capsule, b"dltensor") + _LABEL)
    label[:] = (kind, index)
    return torch._C._from_dlpack(capsule)


def on_toy(host: torch.Tensor, index: int = 0) -> torch.Tensor:
    return _relabelled(host, _EXTENSION, index)


def on_host(tensor: torch.Tensor) -> torch.Tensor:
    """The memory of a toy tensor as a tensor of the CPU."""
    return _relabelled(tensor, _CPU, 0)


def is_toy(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.device.type == "toy"


# ---- what a device refuses ----

_limits = {"doubles": True}


@contextlib.contextmanager
def without_doubles() -> Iterator[None]:
    """While active, it is like Apple's, which has neither float64 nor complex128."""
    _limits["doubles"] = False
    try:
        yield
    finally:
        _limits["doubles"] = True


def _check_type(op: Any, dtype: torch.dtype | None) -> None:
    if not _limits["doubles"] and dtype in (torch.float64, torch.complex128):
        raise DeviceError(f"{op}: this device has no {dtype}")


_BY_INDEX = {"index", "index_put", "index_put_", "_index_put_impl_", "_unsafe_index"}
_SCALARS_TOO = {
    "floor_divide",
    "floor_divide_",
    "masked_fill",
    "masked_fill_",
    "index_fill",
    "index_fill_",
    "where",
    "fill_",
}


def _may_be_on_host(op: Any, tensor: torch.Tensor) -> bool:
    """Real devices take plain numbers from everywhere, and indices."""
    name = op._schema.name.removeprefix("aten::")
    if name in _BY_INDEX and tensor.dtype in (torch.int64, torch.int32, torch.bool, torch.uint8):
        return True
    takes = torch.Tag.pointwise in op.tags or name in _SCALARS_TOO or name.startswith("_foreach")
    return tensor.dim() == 0 and takes


# ---- operators ----


class Players:
    """Who may look on, or do things otherwise: see `devices.queues`."""

    def before(self, index: int) -> None:
        """An operator is about to read tensors."""

    def puts_off(self, do: Callable[[], Any]) -> bool:
        """Whether this, which writes to arguments and makes nothing new, is done later."""
        return False

    def made(
        self, result: torch.Tensor, index: int, again: Callable[[], torch.Tensor] | None
    ) -> torch.Tensor:
        """New memory, as the CPU has computed it, for the device. `again` computes it once more,
        from what the arguments' memory holds by then, whoever it belongs to."""
        return on_toy(result, index)

    def copy(self, source: torch.Tensor, target: torch.Tensor, non_blocking: bool) -> None:
        host(target).copy_(host(source))


PLAYING: list[Players] = [Players()]
"""The last one plays."""


def host(tensor: torch.Tensor) -> torch.Tensor:
    return on_host(tensor) if is_toy(tensor) else tensor.detach()


def _run(op: Any, *args: Any, **kwargs: Any) -> Any:
    """The operator of the CPU, on the memory of these tensors."""
    flat, spec = pytree.tree_flatten((_with_tensors(op, args), kwargs))
    indices = {_index(item.device) for item in flat if is_toy(item)}
    given = kwargs.get("device")
    target = torch.device(given) if given is not None else None
    if len(indices) > 1:
        raise DeviceError(f"{op}: tensors of toy:0 and toy:1")
    if indices:
        index = indices.pop()
    else:
        index = _index(target) if target is not None else MODULE.current_device()
    player = PLAYING[-1]
    lent: dict[int, torch.Tensor] = {}
    borrowed: list[torch.Tensor] = []
    grows = _grown(op, args, kwargs)
    is_out = op._schema.name != "aten::resize_"

    def lend(item: Any) -> Any:
        if is_toy(item):
            _check_type(op, item.dtype)
            alias = on_host(item)
            if id(item) in grows:  # a memory of its own, which may be given another size
                alias = alias.new_empty(0) if is_out else alias.clone()
            lent[id(alias)] = item
            borrowed.append(alias)
            return alias
        if isinstance(item, torch.Tensor) and not _may_be_on_host(op, item):
            raise DeviceError(
                f"{op}: a tensor of {item.device}, of shape {list(item.shape)}, among those of "
                f"toy:{index}"
            )
        if isinstance(item, torch.device) and item.type == "toy":
            return torch.device("cpu")
        return None if isinstance(item, torch.Generator) else item

    arguments = [lend(item) for item in flat]
    pairs = zip(flat, arguments, strict=True)
    places = [Place(item) if is_toy(item) else argument for item, argument in pairs]
    repeat = functools.partial(_repeat, op, places, spec) if _repeats(op) else None
    if op._schema.is_mutable and not grows and repeat is not None and player.puts_off(repeat):
        return _written(op, args, kwargs)
    if borrowed:
        player.before(index)
    args, kwargs = pytree.tree_unflatten(arguments, spec)
    kwargs.pop("pin_memory", None)
    ranges = [_range(alias) for alias in borrowed]
    with torch._C._AutoDispatchBelowAutograd(), _drawing(op, index):
        found = op(*args, **kwargs)
    for alias in borrowed:
        if id(lent[id(alias)]) in grows:
            lent[id(alias)].data = player.made(alias, index, None)
    numbers = {id(item): number for number, item in enumerate(pytree.tree_leaves(found))}
    leaves_device = target is not None and target.type == "cpu"

    def give(item: Any) -> Any:
        if not isinstance(item, torch.Tensor):
            return item
        if id(item) in lent:
            return lent[id(item)]
        _check_type(op, item.dtype)
        if leaves_device:
            return item
        start, _ = _range(item)
        if any(first <= start < stop for first, stop in ranges):  # a view
            return on_toy(item, index)
        number = numbers[id(item)]
        again = repeat and (lambda: pytree.tree_leaves(repeat())[number])
        return player.made(item, index, again)

    return pytree.tree_map(give, found)


class Place:
    """Where a tensor lies, without keeping it there."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self._size, self._stride = tuple(tensor.shape), tensor.stride()
        self._dtype, self._start = tensor.dtype, tensor.data_ptr()

    def read(self) -> torch.Tensor:
        """As a tensor of the CPU."""
        if 0 in self._size:
            return torch.empty(self._size, dtype=self._dtype)
        steps = zip(self._size, self._stride, strict=True)
        count = 1 + sum((size - 1) * step for size, step in steps)
        memory = (ctypes.c_ubyte * (count * self._dtype.itemsize)).from_address(self._start)
        flat = torch.frombuffer(memory, dtype=self._dtype, count=count)
        return flat.as_strided(self._size, self._stride)


def _repeats(op: Any) -> bool:
    """Whether it can be done later. Of BatchNorm's statistics the schema does not tell."""
    draws = torch.Tag.nondeterministic_seeded in op.tags
    return not (draws or "batch_norm" in op._schema.name)


def _repeat(op: Any, places: list[Any], spec: Any) -> Any:
    """With what the memory of its arguments holds by then, whoever it belongs to."""
    read = [place.read() if isinstance(place, Place) else place for place in places]
    args, kwargs = pytree.tree_unflatten(read, spec)
    kwargs.pop("pin_memory", None)
    with torch.no_grad():
        return op(*args, **kwargs)


def _written(op: Any, args: Any, kwargs: Any) -> Any:
    """What an operator returns that only writes to its arguments."""
    named = dict(zip((a.name for a in op._schema.arguments), args, strict=False)) | kwargs
    found = tuple(
        named[argument.name]
        for argument in op._schema.arguments
        if argument.alias_info is not None and argument.alias_info.is_write
    )
    returned = op._schema.returns
    return None if not returned else found[0] if len(returned) == 1 else found


def _range(tensor: torch.Tensor) -> tuple[int, int]:
    storage = tensor.untyped_storage()
    return storage.data_ptr(), storage.data_ptr() + max(1, storage.nbytes())


def _with_tensors(op: Any, args: Any) -> list[Any]:
    """On its way to Python a number that torch has made a tensor of becomes a number again."""
    wanted = [str(argument.type) == "Tensor" for argument in op._schema.arguments]
    return [
        torch.tensor(arg, dtype=torch.float64 if isinstance(arg, float) else None)
        if is_tensor and isinstance(arg, bool | int | float)
        else arg
        for arg, is_tensor in zip(args, wanted, strict=False)
    ]


def _grown(op: Any, args: Any, kwargs: Any) -> set[int]:
    """Tensors that this operator may have to give another size."""
    if op._schema.name == "aten::resize_":
        return {id(args[0])}
    outs = [kwargs.get(argument.name) for argument in op._schema.arguments if argument.is_out]
    makes_room = op._schema.name in _MAKES_ROOM
    return {id(out) for out in outs if is_toy(out) and (makes_room or not out.numel())}


_MAKES_ROOM = {"aten::mse_loss", "aten::smooth_l1_loss"}
"""Use their result for what is to be reduced, before it has the size of a result."""


@contextlib.contextmanager
def _drawing(op: Any, index: int) -> Iterator[None]:
    """Random numbers are those of the device."""
    if torch.Tag.nondeterministic_seeded not in op.tags:
        yield
        return
    before, own = torch.get_rng_state(), MODULE.generator(torch.device("toy", index))
    torch.default_generator.set_state(own.get_state())
    try:
        yield
    finally:
        own.set_state(torch.default_generator.get_state())
        torch.default_generator.set_state(before)


def _copy_from(
    source: torch.Tensor, target: torch.Tensor, non_blocking: bool = False
) -> torch.Tensor:
    for tensor in (source, target):
        if is_toy(tensor):
            _check_type("copy_", tensor.dtype)
    if source.dtype != target.dtype:
        # As Apple's does it: converted on the device if that is where it comes from.
        _check_type("copy_", target.dtype if is_toy(source) else None)
    PLAYING[-1].copy(source.detach(), target.detach(), non_blocking)
    return target


def _run_sparse(op: Any, *args: Any, **kwargs: Any) -> Any:
    """Gradients of embeddings; what is only bookkeeping is the CPU's."""
    if op._schema.name == "aten::_to_dense":
        values, (rows,) = args[0]._values(), args[0]._indices()
        every = torch.arange(len(args[0]), device=values.device)
        return (every.unsqueeze(1) == rows).to(values.dtype) @ values
    return op.redispatch(_SPARSE, *args, **kwargs)


_SPARSE = torch._C.DispatchKeySet(torch._C.DispatchKey.SparseCPU)
_sparse = torch.library.Library("_", "IMPL")
_sparse.fallback(_run_sparse, "SparsePrivateUse1")
_fallback = torch.library.Library("_", "IMPL")
_fallback.fallback(_run, "PrivateUse1")
_autocast = torch.library.Library("_", "IMPL")
_autocast.fallback(torch.library.fallthrough_kernel, "AutocastPrivateUse1")
_operators = torch.library.Library("aten", "IMPL")
_aten = torch.ops.aten


def _implement(name: str, function: Callable[..., Any]) -> None:
    _operators.impl(name, function, "PrivateUse1")


def _convolution_backward(
    gradient: torch.Tensor,
    inputs: torch.Tensor,
    weight: torch.Tensor,
    stride: Any,
    padding: Any,
    dilation: Any,
    transposed: bool,
    output_padding: Any,
    groups: int,
    mask: Any,
) -> Any:
    biases = [weight.shape[1] * groups if transposed else weight.shape[0]]
    rest = (stride, padding, dilation, transposed, output_padding, groups, mask)
    return _run(_aten.convolution_backward.default, gradient, inputs, weight, biases, *rest)


_implement("_copy_from", _copy_from)
_implement("convolution_overrideable", lambda *args: _run(_aten.convolution.default, *args))
_implement("convolution_backward_overrideable", _convolution_backward)
