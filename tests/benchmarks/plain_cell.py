"""The function of cells that compute nothing, in a file that imports little for its processes."""

import os

import torch


def answer(value, *, folder):
    """One record, or the error that was given."""
    if isinstance(value, Exception):
        raise value
    return [{"x": value, "threads": torch.get_num_threads(), "process": os.getpid()}]
