import pytest
import torch

from sheafprop.training.epoch_batch_sampler import EpochBatchSampler


def test_batches_follow_seed_and_epoch_alone():
    sampler = EpochBatchSampler(10, 4, seed=1)
    first = [batch.tolist() for batch in sampler]
    assert [len(batch) for batch in first] == [4, 4, 2]
    assert len(sampler) == 3
    assert sorted(i for batch in first for i in batch) == list(range(10))
    sampler.set_epoch(1)
    second = [batch.tolist() for batch in sampler]
    assert second != first
    sampler.set_epoch(0)
    assert [batch.tolist() for batch in sampler] == first
    assert [batch.tolist() for batch in EpochBatchSampler(10, 4, seed=2)] != first
    with pytest.raises(ValueError, match="batch_size"):
        EpochBatchSampler(10, 0, seed=1)


def test_processes_share_every_batch_and_the_last_one_only_if_it_can_be():
    whole = list(EpochBatchSampler(12, 4, seed=1, drop_last=True))
    shares = [list(EpochBatchSampler(12, 4, seed=1, num_replicas=2, rank=r)) for r in (0, 1)]
    assert [sorted(torch.cat(both).tolist()) for both in zip(*shares, strict=True)] == [
        sorted(b.tolist()) for b in whole
    ]
    assert all(len(batch) == 2 for share in shares for batch in share)
    assert len(EpochBatchSampler(13, 4, seed=1, drop_last=True, num_replicas=2)) == 3
    for size, batch_size, options, message in [
        (13, 4, dict(num_replicas=2), "last batch of 1 triples.*drop_last"),
        (12, 3, dict(num_replicas=2), "multiple of 2"),
        (3, 4, dict(drop_last=True), "leaves no batch: there are 3 triples"),
    ]:
        with pytest.raises(ValueError, match=message):
            EpochBatchSampler(size, batch_size, seed=1, **options)
