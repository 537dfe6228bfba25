"""examples/clusters: two clusters of unequal length end with the same weights."""

import re


def test_both_clusters_end_as_one_model(example, capsys):
    clusters = example("clusters")
    clusters.plan("--quick")
    run = clusters.train("--quick", "--rounds", providers=5)
    scores = re.findall(r"cluster (\d): validation: accuracy ([\d.]+), loss ([\d.]+)", run.printed)
    assert {cluster for cluster, *_ in scores} == {"0", "1"}
    assert len({tuple(figures) for _, *figures in scores}) == 1
    assert float(scores[0][1]) > 0.6  # chance is 0.1
    assert re.search(r"ring 0: round \d+, 2 clusters", run.printed)
    capsys.readouterr()
    clusters.call("--quick", "--score")
    printed = capsys.readouterr().out
    assert "the same, bit by bit" in printed
    (accuracy,) = re.findall(r"accuracy in plain PyTorch: ([\d.]+)%", printed)
    assert abs(float(accuracy) / 100 - float(scores[0][1])) < 1e-3
