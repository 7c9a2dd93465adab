"""``python -m sheafprop``, which ``torchrun -m sheafprop`` starts in every process."""

import os
import sys

from sheafprop.cli.main import main

if __name__ == "__main__":
    code = main()
    if code and "TORCHELASTIC_RUN_ID" in os.environ:
        # What joined the processes may wait for one that is gone, and torchrun for this one.
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    sys.exit(code)
