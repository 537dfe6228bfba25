"""How rings are walked: against all orders of small rings, and by its promises on large ones."""

from itertools import permutations

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pools import Mlp, run_clusterize, seeded, write_pool
from tables import provider
from torch import rand

from ravnest.plan import ProviderSpec
from ravnest.planning.search import ringorder
from ravnest.planning.search.links import measured_mbps, speed_mbps, speeds_between
from ravnest.planning.search.ringorder import ring_order


def worth(order, speeds):
    links = [speeds[a][b] for a, b in zip(order, (*order[1:], order[0]), strict=True)]
    return min(links), sum(links)


@st.composite
def speed_tables(draw, least=2, most=7, *, most_mbps=9):
    """Whole numbers, of which a few occur often: ties are the rule and sums are exact."""
    members = draw(st.integers(least, most))
    speeds = np.zeros((members, members))
    for i in range(members):
        for j in range(i):
            speeds[i, j] = speeds[j, i] = draw(st.integers(1, most_mbps))
    return speeds


def random_table(seed, members, kind="measured"):
    """Speeds between members with very different links, a part of them measured, or all of them."""
    rng = np.random.default_rng(seed)
    own = np.exp(rng.uniform(2, 7, members))
    speeds = np.minimum(own[:, None], own)
    if kind == "measured":
        speeds = rng.random((members, members)) * 100
    elif kind == "partly":
        slower = rng.random((members, members))
        speeds = np.where(rng.random((members, members)) < 0.1, speeds * slower, speeds)
    speeds = np.minimum(speeds, speeds.T)
    np.fill_diagonal(speeds, 0)
    return speeds


# ---- few members ------------------------------------------------------------------------------


@settings(max_examples=60, deadline=None)
@given(speed_tables())
def test_small_rings_are_the_best_of_all(speeds):
    """The fastest slowest link, then the largest sum, then the lower numbers first."""
    everyone = [(0, *rest) for rest in permutations(range(1, len(speeds)))]
    best = max(worth(order, speeds) for order in everyone)
    assert ring_order(speeds) == min(o for o in everyone if worth(o, speeds) == best)


@pytest.mark.parametrize("members", [1, 2, 3])
def test_so_few_members_have_one_ring(members):
    assert ring_order(random_table(members, members)) == tuple(range(members))


def test_an_example_by_hand():
    """0-2 and 1-3 are the slow links: the ring goes around them."""
    speeds = np.full((4, 4), 100.0)
    speeds[0, 1] = speeds[1, 0] = speeds[2, 3] = speeds[3, 2] = 1.0
    assert ring_order(speeds) == (0, 2, 1, 3)


# ---- many members -----------------------------------------------------------------------------


@settings(max_examples=60, deadline=None)
@given(speed_tables(9, 14))
def test_large_rings_are_never_worse_than_the_plain_order(speeds):
    order = ring_order(speeds)
    assert sorted(order) == list(range(len(speeds)))
    assert order[0] == 0
    assert order[1] < order[-1]
    assert worth(order, speeds) >= worth(range(len(speeds)), speeds)
    assert ring_order(speeds) == order


def test_the_search_alone_nearly_always_finds_the_fastest_slowest_link():
    """Where all orders can be looked at, the search for large rings is measured by them. It is a
    search: some tables of a few whole numbers lead it astray."""
    tables = [random_table(seed, 6 + seed % 3) for seed in range(60)]
    reached = [
        worth(ringorder._searched(speeds), speeds)[0] / worth(ring_order(speeds), speeds)[0]
        for speeds in tables
    ]
    assert sum(share == 1.0 for share in reached) >= 57
    assert min(reached) >= 0.5


@pytest.mark.parametrize("kind", ["measured", "partly", "stated"])
@pytest.mark.parametrize("members", [9, 20, 100])
def test_large_rings_reach_what_no_ring_can_exceed(members, kind):
    """Everybody has two links in a ring, so the second fastest of the worst member is a limit."""
    for seed in range(3):
        speeds = random_table(seed, members, kind)
        limit = np.sort(speeds, axis=1)[:, -2].min()
        assert worth(ring_order(speeds), speeds)[0] >= 0.8 * limit


def test_equal_speeds_leave_the_order_as_it_is():
    for members in (5, 8, 9, 60):
        assert ring_order(np.full((members, members), 10.0)) == tuple(range(members))


# ---- speeds -----------------------------------------------------------------------------------


def linked(number, mbps=100.0, **links):
    measured = tuple((int(other[1:]), speed) for other, speed in links.items())
    return msgspec.structs.replace(provider(number, mbps=mbps), links=measured)


def test_a_measurement_counts_before_what_the_links_state():
    """The slower of both directions; faster than stated is believed as well."""
    pool = [linked(0, 50, n1=10.0, n2=80.0), linked(1, 60, n0=20.0), linked(2, 30), linked(3, 40)]
    assert measured_mbps(pool[1], pool[0]) == 10
    assert measured_mbps(pool[2], pool[3]) is None
    speeds = speeds_between(pool)
    expected = {(0, 1): 10, (0, 2): 80, (0, 3): 40, (1, 2): 30, (1, 3): 40, (2, 3): 30}
    for (a, b), speed in expected.items():
        assert speeds[a, b] == speeds[b, a] == speed
        assert speed_mbps(pool[a], pool[b]) == speed_mbps(pool[b], pool[a]) == speed


def test_measurements_to_providers_that_are_not_used_do_not_matter():
    assert speeds_between([linked(4, 50, n1=10.0), linked(7, 60)])[0, 1] == 50


# ---- plans ------------------------------------------------------------------------------------

BATCH = rand(4, 32)


def test_a_plan_walks_its_rings_around_slow_links(tmp_path):
    """Links of 100 bit/s make four clusters of one; 0-1 and 2-3 are slower still."""
    slow = [{"bandwidth": 1e-4, "links": links} for links in ({"1": 1e-5}, {}, {"3": 1e-5}, {})]
    planned = run_clusterize(seeded(Mlp, 4), (BATCH,), write_pool(tmp_path, *slow),
                             min_cluster_size=1)  # fmt: skip
    assert [len(cluster.stages) for cluster in planned.plan.clusters] == [1] * 4
    (ring,) = planned.plan.rings
    walk = [ring.owners[cluster] for cluster in ring.walk]
    assert ring.walk[0] == 0
    assert not {(0, 1), (1, 0), (2, 3), (3, 2)} & set(zip(walk, [*walk[1:], walk[0]], strict=True))
    for at, number in enumerate(walk):
        following = planned.node(walk[(at + 1) % 4])
        address = f"{following['local_host']}:{following['local_port']}"
        assert list(planned.node(number)["param_addresses"]) == [address]


def test_without_slow_links_the_clusters_follow_each_other(tmp_path):
    pool = write_pool(tmp_path, *[{"bandwidth": 1e-4}] * 4)
    planned = run_clusterize(seeded(Mlp, 4), (BATCH,), pool, min_cluster_size=1)
    assert [ring.order for ring in planned.plan.rings] == [()]


def test_a_slow_link_between_neighbours_is_told(tmp_path):
    """It does not change the cuts, but what is predicted of them."""
    usual = run_clusterize(seeded(Mlp, 4), (BATCH,), write_pool(tmp_path / "a", 2)).plan
    pool = write_pool(tmp_path / "b", {"links": {"1": 0.0001}}, {})
    slow = run_clusterize(seeded(Mlp, 4), (BATCH,), pool).plan
    border = usual.clusters[0].stages[0]
    for stage in slow.clusters[0].stages:
        assert stage.link_s == pytest.approx(border.sent_bytes * 8 / 1e2)
        assert stage.limit == "link"
    assert slow.clusters[0].stages[0].stop == border.stop


def test_links_survive_json():
    spec = linked(0, n1=10.0, n2=80.0)
    assert msgspec.json.decode(msgspec.json.encode(spec), type=ProviderSpec) == spec
    assert hash(spec) == hash(linked(0, n1=10.0, n2=80.0))
