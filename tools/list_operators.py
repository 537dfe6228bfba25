"""Write the operator allow-list: what capture makes of the zoo and of ordinary layers.

    python tools/list_operators.py            the list
    python tools/list_operators.py --calls    sample calls of its operators, for the fuzzer

An operator is on the list if capture emits it for a model of tests/zoo.py or a program of
tests/zoo_models/layers.py (each line names the first that does), or if EXTRA gives a reason for
it. It must also map tensors and plain numbers to tensors or numbers and nothing else: no files, no
storages, no streams, no names, no handles, no backward formulas. Whatever else a model needs, the
owner of a machine allows by name (`--allow-operator`).

A person reads the diff before it is kept; the loader trusts the file, never this script.
"""

import json
import keyword
import re
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path

import torch

ROOT = Path(__file__).resolve().parent.parent
LIST = ROOT / "src" / "ravnest" / "stage" / "allowed_operators.txt"
CALLS = ROOT / "tests" / "stage" / "sample_calls.json"
MOST_CALLS = 3
"""Of one operator."""

EXTRA = {
    "aten.as_strided.default": "extra: overlapping windows, as in Longformer; bounded in guarded.py"
}
"""Operators that no sample program emits, each with the reason why it is allowed."""

PLAIN_TYPES = {
    "Tensor", "Optional[Tensor]", "List[Tensor]", "List[Optional[Tensor]]",
    "int", "Optional[int]", "List[int]", "Optional[List[int]]", "SymInt", "Optional[SymInt]",
    "List[SymInt]", "Optional[List[SymInt]]", "float", "Optional[float]", "List[float]",
    "Optional[List[float]]", "bool", "Optional[bool]", "List[bool]", "number", "Optional[number]",
    "List[number]", "str", "Optional[str]", "Device", "Optional[Device]", "Generator",
    "Optional[Generator]", "complex",
}  # fmt: skip

UNDERSCORED = {
    "_conj", "_log_softmax", "_neg_view", "_safe_softmax", "_shape_as_tensor",
    "_softmax", "_to_copy", "_unique2", "_unsafe_view", "_upsample_bicubic2d_aa",
    "_upsample_bilinear2d_aa", "_upsample_nearest_exact1d", "_upsample_nearest_exact2d",
    "_upsample_nearest_exact3d", "_weight_norm",
}  # fmt: skip
"""Names with an underscore that capture really produces; the others are kernels behind them."""

REFUSED = re.compile(
    r"backward|^(_?foreach|_?fused|quantize|fake_quantize|dequantize|mkldnn|cudnn|miopen|fbgemm|"
    r"sparse|to_sparse|to_mkldnn|to_dense|to_padded|nested|q_|int_repr|qscheme|quantized|hspmm|"
    r"sspaddmm|smm|coalesce|is_coalesced|indices|ccol|crow|col_indices|row_indices|values|"
    r"from_file|save|load|set_|set$|resize|record_stream|pin_memory|is_pinned|data$|set_data|"
    r"requires_grad|retain|rename|refine_names|align|unsafe_chunk_|copy_sparse|item$|_local|"
    r"is_leaf|output_nr|_version|result_type|can_cast|promote_types|fw_primal|make_dual|"
    r"unpack_dual|lift$|vulkan|mps|xpu|segment_reduce|choose_qparams|"
    r"cumulative_trapezoid|tensor$|manual_seed|seed$|initial_seed|sym_constrain|"
    r"glu_jvp|native_dropout_backward|symeig|eig$|as_strided_scatter|masked_scatter_backward|"
    r"hash_tensor|convolution_overrideable|empty_(quantized|strided|permuted)|new_empty_strided|as_tensor|flatten_dense|unflatten_dense|"
    r"cpu$|cuda$|sorted$|slice_inverse|batch_norm_(stats|elemt|gather|update)|rnn_tanh_cell_|quantized_)"
)


UNSAFE = re.compile(
    r"^(native_|slow_conv|thnn_conv|conv_depthwise|convolution$|rrelu_with_noise|lu_solve|"
    r"lu_unpack|linalg_(lu_solve|ldl_solve|lstsq|eig$|eigvals$)|pdist|range$|grid_sampler_|"
    r"as_strided_|_grouped_mm|binomial)|_forward$|_polynomial_"
)
"""Kernels that read or write outside their tensors, leave results unwritten, divide by a size of
zero or loop as often as an argument says (found by tests/stage/fuzzing.py). Never on the list."""


def qualifies(schema: torch._C.FunctionSchema) -> bool:
    name = schema.name.removeprefix("aten::")
    if name.startswith("_") and name.rstrip("_") not in UNDERSCORED and not _is_dunder(name):
        return False
    if UNSAFE.search(name) or REFUSED.search(name):
        return False
    types = [str(argument.type) for argument in (*schema.arguments, *schema.returns)]
    if not set(types) <= PLAIN_TYPES:
        return False
    returned = [str(result.type) for result in schema.returns]
    if name in ("sym_size", "sym_numel", "sym_stride"):
        return any("Tensor" in kind for kind in types)
    return bool(returned) and all("Tensor" in kind for kind in returned)


def _is_unchecked_overload(schema: torch._C.FunctionSchema) -> bool:
    name, overload = schema.name.removeprefix("aten::"), schema.overload_name
    if name.lstrip("_").startswith("upsample_") and overload != "vec":
        return True  # takes scales that need not fit its sizes
    if overload == "data" or keyword.iskeyword(overload):
        return True  # packed sequences cannot be captured; generated code cannot say `from`
    qualified = f"aten::{name}.{overload}" if overload else f"aten::{name}"
    return not torch._C._dispatch_has_kernel(qualified)  # TorchScript's own, without checks


def overloads(origins: dict[str, str]) -> dict[str, str]:
    """Other overloads of what is on the list, which TorchScript writes: `mul.Scalar` where export
    writes `mul.Tensor`. The kernel behind them is the same, and guards belong to the name."""
    known = {name.rsplit(".", 1)[0]: name for name in sorted(origins)}
    return {
        name: f"extra: overload of {known[base]}"
        for name, is_out in candidates().items()
        if (base := name.rsplit(".", 1)[0]) in known and not is_out and "generator" not in name
    }


def _is_dunder(name: str) -> bool:
    return name.startswith("__") and name.endswith("__")


def candidates() -> dict[str, bool]:
    """Every operator that could be on the list, and whether it writes to an output buffer."""
    schemas = [it for it in torch._C._jit_get_all_schemas() if it.name.startswith("aten::")]
    return {
        f"aten.{schema.name.removeprefix('aten::')}.{schema.overload_name or 'default'}": any(
            argument.is_out for argument in schema.arguments
        )
        for schema in schemas
        if qualifies(schema) and not _is_unchecked_overload(schema)
    }


def emitted() -> Iterator[tuple[str, set[str]]]:
    """Each model and program, and the operators that capture makes of it."""
    sys.path.insert(0, str(ROOT / "tests"))
    from stage.emitted import operators_of_layers, operators_of_model
    from zoo import ZOO
    from zoo_models.layers import PROGRAMS

    for name in ZOO:
        yield name, operators_of_model(name)
    for name in PROGRAMS:
        yield name, operators_of_layers(name)


def write_calls() -> None:
    """The first different calls of each operator among the programs of ordinary layers."""
    sys.path.insert(0, str(ROOT / "tests"))
    from stage.emitted import calls_of_layers
    from zoo_models.layers import PROGRAMS

    listed = {line.split()[0] for line in LIST.read_text().splitlines()}
    found: dict[str, dict[str, None]] = {}
    for program in PROGRAMS:
        print(program, file=sys.stderr, flush=True)
        for name, call in calls_of_layers(program):
            known = found.setdefault(name, {})
            if name in listed and len(known) < MOST_CALLS:
                known[json.dumps(call)] = None
    lines = [f'"{name}": [{", ".join(calls)}]' for name, calls in sorted(found.items()) if calls]
    CALLS.write_text("{\n" + ",\n".join(lines) + "\n}\n")


def write_list() -> None:
    from ravnest.stage.arithmetic import ARITHMETIC
    from ravnest.stage.operators import allow_operator

    possible = candidates()
    for name in possible:
        allow_operator(name)
    origins = dict(EXTRA)
    for program, operators in emitted():
        print(program, file=sys.stderr, flush=True)
        for name in operators - ARITHMETIC.keys():
            origins.setdefault(name, program)
    origins = overloads(origins) | origins
    if unfit := origins.keys() - possible.keys():
        sys.exit(f"emitted, but not fit for the list: {sorted(unfit)}")
    LIST.write_text("".join(f"{name} {origin}\n" for name, origin in sorted(origins.items())))


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    write_calls() if sys.argv[1:] == ["--calls"] else write_list()
