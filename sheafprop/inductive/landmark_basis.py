from dataclasses import dataclass

import torch
from torch import Tensor

from sheafprop.seeding import seeded_uniform

#: Maximum number of landmarks.
MOST = 512


@dataclass(frozen=True, eq=False)
class LandmarkBasis:
    r"""Features and their similarities to those of training entities, the landmarks.

    .. math::
        \phi(f) = \left[ f, \; e^{-\| f - f_1 \|^2 / 2 b^2}, \dots, e^{-\| f - f_m \|^2 / 2 b^2}
        \right]

    This is the Nyström form of kernel ridge regression (Williams and Seeger, 2001) with an
    additional linear term. It captures interactions such as those of two coordinates.

    Args:
        landmarks (Tensor): Features of the landmarks, ``[m, p]`` in double precision. If empty, the
            features are unchanged.
        bandwidth (float): :math:`b > 0`.
    """

    landmarks: Tensor
    bandwidth: float

    @classmethod
    def candidates(cls, f: Tensor) -> list["LandmarkBasis"]:
        """Returns candidate bases: without landmarks, and with several bandwidths.

        Args:
            f (Tensor): Features of the training entities, ``[n, p]``.
        """
        found = [cls(f[:0], 1.0)]
        rows = torch.unique(f, dim=0) if f.shape[1] else f[:1]
        if len(rows) > MOST:
            draw = seeded_uniform(range(len(rows)), 1, 0)[:, 0]
            rows = rows[torch.from_numpy(draw).argsort()[:MOST].sort().values]
        apart = torch.pdist(rows)
        middle = float(apart.median()) if apart.numel() else 0.0
        if middle > 0:
            found += [cls(rows, share * middle) for share in (0.1, 0.2, 0.4, 0.8)]
        return found

    def expand(self, f: Tensor) -> Tensor:
        """Expands features ``[n, p]`` to ``[n, p + m]``."""
        if not len(self.landmarks):
            return f
        near = torch.cdist(f, self.landmarks).square()
        return torch.cat([f, torch.exp(-near / (2 * self.bandwidth**2))], dim=1)
