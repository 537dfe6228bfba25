"""The allow-list is what capture emits for the zoo and for ordinary layers, and nothing else.

Each line of the list names the sample that emits its operator. Here this is verified for the
programs of zoo_models/layers.py; for the models of the zoo in tests/parity/test_zoo.py.
"""

from importlib import resources

import pytest
from emitted import operators_of_layers
from fuzzing import Finding, fuzz, fuzz_numbers, fuzz_shapes
from zoo import ZOO
from zoo_models.layers import PROGRAMS

from ravnest.api.work import ALLOWED_OPERATORS
from ravnest.stage.arithmetic import ARITHMETIC
from ravnest.stage.operators import allowed_operators

_TEXT = resources.files("ravnest.stage").joinpath("allowed_operators.txt").read_text()
ORIGINS = dict(line.split(" ", 1) for line in _TEXT.splitlines())
NAMES = sorted(allowed_operators())
EXTRA = {"aten.as_strided.default"}


def test_every_operator_of_the_list_has_an_origin():
    extra = {name for name, origin in ORIGINS.items() if origin.startswith("extra: ")}
    for name in extra - EXTRA:
        known = ORIGINS[name].removeprefix("extra: overload of ")
        assert known.rsplit(".", 1)[0] == name.rsplit(".", 1)[0]
        assert known in ORIGINS.keys() - (extra - EXTRA)
    samples = ZOO.keys() | PROGRAMS.keys()
    assert {origin for name, origin in ORIGINS.items() if name not in extra} <= samples


@pytest.mark.parametrize("program", sorted(PROGRAMS))
def test_ordinary_layers_emit_what_the_list_says(program):
    """And nothing that is not on the list: capture would refuse it."""
    emitted = operators_of_layers(program) - ARITHMETIC.keys()
    assert emitted <= allowed_operators()
    assert {name for name, origin in ORIGINS.items() if origin == program} <= emitted


def test_no_operator_crashes_hangs_or_shows_old_memory():
    """A small share of what `python3 dev.py soak fuzzing` does for an hour."""
    found: list[Finding] = list(fuzz(NAMES, range(2), seed=0))
    found += fuzz_shapes(NAMES, share=5)
    found += fuzz_numbers(NAMES, share=37)
    assert found == []


def test_the_fuzzer_finds_what_guards_are_for():
    """Each of these was missed: shapes were changed at random, a forward whose backward failed was
    not looked at, no operator was handed a sparse gradient, and the least integer was neither a
    float nor met a divisor of -1."""
    wanted = {
        ("aten.embedding_bag.default", "crash"),
        ("aten.binary_cross_entropy.default", "difference"),
        ("aten.multi_margin_loss.default", "difference"),
        ("aten.cumsum.default", "sparse"),
    }
    names = [name for name, _ in wanted]
    traps = ["aten.arange.start_step", "aten.avg_pool2d.default", "aten.avg_pool3d.default"]
    findings = [*fuzz_shapes(names, guarded=False), *fuzz_numbers(traps, guarded=False)]
    found = {(finding.operator, finding.kind) for finding in findings}
    assert wanted | {(name, "crash") for name in traps} <= found
    assert [*fuzz_shapes(names), *fuzz_numbers(traps, share=5)] == []


def test_the_fuzzer_finds_a_result_that_shares_memory_unseen(monkeypatch):
    """Parts of this one do not count for the whole, so that it could be changed through them."""
    name = "aten.unsafe_split.Tensor"
    assert name not in NAMES
    monkeypatch.setenv(ALLOWED_OPERATORS, name)
    assert "silent" in {finding.kind for finding in fuzz([name], range(40), seed=0)}
