import errno
import zlib

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from sheafprop.errors import FormatError
from sheafprop.files import StorageError
from sheafprop.pretrained.mapped import array_folder, column_table
from sheafprop.pretrained.mapped.column_table import ColumnTable, split_columns


@given(st.integers(1, 5), st.integers(1, 9), st.integers(1, 60), st.sampled_from([1, 4]))
def test_blocks_cover_every_column_once(sections, width, most, unit):
    width, most = width * unit, max(most, unit)
    blocks = split_columns(sections, width, most, unit)
    assert all(block.columns.start % unit == 0 for block in blocks)
    seen = [
        (s, c)
        for block in blocks
        for s in range(block.sections.start, block.sections.stop)
        for c in range(block.columns.start, block.columns.stop)
    ]
    assert sorted(seen) == [(s, c) for s in range(sections) for c in range(width)]
    for block in blocks:
        num_sections, columns = block.shape
        assert num_sections * columns <= most
        assert num_sections == 1 or columns == width


@pytest.mark.parametrize(
    ("width", "most", "widths"),
    [
        (64, 22, [16] * 4),
        (128, 85, [64, 64]),
        (100, 60, [48, 52]),
        (40, 39, [16, 24]),
        (9, 4, [3] * 3),
    ],
)
def test_widths_are_multiples_of_vector_registers(width, most, widths):
    assert [block.shape[1] for block in split_columns(1, width, most)] == widths


@pytest.mark.parametrize("dtype", [torch.float32, torch.complex128])
@pytest.mark.parametrize("most", [2, 5, 11, 99])
def test_rows_and_blocks_are_the_same_numbers(tmp_path, dtype, most):
    x = torch.randn(7, 3, 5, dtype=dtype)
    table = ColumnTable(tmp_path / "t", "x", 7, split_columns(3, 5, most), dtype)
    table.write_rows(range(len(table.blocks)), x.split(2))
    for k, (sections, columns) in enumerate(table.blocks):
        own = table.read_block(k)
        assert torch.equal(own, x[:, sections, columns])
        crc = table.write_block(k, 2 * own)
        assert crc == zlib.crc32(table.path(k).read_bytes())
    with table.open_rows() as reader:
        assert torch.equal(torch.cat([reader.next(3), reader.next(4)]), 2 * x)


def test_some_blocks_alone(tmp_path):
    x = torch.randn(4, 1, 6)
    table = ColumnTable(tmp_path, "x", 4, split_columns(1, 6, 2), torch.float32)
    table.write_rows([1], [x])
    assert torch.equal(table.read_block(1), x[..., 2:4])
    with pytest.raises(FormatError, match="missing"):
        table.read_block(0)
    table.remove(1)
    table.remove(1)
    assert not list(tmp_path.iterdir())


def test_a_block_that_was_cut_is_refused(tmp_path):
    table = ColumnTable(tmp_path, "x", 4, split_columns(1, 6, 6), torch.float32)
    table.write_block(0, torch.randn(4, 1, 6))
    with open(table.path(0), "r+b") as file:
        file.truncate(95)
    with pytest.raises(FormatError, match=r"should have 96 bytes \(got 95\)"):
        table.read_block(0)


@pytest.mark.parametrize("late", [True, False])
def test_a_full_disk_leaves_no_part_of_a_block(tmp_path, monkeypatch, late):
    def refuse(*given):
        raise OSError(errno.ENOSPC, "No space left on device")

    if late:
        monkeypatch.setattr(column_table.os, "fsync", refuse)
    else:
        monkeypatch.setattr(array_folder.os, "posix_fallocate", refuse, raising=False)
    table = ColumnTable(tmp_path, "x", 4, split_columns(1, 6, 6), torch.float32)
    with pytest.raises(StorageError, match="the disk is full"):
        table.write_block(0, torch.randn(4, 1, 6))
    assert not list(tmp_path.iterdir())
    with pytest.raises(StorageError, match="the disk is full"):
        table.write_rows([0], [torch.randn(4, 1, 6)])
