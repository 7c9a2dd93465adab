from functools import partial
from typing import ClassVar

import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_unflatten

from sheafprop.nn import SheafConv, SheafPropagation
from sheafprop.sheaf.coboundary import coboundary, coboundary_adjoint, edge_energy
from sheafprop.sheaf.plan import Normalization, PropagationPlan
from sheafprop.sheaf.relation_sheaf import RelationSheaf
from sheafprop.testing.assertions import (
    assert_adjoint,
    assert_equals_dense,
    assert_gauge_equivariant,
    assert_permutation_equivariant,
    assert_psd,
    assert_spectrum_within,
    operator_matrix,
)
from sheafprop.testing.multigraph import Multigraph, dense_coboundary, dense_laplacian, dense_metric


class SheafTestCase:
    r"""What every relation sheaf must fulfil, as a class of tests to inherit from.

    A subclass whose name starts with ``Test`` and that implements :meth:`make_sheaf` is collected
    by pytest; nothing here depends on it. The sheaf has at least two relations, and its maps and
    translations are double precision and random. All references are written from
    ``restriction_map`` and ``translation_of`` alone.

    Example:
        .. code-block:: python

            class TestMySheaf(SheafTestCase):
                def make_sheaf(self, seed):
                    g = torch.Generator().manual_seed(seed)
                    return MySheaf(torch.randn(4, 3, 3, generator=g, dtype=torch.float64))
    """

    #: Dimension of the vertex stalks, for sheaves that take any.
    width: ClassVar[int] = 3
    normalizations: ClassVar[tuple[Normalization, ...]] = ("block", "degree", None)

    def make_sheaf(self, seed: int) -> RelationSheaf:
        """The sheaf to test, drawn from a seed."""
        raise NotImplementedError

    def make_graph(self, sheaf: RelationSheaf, seed: int) -> Multigraph:
        """A graph to test a ``sheaf`` on, drawn from a ``seed``."""
        return Multigraph.random(sheaf.num_relations, seed=seed)

    def _draw(self, seed: int) -> tuple[Multigraph, RelationSheaf, Tensor]:
        sheaf = self.make_sheaf(seed)
        graph = self.make_graph(sheaf, seed)
        return graph, sheaf, graph.features(sheaf, self._width(sheaf), seed=seed)

    def _width(self, sheaf: RelationSheaf) -> int:
        return sheaf.stalk_dim or self.width

    # The maps ------------------------------------------------------------------------------------

    def test_maps_act_edge_by_edge(self) -> None:
        r"""``restrict`` is :math:`R x` and ``restrict_adjoint`` :math:`R^* y`, edge by edge."""
        graph, sheaf, x = self._draw(0)
        rows = x.index_select(0, graph.edge_index[0])
        for side in ("head", "tail"):
            maps = torch.stack(
                [
                    sheaf.restriction_map(r, side, x.shape[1]).to(x.dtype)
                    for r in graph.edge_type.tolist()
                ]
            )
            image = sheaf.restrict(rows, graph.edge_type, side)
            torch.testing.assert_close(image, torch.einsum("ekd,ed->ek", maps, rows))
            back = sheaf.restrict_adjoint(image, graph.edge_type, side)
            torch.testing.assert_close(back, torch.einsum("ekd,ek->ed", maps.conj(), image))

    def test_coboundary_is_the_dense_one_and_has_its_adjoint(self) -> None:
        r"""The coboundary is its matrix, and its adjoint that matrix's conjugate transpose."""
        graph, sheaf, x = self._draw(1)
        edges = (graph.edge_index, graph.edge_type, sheaf)

        def delta(x: Tensor) -> Tensor:
            return coboundary(x, *edges)

        matrix, _ = dense_coboundary(
            Multigraph(
                graph.edge_index,
                graph.edge_type,
                torch.ones_like(graph.edge_weight),
                graph.boundary_mask,
            ),
            sheaf,
            x.shape[1],
        )
        shape = tuple(x.shape)
        assert_equals_dense(delta, matrix, shape)
        assert_adjoint(
            delta, lambda y: coboundary_adjoint(y, *edges, graph.num_nodes), shape, x.dtype
        )

    def test_energy_is_the_squared_residual(self) -> None:
        r"""The energy is :math:`\|W^{1/2} (\delta x - b)\|^2`, a real number."""
        graph, sheaf, x = self._draw(2)
        delta, b = dense_coboundary(graph, sheaf, x.shape[1])
        energy = edge_energy(x, graph.edge_index, graph.edge_type, sheaf, graph.edge_weight)
        assert not energy.is_complex()
        expected = torch.linalg.vector_norm(delta @ x.flatten() - b) ** 2
        torch.testing.assert_close(energy.sum(), expected)

    def test_is_an_immutable_pytree(self) -> None:
        """The sheaf is a pytree of tensors that can be put together, and not changed in place."""
        sheaf = self.make_sheaf(0)
        leaves, spec = tree_flatten(sheaf)
        assert all(isinstance(leaf, Tensor | int | None) for leaf in leaves), (
            "not a pytree of tensors: after the class, call "
            f"torch.export.register_dataclass({type(sheaf).__name__})"
        )
        again = tree_unflatten(leaves, spec)
        assert type(again) is type(sheaf)
        assert again.num_relations == sheaf.num_relations
        try:
            sheaf.num_relations = 1  # type: ignore[misc]
        except AttributeError:
            return
        raise AssertionError("the sheaf can be changed in place")

    # The operators of a plan ---------------------------------------------------------------------

    def test_laplacian_is_the_dense_one_and_positive(self) -> None:
        r""":math:`L_{UU}` is a block of :math:`\delta^* W \delta`, with no negative eigenvalue."""
        for seed in range(3):
            graph, sheaf, x = self._draw(seed)
            plan = graph.plan(sheaf)
            shape = (plan.num_free, 1, x.shape[1])
            assert_equals_dense(plan.laplacian, dense_laplacian(graph, sheaf, x.shape[1]), shape)
            assert_psd(plan.laplacian, shape, x.dtype)
            assert_adjoint(plan.laplacian, plan.laplacian, shape, x.dtype)

    def test_metrics_are_the_dense_ones_and_bound_the_spectrum(self) -> None:
        r"""The metrics are their matrices; :math:`M^{-1/2} L M^{-1/2}` lies between 0 and 2."""
        for normalization in self.normalizations:
            graph, sheaf, x = self._draw(3)
            plan = graph.plan(sheaf, normalization=normalization)
            shape = (plan.num_free, 1, x.shape[1])
            metric = dense_metric(graph, sheaf, x.shape[1], normalization)
            assert_equals_dense(plan.apply_metric, metric, shape)
            pinv = torch.linalg.pinv(metric, rtol=1e-10, hermitian=True)
            assert_equals_dense(plan.precondition, pinv, shape, rtol=1e-6)
            assert_equals_dense(plan.project, pinv @ metric, shape, rtol=1e-6)
            if normalization is not None:
                assert_spectrum_within(partial(_apply_normalized, plan), shape, x.dtype)

    def test_gradient_is_that_of_the_energy(self) -> None:
        r""":math:`g_U` is half the derivative of the energy, as autograd finds it."""
        graph, sheaf, x = self._draw(4)
        plan = graph.plan(sheaf)
        point = x.clone().requires_grad_()
        energy = edge_energy(point, graph.edge_index, graph.edge_type, sheaf, graph.edge_weight)
        (expected,) = torch.autograd.grad(energy.sum() / 2, point)
        sections = x.unsqueeze(1)
        gradient = plan.gradient(sections[plan.free_index], plan.constant(sections))
        torch.testing.assert_close(gradient.squeeze(1), expected[plan.free_index])

    # The layers ----------------------------------------------------------------------------------

    def test_step_does_not_depend_on_order_or_bases(self) -> None:
        """A step, or several, is the same in another order of the graph and in other bases."""
        for normalization in self.normalizations:
            for layer in (
                SheafConv(step_size=0.05, normalization=normalization),
                SheafPropagation(5, step_size=0.01, normalization=normalization),
            ):
                graph, sheaf, x = self._draw(5)
                assert_permutation_equivariant(layer, graph, sheaf, x, atol=1e-10)
                assert_gauge_equivariant(layer, graph, sheaf, x)

    def test_energy_never_rises(self) -> None:
        """A step with the default step size never raises the energy."""
        for seed in range(3):
            graph, sheaf, x = self._draw(seed)
            edges = (graph.edge_index, graph.edge_type, sheaf, graph.edge_weight)
            for _ in range(5):
                before, x = float(edge_energy(x, *edges).sum()), graph.call(SheafConv(), x, sheaf)
                after = float(edge_energy(x, *edges).sum())
                assert after <= before * (1 + 1e-9) + 1e-12, f"from {before:.9g} to {after:.9g}"

    def test_known_and_isolated_vertices_keep_their_values(self) -> None:
        """Known vertices, and those without a triple, keep their values bit by bit."""
        graph, sheaf, x = self._draw(6)
        out = graph.call(SheafConv(), x, sheaf)
        assert torch.equal(out[graph.boundary_mask], x[graph.boundary_mask])
        assert torch.equal(out[-1], x[-1]), "an isolated vertex moved"
        everyone = graph.with_boundary(torch.ones_like(graph.boundary_mask))
        assert torch.equal(everyone.call(SheafConv(), x, sheaf), x)
        none = torch.zeros(2, 0, dtype=torch.long)
        assert torch.equal(SheafConv()(x, none, none[0], sheaf), x)

    def test_gradients_reach_every_map(self) -> None:
        """Features, maps and translations all get finite gradients that are not zero."""
        graph, sheaf, x = self._draw(7)
        leaves, spec = tree_flatten(sheaf)
        tensors = {id(v): v.clone().requires_grad_() for v in leaves if isinstance(v, Tensor)}
        moved = tree_unflatten([tensors.get(id(v), v) for v in leaves], spec)
        x = x.requires_grad_()
        graph.call(SheafPropagation(2), x, moved).abs().square().sum().backward()
        for value in (x, *tensors.values()):
            assert value.grad is not None
            assert bool(torch.isfinite(torch.view_as_real(value.grad.to(torch.complex128))).all())
            assert bool((value.grad != 0).any())

    def test_operators_are_linear_in_sections(self) -> None:
        """Sections do not mix: each one is multiplied by the same matrix."""
        graph, sheaf, x = self._draw(8)
        plan = graph.plan(sheaf)
        shape = (plan.num_free, 1, x.shape[1])
        matrix = operator_matrix(plan.couple, shape, x.dtype)
        both = torch.stack([x, 1 - 2 * x], dim=1)[plan.free_index]
        for section in range(2):
            expected = (matrix @ both[:, section].flatten()).view(plan.num_free, -1)
            torch.testing.assert_close(plan.couple(both)[:, section], expected)


def _apply_normalized(plan: PropagationPlan, x_free: Tensor) -> Tensor:
    return plan.precondition_sqrt(plan.laplacian(plan.precondition_sqrt(x_free)))
