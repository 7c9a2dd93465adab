from collections.abc import Iterable, Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks.query_data import QueryData
from sheafprop.data.triples import as_label_triples
from sheafprop.data.vocabulary import Vocabulary
from sheafprop.errors import DataError

# The share of the triples of new entities that is observed.
_OBSERVED = 0.85


def inductive_query_split(
    triples: Iterable[Sequence[str]],
    *,
    train_fraction: float,
    seed: int,
    name: str = "queries",
) -> QueryData:
    r"""Splits one graph as the inductive query benchmark does: some entities are known from
    training, others are new in validation or in the test.

    Of the entities with two triples at least, a share of :obj:`1 - train_fraction` becomes new,
    half of it for the test. Training triples touch no new entity; validation triples touch one that
    is new in validation and none that is new in the test, and test triples the other way round;
    what joins both kinds is dropped. So are old entities and relations without a training triple,
    with their triples. A share of 0.85 of the validation (test) triples is observed, the others are
    to be predicted, except for those with an entity that no observed triple shows: they are
    observed, too. Repeated triples are taken once.

    Queries can be added by :func:`~benchmarks.query_sampling.sample_queries`.

    Args:
        triples: Label triples ``(head, relation, tail)``.
        train_fraction: The share :math:`p` of training entities, between 0 and 1.
        seed: The seed. Equal triples, fractions and seeds give equal splits.
        name: The name of the data set.

    Raises:
        DataError: If a part would be left without a triple.
    """
    if not 0 < train_fraction < 1:
        raise ValueError(f"'train_fraction' must lie between 0 and 1 (got {train_fraction})")
    labels = as_label_triples(triples)
    entities = Vocabulary(kind="entities").extend(labels[:, [0, 2]].ravel())
    relations = Vocabulary(kind="relations").extend(labels[:, 1])
    ids = np.stack(
        [
            vocabulary.lookup(labels[:, column]).numpy()
            for column, vocabulary in enumerate((entities, relations, entities))
        ],
        axis=1,
    )
    ids = ids[np.sort(np.unique(ids, axis=0, return_index=True)[1])]
    rng = np.random.default_rng(seed)
    ends = ids[:, [0, 2]]
    degree = np.bincount(ends.ravel(), minlength=len(entities))
    pool = np.flatnonzero(degree > 1)
    new = rng.choice(pool, int(len(pool) * (1 - train_fraction)), replace=False)
    for_test = rng.choice(new, len(new) // 2, replace=False)
    kind = np.zeros(len(entities), dtype=np.int64)
    kind[new], kind[for_test] = 1, 2
    touches = [(kind[ends] == number).any(1) for number in (1, 2)]
    parts = [
        ids[~touches[0] & ~touches[1]],
        ids[touches[0] & ~touches[1]],
        ids[touches[1] & ~touches[0]],
    ]
    known = kind > 0
    known[parts[0][:, [0, 2]].ravel()] = True
    used = np.unique(parts[0][:, 1])
    parts = [part[known[part[:, [0, 2]]].all(1) & np.isin(part[:, 1], used)] for part in parts]
    for where, part in zip(("training", "validation", "test"), parts, strict=True):
        if len(part) == 0:
            raise DataError(
                f"{name}: no {where} triple is left of {len(ids)} with "
                f"train_fraction={train_fraction}; the graph is too small for this split"
            )
    graphs = {"train_graph": parts[0]}
    for prefix, part in (("val", parts[1]), ("test", parts[2])):
        graphs |= _observe(prefix, part[rng.permutation(len(part))], parts[0], len(entities))

    # Training entities first, then those of validation, then those of the test; the order of the
    # source within.
    group = np.full(len(entities), 3)
    for number, part in enumerate(parts):
        touched = np.unique(part[:, [0, 2]])
        group[touched] = np.minimum(group[touched], number)
    order = np.argsort(group, kind="stable")
    counts = np.bincount(group, minlength=4)[:3]
    entity = np.empty(len(entities), dtype=np.int64)
    entity[order] = np.arange(len(entities))
    relation = np.searchsorted(used, np.arange(len(relations)))
    return QueryData(
        name,
        Vocabulary((entities.labels[i] for i in order[: counts.sum()]), kind="entities"),
        Vocabulary((relations.labels[i] for i in used), kind="relations"),
        (int(counts[0]), int(counts[1]), int(counts[2])),
        {
            key: torch.from_numpy(
                np.stack([entity[part[:, 0]], relation[part[:, 1]], entity[part[:, 2]]], axis=1)
            )
            for key, part in graphs.items()
        },
        {},
    )


def _observe(
    prefix: str, triples: NDArray[np.int64], train: NDArray[np.int64], num_entities: int
) -> dict[str, NDArray[np.int64]]:
    """Shuffled triples as those that are observed and those to predict."""
    count = int(_OBSERVED * len(triples))
    inference, predict = triples[:count], triples[count:]
    seen = np.zeros(num_entities, dtype=bool)
    seen[train[:, [0, 2]].ravel()] = seen[inference[:, [0, 2]].ravel()] = True
    fine = seen[predict[:, [0, 2]]].all(1)
    return {
        f"{prefix}_inference": np.concatenate([inference, predict[~fine]]),
        f"{prefix}_predict": predict[fine],
    }
