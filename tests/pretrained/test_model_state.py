import dataclasses

import torch

from sheafprop.pretrained.sheaf_model import SheafModel
from tests.pretrained.models import close, sheaf_model, stored_model


def test_old_vectors_are_shared_not_copied():
    model = sheaf_model("rotate", dtype=torch.float32)
    grown = model
    for i in range(40):
        grown = grown.extend([(f"n{i}", "next", f"a{i % 12}")])
    table = model.kge.node_emb.weight
    assert grown._state.rows.blocks[0].data_ptr() == table.data_ptr()
    assert len(grown._state.rows.blocks) < 8
    assert grown.labels()[12:] == tuple(f"n{i}" for i in range(40))
    assert torch.equal(grown.vectors(model.labels()), model.vectors())
    expected = model.extend([(f"n{i}", "next", f"a{i % 12}") for i in range(40)])
    close(grown.vectors(), expected.vectors(), 1e-7)
    assert grown.num_facts == model.num_facts + 40


def test_repeated_facts_of_an_older_folder_count_once():
    stored = stored_model("transe")
    often = SheafModel(dataclasses.replace(stored, facts=stored.facts.repeat_interleave(3, dim=0)))
    assert often.num_facts == len(stored.facts)
    frame = often.explain("a3")
    assert len(frame) == len(SheafModel(stored).explain("a3"))
