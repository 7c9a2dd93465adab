"""Processor time of a step of a table that processes share, for the docs' chapter on scale.

python scripts/bench_sharded_table.py
torchrun --standalone --nproc-per-node 2 scripts/bench_sharded_table.py
"""

import argparse
import time

import torch

from sheafprop.distributed import ShardedTable, process_group
from sheafprop.training.optimization import RowwiseAdagrad


def main() -> None:
    """Prints the least processor time of a step, and what a rank sends."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--batch", type=int, default=8192, help="ids of all ranks in a step")
    parser.add_argument("--steps", type=int, default=12)
    options = parser.parse_args()
    torch.set_num_threads(1)
    with process_group() as ranks:
        table = ShardedTable(options.rows, options.width, ranks)
        torch.nn.init.normal_(table.weight)
        optimizer = RowwiseAdagrad([table.weight], lr=0.1, rowwise=True)
        generator = torch.Generator().manual_seed(0)
        seconds, sent = [], 0
        for _ in range(options.steps):
            drawn = torch.randint(options.rows, (options.batch,), generator=generator)
            ids = drawn[ranks.rank :: ranks.size].unique()
            ranks.barrier()
            before, began = ranks.bytes_sent, time.process_time()
            table(ids).square().sum().backward()
            optimizer.step()
            optimizer.zero_grad()
            seconds.append(time.process_time() - began)
            sent = ranks.bytes_sent - before
        found = ranks.gather((min(seconds), sent))
    if ranks.is_first:
        for rank, (best, bytes_sent) in enumerate(found):
            print(f"rank {rank}: {best * 1e3:.1f} ms a step, {bytes_sent / 2**20:.2f} MiB sent")


if __name__ == "__main__":
    main()
