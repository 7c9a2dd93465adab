from dataclasses import dataclass


@dataclass(frozen=True)
class QueryAnswer:
    r"""One answer to a query.

    Args:
        label: The entity.
        entity: Its id.
        score: What answers are ranked by, minus the sum over sections of
            :math:`a_i \sqrt{E_i}`.
        energy: The energy :math:`\sum_i a_i E_i` of the query graph with this answer in its place.
        edges: On request the part of every edge in the energy, as pairs of the relation (as the
            text of a query writes it) and its energy, in the order of the query. Edges of the
            branches of an ``or`` that did not give this answer are not among them.
    """

    label: str
    entity: int
    score: float
    energy: float
    edges: tuple[tuple[str, float], ...] | None = None
