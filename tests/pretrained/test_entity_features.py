import pandas as pd
import pytest
import torch

from sheafprop.data import FeatureTable
from sheafprop.inductive import FeatureMap
from sheafprop.pretrained.entity_features import EntityFeatures

FRAME = pd.DataFrame(
    {"size": [1.0, 2, 4, 3, None]}, index=["a", "b", "c", "d", "e"]
)  # fmt: skip


@pytest.mark.parametrize("dtype", [torch.float32, torch.complex128])
def test_anchors_are_added_replaced_and_dropped_by_label(dtype):
    torch.manual_seed(0)
    table, x = FeatureTable.of(FRAME), torch.randn(3, 2, dtype=dtype)
    found = FeatureMap.fit(table, x, ["a", "b", "c"], edge_residual=1.0)
    empty = EntityFeatures.of_map(found, x)
    more = empty.add(table, ["x", "d", "e", "c"])
    assert more.labels == ("d", "c")
    assert more.target.dtype == dtype
    anchors = more.anchors(["c", "y", "d"])
    assert anchors.nodes.tolist() == [0, 2]
    assert torch.equal(anchors.target, more.target.flip(0))
    other = FeatureTable.of(FRAME.loc[["a"]].rename({"a": "d"}))
    again = more.add(other, ["d"])
    assert again.labels == ("c", "d")
    assert not torch.equal(again.anchors(["d"]).target, more.anchors(["d"]).target)
    assert again.without(["c", "z"]).labels == ("d",)
    assert more.without(["z"]) is more
    assert len(empty.anchors(["a"]).nodes) == 0
    back = EntityFeatures.from_stored(more.to_dict(), more.tensors(), dtype.is_complex)
    assert torch.equal(back.target, more.target)
    assert torch.equal(back.map.predict(table)[0], found.predict(table)[0])
    with pytest.raises(ValueError, match=r"do not fit their labels"):
        EntityFeatures.from_stored(
            more.to_dict() | {"labels": ["d"]}, more.tensors(), dtype.is_complex
        )
