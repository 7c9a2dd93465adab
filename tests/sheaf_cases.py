"""Random graphs with every awkward feature, every map kind, and dense float64 references.

The references are written from the definitions alone and share no code with the package.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from sheafprop.kernels.backend import backend_of
from sheafprop.sheaf import DenseSheaf, DiagonalSheaf, IdentitySheaf, QuaternionSheaf, RelationSheaf

NUM_NODES, NUM_RELATIONS, WIDTH = 12, 4, 4


@dataclass
class Case:
    edge_index: Tensor
    edge_type: Tensor
    edge_weight: Tensor
    boundary_mask: Tensor
    x: Tensor
    sheaf: RelationSheaf

    @property
    def graph(self) -> tuple[Tensor, Tensor, RelationSheaf]:
        return self.edge_index, self.edge_type, self.sheaf


def _unitary(generator: torch.Generator, *shape: int) -> Tensor:
    phase = torch.rand(*shape, generator=generator, dtype=torch.float64) * 6.283185307179586
    return torch.polar(torch.ones_like(phase), phase)


def make_sheaf(kind: str, seed: int = 0) -> RelationSheaf:
    g = torch.Generator().manual_seed(seed)
    r, d = NUM_RELATIONS, WIDTH

    def real(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=g, dtype=torch.float64)

    def complex_(*shape: int) -> Tensor:
        return torch.complex(real(*shape), real(*shape))

    if kind == "identity":
        return IdentitySheaf(real(r, d))
    if kind == "identity, complex":
        return IdentitySheaf(complex_(r, d))
    if kind == "identity, untranslated":
        return IdentitySheaf(relations=r)
    if kind == "diagonal, unitary":
        return DiagonalSheaf(head=_unitary(g, r, d))
    if kind == "diagonal, real pair":
        return DiagonalSheaf(head=real(r, d), tail=real(r, d), translation=real(r, d))
    if kind == "diagonal, complex pair":
        return DiagonalSheaf(head=complex_(r, d), tail=complex_(r, d), translation=complex_(r, d))
    if kind == "diagonal, singular":
        head, tail = real(r, d), real(r, d)
        head[:, 0] = tail[:, 0] = 0
        head[1] = 0
        return DiagonalSheaf(head=head, tail=tail)
    if kind == "dense, shared":
        maps = real(r, 2, d)
        return DenseSheaf(maps, maps, real(r, 2))
    if kind == "dense, pair":
        return DenseSheaf(real(r, d, d), real(r, d, d))
    if kind == "dense, tall complex":
        return DenseSheaf(complex_(r, 5, d), complex_(r, 5, d), complex_(r, 5))
    if kind == "dense, singular":
        project = torch.diag(torch.tensor([1.0, 1.0, 1.0, 0.0], dtype=torch.float64))
        return DenseSheaf(real(r, 2, d) @ project, real(r, 2, d) @ project, real(r, 2))
    if kind == "quaternion, unit":
        return QuaternionSheaf(torch.nn.functional.normalize(real(r, d), dim=1))
    if kind == "quaternion, pair":
        return QuaternionSheaf(real(r, d), real(r, d), real(r, d))
    raise KeyError(kind)


SHEAF_KINDS = (
    "identity",
    "identity, complex",
    "identity, untranslated",
    "diagonal, unitary",
    "diagonal, real pair",
    "diagonal, complex pair",
    "diagonal, singular",
    "dense, shared",
    "dense, pair",
    "dense, tall complex",
    "dense, singular",
    "quaternion, pair",
)


def make_case(kind: str, seed: int = 0, *, boundary: float = 0.3, num_edges: int = 30) -> Case:
    """A multigraph with parallel and repeated triples, self-loops and an isolated vertex."""
    g = torch.Generator().manual_seed(1000 + seed)
    # The last vertex stays isolated.
    edge_index = torch.randint(0, NUM_NODES - 1, (2, num_edges), generator=g)
    edge_type = torch.randint(0, NUM_RELATIONS, (num_edges,), generator=g)
    edge_index[:, 1] = edge_index[:, 0]
    edge_type[1] = (edge_type[0] + 1) % NUM_RELATIONS
    edge_index[:, 2], edge_type[2] = edge_index[:, 0], edge_type[0]
    edge_index[:, 3] = edge_index[:, 0].flip(0)
    edge_index[1, 4:6] = edge_index[0, 4:6]
    weight = torch.rand(num_edges, generator=g, dtype=torch.float64) + 0.1
    weight[7] = 0
    mask = torch.rand(NUM_NODES, generator=g) < boundary
    mask[-1] = False
    sheaf = make_sheaf(kind, seed)
    x = torch.randn(NUM_NODES, WIDTH, generator=g, dtype=torch.float64)
    if sheaf.dtype is not None and sheaf.dtype.is_complex:
        x = torch.complex(x, torch.randn(x.shape, generator=g, dtype=torch.float64))
    return Case(edge_index, edge_type, weight, mask, x, sheaf)


def dense_coboundary(case: Case) -> tuple[Tensor, Tensor]:
    """The coboundary as one matrix with the square roots of the weights, and the translations."""
    sheaf, (head, tail) = case.sheaf, case.edge_index
    d = case.x.shape[1]
    k = sheaf.restriction_map(0, "head", d).shape[0]
    delta = torch.zeros(head.numel() * k, case.x.shape[0] * d, dtype=case.x.dtype)
    b = torch.zeros(head.numel(), k, dtype=case.x.dtype)
    for e in range(head.numel()):
        root = case.edge_weight[e].sqrt()
        r, rows = int(case.edge_type[e]), slice(e * k, e * k + k)
        h, t = int(head[e]), int(tail[e])
        head_map = sheaf.restriction_map(r, "head", d).to(delta)
        tail_map = sheaf.restriction_map(r, "tail", d).to(delta)
        delta[rows, t * d : t * d + d] += root * tail_map
        delta[rows, h * d : h * d + d] -= root * head_map
        translation = sheaf.translation_of(torch.tensor([r]))
        if translation is not None:
            b[e] = root * translation[0]
    return delta, b.flatten()


def dense_system(case: Case, normalization: str | None) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """L_UU, the metric M, half the gradient at ``case.x`` on U, and the flat indices of U."""
    n, d = case.x.shape
    delta, b = dense_coboundary(case)
    laplacian = delta.mH @ delta
    gradient = laplacian @ case.x.flatten() - delta.mH @ b
    free = (~case.boundary_mask).repeat_interleave(d).nonzero().flatten()
    metric = torch.zeros_like(laplacian)
    for v in range(n):
        part = slice(v * d, v * d + d)
        if normalization == "block":
            metric[part, part] = laplacian[part, part]
        elif normalization is None:
            metric[part, part] = torch.eye(d, dtype=metric.dtype)
        else:
            total = 0.0
            for e, (h, t) in enumerate(case.edge_index.T.tolist()):
                r = int(case.edge_type[e])
                for vertex, side in ((h, "head"), (t, "tail")):
                    if vertex == v:
                        norm = torch.linalg.matrix_norm(case.sheaf.restriction_map(r, side, d), 2)
                        total += float(case.edge_weight[e]) * float(norm) ** 2
            metric[part, part] = total * torch.eye(d, dtype=metric.dtype)
    return laplacian[free][:, free], metric[free][:, free], gradient[free], free


def pinv_sqrt(matrix: Tensor) -> Tensor:
    values, vectors = torch.linalg.eigh(matrix)
    keep = values > 1e-10 * values.abs().max().clamp_min(1e-300)
    inverse = torch.where(keep, values.clamp_min(1e-300) ** -0.5, 0.0).to(vectors.dtype)
    return vectors @ torch.diag(inverse) @ vectors.mH


def dense_limit(case: Case, normalization: str | None) -> Tensor:
    """x_0 - M^-1/2 (M^-1/2 L M^-1/2)^+ M^-1/2 g_0 on the free vertices, all vertices returned."""
    l_uu, metric, gradient, free = dense_system(case, normalization)
    root = torch.block_diag(
        *[pinv_sqrt(metric[i : i + WIDTH, i : i + WIDTH]) for i in range(0, metric.shape[0], WIDTH)]
    )
    inverse = torch.linalg.pinv(root @ l_uu @ root, rtol=1e-10, hermitian=True)
    x = case.x.flatten().clone()
    x[free] -= root @ inverse @ root @ gradient
    return x.view_as(case.x)


def normalized_rank(case: Case, normalization: str | None) -> tuple[int, int]:
    """Ranks of M^-1/2 L_UU M^-1/2 and of M."""
    l_uu, metric, _, _ = dense_system(case, normalization)
    root = torch.block_diag(
        *[pinv_sqrt(metric[i : i + WIDTH, i : i + WIDTH]) for i in range(0, metric.shape[0], WIDTH)]
    )
    ranks = [
        int((values > 1e-9 * values.abs().max()).sum())
        for values in (torch.linalg.eigvalsh(root @ l_uu @ root), torch.linalg.eigvalsh(root))
    ]
    return ranks[0], ranks[1]


def same_numbers(a: Tensor, b: Tensor) -> bool:
    """Whether results are equal: bit for bit by the compiled loops, else up to rounding."""
    if backend_of(a) == "numba":
        return torch.equal(a, b)
    tolerance = 1e-5 if torch.finfo(a.dtype).bits == 32 else 1e-12
    return torch.allclose(a, b, atol=tolerance, rtol=tolerance)
