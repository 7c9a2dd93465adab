import pytest
import torch

from sheafprop.kernels.rows import real_rows
from sheafprop.query.branch_energy import double, squares
from tests.query.cases import energy_of
from tests.sheaf_cases import SHEAF_KINDS, WIDTH, make_sheaf


@pytest.mark.parametrize("kind", SHEAF_KINDS)
def test_features_times_coefficients_are_the_quadratic(kind):
    """The energy in all its forms: by the matrix, as one product, from differences."""
    sheaf = make_sheaf(kind)
    dtype = sheaf.dtype or torch.float64
    x = torch.randn(6, 2, WIDTH, dtype=dtype, generator=torch.Generator().manual_seed(0))
    for structure, slots in (("2p", [0, 1, 6]), ("2i", [3, 0, 5, 2])):
        energy = energy_of(sheaf, x, structure, slots)
        precision = energy.precision()[0]
        for section in (0, 1):
            gap = x[:, section] - energy.centre[0, section]
            want = ((gap.conj() @ precision) * gap).sum(1).real + energy.constant[0, section]
            features, shared = energy.features(real_rows(x[:, section])), energy.shared()
            product = energy.coefficients(section)
            if shared is not None:
                product = torch.cat([shared[0][shared[1]], product], dim=1)
            torch.testing.assert_close((product @ features)[0], want)
            rows = torch.zeros(6, dtype=torch.long)
            torch.testing.assert_close(energy.at(rows, x[:, section], section), want)
            assert float(energy.size(section, squares(x[:, section]).sum(1).amax())) > 0


def test_squares_and_double():
    z = torch.tensor([3 - 4j, 0.5j], dtype=torch.complex64)
    assert squares(z).tolist() == [25.0, 0.25]
    assert double(z).dtype == torch.complex128
    assert double(z.real).dtype == torch.float64
