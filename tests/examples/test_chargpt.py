"""examples/chargpt: it learns more than the frequencies of letters, and writes."""

import torch


def test_it_learns_to_write(example):
    chargpt = example("chargpt")
    chargpt.plan("--quick")
    run = chargpt.train("--quick", providers=2)
    found, frequencies = run.figures(r"loss per letter ([\d.]+); .* alone ([\d.]+)")
    assert found < frequencies - 0.4
    assert run.last < 0.8 * run.first
    sample = run.printed.partition("--- sample")[2]
    assert len(sample) > 40
    model = chargpt.fused("--quick")
    assert model.head.weight is model.letters.weight
    assert torch.equal(model.state_dict()["head.weight"], model.state_dict()["letters.weight"])
