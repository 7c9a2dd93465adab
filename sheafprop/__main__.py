"""``python -m sheafprop``, which ``torchrun -m sheafprop`` starts in every process."""

import sys

from sheafprop.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
