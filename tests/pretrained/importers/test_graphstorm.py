"""Embeddings that GraphStorm saved, against its published formulas."""

import json
import math

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
import torch
import yaml

from sheafprop.cli.main import main
from sheafprop.errors import FormatError
from sheafprop.pretrained.importers import graphstorm, import_graphstorm

WIDTH, GAMMA = 6, 3.0
TYPES = {"user": [4, 0, 2, 1, 3], "item": [1, 0]}
EDGES = [(("user", 4), "buys", ("item", 1)), (("user", 2), "knows", ("user", 0))]
EDGES += [(("user", 1), "buys", ("item", 0)), (("user", 3), "knows", ("user", 3))]


def write(folder, decoder, *, remapped=False, types=TYPES, gamma=GAMMA):
    """A folder of save_embed_path in that of the model; also the rows by node, and relations."""
    random = np.random.default_rng(2)
    saved = folder / "model" / "emb"
    saved.mkdir(parents=True)
    options = {"lp_decoder_type": decoder, "num_epochs": 3}
    options |= {} if gamma is None else {"gamma": gamma}
    config = {"version": 1.0, "gsf": {"basic": {"backend": "gloo"}, "link_prediction": options}}
    (folder / "model" / graphstorm.CONFIG).write_text(yaml.safe_dump(config))
    info = {"format": "pytorch", "emb_name": list(types), "world_size": 2}
    (saved / "emb_info.json").write_text(json.dumps(info))
    keys = [("user", "knows", "user"), ("user", "buys", "item")]
    (saved / "relation2id_map.json").write_text(
        json.dumps({str(key): number for number, key in enumerate(keys)})
    )
    columns = WIDTH // 2 if decoder == "rotate" else WIDTH
    relations = random.standard_normal((2, columns)).astype(np.float32)
    torch.save(torch.nn.Parameter(torch.from_numpy(relations)), saved / "rel_emb.pt")
    rows = {}
    for name, ids in types.items():
        (saved / name).mkdir()
        for part, numbers in enumerate((ids[:3], ids[3:])):
            block = random.standard_normal((len(numbers), WIDTH)).astype(np.float32)
            rows |= {(name, n): row for n, row in zip(numbers, block, strict=True)}
            if remapped:
                labels = [f"raw{n}" for n in numbers]
                table = pyarrow.table({"emb": list(block), "nid": labels})
                place = saved / name / f"embed-0000{part}_00000.parquet"
                pyarrow.parquet.write_table(table, place)
                continue
            torch.save(torch.from_numpy(block), saved / name / f"embed-0000{part}.pt")
            torch.save(torch.tensor(numbers), saved / name / f"embed_nids-0000{part}.pt")
    return saved, rows, {"knows": relations[0], "buys": relations[1]}


def published(decoder, rows, relations):
    """GraphStorm's eval/utils.py, in NumPy."""
    scores = []
    for head, kind, tail in EDGES:
        h, r, t = rows[head], relations[kind], rows[tail]
        if decoder == "rotate":
            phase = r / ((GAMMA / (WIDTH // 2)) / math.pi)
            (a, b), (c, d) = np.split(h, 2), np.split(t, 2)
            re = a * np.cos(phase) - b * np.sin(phase) - c
            im = a * np.sin(phase) + b * np.cos(phase) - d
            scores.append(GAMMA - np.hypot(re, im).sum())
        else:
            scores.append(GAMMA - np.linalg.norm(h + r - t, ord=1 if decoder[-1] == "1" else 2))
    return np.array(scores)


@pytest.mark.parametrize("remapped", [False, True])
@pytest.mark.parametrize("decoder", ["transe_l1", "transe_l2", "rotate"])
def test_scores_are_those_of_the_published_formulas(tmp_path, decoder, remapped):
    folder, rows, relations = write(tmp_path, decoder, remapped=remapped)
    stored = import_graphstorm(folder)
    raw = "raw" if remapped else ""
    labels = [f"{name}:{raw}{number}" for name, ids in TYPES.items() for number in ids]
    assert list(stored.entities.labels) == labels
    entities, kinds = stored.entities.index, stored.relations.index
    edges = [
        [entities[f"{h[0]}:{raw}{h[1]}"], kinds[r], entities[f"{t[0]}:{raw}{t[1]}"]]
        for h, r, t in EDGES
    ]
    with torch.no_grad():
        scores = GAMMA + stored.model(*torch.tensor(edges).T).double().numpy()
    np.testing.assert_allclose(scores, published(decoder, rows, relations), rtol=3e-6, atol=3e-6)


def test_one_type_of_nodes_keeps_its_labels_and_the_command_imports(tmp_path):
    folder, _, _ = write(tmp_path, "transe_l2", remapped=True, types={"user": TYPES["user"]})
    (tmp_path / "facts.tsv").write_text("raw1\tknows\traw0\nraw4\tknows\traw3\n")
    words = ["import", "graphstorm", str(folder), "--out", str(tmp_path / "out")]
    assert main([*words, "--facts", str(tmp_path / "facts.tsv")]) == 0
    lines = (tmp_path / "out" / "entities.jsonl").read_text().splitlines()
    assert sorted(json.loads(line)["label"] for line in lines) == ["raw0", "raw1", "raw3", "raw4"]


@pytest.mark.parametrize(
    ("decoder", "change", "message"),
    [
        ("distmult", lambda f: None, r"lp_decoder_type\) is 'distmult', and only transe_l1"),
        (
            "transe_l2",
            lambda f: (f.parent / graphstorm.CONFIG).unlink(),
            r"does not say which decoder .*--config FILE\.yaml",
        ),
        (
            "transe_l2",
            lambda f: (f / "rel_emb.pt").write_bytes(b"PK"),
            r"rel_emb\.pt' is not a complete tensor",
        ),
        (
            "transe_l2",
            lambda f: (f / "item" / "embed_nids-00000.pt").unlink(),
            r"embed_nids-00000\.pt' is missing",
        ),
        (
            "transe_l2",
            lambda f: torch.save(torch.zeros(3, 2), f / "user" / "embed-00000.pt"),
            r"embed-00000\.pt' should be .*\[3, 6\] \(got \[3, 2\]\)",
        ),
        (
            "transe_l2",
            lambda f: (f / "relation2id_map.json").write_text('{"knows": 0}'),
            r"relation2id_map\.json': 'knows' is not a type of edges",
        ),
        (
            "transe_l2",
            lambda f: [p.unlink() for p in (f / "item").iterdir()],
            r"item' holds neither 'embed-\*\.pt' nor",
        ),
    ],
)
def test_what_does_not_fit_is_named_with_its_file(tmp_path, decoder, change, message):
    folder, _, _ = write(tmp_path, decoder)
    change(folder)
    with pytest.raises(FormatError, match=message):
        import_graphstorm(folder)


def test_a_rotate_without_its_gamma_is_refused(tmp_path):
    folder, _, _ = write(tmp_path, "rotate", gamma=None)
    with pytest.raises(FormatError, match="no 'gamma', which the phases of RotatE"):
        import_graphstorm(folder)
