import torch

from sheafprop.inductive.landmark_basis import MOST, LandmarkBasis


def test_similarities_are_one_at_a_landmark_and_fall_with_the_distance():
    torch.manual_seed(0)
    f = torch.randn(20, 3, dtype=torch.double)
    plain, *others = LandmarkBasis.candidates(torch.cat([f, f[:5]]))
    assert torch.equal(plain.expand(f), f)
    assert len(others) == 4
    for basis in others:
        assert len(basis.landmarks) == 20
        rows = basis.expand(basis.landmarks)
        assert torch.equal(rows[:, :3], basis.landmarks)
        near = rows[:, 3:]
        assert torch.allclose(near.diagonal(), torch.ones(20, dtype=torch.double))
        gap = (basis.landmarks[2] - basis.landmarks[7]).square().sum()
        torch.testing.assert_close(near[2, 7], torch.exp(-gap / (2 * basis.bandwidth**2)))
    widths = [basis.bandwidth for basis in others]
    assert widths == sorted(widths)


def test_landmarks_are_bounded_and_depend_on_no_order():
    f = torch.randn(MOST + 40, 2, dtype=torch.double)
    one = LandmarkBasis.candidates(f)[-1]
    other = LandmarkBasis.candidates(f.flip(0))[-1]
    assert one.landmarks.shape == (MOST, 2)
    assert torch.equal(one.landmarks, other.landmarks)
    assert one.bandwidth == other.bandwidth


def test_equal_features_have_no_landmarks():
    for f in (torch.ones(4, 2, dtype=torch.double), torch.zeros(3, 0, dtype=torch.double)):
        (only,) = LandmarkBasis.candidates(f)
        assert torch.equal(only.expand(f), f)
