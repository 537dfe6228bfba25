"""examples/bert: keyword inputs and a loop of its own."""

from torchvision_shim import import_torchvision


def test_it_finds_hidden_words(example):
    """Many more than by always saying the most frequent one, which is what it learns first."""
    import_torchvision()  # transformers looks for it
    bert = example("bert")
    bert.plan("--quick")
    run = bert.train("--quick", providers=3)
    words, frequent = run.figures(r"hidden words found: ([\d.]+)%; by .* one: ([\d.]+)%")
    assert words > 1.3 * frequent
    assert run.last < 0.85 * run.first
    epochs = [line for line in run.printed.splitlines() if "validation: words" in line]
    assert len(epochs) == 2
    assert len(run.losses) == 160
    bert.fused("--quick")
