import json

import numpy as np
import pytest
import torch

from sheafprop.errors import DivergenceError
from sheafprop.pretrained.mapped.vector_folder import check_vector_target, write_vector_folder


def write(folder, x, labels, reached, **options):
    pieces = (
        (x[i : i + 2], labels[i : i + 2], np.array(reached[i : i + 2]))
        for i in range(0, len(labels), 2)
    )
    about = {"settings": {"iterations": 3}}
    write_vector_folder(folder, pieces, shape=tuple(x.shape), dtype=x.dtype, about=about, **options)


@pytest.mark.parametrize("dtype", [torch.float32, torch.complex128])
def test_vectors_labels_and_origins(tmp_path, dtype):
    x = torch.randn(3, 2, 4, dtype=dtype)
    write(tmp_path / "v", x, ["a", "b\nü", "c"], [True, False, True])
    found = np.load(tmp_path / "v" / "vectors.npy", mmap_mode="r")
    assert torch.equal(torch.from_numpy(np.array(found)), x)
    lines = (tmp_path / "v" / "entities.jsonl").read_text().splitlines()
    assert [json.loads(line) for line in lines] == [
        {"label": "a", "origin": "extended"},
        {"label": "b\nü", "origin": "unanchored"},
        {"label": "c", "origin": "extended"},
    ]
    manifest = json.loads((tmp_path / "v" / "manifest.json").read_text())
    assert manifest["settings"] == {"iterations": 3}
    for name, of in manifest["files"].items():
        assert (tmp_path / "v" / name).stat().st_size == of["size"]


def test_what_is_not_finite_leaves_nothing(tmp_path):
    x = torch.ones(3, 1, 2)
    x[2, 0, 1] = torch.nan
    with pytest.raises(DivergenceError, match="'c'"):
        write(tmp_path / "v", x, ["a", "b", "c"], [True] * 3)
    assert not list(tmp_path.iterdir())


def test_a_place_that_is_taken(tmp_path):
    write(tmp_path / "v", torch.ones(1, 1, 2), ["a"], [True])
    with pytest.raises(ValueError, match="--overwrite"):
        check_vector_target(tmp_path / "v", False)
    write(tmp_path / "v", torch.zeros(1, 1, 2), ["b"], [True], overwrite=True)
    assert np.load(tmp_path / "v" / "vectors.npy").tolist() == [[[0, 0]]]
    (tmp_path / "v" / "mine.txt").write_text("")
    with pytest.raises(ValueError, match=r"mine\.txt"):
        check_vector_target(tmp_path / "v", True)
