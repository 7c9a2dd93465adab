import pytest
import torch

from sheafprop.pretrained.mapped.array_folder import ArrayFolder
from sheafprop.pretrained.mapped.row_files import load_rows, save_rows
from tests.kernels.test_build_fact_csr import FREE, KNOWN, RELATIONS, build

TRIPLES = [(0, 0, 1), (1, 2, 0), (1, 2, 0), (2, 1, 7), (8, 0, 2), (3, 1, 3), (4, 2, 4)]


@pytest.mark.parametrize("merge", [True, False])
@pytest.mark.parametrize("ends", [True, False])
@pytest.mark.parametrize("weighted", [True, False])
def test_rows_come_back_as_they_are_in_memory(tmp_path, merge, ends, weighted):
    weight = [0.5 + i for i in range(len(TRIPLES))] if weighted else None
    options = dict(merge=merge, ends=ends, distinct=True)
    folder = ArrayFolder(tmp_path / "rows").clear()
    save_rows(folder, build(TRIPLES, weight, allocate=folder.make, **options))
    found, expected = load_rows(folder, FREE, KNOWN, RELATIONS), build(TRIPLES, weight, **options)
    assert torch.equal(found.total, expected.total)
    assert (found.ends is None) == (not ends)
    for part in ("free", "known", "loops", *(["ends"] if ends else [])):
        for column in ("start", "src", "label", "weight"):
            ours, theirs = (getattr(getattr(of, part), column) for of in (found, expected))
            assert (ours is None) == (theirs is None), (part, column)
            assert ours is None or (torch.equal(ours, theirs) and ours.dtype == theirs.dtype)
