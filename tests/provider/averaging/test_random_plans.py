"""Whatever the plan: every tensor is averaged once, among its owners, and comes out as the mean."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from test_exchange import exchanged

from ravnest.planning.search.rings import form_rings
from ravnest.provider.averaging.exchange import Exchange, Track
from ravnest.provider.averaging.vectors import Layout

DTYPES = (torch.float32, torch.float32, torch.float32, torch.bfloat16, torch.float64, torch.int64)


@st.composite
def plans(draw):
    """Sizes of the model's tensors, and for each cluster the stage that owns each of them."""
    tensors = draw(st.integers(1, 12))
    sizes = draw(st.lists(st.integers(0, 60), min_size=tensors, max_size=tensors))
    kinds = draw(st.lists(st.sampled_from(DTYPES), min_size=tensors, max_size=tensors))
    clusters = draw(st.integers(2, 5))
    owners = []
    for cluster in range(clusters):
        cuts = draw(st.sets(st.integers(1, tensors), max_size=4))
        owners.append([100 * cluster + sum(cut <= n for cut in cuts) for n in range(tensors)])
    weights = draw(st.lists(st.integers(0, 50), min_size=clusters, max_size=clusters))
    return sizes, kinds, owners, weights


@settings(max_examples=120, deadline=None)
@given(plans(), st.integers(0, 1000), st.integers(1, 64), st.booleans())
def test_every_tensor_of_every_cluster_becomes_the_mean(plan, seed, chunk_bytes, still):
    sizes, kinds, owners, weights = plan
    torch.manual_seed(seed)
    names = [f"t{n}" for n in range(len(sizes))]
    held = [
        {name: (10 * torch.randn(size)).to(kind)
         for name, size, kind in zip(names, sizes, kinds, strict=True)}
        for _ in owners
    ]  # fmt: skip
    share = torch.tensor(weights, dtype=torch.float64)
    share = share / share.sum() if share.sum() > 0 else torch.full_like(share, 1 / len(share))
    wanted = {
        name: sum(s * each[name].double() for s, each in zip(share, held, strict=True))
        for name in names
    }
    trained = [name for name, kind in zip(names, kinds, strict=True) if kind.is_floating_point]
    rings = form_rings(names, [dict(zip(names, of, strict=True)) for of in owners])
    assert sorted(name for ring in rings for name in ring.names) == sorted(names)
    members = tuple(range(len(owners)))
    for ring in rings:
        layout = Layout.of({name: held[0][name] for name in ring.names}, trained)
        vectors = [layout.gather(each) for each in held]
        rest = [layout.rest_of(each) for each in vectors]
        exchanges = []
        for k in members:
            tracks = [Track(v, n) for v, n in zip(vectors[k], layout.trained(), strict=True)]
            for track in tracks:
                track.divide(len(members), chunk_bytes)
            exchanges.append(Exchange(ring.id, 1, tracks, members, weights, k, still=still))
        exchanged(exchanges, seed)
        for mine, outcome, before in zip(held, vectors, rest, strict=True):
            if still:
                layout.write(outcome, mine)
            else:
                layout.apply(outcome, before, mine)
    for name, kind in zip(names, kinds, strict=True):
        for mine in held:
            if kind is torch.int64:
                continue
            loose = 0.1 if kind is torch.bfloat16 else 1e-5
            torch.testing.assert_close(mine[name].double(), wanted[name], atol=loose, rtol=loose)
        if still:
            same = [torch.equal(mine[name], held[0][name]) for mine in held]
            assert all(same) or kind is torch.int64
