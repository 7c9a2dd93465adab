import pytest
import torch

from sheafprop.pretrained.blocks import Numbering, RowBlocks

SIZES = [[3], [5, 1, 1, 4, 0, 2, 9], [2, 8, 1]]


@pytest.mark.parametrize("sizes", SIZES)
def test_rows_in_blocks_are_those_of_one_tensor(sizes):
    x = torch.randn(sum(sizes), 1, 2, generator=torch.Generator().manual_seed(0))
    first, *more = x.split(sizes)
    blocks = RowBlocks([first])
    for rows in more:
        blocks = blocks.append(rows)
    assert len(blocks) == len(x)
    assert blocks.blocks[0].data_ptr() == first.data_ptr()
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(1))
    assert torch.equal(blocks.select(order), x[order])
    assert blocks.select(order[:0]).shape == (0, 1, 2)
    for start in range(len(x)):
        assert torch.equal(blocks.from_row(start), x[start:])


def test_rows_of_one_section_are_stretched_where_others_have_several():
    one, two = torch.zeros(3, 1, 2), torch.ones(4, 2, 2)
    blocks = RowBlocks([one]).append(one[:1]).append(two)
    assert [block.shape[1] for block in blocks.blocks] == [1, 2]
    assert torch.equal(blocks.from_row(3), torch.cat([one[:1].expand(-1, 2, -1), two]))


@pytest.mark.parametrize("removed", [[], [0], [9], [3, 4, 5], [0, 2, 9], list(range(9))])
def test_what_is_left_is_numbered_without_gaps(removed):
    numbering = Numbering(torch.tensor(removed, dtype=torch.int64))
    left = [i for i in range(10) if i not in removed]
    assert numbering.old(torch.arange(len(left))).tolist() == left
    new = numbering.new(torch.arange(-1, 12)).tolist()
    assert [new[i + 1] for i in left] == list(range(len(left)))
    assert [new[i + 1] for i in removed] == [-1] * len(removed)
    # What comes later is numbered on.
    assert new[11:] == [10 - len(removed), 11 - len(removed)]
    assert numbering.within(3, 9).tolist() == [i - 3 for i in removed if 3 <= i < 9]
    more = numbering.remove(torch.tensor([4, 4, 7]))
    assert more.removed.tolist() == sorted({*removed, 4, 7})


@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize("step", [1, 4, 100])
def test_removed_rows_are_passed_over(sizes, step):
    x = torch.arange(sum(sizes) * 2.0).view(-1, 1, 2)
    first, *more = x.split(sizes)
    blocks, left = RowBlocks([first]), list(range(len(x)))
    for rows in more:
        blocks = blocks.append(rows)
    for gone in ({0, len(x) - 1}, {0}):
        blocks = blocks.without(torch.tensor(sorted(gone)))
        left = [row for i, row in enumerate(left) if i not in gone]
        assert len(blocks) == len(left)
        assert torch.equal(blocks.from_row(0), x[left])
        for start in range(len(left)):
            parts = list(blocks.slices(step, start))
            assert torch.equal(torch.cat(parts), x[left[start:]])
            assert max(map(len, parts)) <= step
        order = torch.arange(len(left)).flip(0)
        assert torch.equal(blocks.select(order), x[left].flip(0))
    grown = blocks.append(-x[:2])
    assert torch.equal(grown.from_row(len(left)), -x[:2])
    changed = grown.with_rows(torch.tensor([len(left)]), torch.ones(1, 3, 2))
    assert torch.equal(changed.select(torch.tensor([len(left)])), torch.ones(1, 3, 2))
    assert torch.equal(grown.select(torch.tensor([len(left)])), -x[:1])


def test_blocks_of_training_are_never_merged():
    x = torch.randn(9, 1, 2, generator=torch.Generator().manual_seed(0))
    blocks = RowBlocks([x[:2], x[2:4]], fixed=2, files=["a", "b"])
    grown = blocks.append(x[4:8]).append(x[8:])
    assert [len(block) for block in grown.blocks] == [2, 2, 4, 1]
    assert grown.files == ["a", "b", None, None]
    assert grown.append(x[:1]).files == ["a", "b", None, None]
    assert torch.equal(grown.trained().from_row(0), x[:4])
    assert torch.equal(grown.added().from_row(0), x[4:])
    left = grown.without(torch.tensor([1, 5]))
    assert torch.equal(left.trained().from_row(0), x[[0, 2, 3]])
    assert torch.equal(left.added().from_row(0), x[[4, 6, 7, 8]])
