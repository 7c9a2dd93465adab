import pytest
import torch

from sheafprop.pretrained.blocks import RowBlocks

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
