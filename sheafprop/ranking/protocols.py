"""Names the evaluation protocols, so that no figure is printed without the rules behind it."""

from dataclasses import dataclass
from typing import Literal, get_args

Ties = Literal["optimistic", "realistic", "pessimistic"]
Side = Literal["head", "tail"]
Sides = Literal["head", "tail", "both"]

SIDES: tuple[Side, ...] = get_args(Side)

#: The values of k of Hits@k, and the metrics that are logged, chosen by, and shown in tables.
HITS_AT = (1, 3, 10)
MAIN_METRICS = (*(f"hits@{k}" for k in HITS_AT), "mrr")

TIE_RULES: dict[Ties, str] = {
    "optimistic": "optimistic (equal scores count as worse)",
    "realistic": "realistic (mean of the optimistic and the pessimistic rank)",
    "pessimistic": "pessimistic (equal scores count as better)",
}


@dataclass(frozen=True)
class Protocol:
    r"""The rules for ranking a triple. Results under different protocols are not comparable.

    Args:
        name (str): The name of the protocol.
        candidates (str): The candidates against which the true entity is ranked.
        ties (str): How equal scores count: :obj:`"optimistic"`, :obj:`"realistic"` or
            :obj:`"pessimistic"`.
        test_set (str): The triples that are ranked.
        description (str): One sentence for reports.
        num_negatives (int, optional): The number of negatives drawn with replacement, or
            :obj:`None` if every candidate counts. (default: :obj:`None`)
        suffix (str, optional): The suffix of the names of its metrics. (default: :obj:`""`)
    """

    name: str
    candidates: str
    ties: Ties
    test_set: str
    description: str
    num_negatives: int | None = None
    suffix: str = ""

    def key(self, metric: str, ties: Ties | None = None) -> str:
        r"""Returns the name under which :obj:`metric` is reported.

        The name contains the protocol, and the tie rule if it is not that of the protocol, so that
        results that are not comparable have different names.
        """
        other_rule = "" if ties is None or ties == self.ties else f"_{ties}"
        return f"{metric}{self.suffix}{other_rule}"


PROTOCOLS: dict[str, Protocol] = {
    protocol.name: protocol
    for protocol in (
        Protocol(
            name="full",
            candidates="all entities of the inference graph",
            ties="realistic",
            test_set="test",
            description="Filtered ranking against all entities, as PyKEEN reports it.",
        ),
        Protocol(
            name="sampled50",
            candidates="the true entity and 49 negatives drawn with replacement, exact expectation "
            "over the draw",
            ties="realistic",
            test_set="test",
            description="Filtered ranking against 49 random negatives, as GraIL and its followers "
            "report it. Where fewer than 49 candidates are left, some are drawn several times, so "
            "that a rank may exceed their number; where none is, the rank is 1.",
            num_negatives=49,
            suffix="_50",
        ),
        Protocol(
            name="merged",
            candidates="all entities of the inference graph",
            ties="pessimistic",
            test_set="valid+test",
            description="Filtered ranking of validation and test triples together, as the code of "
            "A*Net (also for NBFNet), ULTRA and TRIX rank the GraIL data sets.",
            suffix="_merged",
        ),
        Protocol(
            name="strict",
            candidates="all entities of the inference graph",
            ties="pessimistic",
            test_set="test",
            description="Filtered ranking of test triples, as ULTRA and TRIX report it on data "
            "sets other than GraIL's.",
            suffix="_strict",
        ),
    )
}


def get_protocol(protocol: str | Protocol) -> Protocol:
    r"""Returns the protocol of a name; a :class:`Protocol` is returned unchanged.

    Raises:
        ValueError: If no protocol has the name.
    """
    if isinstance(protocol, Protocol):
        return protocol
    if protocol not in PROTOCOLS:
        raise ValueError(f"Expected a protocol among {', '.join(PROTOCOLS)} (got {protocol!r})")
    return PROTOCOLS[protocol]


def check_ties(ties: str) -> None:
    r"""Raises :class:`ValueError` unless :obj:`ties` names a tie rule."""
    if ties not in TIE_RULES:
        raise ValueError(f"Expected ties among {', '.join(TIE_RULES)} (got {ties!r})")


def resolve_rules(
    protocol: str | Protocol, ties: Ties | None, k: tuple[int, ...] = (1,)
) -> tuple[Protocol, Ties]:
    r"""Returns the protocol of a name and the tie rule, its own where :obj:`ties` is :obj:`None`.

    Raises:
        ValueError: If there is none of that name, or :obj:`k` are not distinct positive integers.
    """
    protocol = get_protocol(protocol)
    ties = protocol.ties if ties is None else ties
    check_ties(ties)
    if not k or len(set(k)) != len(k) or any(int(value) != value or value < 1 for value in k):
        raise ValueError(f"Expected distinct positive integers for Hits@k (got k={k})")
    return protocol, ties
