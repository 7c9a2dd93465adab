import pytest

from tests.distributed.rank_pool import pool


@pytest.fixture
def two_ranks():
    return pool(2)


@pytest.fixture
def four_ranks():
    return pool(4)
