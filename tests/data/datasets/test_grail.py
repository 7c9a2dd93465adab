import gzip
import hashlib
import io
import json
import os
import re
import tarfile
from pathlib import Path
from urllib.error import URLError

import pytest

from sheafprop.data import GraILDataset
from sheafprop.data.datasets import grail as module
from sheafprop.errors import DataError

# Entities, relations and triples of training and inference graph, as counted in the released files.
COUNTS = {
    "fb237_v1": (180, 1594, 4245, 489, 142, 1093, 1993, 206, 205, 0),
    "fb237_v2": (200, 2608, 9739, 1166, 172, 1660, 4145, 469, 478, 0),
    "fb237_v3": (215, 3668, 17986, 2194, 183, 2501, 7406, 866, 865, 0),
    "fb237_v4": (219, 4707, 27203, 3352, 200, 3051, 11714, 1416, 1424, 0),
    "WN18RR_v1": (9, 2746, 5410, 630, 8, 922, 1618, 185, 188, 0),
    "WN18RR_v2": (10, 6954, 15262, 1838, 10, 2757, 4011, 411, 441, 0),
    "WN18RR_v3": (11, 12078, 25901, 3097, 11, 5084, 6327, 538, 605, 8),
    "WN18RR_v4": (9, 3861, 7940, 934, 9, 7084, 12334, 1394, 1429, 0),
    "nell_v1": (14, 3103, 4687, 414, 14, 225, 833, 101, 100, 0),
    "nell_v2": (88, 2564, 8219, 922, 79, 2086, 4586, 459, 476, 0),
    "nell_v3": (142, 4647, 16393, 1851, 122, 3566, 8048, 811, 809, 3),
    "nell_v4": (76, 2092, 7546, 876, 61, 2795, 7073, 716, 731, 1),
}
MEMBERS = [
    "fb237_v1/train.txt",
    "fb237_v1/valid.txt",
    "fb237_v1_ind/train.txt",
    "fb237_v1_ind/valid.txt",
    "fb237_v1_ind/test.txt",
]
real = pytest.mark.skipif(
    not (Path(os.environ.get("SHEAFPROP_DATA", "")) / "grail" / "fb237.tar.gz").is_file(),
    reason="SHEAFPROP_DATA names no folder with grail/",
)


@real
@pytest.mark.parametrize("name", COUNTS)
def test_counts_of_the_released_files(name):
    data = GraILDataset(name=name).load()
    report = data.report
    keys = ["train_relations", "train_entities", "train_triples", "train_valid_triples"]
    keys += ["inference_relations", "inference_entities", "inference_triples"]
    keys += ["valid_triples", "test_triples", "shared_labels"]
    assert tuple(report[key] for key in keys) == COUNTS[name]
    assert report["free_entities"] == data.inference.num_nodes
    assert report["overlaps"] == {}
    assert report["train_duplicates"] == report["inference_duplicates"] == 0
    assert all(report[f"unseen_entities_{key}"]["triples"] == 0 for key in ("valid", "test"))
    assert report["components_without_boundary"] == report["components"]
    assert 1 <= report["components"] <= 182


@real
def test_shared_labels_are_the_boundary_on_request():
    data = GraILDataset(name="WN18RR_v3", mode="semi-inductive").load()
    assert data.report["anchored_by_label"] == 8
    assert data.report["boundary_entities"] == 12078
    assert data.report["free_entities"] == 5084 - 8


def test_the_table_names_all_files():
    table = json.loads(Path(module.__file__).with_name("grail_files.json").read_text())
    assert set(table) == {
        f"{name}{suffix}/{part}.txt"
        for name in COUNTS
        for suffix in ("", "_ind")
        for part in ("train", "valid", "test")
    }
    assert all(size > 0 and re.fullmatch("[0-9a-f]{64}", digest) for size, digest in table.values())
    assert set(COUNTS) == set(module.NAMES)


@pytest.fixture
def contents(monkeypatch):
    """A small stand-in for the files of fb237_v1, which the table is made to expect."""
    triples = {
        "fb237_v1/train.txt": "a\tr\tb\nb\ts\tc\n",
        "fb237_v1/valid.txt": "a\ts\tb\n",
        "fb237_v1_ind/train.txt": "x\tr\ty\ny\ts\tz\n",
        "fb237_v1_ind/valid.txt": "x\ts\ty\n",
        "fb237_v1_ind/test.txt": "x\ts\tz\nz\tr\ty\n",
    }
    files = {member: text.encode() for member, text in triples.items()}
    table = {
        member: [len(content), hashlib.sha256(content).hexdigest()]
        for member, content in files.items()
    }
    monkeypatch.setattr(module.json, "loads", lambda text: table)
    monkeypatch.delenv("SHEAFPROP_DATA", raising=False)
    return files


def write_folder(root, contents):
    for member, content in contents.items():
        (root / member).parent.mkdir(parents=True, exist_ok=True)
        (root / member).write_bytes(content)


def write_archive(path, contents):
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w:gz") as archive:
        for member, content in contents.items():
            info = tarfile.TarInfo(member)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))


def tree(root):
    return sorted(str(path.relative_to(root)) for path in root.rglob("*"))


def check(data):
    assert (data.train.num_edges, data.inference.num_edges) == (2, 2)
    assert (len(data.train_valid), len(data.valid), len(data.test)) == (1, 1, 2)
    assert data.inference.entities.labels == ("x", "y", "z")


@pytest.mark.parametrize("place", ["", "grail"])
@pytest.mark.parametrize("kind", ["folder", "archive"])
@pytest.mark.parametrize("given", ["root", "environment"])
def test_places(contents, tmp_path, monkeypatch, kind, place, given):
    if kind == "folder":
        write_folder(tmp_path / place, contents)
    else:
        write_archive(tmp_path / place / "fb237.tar.gz", contents)
    before = tree(tmp_path)
    if given == "root":
        monkeypatch.setenv("SHEAFPROP_DATA", "/nowhere")
        check(GraILDataset(tmp_path).load())
    else:
        monkeypatch.setenv("SHEAFPROP_DATA", str(tmp_path))
        check(GraILDataset().load())
    assert tree(tmp_path) == before  # nothing is written beside the data


def test_relative_root_is_resolved_when_given(contents, tmp_path, monkeypatch):
    write_folder(tmp_path / "mine", contents)
    monkeypatch.chdir(tmp_path)
    dataset = GraILDataset("mine")
    monkeypatch.chdir("/")
    check(dataset.load())


def test_missing_root_is_no_reason_to_download(contents, tmp_path, monkeypatch):
    monkeypatch.setattr(module, "download_url", lambda *args, **kwargs: pytest.fail("download"))
    with pytest.raises(
        DataError, match=r"nor fb237\.tar\.gz found in .*grail\. Without --data\.root"
    ):
        GraILDataset(tmp_path).load()


FAULTS = {
    "truncated": (lambda content: content[:-3], "is truncated: expected {size} bytes .got {less}"),
    "longer": (lambda content: content + b"q", "is altered: expected {size} bytes .got {more}"),
    "altered": (lambda content: content[:-2] + b"Q\n", "is altered: {size} bytes as expected, but"),
}


@pytest.mark.parametrize("kind", ["folder", "archive"])
@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("member", MEMBERS)
def test_files_that_are_not_the_released_ones(contents, tmp_path, kind, fault, member):
    change, message = FAULTS[fault]
    size = len(contents[member])
    message = message.format(size=size, less=size - 3, more=size + 1)
    contents[member] = change(contents[member])
    if kind == "folder":
        write_folder(tmp_path, contents)
    else:
        write_archive(tmp_path / "fb237.tar.gz", contents)
    with pytest.raises(DataError, match=f"{member} {message}"):
        GraILDataset(tmp_path).load()


def test_missing_member(contents, tmp_path):
    del contents["fb237_v1_ind/test.txt"]
    write_folder(tmp_path / "folder", contents)
    with pytest.raises(DataError, match=r"fb237_v1_ind/test\.txt: cannot be read"):
        GraILDataset(tmp_path / "folder").load()
    # A member of another name is never taken instead.
    contents["../fb237_v1_ind/test.txt"] = contents["./fb237_v1_ind/test.txt"] = b"x\ts\tz\n"
    write_archive(tmp_path / "fb237.tar.gz", contents)
    with pytest.raises(DataError, match=r"incomplete.*fb237_v1_ind/test\.txt"):
        GraILDataset(tmp_path).load()


def test_member_that_is_no_file(contents, tmp_path):
    path = tmp_path / "fb237.tar.gz"
    del contents["fb237_v1/train.txt"]
    write_archive(path, contents)
    with tarfile.open(path, "w:gz") as archive:
        info = tarfile.TarInfo("fb237_v1/train.txt")
        info.type = tarfile.DIRTYPE
        archive.addfile(info)
    with pytest.raises(DataError, match=r"train\.txt is not a regular file"):
        GraILDataset(tmp_path).load()


@pytest.mark.parametrize("fault", ["cut", "no gzip", "no tar", "empty"])
def test_damaged_archive(contents, tmp_path, fault):
    path = tmp_path / "fb237.tar.gz"
    write_archive(path, contents)
    damaged = {
        "cut": path.read_bytes()[:150],
        "no gzip": b"<html>not found</html>",
        "no tar": gzip.compress(b"something else" * 100),
        "empty": b"",
    }
    path.write_bytes(damaged[fault])
    with pytest.raises(DataError, match=r"fb237\.tar\.gz: the archive is damaged"):
        GraILDataset(tmp_path).load()


@pytest.fixture
def internet(contents, tmp_path, monkeypatch):
    """Stands in for the download function; 'served' may be changed by a test."""
    monkeypatch.setenv("HOME", str(tmp_path))
    served, asked = dict(contents), []

    def download(url, folder, filename):
        asked.append(url)
        member = url.removeprefix(f"{module.URL}/")
        if member not in served:
            raise URLError("no route to host")
        (Path(folder) / filename).write_bytes(served[member])
        return os.path.join(folder, filename)

    monkeypatch.setattr(module, "download_url", download)
    return served, asked


def test_download_and_cache(internet, contents, tmp_path):
    _, asked = internet
    check(GraILDataset().load())
    assert asked == [f"{module.URL}/{member}" for member in MEMBERS]
    assert "2a3dffa719518e7e6250e355a2fb37cd932de91e" in module.URL
    cache = tmp_path / ".cache" / "sheafprop" / "grail"
    assert tree(cache) == sorted(["fb237_v1", "fb237_v1_ind", *MEMBERS])
    check(GraILDataset().load())
    assert len(asked) == len(MEMBERS)  # the second time from the cache


def test_truncated_download_is_refused_and_not_kept(internet, contents, tmp_path):
    served, _ = internet
    member = "fb237_v1_ind/train.txt"
    served[member] = served[member][:5]
    with pytest.raises(DataError, match=rf"{member} is truncated: expected 12 bytes \(got 5\)"):
        GraILDataset().load()
    assert not (tmp_path / ".cache/sheafprop/grail" / member).exists()
    served[member] = contents[member]
    check(GraILDataset().load())


def test_no_network(internet, tmp_path, monkeypatch):
    served, _ = internet
    served.clear()
    monkeypatch.setenv("SHEAFPROP_DATA", str(tmp_path / "elsewhere"))
    with pytest.raises(DataError) as caught:
        GraILDataset().load()
    message = str(caught.value)
    assert "no route to host" in message
    assert "elsewhere" in message
    assert "SHEAFPROP_DATA" in message


def test_unknown_name():
    with pytest.raises(ValueError, match=r"fb237_v1, .* \(got 'FB237_v1'\)"):
        GraILDataset(name="FB237_v1")
