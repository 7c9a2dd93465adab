"""Optimizers of a table against torch's, where both do the same."""

import pytest
import torch

from sheafprop.training.row_optimizers import RowAdam, RowwiseAdagrad

ROWS, WIDTH = 7, 5
#: Which rows the gradient of each step has; some come again, one (4) never does.
STEPS = ([0, 3], [5, 3, 6], [3], [0, 1, 2, 6])


def parameters(dtype=torch.float64):
    generator = torch.Generator().manual_seed(0)
    table, other = (
        torch.randn(n, WIDTH, generator=generator, dtype=dtype).requires_grad_() for n in (ROWS, 2)
    )
    return table, other


def gradients(sparse, steps=STEPS):
    """Gradients of a table and of another parameter; some rows of the first have two entries."""
    generator = torch.Generator().manual_seed(1)
    for rows in steps:
        index = torch.tensor([*rows, rows[0]])
        values = torch.randn(len(index), WIDTH, generator=generator, dtype=torch.float64)
        grad = torch.sparse_coo_tensor(index.unsqueeze(0), values, (ROWS, WIDTH))
        other = torch.randn(2, WIDTH, generator=generator, dtype=torch.float64)
        yield grad if sparse else grad.to_dense(), other


def run(build, sparse, steps=STEPS):
    table, other = parameters()
    start = table.detach().clone()
    optimizer = build(table, other)
    for table.grad, other.grad in gradients(sparse, steps):
        optimizer.step()
    return table.detach(), other.detach(), start, optimizer


def rowwise(table, other):
    groups = [{"params": [table], "rowwise": True}, {"params": [other]}]
    return RowwiseAdagrad(groups, lr=0.3)


def test_rowwise_adagrad_is_its_formula():
    table, _, x, _ = run(rowwise, sparse=True)
    total = torch.zeros(ROWS, dtype=x.dtype)
    for grad, _ in gradients(sparse=False):
        total += grad.square().mean(1)
        moved = grad.abs().sum(1) > 0
        x[moved] -= 0.3 * grad[moved] / (total[moved].sqrt() + 1e-10).unsqueeze(1)
    torch.testing.assert_close(table, x, rtol=1e-13, atol=1e-13)


def test_sparse_gradients_give_what_dense_ones_give_and_read_no_other_row():
    for build in (rowwise, lambda *p: RowwiseAdagrad(p, lr=0.3)):
        (table, other, start, optimizer), dense = run(build, True), run(build, False)
        torch.testing.assert_close(table, dense[0], rtol=1e-13, atol=1e-13)
        torch.testing.assert_close(other, dense[1], rtol=0, atol=0)
        assert torch.equal(table[4], start[4])
        totals = optimizer.state[optimizer.param_groups[0]["params"][0]]["sum"]
        assert not totals[4].any()
    assert totals.shape == (ROWS, WIDTH)  # one for each number, without 'rowwise'


def test_numbers_of_their_own_are_those_of_torch():
    for sparse in (True, False):
        ours = run(lambda *p: RowwiseAdagrad(p, lr=0.3), sparse)
        theirs = run(lambda *p: torch.optim.Adagrad(p, lr=0.3), sparse)
        for a, b in zip(ours[:2], theirs[:2], strict=True):
            torch.testing.assert_close(a, b, rtol=1e-13, atol=1e-13)


def test_row_adam_is_adam_where_every_row_has_a_gradient():
    every = [list(range(ROWS))] * 5
    options = dict(lr=0.1, betas=(0.7, 0.8), eps=1e-3)
    ours = run(lambda *p: RowAdam(p, **options), True, every)
    theirs = run(lambda *p: torch.optim.Adam(p, **options), False, every)
    for a, b in zip(ours[:2], theirs[:2], strict=True):
        torch.testing.assert_close(a, b, rtol=1e-13, atol=1e-13)


def test_row_adam_leaves_other_rows_and_their_moments_as_sparse_adam_does():
    # Torch's adds epsilon before the bias is corrected.
    ours = run(lambda *p: RowAdam(p, lr=0.1, eps=1e-30), sparse=True)
    theirs = run(lambda table, _: torch.optim.SparseAdam([table], lr=0.1, eps=1e-30), sparse=True)
    torch.testing.assert_close(ours[0], theirs[0], rtol=1e-12, atol=1e-12)
    assert torch.equal(ours[0][4], ours[2][4])
    dense = run(lambda *p: torch.optim.Adam(p, lr=0.1, eps=1e-30), sparse=False)
    torch.testing.assert_close(ours[1], dense[1], rtol=1e-13, atol=1e-13)
    assert not torch.allclose(ours[0], dense[0])  # rows that had a gradient once still move there


@pytest.mark.parametrize("build", [rowwise, lambda *p: RowAdam(p, lr=0.3)])
def test_stored_state_goes_on_as_if_nothing_had_happened(build):
    whole = run(build, sparse=True)
    table, other = parameters()
    optimizer = build(table, other)
    for step, (table.grad, other.grad) in enumerate(gradients(sparse=True)):
        if step == 2:
            state, grad = optimizer.state_dict(), (table.grad, other.grad)
            table, other = (p.detach().clone().requires_grad_() for p in (table, other))
            optimizer = build(table, other)
            optimizer.load_state_dict(state)
            table.grad, other.grad = grad
        optimizer.step()
    assert torch.equal(table, whole[0])
    assert torch.equal(other, whole[1])


@pytest.mark.parametrize("kind", [RowwiseAdagrad, RowAdam])
def test_weight_decay_is_of_dense_gradients_alone(kind):
    with pytest.raises(RuntimeError, match="weight decay does not go with sparse gradients"):
        run(lambda *p: kind(p, lr=0.1, weight_decay=0.1), sparse=True)
    twin = {RowwiseAdagrad: torch.optim.Adagrad, RowAdam: torch.optim.Adam}[kind]
    ours, theirs = (
        run(lambda *p, made=made: made(p, lr=0.1, weight_decay=0.1), sparse=False)
        for made in (kind, twin)
    )
    torch.testing.assert_close(ours[0], theirs[0], rtol=1e-13, atol=1e-13)


def test_a_closure_computes_the_gradients():
    for kind in (RowwiseAdagrad, RowAdam):
        table, other = parameters()
        optimizer, before = kind([table, other], lr=0.1), table.detach().clone()

        def closure(table=table):
            loss = torch.nn.functional.embedding(torch.tensor([2]), table, sparse=True).sum()
            loss.backward()
            return loss

        loss = optimizer.step(closure)
        assert loss.item() == pytest.approx(float(before[2].sum()))
        assert table.grad is not None
        assert ((table != before).any(1).nonzero() == 2).all()
