"""Ranks triples among 20,000 entities under matrices, and prints the memory that this took."""

import resource

import torch

from sheafprop.pretrained.importers.arrays import import_arrays
from sheafprop.pretrained.sheaf_model import SheafModel


def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


if __name__ == "__main__":
    entities, width, queries = 20_000, 64, 512
    g = torch.Generator().manual_seed(0)
    maps = [torch.randn(3, width, width, generator=g) for _ in range(2)]
    stored = import_arrays(
        "se",
        entities=[f"e{i}" for i in range(entities)],
        relations=["a", "b", "c"],
        vectors=torch.randn(entities, width, generator=g),
        parameters={"rel_map_head": maps[0], "rel_map_tail": maps[1]},
    )
    model = SheafModel(stored)
    triples = [(f"e{i}", "abc"[i % 3], f"e{7 * i + 1}") for i in range(queries)]
    model.rank(triples[:3])
    before = peak()
    model.rank(triples)
    print(peak() - before)
