"""Types of numbers by name, without torch: how large they are, and what they can hold."""

SIZES = {
    "float64": 8,
    "float32": 4,
    "float16": 2,
    "bfloat16": 2,
    "int64": 8,
    "int32": 4,
    "int16": 2,
    "int8": 1,
    "uint8": 1,
    "bool": 1,
}
"""Bytes of one number. Other types cannot be columns of a dataset."""
FLOATS = frozenset({"float64", "float32", "float16", "bfloat16"})
INTEGERS = frozenset(SIZES) - FLOATS - {"bool"}


def as_float(dtype: str) -> str:
    """What arithmetic with fractions makes of it."""
    return dtype if dtype in FLOATS else "float32"
