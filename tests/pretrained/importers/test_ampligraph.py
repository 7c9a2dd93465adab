"""Pickles of AmpliGraph 1, against its published formula (it does not install here)."""

import os
import pickle

import numpy as np
import pytest
import torch

from sheafprop.cli.main import main
from sheafprop.errors import FormatError
from sheafprop.pretrained.importers import import_ampligraph
from sheafprop.pretrained.sheaf_model import SheafModel
from tests.pretrained.importers.toy import ENTITIES, FACTS, RELATIONS, ends, scores, tables


def content(**changes):
    """What ``save_model`` pickles."""
    vectors, rows = tables(4, 4)
    return {
        "class_name": "TransE",
        "hyperparams": {"k": 4, "embedding_model_params": {"norm": 2}, "seed": 0},
        "is_fitted": True,
        # Numbers and texts of NumPy, as its labels often are.
        "ent_to_idx": {np.str_(ENTITIES[i]): np.int64(i) for i in (3, 1, 0, 2, 4)},
        "rel_to_idx": dict(zip(RELATIONS, range(2), strict=True)),
        "model_params": [vectors.numpy(), rows.numpy()],
        "large_graph": False,
        **changes,
    }


@pytest.mark.parametrize("protocol", [2, 4, 5])
@pytest.mark.parametrize("norm", [1, 2, None])
def test_transe_has_its_published_scores(tmp_path, protocol, norm):
    path = tmp_path / "model.pkl"
    inner = {} if norm is None else {"norm": norm}
    path.write_bytes(pickle.dumps(content(hyperparams={"embedding_model_params": inner}), protocol))
    stored = import_ampligraph(path, facts=FACTS)
    head, relation, tail = ends(*tables(4, 4))
    expected = -torch.norm(head + relation - tail, norm or 1, -1)
    torch.testing.assert_close(scores(stored), expected)
    assert SheafModel(stored).labels() == tuple(ENTITIES)


def test_the_command_takes_a_pickle(tmp_path):
    (tmp_path / "m.pkl").write_bytes(pickle.dumps(content()))
    words = ["import", "ampligraph", str(tmp_path / "m.pkl"), "--out", str(tmp_path / "model")]
    assert main(words) == 0
    assert SheafModel.load(tmp_path / "model").labels() == tuple(ENTITIES)


class Evil:
    def __reduce__(self):
        return os.mkdir, ("ran",)


def test_no_code_is_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "m.pkl"
    path.write_bytes(pickle.dumps(content(seed=Evil())))
    import_ampligraph(path)
    path.write_bytes(pickle.dumps(content(model_params=Evil())))
    with pytest.raises(FormatError, match="no arrays of numbers"):
        import_ampligraph(path)
    objects = [np.array([[Evil()]], dtype=object)] * 2
    path.write_bytes(pickle.dumps(content(model_params=objects)))
    with pytest.raises(FormatError, match="no arrays of numbers"):
        import_ampligraph(path)
    assert not (tmp_path / "ran").exists()


def test_what_cannot_be_imported_is_named(tmp_path):
    path = tmp_path / "m.pkl"
    for changes, words in (
        ({"class_name": "ComplEx"}, "holds a ComplEx: only TransE"),
        ({"ent_to_idx": {"a": 0, "b": 0}}, "does not number its labels"),
        ({"ent_to_idx": {"a": 0}}, r"vectors of the entities, \[1, any\] \(got \[5, 4\]\)"),
        ({"model_params": []}, "was the model fitted"),
    ):
        path.write_bytes(pickle.dumps(content(**changes)))
        with pytest.raises(FormatError, match=words):
            import_ampligraph(path)
    whole = pickle.dumps(content())
    for data, words in (
        (whole[: len(whole) // 2], "not a complete pickle of AmpliGraph 1"),
        (pickle.dumps([1]), "is not a model of AmpliGraph 1"),
        (b"", "not a complete pickle"),
    ):
        path.write_bytes(data)
        with pytest.raises(FormatError, match=words):
            import_ampligraph(path)
    with pytest.raises(FormatError, match="give the file that save_model wrote"):
        import_ampligraph(tmp_path / "none")
    for place in (tmp_path, tmp_path / "x.h5"):
        with pytest.raises(FormatError, match=r"AmpliGraph 2 saves.*get_embeddings.*import arrays"):
            import_ampligraph(place)
