import numpy as np
from numpy.typing import NDArray

from sheafprop.query.query_shape import QueryShape

# Draws of a relation, to avoid a pair of consecutive ones that BetaE avoids.
_DRAWS = 40


class BackwardWalk:
    r"""Random walks against the direction of the edges, inverse ones included, many at once.

    Args:
        triples (ndarray): Id triples ``(head, relation, tail)``, int64 ``[m, 3]``.
        num_entities (int): The number of entities.
        num_relations (int): The number of relations :math:`R`; the inverse of :math:`r` is
            :math:`r + R`.
    """

    def __init__(self, triples: NDArray[np.int64], num_entities: int, num_relations: int) -> None:
        head, relation, tail = triples.T
        into = np.concatenate([tail, head])
        relation = np.concatenate([relation, relation + num_relations])
        source = np.concatenate([head, tail])
        order = np.lexsort((source, relation, into))
        into, relation, self.source = into[order], relation[order], source[order]
        new = np.ones(len(into), dtype=bool)
        new[1:] = (into[1:] != into[:-1]) | (relation[1:] != relation[:-1])
        first = np.flatnonzero(new)
        self.relation = relation[first]
        self.source_start = np.append(first, len(into))
        self.start = np.searchsorted(into[first], np.arange(num_entities + 1))
        self.entities = np.unique(into)

    def queries(
        self, shape: QueryShape, answers: NDArray[np.int64], rng: np.random.Generator
    ) -> NDArray[np.int64]:
        """One query of the shape for every answer, as slots ``[n, num_slots]``."""
        return self._fill(shape, answers, None, rng)

    def _fill(
        self,
        shape: QueryShape,
        current: NDArray[np.int64],
        following: NDArray[np.int64] | None,
        rng: np.random.Generator,
    ) -> NDArray[np.int64]:
        """Slots of queries that ``current`` answers; ``following`` are the relations after."""
        if shape.operator == "anchor":
            return current[:, None]
        if shape.operator != "via":
            follow = following if shape.operator == "not" else None
            return np.concatenate(
                [self._fill(branch, current, follow, rng) for branch in shape.branches], axis=1
            )
        pair = self._draw(current, rng)
        if following is not None:
            for _ in range(_DRAWS - 1):
                own = self.relation[pair]
                again = np.flatnonzero((own // 2 == following // 2) & (own != following))
                if len(again) == 0:
                    break
                pair[again] = self._draw(current[again], rng)
        first, last = self.source_start[pair], self.source_start[pair + 1]
        before = self.source[first + (rng.random(len(pair)) * (last - first)).astype(np.int64)]
        relation = self.relation[pair]
        inner = self._fill(shape.branches[0], before, relation, rng)
        return np.concatenate([inner, relation[:, None]], axis=1)

    def _draw(self, current: NDArray[np.int64], rng: np.random.Generator) -> NDArray[np.int64]:
        first, last = self.start[current], self.start[current + 1]
        return first + (rng.random(len(current)) * (last - first)).astype(np.int64)
