"""Together, the clusters read exactly the epoch that one loader would have given."""

import copy
from collections import deque

import pytest
import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    TensorDataset,
)

from ravnest.errors import NodeError
from ravnest.provider.shards import Shard, shard


class Numbers(Dataset):
    """Remembers what was loaded."""

    def __init__(self, rows):
        self.rows = rows
        self.loaded = []

    def __len__(self):
        return self.rows

    def __getitem__(self, row):
        self.loaded.append(int(row))
        return int(row)


class Stream(IterableDataset):
    def __init__(self, rows):
        self.rows = rows

    def __iter__(self):
        return iter(range(self.rows))


class SizedStream(Stream):
    def __len__(self):
        return self.rows


class EagerBatches:
    """Draws when it is asked for an iterator, before the loader draws its seed."""

    def __init__(self, rows, generator):
        self.rows = rows
        self.generator = generator

    def __iter__(self):
        order = torch.randperm(self.rows, generator=self.generator)
        return iter([rows.tolist() for rows in order.split(4)])

    def __len__(self):
        return len(range(0, self.rows, 4))


class OwnLoader(DataLoader):
    """Gives more than its sampler says."""

    def __iter__(self):
        yield torch.tensor([-1])
        yield from super().__iter__()

    def __len__(self):
        return 1 + super().__len__()


def seeded():
    return torch.Generator().manual_seed(7)


def batch_sampled():
    generator = seeded()
    sampler = RandomSampler(range(30), generator=generator)
    batches = BatchSampler(sampler, 4, drop_last=True)
    return DataLoader(Numbers(30), batch_sampler=batches, generator=generator)


def eager():
    generator = seeded()
    return DataLoader(Numbers(30), batch_sampler=EagerBatches(30, generator), generator=generator)


def with_workers(**more):
    settings = {"batch_size": 4, "shuffle": True, "generator": seeded(), "num_workers": 2, **more}
    return DataLoader(TensorDataset(torch.arange(30)), **settings)


MAKERS = {
    "in order": lambda: DataLoader(Numbers(30), batch_size=4),
    "shuffled": lambda: DataLoader(Numbers(30), batch_size=4, shuffle=True, generator=seeded()),
    "shuffled by the global generator": lambda: DataLoader(Numbers(30), batch_size=4, shuffle=True),
    "last dropped": lambda: DataLoader(
        Numbers(30), batch_size=4, shuffle=True, drop_last=True, generator=seeded()
    ),
    "batch sampler": batch_sampled,
    "eager batch sampler": eager,
    "rows": lambda: DataLoader(Numbers(9), batch_size=None, shuffle=True, generator=seeded()),
    "stream": lambda: DataLoader(Stream(30), batch_size=4),
    "sized stream": lambda: DataLoader(SizedStream(30), batch_size=4),
    "stream of rows": lambda: DataLoader(Stream(30), batch_size=None),
    "subclass": lambda: OwnLoader(Numbers(30), batch_size=4, shuffle=True, generator=seeded()),
    "workers": with_workers,
    "workers that stay": lambda: with_workers(persistent_workers=True),
    "list": lambda: list(range(10)),
    "not a sequence": lambda: dict.fromkeys(range(10)),
}
UNSIZED = {"stream", "stream of rows"}


def as_list(batch):
    while isinstance(batch, tuple | list):
        (batch,) = batch
    return batch.tolist() if isinstance(batch, torch.Tensor) else batch


def epochs(data, number=3):
    """As a script reads them that has set the global seed; what is drawn between epochs counts."""
    torch.manual_seed(3)
    return [[as_list(batch) for batch in data] for _ in range(number)]


@pytest.mark.parametrize("clusters", [2, 3])
@pytest.mark.parametrize("name", MAKERS)
def test_shares_make_up_the_epochs(name, clusters):
    make = MAKERS[name]
    whole = epochs(make())
    for index in range(clusters):
        share = shard(make(), Shard(index, clusters))
        assert epochs(share) == [epoch[index::clusters] for epoch in whole]
        if name in UNSIZED:
            with pytest.raises(TypeError):
                len(share)
        else:
            assert len(share) == len(whole[0][index::clusters])


@pytest.mark.parametrize("name", MAKERS)
def test_one_cluster_has_the_data_itself(name):
    data = MAKERS[name]()
    assert shard(data, Shard(0, 1)) is data


@pytest.mark.parametrize("name", MAKERS)
def test_a_share_is_not_divided_again(name):
    """Trainer divides its train_loader, which the script may have done as well."""
    share = shard(MAKERS[name](), Shard(1, 2))
    assert shard(share, Shard(1, 2)) is share


def test_nothing_is_loaded_for_others():
    data = Numbers(30)
    list(shard(DataLoader(data, batch_size=4), Shard(1, 3)))
    assert data.loaded == [*range(4, 8), *range(16, 20), *range(28, 30)]


def test_items_are_not_read_ahead():
    read = []

    class Tracked:
        def __iter__(self):
            for number in range(10):
                read.append(number)
                yield number

    share = iter(shard(Tracked(), Shard(1, 3)))
    assert (next(share), read) == (1, [0, 1])
    assert (next(share), read) == (4, [0, 1, 2, 3, 4])


def test_settings_are_kept():
    def collate(rows):
        return torch.tensor(rows)

    def begin(worker):
        pass

    loader = DataLoader(
        Numbers(30),
        batch_size=4,
        shuffle=True,
        num_workers=1,
        collate_fn=collate,
        drop_last=True,
        timeout=60,
        worker_init_fn=begin,
        multiprocessing_context="spawn",
        generator=seeded(),
        prefetch_factor=3,
        persistent_workers=True,
    )
    share = shard(loader, Shard(0, 2))
    assert type(share) is DataLoader
    differing = {name for name, value in vars(share).items() if vars(loader)[name] is not value}
    assert differing == {"batch_sampler"}
    assert share.sampler is loader.sampler
    assert share.batch_sampler.sampler is loader.sampler
    assert share.batch_sampler.batch_size == 4
    assert len(loader) == 7  # which is as it was


def test_a_loader_that_has_been_read_with_workers_can_be_shared():
    loader = with_workers(persistent_workers=True)
    whole = [as_list(batch) for batch in loader]
    loader.generator.manual_seed(7)
    share = shard(loader, Shard(0, 2))
    assert [as_list(batch) for batch in share] == whole[::2]


@pytest.mark.parametrize("loader_type", [DataLoader, OwnLoader])
def test_set_epoch_reaches_the_sampler(loader_type):
    def make():
        sampler = DistributedSampler(range(30), num_replicas=1, rank=0, seed=1)
        return loader_type(Numbers(30), batch_size=4, sampler=sampler)

    whole, loader = make(), make()
    share = shard(loader, Shard(1, 2))
    assert share.dataset is loader.dataset
    for epoch, reach in enumerate((share.sampler, share.batch_sampler.sampler, loader.sampler)):
        reach.set_epoch(epoch)
        whole.sampler.set_epoch(epoch)
        assert [as_list(batch) for batch in share] == [as_list(batch) for batch in whole][1::2]


def test_set_epoch_of_a_batch_sampler():
    class Batches(EagerBatches):
        def set_epoch(self, epoch):
            self.generator.manual_seed(epoch)

    sampler = Batches(30, seeded())
    share = shard(DataLoader(Numbers(30), batch_sampler=sampler), Shard(0, 2))
    found = []
    for _ in range(2):
        share.batch_sampler.set_epoch(5)
        found.append([as_list(batch) for batch in share])
    assert found[0] == found[1]
    with pytest.raises(AttributeError, match="set_time"):
        share.batch_sampler.set_time(5)


def test_an_iterator_goes_on_where_it_was():
    """An endless one is read in epochs of as many batches as the script likes."""
    shares = [shard(iter(range(12)), Shard(index, 2)) for index in range(2)]
    for share, expected in zip(shares, (range(0, 12, 2), range(1, 12, 2)), strict=True):
        assert iter(share) is share
        found = [next(iter(share)) for _ in range(3)]
        assert [*found, *share] == [*expected]


@pytest.mark.parametrize("name", ["shuffled", "subclass", "list"])
def test_a_share_can_be_copied(name):
    """As for a provider that is Root and Leaf."""
    share = shard(MAKERS[name](), Shard(0, 2))
    again = copy.deepcopy(share)
    assert epochs(again) == epochs(share)


@pytest.mark.parametrize(
    "data", [DataLoader(Numbers(30), batch_size=16), [1, 2], deque([1, 2])], ids=type
)
def test_too_few_batches_are_refused(data):
    with pytest.raises(NodeError, match=r"2 batches.*3 clusters.*max_clusters=2"):
        shard(data, Shard(0, 3))
    assert len(shard(data, Shard(1, 2))) == 1
