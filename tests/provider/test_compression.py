"""What users may say about compression, and what comes of it on the edges of a pipeline."""

import pytest
import torch
from pipelines import TiedModel, pipeline, settings_for
from torch import nn

from ravnest.errors import NodeError
from ravnest.provider.compression import Compression, Packing
from ravnest.provider.compute.updating import UpdateSettings
from ravnest.wire import messages
from ravnest.wire.codecs import Packed
from ravnest.wire.pace import Pace

SGD = UpdateSettings(optimizer=torch.optim.SGD, optimizer_params={"lr": 0.1, "momentum": 0.9})


@pytest.mark.parametrize(
    ("given", "edges", "rings"),
    [
        (False, None, None),
        (None, None, None),
        (True, "auto", "auto"),
        ("int8", "int8", "int8"),
        ({"edges": "int8", "rings": "int4"}, "int8", "int4"),
        ({"rings": True}, None, "auto"),
    ],
)
def test_what_may_be_said(given, edges, rings):
    assert Compression.of(given) == Compression(edges, rings)


@pytest.mark.parametrize("given", ["zip", 3, "topk", {"edges": "int9"}, {"nodes": "int8"}])
def test_anything_else_is_refused_with_the_choices(given):
    with pytest.raises(NodeError, match=r"int8|'edges'"):
        Compression.of(given)


class FakeLink:
    def __init__(self, bytes_per_s, *, busy):
        self.pace = Pace()
        for sequence in range(1, 40):
            self.pace.submitted(others_wait=busy)
            self.pace.departed(sequence, 1 << 20, float(sequence))
            self.pace.arrived(sequence, sequence + (1 << 20) / bytes_per_s)


@pytest.mark.parametrize(
    ("bytes_per_s", "busy", "codec"),
    [(1e9, True, "fp16"), (1e7, False, "fp16"), (1e7, True, "int8")],
    ids=["fast", "slow and idle", "slow and busy"],
)
def test_the_speed_of_the_link_decides(bytes_per_s, busy, codec):
    packing = Packing("auto")
    assert packing.codec_for(FakeLink(bytes_per_s, busy=busy)).name == codec


@pytest.mark.parametrize(
    ("rings", "most_mbps", "codec"),
    [
        ("auto", None, "auto"),
        ("auto", 50, "int8"),
        ("auto", 5000, "fp16"),
        ("int4", 50, "int4"),
        (None, 50, None),
    ],
)
def test_rounds_that_are_held_back_are_compressed_for_that(rings, most_mbps, codec):
    """Their link is never busy, so it cannot be seen to be slow."""
    assert Compression(rings=rings).for_rings(most_mbps) == codec


def test_a_link_that_was_relieved_is_not_taken_for_a_fast_one():
    packing = Packing("auto")
    packing.codec_for(FakeLink(1e7, busy=True))
    assert packing.codec_for(FakeLink(1e9, busy=False)).name == "int8"


def test_what_is_not_to_be_packed_travels_as_it_is():
    tensors = (torch.arange(5000), torch.ones(5000, dtype=torch.bool), torch.rand(5000))
    words, mask, values = Packing("int8").pack(tensors, None)
    assert words is not None
    assert torch.equal(words, tensors[0])
    assert torch.equal(mask, tensors[1])
    assert isinstance(values, Packed)
    assert Packing(None).pack(tensors, None) is tensors


def words(batches):
    torch.manual_seed(3)
    return [torch.randint(0, 11, (16, 5)) for _ in range(batches)]


def loss_of(outputs, batch):
    return nn.functional.cross_entropy(outputs.flatten(0, 1), batch.roll(1, 1).flatten())


def run(folder, codec, stages=3, parts=1):
    """Losses, weights and bytes between the stages."""
    torch.manual_seed(0)
    model, data = TiedModel(width=32), words(24)
    given = settings_for(data, loss_of, SGD, schedule="sync", compression=Compression(edges=codec))
    with pipeline(model, (data[0],), folder, given, stages=stages, parts=parts) as cluster:
        for batch in data:
            cluster.train(batch)
        cluster.order("epoch")
        sent = sum(link.traffic.sent_bytes for r in cluster.runtimes for link in r._links.values())
        return cluster.losses, cluster.state(), sent


@pytest.mark.parametrize(
    ("codec", "smaller", "tolerance"),
    [("fp16", 1.6, 1e-3), ("bf16", 1.6, 1e-2), ("int8", 2.4, 1e-2), ("int4", 3.2, 0.06)],
)
def test_compressed_edges_send_less_and_learn_the_same(tmp_path, codec, smaller, tolerance):
    exact, _, all_bytes = run(tmp_path / "exact", None)
    losses, _, sent = run(tmp_path / codec, codec)
    # Tied weights travel as they are, and are a large part of so small a model's messages.
    assert all_bytes / sent > smaller
    assert losses != exact
    gap = sum(abs(a - b) / b for a, b in zip(losses, exact, strict=True)) / len(losses)
    assert gap < tolerance


def test_lossless_compression_changes_nothing(tmp_path):
    exact, state, _ = run(tmp_path / "exact", None)
    losses, found, _ = run(tmp_path / "zstd", "zstd")
    assert losses == exact
    assert all(torch.equal(found[name], state[name]) for name in state)


def test_predictions_are_those_of_the_model_whatever_the_codec(tmp_path):
    torch.manual_seed(0)
    model, data = TiedModel(width=32), words(1)
    given = settings_for(data, loss_of, SGD, compression=Compression(edges="int4"))
    with pipeline(model, (data[0],), tmp_path, given, stages=3) as cluster:
        values, rows = cluster.inputs.bind((data[0],), {}, "eval")
        of = cluster.numbers.without_gradients(rows)
        future = cluster.root.user.expect_result(of.batch)
        message = messages.Forward(of=of, task="predict", carried=(), proof=())
        cluster.root.user.submit(message, values)
        (found,) = future.result(20)[1]
    with torch.no_grad():
        torch.testing.assert_close(found, model.eval()(data[0]))


def test_gradients_that_are_not_finite_arrive_as_such(tmp_path):
    torch.manual_seed(0)
    model, data = TiedModel(width=32), words(2)

    def broken(outputs, batch):
        return loss_of(outputs, batch) * float("inf")

    given = settings_for(data, broken, SGD, schedule="sync", compression=Compression(edges="int8"))
    with pipeline(model, (data[0],), tmp_path, given, stages=2) as cluster:
        cluster.train(data[0])
        cluster.order("epoch")
        first = cluster.state()["position"]
    assert not first.isfinite().all()
