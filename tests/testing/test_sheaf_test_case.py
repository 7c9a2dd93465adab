"""Every map kind under the template, and the template under maps that are wrong."""

from typing import ClassVar

import pytest
import torch

import sheafprop.sheaf
from sheafprop.kernels.relation_incidence import RelationIncidence
from sheafprop.sheaf import DiagonalSheaf, RelationSheaf
from sheafprop.testing import SheafTestCase
from tests.sheaf_cases import SHEAF_KINDS, WIDTH, make_sheaf


class KindCase(SheafTestCase):
    kind: ClassVar[str]
    width = WIDTH

    def make_sheaf(self, seed: int) -> RelationSheaf:
        return make_sheaf(self.kind, seed)


def _name(kind: str) -> str:
    return "Test" + "".join(part.capitalize() for part in kind.replace(",", "").split())


CASES = [type(_name(kind), (KindCase,), {"kind": kind}) for kind in SHEAF_KINDS]
# pytest collects what the module holds by name.
globals().update({case.__name__: case for case in CASES})


def test_no_map_kind_of_the_package_is_missing():
    public = {
        value
        for value in vars(sheafprop.sheaf).values()
        if isinstance(value, type) and issubclass(value, RelationSheaf) and value != RelationSheaf
    }
    collected = [value for name, value in globals().items() if name.startswith("Test")]
    assert set(collected) == set(CASES)
    assert {type(case().make_sheaf(0)) for case in collected} == public


# Wrong sheaves ---------------------------------------------------------------------------------


class NoConjugate(DiagonalSheaf):
    """Pulls residuals back by the transpose instead of the adjoint."""

    def restrict_adjoint(self, y, edge_type, side):
        return self.restrict(y, edge_type, side)


class HeadAndTailSwapped(DiagonalSheaf):
    def restrict(self, x, edge_type, side):
        return super().restrict(x, edge_type, "tail" if side == "head" else "head")


class OneSidedMessages(DiagonalSheaf):
    """The head gets the tail's vector through the transpose."""

    def coupling(self, entries):
        turned = DiagonalSheaf(self.head.conj().resolve_conj(), self.tail.conj().resolve_conj())
        return turned.coupling(entries)


class OtherSignOfTranslations(DiagonalSheaf):
    def end_translations(self):
        return -super().end_translations()


class TranslationInTheVertexStalk(DiagonalSheaf):
    """Adds the raw residual's translation at the head instead of pulling it back."""

    def end_translations(self):
        return torch.cat([self.translation, -self.translation])


class LoopsLeftOut(DiagonalSheaf):
    def vertex_blocks(self, ends, loops):
        return super().vertex_blocks(ends, ends_without_any(loops))


def ends_without_any(loops):
    none = torch.zeros(0, dtype=torch.long)
    return RelationIncidence(none, none, torch.zeros(0, dtype=torch.float64), loops.num_vertices, 4)


class DegreeTooSmall(DiagonalSheaf):
    def end_norms(self):
        return super().end_norms() / 2


class Detached(DiagonalSheaf):
    """Gradients do not reach the tail's map."""

    def coupling(self, entries):
        return DiagonalSheaf(self.head, self.tail.detach()).coupling(entries)

    def vertex_blocks(self, ends, loops):
        return DiagonalSheaf(self.head, self.tail.detach()).vertex_blocks(ends, loops)

    def end_translations(self):
        return DiagonalSheaf(self.head, self.tail.detach(), self.translation).end_translations()


WRONG = {
    NoConjugate: "coboundary_is_the_dense_one",
    HeadAndTailSwapped: "maps_act_edge_by_edge",
    OneSidedMessages: "laplacian_is_the_dense_one",
    OtherSignOfTranslations: "gradient_is_that_of_the_energy",
    TranslationInTheVertexStalk: "step_does_not_depend",
    LoopsLeftOut: "metrics_are_the_dense_ones",
    DegreeTooSmall: "metrics_are_the_dense_ones",
    Detached: "gradients_reach_every_map",
}


def failures(case):
    failed = []
    for name in dir(case):
        if name.startswith("test_"):
            try:
                getattr(case, name)()
            except AssertionError:
                failed.append(name)
    return failed


@pytest.mark.parametrize("wrong", WRONG, ids=lambda kind: kind.__name__)
def test_wrong_sheaves_fail(wrong):
    torch.export.register_dataclass(wrong)

    class Case(SheafTestCase):
        def make_sheaf(self, seed):
            right = make_sheaf("diagonal, complex pair", seed)
            return wrong(right.head, right.tail, right.translation)

    failed = failures(Case())
    assert any(WRONG[wrong] in name for name in failed), failed


def test_a_sheaf_that_can_be_changed_fails():
    class Case(SheafTestCase):
        def make_sheaf(self, seed):
            return make_sheaf("diagonal, unitary", seed)

    assert failures(Case()) == []

    class Changing(Case):
        def make_sheaf(self, seed):
            class Loose(DiagonalSheaf):
                num_relations = 4
                __setattr__ = object.__setattr__

            if Loose not in torch.utils._pytree.SUPPORTED_NODES:
                torch.export.register_dataclass(Loose)
            return Loose(make_sheaf("diagonal, unitary", seed).head)

    assert failures(Changing()) == ["test_is_an_immutable_pytree"]
