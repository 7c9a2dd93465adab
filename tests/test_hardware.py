import os
import re

import numpy as np

from sheafprop.hardware import describe_hardware, peak_bytes


def test_hardware_is_one_line_that_begins_with_the_cores():
    line = describe_hardware()
    assert "\n" not in line
    cores = re.match(r"(\d+) cores", line)
    assert cores is not None
    assert 1 <= int(cores[1]) <= (os.cpu_count() or 1)


def test_the_peak_counts_bytes_and_never_falls():
    before = peak_bytes()
    # An interpreter that has loaded NumPy holds more than 10 MiB, in bytes and not in KiB.
    assert before > 10 * 2**20
    block = np.ones(2**23)
    middle = peak_bytes()
    assert middle >= max(before, block.nbytes)
    del block
    assert peak_bytes() >= middle
