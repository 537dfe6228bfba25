"""examples/sort: rows it has never seen are sorted, one digit after another."""


def test_it_learns_to_sort(example, capsys):
    """As often in plain PyTorch, where it reads its own answers, as through the providers."""
    sort = example("sort")
    sort.plan("--quick")
    run = sort.train("--quick", providers=2)
    (split,) = run.figures(r"rows sorted without a mistake: ([\d.]+)%")
    assert split > 50  # by chance: one of thousands
    assert run.last < 0.3 * run.first
    capsys.readouterr()
    sort.call("--quick", "--score")
    assert f"without a mistake in plain PyTorch: {split}%" in capsys.readouterr().out
    sort.fused("--quick")
