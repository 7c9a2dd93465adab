import pytest

from sheafprop.data import FolderDataset, GraILDataset, PykeenDataset, build_dataset


def test_options_say_which_data_is_meant(tmp_path, monkeypatch):
    folder = build_dataset("folder", root=str(tmp_path), mode="semi-inductive", columns="2,1,0")
    assert isinstance(folder, FolderDataset)
    assert (folder.root, folder.reading.columns) == (tmp_path, (2, 1, 0))
    grail = build_dataset(name="nell_v2", root=str(tmp_path))
    assert isinstance(grail, GraILDataset)
    assert (grail.root, grail.name, grail.mode) == (tmp_path, "nell_v2", "fully-inductive")
    monkeypatch.setenv("SHEAFPROP_DATA", str(tmp_path / "elsewhere"))
    assert build_dataset(name="nell_v2").root == tmp_path / "elsewhere"
    small = build_dataset("pykeen", name="nations", seed=4)
    assert isinstance(small, PykeenDataset)
    assert (small.name, small.seed) == ("nations", 4)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"dataset": "other", "name": "x"}, "must be 'grail', 'pykeen' or 'folder' .got 'other'"),
        ({"dataset": "folder", "root": "x"}, "data.dataset=folder needs data.root"),
        ({"dataset": "folder", "mode": "semi-inductive"}, "data.dataset=folder needs data.root"),
        ({"dataset": "grail"}, "data.dataset=grail needs data.name"),
        ({"dataset": "pykeen"}, "data.dataset=pykeen needs data.name"),
        (
            {"dataset": "pykeen", "name": "umls", "mode": "fully-inductive"},
            "data.dataset=pykeen is split semi-inductively",
        ),
        ({"name": "nell_v1", "header": "no"}, "data.header applies only to data.dataset=folder"),
        ({"name": "nell_v1", "input_format": "csv"}, "data.input_format applies only to"),
        ({"name": "nell_v9"}, "'name' must be one of"),
    ],
)
def test_options_that_make_no_sense(options, message):
    with pytest.raises(ValueError, match=message):
        build_dataset(**options)
