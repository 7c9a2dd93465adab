"""A table that ranks share is looked up, updated and stored as in one process."""

import pytest
import torch

from sheafprop.distributed import ShardedTable
from sheafprop.distributed.sharded_table import read_rows
from sheafprop.files import StorageError
from sheafprop.training.optimization import RowAdam, RowwiseAdagrad

WIDTH = 3
OPTIMIZERS = {
    "rowwise": lambda p: RowwiseAdagrad(p, lr=0.1, rowwise=True),
    "adam": lambda p: RowAdam(p, lr=0.1),
    "adagrad": lambda p: torch.optim.Adagrad(p, lr=0.1),
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1),
}


@pytest.fixture(params=[2, 4])
def pool(request):
    return request.getfixturevalue({2: "two_ranks", 4: "four_ranks"}[request.param])


def _rows(n):
    return torch.randn(n, WIDTH, generator=torch.Generator().manual_seed(n))


def _batch(n, step, rank):
    """Ids with repetitions, also between ranks; none on some rank in some step."""
    generator = torch.Generator().manual_seed(100 * step + rank)
    count = 0 if step == rank else 7
    ids = torch.randint(n, (count,), generator=generator)
    return ids, torch.randn(count, WIDTH, generator=generator)


def _table(ranks, n):
    table = ShardedTable(n, WIDTH, ranks)
    own = slice(table.first_row, table.first_row + len(table.weight))
    with torch.no_grad():
        table.weight.copy_(_rows(n)[own])
    return table, own


def _train(ranks, n):
    """Rows looked up in 8 steps and the rows afterwards, shared and in one process."""
    same = {}
    for name, optimizer in OPTIMIZERS.items():
        table, own = _table(ranks, n)
        whole = torch.nn.Embedding(n, WIDTH, sparse=True)
        with torch.no_grad():
            whole.weight.copy_(_rows(n))
        steps = optimizer([table.weight]), optimizer([whole.weight])
        equal = []
        for step in range(8):
            batches = [_batch(n, step, rank) for rank in range(ranks.size)]
            ids, factor = batches[ranks.rank]
            found = table(ids)
            equal.append(found.equal(whole(ids)))
            (found * factor).sum().backward()
            everything = torch.cat([i for i, _ in batches])
            weight = torch.cat([f for _, f in batches])
            rows, inverse = everything.unique(return_inverse=True)
            total = torch.zeros(len(rows), WIDTH).index_add_(0, inverse, weight / ranks.size)
            whole.weight.grad = torch.sparse_coo_tensor(rows.unsqueeze(0), total, (n, WIDTH))
            for one in steps:
                one.step()
                one.zero_grad()
            equal.append(table.weight.equal(whole.weight[own]))
        same[name] = all(equal)
    return same, len(table.weight), repr(table)


@pytest.mark.parametrize("n", [1, 3, 10, 11])
def test_eight_steps_equal_those_of_one_process(pool, n):
    found = pool.run(_train, n)
    assert all(same == dict.fromkeys(OPTIMIZERS, True) for same, _, _ in found)
    assert sum(count for _, count, _ in found) == n
    assert f"{n}, {WIDTH}, Ranks(rank 0 of {pool.size}" in found[0][2]


def _write(ranks, n, folder):
    table, own = _table(ranks, n)
    total = torch.arange(float(n))
    table.write(folder, {"rows": table.weight, "sum": total[own].clone()})


def _read(ranks, n, folder):
    table, own = _table(ranks, n)
    rows, total = torch.empty_like(table.weight), torch.empty(len(table.weight))
    table.read(folder, {"rows": rows, "sum": total})
    return rows.equal(_rows(n)[own]) and total.equal(torch.arange(float(n))[own])


@pytest.mark.parametrize("n", [3, 10])
def test_rows_are_read_by_another_number_of_ranks(two_ranks, four_ranks, tmp_path, n):
    for wrote, reads in ((two_ranks, four_ranks), (four_ranks, two_ranks)):
        folder = tmp_path / f"of_{wrote.size}"
        wrote.run(_write, n, folder)
        assert all(reads.run(_read, n, folder))
        rows, total = torch.empty(n, WIDTH), torch.empty(n)
        read_rows(folder, {"rows": rows, "sum": total})  # by one process without a group
        assert rows.equal(_rows(n))
        assert total.equal(torch.arange(float(n)))


def _map(ranks, n, file):
    table, _ = _table(ranks, n)
    whole = table.map_whole(file)
    ranks.barrier()
    return whole.weight.equal(_rows(n)), whole.weight.requires_grad, file.exists()


def test_the_whole_table_is_mapped_and_leaves_no_file(pool, tmp_path):
    assert set(pool.run(_map, 11, tmp_path / "table")) == {(True, False, False)}


def _refuse(ranks, folder):
    table, _ = _table(ranks, 5)
    said = []
    for work in (
        lambda: table.write(folder / "file" / "new", {"rows": table.weight}),
        lambda: table.read(folder / "none", {"rows": table.weight}),
        lambda: table.map_whole(folder / "none" / "table"),
    ):
        try:
            work()
        except (StorageError, RuntimeError) as error:
            said.append(str(error))
    return said


def test_what_cannot_be_stored_is_refused_by_all_ranks(two_ranks, tmp_path):
    (tmp_path / "file").write_text("")
    for wrote, read, mapped in two_ranks.run(_refuse, tmp_path):
        assert f"'{tmp_path / 'file' / 'new'}' cannot be written" in wrote
        assert f"'{tmp_path / 'none'}' cannot be read" in read
        assert f"'{tmp_path / 'none' / 'table'}' cannot be written" in mapped
