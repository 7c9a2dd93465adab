import numpy as np
import pytest

from sheafprop.data.answer_sets import AnswerSets


def test_sets_are_kept_in_rows():
    sets = AnswerSets.from_sets([{3, 1}, (), [2]])
    assert [row.tolist() for row in sets] == [[1, 3], [], [2]]
    assert sets.sizes.tolist() == [2, 0, 1]
    assert sets.rows.tolist() == [0, 0, 2]
    assert sets[-1].tolist() == [2]
    some = sets.select(np.array([2, 0, 0]))
    assert [row.tolist() for row in some] == [[2], [1, 3], [1, 3]]
    assert repr(sets) == "AnswerSets(3 sets, 3 entities)"
    with pytest.raises(IndexError, match="there are 3 sets"):
        sets[3]


def test_no_sets():
    none = AnswerSets.from_sets([])
    assert len(none) == 0
    assert len(none.select(np.array([], dtype=np.int64))) == 0
