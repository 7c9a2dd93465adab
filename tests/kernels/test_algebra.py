import pytest
import torch

from sheafprop.kernels.algebra import DIAGONAL, QUATERNIONS


@pytest.mark.parametrize(
    ("algebra", "dtype"),
    [(DIAGONAL, torch.float64), (DIAGONAL, torch.complex128), (QUATERNIONS, torch.float64)],
)
def test_products_have_adjoints_moduli_and_a_one(algebra, dtype):
    c, x, y = torch.randn(3, 5, 8, generator=torch.Generator().manual_seed(0), dtype=dtype)

    def inner(a, b):
        return (a.conj() * b).real.sum(-1)

    product, conjugate = algebra.multiply(c, x), algebra.conjugate
    close = torch.testing.assert_close
    close(inner(y, product), inner(algebra.multiply(conjugate(c), y), x))
    close(inner(y, product), inner(algebra.multiply(y, conjugate(x)), c))
    close(algebra.multiply(algebra.one(x), x), x)
    close(conjugate(algebra.multiply(c, x)), algebra.multiply(conjugate(x), conjugate(c)))
    close(algebra.multiply(conjugate(c), c), algebra.one(c) * algebra.squares(c))
    close(algebra.squares(product), algebra.squares(c) * algebra.squares(x))


def test_quaternions_do_not_commute():
    c, x = torch.randn(2, 8, generator=torch.Generator().manual_seed(1))
    assert torch.equal(DIAGONAL.multiply(c, x), DIAGONAL.multiply(x, c))
    assert not torch.allclose(QUATERNIONS.multiply(c, x), QUATERNIONS.multiply(x, c), atol=0.1)
