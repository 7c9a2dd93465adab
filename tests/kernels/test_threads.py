import os
import threading

import numpy as np
import pytest
import torch

from sheafprop.kernels import threads as module
from sheafprop.kernels.csr_product import CSRProduct
from sheafprop.kernels.threads import (
    SpareMemory,
    num_threads,
    run_chunks,
    run_rows,
    run_shares,
    small_operations,
)


@pytest.fixture(autouse=True)
def _same_number_of_threads():
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_rows_are_shared_completely_and_once(threads):
    start = np.concatenate([[0], np.cumsum(np.arange(2000) % 7 + 400 * (np.arange(2000) == 5))])
    seen = np.zeros(2000, dtype=int)

    def loop(array, lo, hi):
        array[lo:hi] += 1

    torch.set_num_threads(threads)
    run_rows(loop, (seen,), start, 1000, (3, 1900))
    assert (seen[3:1900] == 1).all()
    assert seen.sum() == 1897
    seen[:] = 0
    run_rows(loop, (seen,), start, 1000, (7, 7))
    assert not seen.any()
    run_rows(loop, (seen,), start, 1000)
    chunks = []
    run_chunks(chunks.append, range(9))
    assert torch.get_num_threads() == threads
    assert (seen == 1).all()
    assert sorted(chunks) == list(range(9))


def test_an_error_in_a_thread_is_raised():
    def loop(lo, hi):
        raise ArithmeticError("from a piece of rows")

    torch.set_num_threads(3)
    with pytest.raises(ArithmeticError):
        run_rows(loop, (), np.arange(5001), 1000)


def test_results_do_not_depend_on_threads():
    g = torch.Generator().manual_seed(0)
    row, col = torch.randint(3000, (2, 40_000), generator=g)
    product = CSRProduct(row, col, torch.rand(40_000, generator=g), 3000, 3000)
    x = torch.randn(3000, 32, generator=g)
    results = []
    for threads in (1, 2, 3):
        torch.set_num_threads(threads)
        results.append(product(x))
    assert torch.equal(results[0], results[1])
    assert torch.equal(results[0], results[2])


def test_threads_are_capped_by_the_work():
    torch.set_num_threads(6)
    assert num_threads() == 6
    assert [num_threads(work) for work in (0, 2**19, 2**19 + 1, 3 * 2**19, 2**40)] == [
        1,
        1,
        2,
        3,
        6,
    ]
    used = set()
    run_chunks(lambda _: used.add(threading.get_ident()), range(50), cost=1000)
    assert used == {threading.get_ident()}


def test_threads_that_never_begin_hold_nothing_up():
    """A pool whose threads are all taken by others: the caller does the work alone."""
    torch.set_num_threads(3)
    run_chunks(lambda _: None, range(9))
    release, pool = threading.Event(), module._pool(os.getpid(), 3)
    taken = [pool.submit(release.wait) for _ in range(2)]
    try:
        done = []
        run_chunks(done.append, range(7))
        run_rows(lambda lo, hi: done.append(hi - lo), (), np.arange(5001), 1000)
    finally:
        release.set()
    assert done[:7] == list(range(7))
    assert sum(done[7:]) == 5000
    assert all(task.result() for task in taken)


def test_chunks_run_on_one_torch_thread_each_without_gradients_or_autocast():
    torch.set_num_threads(4)
    seen = []

    def look(_):
        product = torch.ones(2, 2) @ torch.ones(2, 2)
        seen.append(
            (torch.get_num_threads(), num_threads(), torch.is_grad_enabled(), product.dtype)
        )

    with torch.autocast("cpu", dtype=torch.bfloat16):
        run_chunks(look, range(20))
    assert set(seen) == {(1, 1, False, torch.float32)}
    # A new thread of the user's has as many threads as before.
    other = []
    thread = threading.Thread(target=lambda: other.append(torch.get_num_threads()))
    thread.start()
    thread.join()
    assert (torch.get_num_threads(), other) == (4, [4])


def test_chunks_may_write_tensors_of_inference_mode():
    torch.set_num_threads(3)
    with torch.inference_mode():
        out = torch.zeros(40)
        run_chunks(lambda i: out[i : i + 1].add_(i), range(40))
    assert torch.equal(out, torch.arange(40.0))


def test_small_operations_run_on_one_thread_and_loops_on_as_many_as_before():
    torch.set_num_threads(4)
    with small_operations(2**10):
        assert (torch.get_num_threads(), num_threads()) == (1, 4)
        with small_operations(2**10):
            assert (torch.get_num_threads(), num_threads()) == (1, 4)
    with small_operations(2**30):
        assert (torch.get_num_threads(), num_threads()) == (4, 4)

    def fail():
        with small_operations(1):
            raise ArithmeticError

    with pytest.raises(ArithmeticError):
        fail()
    assert (torch.get_num_threads(), num_threads()) == (4, 4)


def test_spare_memory_is_used_again_but_never_by_two():
    spare = SpareMemory(12, torch.zeros(1, dtype=torch.float64))
    with spare.take(3, 4) as a, spare.take(2, 2) as b:
        assert (a.shape, a.dtype, b.shape) == ((3, 4), torch.float64, (2, 2))
        first, second = a.data_ptr(), b.data_ptr()
        assert first != second
    with spare.take(12) as again:
        assert again.data_ptr() in (first, second)


@pytest.mark.parametrize("size", [0, 1, 5, 40])
def test_shares_add_up_to_the_same_for_any_number_of_threads(size, monkeypatch):
    rows, results = torch.randn(40, 3), []

    def work(first, last, total, count):
        for i in range(first, last):
            total += rows[i] * 1e4**i if i < 9 else rows[i]
            count += 1

    for threads in (1, 2, 3):
        torch.set_num_threads(threads)
        totals = torch.ones(3), torch.zeros(())
        run_shares(work, size, totals)
        assert totals[1] == size
        results.append(totals[0])
    assert torch.equal(results[1], results[2])
    torch.testing.assert_close(results[0], results[1])
    whole = []
    monkeypatch.setattr(module, "_SHARED_NUMBERS", 7)
    run_shares(lambda *share: whole.append(share[:2]), 40, [torch.zeros(4)])
    assert whole == [(0, 40)]
