"""What the processes of tests share: imported and compiled once, in the process they come from."""

import gc

import torch

import sheafprop.training  # noqa: F401
from sheafprop.kernels import counting_loops, numba_loops  # noqa: F401
from sheafprop.nn import SheafPropagation
from tests.distributed.shared_graphs import case_of, in_one_process
from tests.sheaf_cases import SHEAF_KINDS

torch.set_num_threads(1)  # threads do not survive a fork
for kind in SHEAF_KINDS:
    for dtype in (torch.float32, torch.float64):
        in_one_process(SheafPropagation(2), case_of(kind, 0, dtype))
# Memory of objects that the collector looks at would be no longer shared.
gc.collect()
gc.freeze()
