"""Propose the operator allow-list for a torch release; a person reads the diff before it is kept.

    python tools/list_operators.py > src/ravnest/stage/allowed_operators.txt

An operator qualifies if it maps tensors and plain numbers to tensors or numbers and nothing else:
no files, no storages, no streams, no names, no handles, no output buffers, no backward formulas.
The loader trusts the resulting file, never this script.
"""

import keyword
import re

import torch

PLAIN_TYPES = {
    "Tensor", "Optional[Tensor]", "List[Tensor]", "List[Optional[Tensor]]",
    "int", "Optional[int]", "List[int]", "Optional[List[int]]", "SymInt", "Optional[SymInt]",
    "List[SymInt]", "Optional[List[SymInt]]", "float", "Optional[float]", "List[float]",
    "Optional[List[float]]", "bool", "Optional[bool]", "List[bool]", "number", "Optional[number]",
    "List[number]", "str", "Optional[str]", "Device", "Optional[Device]", "Generator",
    "Optional[Generator]", "complex",
}  # fmt: skip

UNDERSCORED = {
    "_conj", "_grouped_mm", "_log_softmax", "_neg_view", "_safe_softmax", "_shape_as_tensor",
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

UNCHECKED = re.compile(
    r"^(native_|slow_conv|thnn_conv|conv_depthwise|convolution$|rrelu_with_noise|ctc_loss|lu_solve|"
    r"lu_unpack|linalg_(lu_solve|ldl_solve|lstsq|eig$|eigvals$)|pdist|range$|grid_sampler_|"
    r"as_strided_)|_forward$|_polynomial_"
)
"""Kernels that trust their arguments: found by fuzzing to read or write outside their tensors, to
divide by a size of zero or to loop as often as an argument says. Capture does not produce them,
apart from ctc_loss, which belongs into the criterion."""


WRITE_INTO = {
    f"{name}.{overload}"
    for name, overload in (
        ("add", "out"), ("sub", "out"), ("mul", "out"), ("div", "out"), ("mv", "out"),
        ("mm", "out"), ("sqrt", "out"), ("clamp_min", "out"),
    )
}  # fmt: skip
"""Operators with an output buffer that real models use (spectral normalisation does)."""


def qualifies(schema: torch._C.FunctionSchema) -> bool:
    name = schema.name.removeprefix("aten::")
    if f"{name}.{schema.overload_name}" in WRITE_INTO:
        return True
    if name.startswith("_") and name.rstrip("_") not in UNDERSCORED and not _is_dunder(name):
        return False
    if UNCHECKED.search(name) or _is_unchecked_overload(name, schema.overload_name):
        return False
    if REFUSED.search(name) or "out" in schema.overload_name.split("_") or name.endswith("_out"):
        return False
    if any(argument.is_out for argument in schema.arguments):
        return False
    types = [str(argument.type) for argument in (*schema.arguments, *schema.returns)]
    if not set(types) <= PLAIN_TYPES:
        return False
    returned = [str(result.type) for result in schema.returns]
    if name.startswith("sym_") and name in ("sym_size", "sym_numel", "sym_stride"):
        return any("Tensor" in kind for kind in types)
    return bool(returned) and all("Tensor" in kind for kind in returned)


def _is_unchecked_overload(name: str, overload: str) -> bool:
    if name.lstrip("_").startswith("upsample_") and overload != "vec":
        return True  # takes scales that need not fit its sizes
    if overload == "data" or keyword.iskeyword(overload):
        return True  # packed sequences cannot be captured; generated code cannot say `from`
    qualified = f"aten::{name}.{overload}" if overload else f"aten::{name}"
    return not torch._C._dispatch_has_kernel(qualified)  # TorchScript's own, without checks


def _is_dunder(name: str) -> bool:
    return name in ("__and__", "__or__", "__xor__", "__lshift__", "__rshift__")


def main() -> None:
    names = set()
    for schema in torch._C._jit_get_all_schemas():
        if not schema.name.startswith("aten::") or not qualifies(schema):
            continue
        name = schema.name.removeprefix("aten::")
        overload = schema.overload_name or "default"
        try:
            getattr(getattr(torch.ops.aten, name), overload)
        except AttributeError:
            continue
        names.add(f"aten.{name}.{overload}")
    print("\n".join(sorted(names)))


if __name__ == "__main__":
    main()
