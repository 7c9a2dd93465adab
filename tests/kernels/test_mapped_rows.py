import pytest
import torch

from sheafprop.kernels.backend import use_backend
from sheafprop.kernels.mapped_rows import mapped_rows

# The first are small enough for the compiled loop, the others are not.
SIZES = [(3, 4), (5, 2), (1, 1), (40, 30), (31, 40)]


@pytest.fixture(params=["numba", "torch"], autouse=True)
def backend(request):
    with use_backend(request.param):
        yield request.param


def draw(size, *, num_rows=29, num_sections=1, num_relations=7, dtype=torch.float64, seed=0):
    """Rows, maps, and relations in any order, of which the last has no row."""
    generator = torch.Generator().manual_seed(seed)
    height, width = size
    rows = torch.randn(num_rows, num_sections, width, generator=generator, dtype=dtype)
    maps = torch.randn(num_relations, height, width, generator=generator, dtype=dtype)
    rel_type = torch.randint(num_relations - 1, (num_rows,), generator=generator)
    return rows.requires_grad_(), maps.requires_grad_(), rel_type


def reference(rows, maps, rel_type):
    return torch.einsum("bkd,bsd->bsk", maps[rel_type], rows)


@pytest.mark.parametrize("num_sections", [1, 3])
@pytest.mark.parametrize("size", SIZES)
def test_rows_and_gradients_are_those_of_copied_maps(size, num_sections):
    rows, maps, rel_type = draw(size, num_sections=num_sections)
    ours, theirs = mapped_rows(rows, maps, rel_type), reference(rows, maps, rel_type)
    torch.testing.assert_close(ours, theirs)
    gradients = torch.autograd.grad(ours.sin().sum(), (rows, maps))
    for a, b in zip(gradients, torch.autograd.grad(theirs.sin().sum(), (rows, maps)), strict=True):
        torch.testing.assert_close(a, b)
    assert (gradients[1][-1] == 0).all()


@pytest.mark.parametrize("size", [(3, 4), (40, 30)])
def test_first_and_second_derivatives_are_those_of_finite_differences(size):
    rows, maps, rel_type = draw(size, num_rows=5, num_sections=2, num_relations=4)
    arguments = (rows, maps, rel_type)
    assert torch.autograd.gradcheck(mapped_rows, arguments, fast_mode=True)
    assert torch.autograd.gradgradcheck(mapped_rows, arguments, fast_mode=True)


@pytest.mark.parametrize("size", [(3, 4), (40, 30)])
def test_only_what_needs_a_gradient_gets_one(size):
    rows, maps, rel_type = draw(size)
    mapped_rows(rows, maps.detach(), rel_type).sum().backward()
    mapped_rows(rows.detach(), maps, rel_type).sum().backward()
    torch.testing.assert_close(rows.grad, maps[rel_type].sum(1).unsqueeze(1).detach())
    assert maps.grad.shape == maps.shape


@pytest.mark.parametrize("size", [(3, 4), (40, 30)])
def test_no_rows_give_no_rows_and_gradients_of_zero(size):
    rows, maps, rel_type = draw(size, num_rows=0)
    out = mapped_rows(rows, maps, rel_type)
    assert out.shape == (0, 1, size[0])
    (gradient,) = torch.autograd.grad(out.sum(), maps)
    assert (gradient == 0).all()


@pytest.mark.parametrize("size", [(3, 4), (40, 30)])
def test_the_number_of_threads_changes_rounding_only(size):
    rows, maps, rel_type = draw(size, num_rows=2000, dtype=torch.float32)
    # The same sums of the terms' sizes, and how many terms an entry adds up on the way.
    sizes = [part.detach().abs().double().requires_grad_() for part in (rows, maps)]
    total = reference(*sizes, rel_type)
    bulks = (total, *torch.autograd.grad(total.square().sum(), sizes))
    height, width = size
    most = int(torch.bincount(rel_type).max())
    terms = (width, width + height, width + most)
    found, before = [], torch.get_num_threads()
    try:
        for threads in (1, 3):
            torch.set_num_threads(threads)
            out = mapped_rows(rows, maps, rel_type)
            found.append((out, *torch.autograd.grad(out.square().sum(), (rows, maps))))
    finally:
        torch.set_num_threads(before)
    for a, b, bulk, count in zip(*found, bulks, terms, strict=True):
        if size == (3, 4):
            # One loop runs over them, whatever the number of threads.
            assert torch.equal(a, b)
        assert bool(((a - b).abs() <= count * torch.finfo(torch.float32).eps * bulk).all())


@pytest.mark.parametrize("size", [(3, 4), (40, 30)])
def test_transformations_of_functions_pass_through(size):
    rows, maps, rel_type = draw(size)
    rows, maps = rows.detach(), maps.detach()
    ours = torch.func.grad(lambda m: mapped_rows(rows, m, rel_type).sin().sum())(maps)
    theirs = torch.func.grad(lambda m: reference(rows, m, rel_type).sin().sum())(maps)
    torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize("wrong", [-1, 7])
def test_relations_without_a_map_are_refused(wrong):
    rows, maps, rel_type = draw((3, 4))
    rel_type[5] = wrong
    with pytest.raises(IndexError, match="'rel_type' needs numbers from 0 to 6"):
        mapped_rows(rows, maps, rel_type)
