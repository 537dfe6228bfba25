# ruff: noqa
import pathlib

p = pathlib.Path("tests/test_architecture.py")
s = p.read_text()
F = str(pathlib.Path(__file__).parent) + "/"
s = s.replace(
    "def impure_decisions(", open(F + "frag_code.txt").read() + "def impure_decisions(", 1
)
s = s.replace(
    "CHECKS = [wrong_directions, cycles, impure_decisions, unsafe_code, trust_elsewhere]",
    "CHECKS = [\n    wrong_directions,\n    cycles,\n    folder_cycles,\n    impure_decisions,\n    unsafe_code,\n    trust_elsewhere,\n]",
)
mark = '@pytest.mark.parametrize(\n    "statement", ["import torch.nn"'
assert mark in s
s = s.replace(mark, open(F + "frag_test.txt").read() + mark, 1)
p.write_text(s)
