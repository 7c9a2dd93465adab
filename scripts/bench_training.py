#!/usr/bin/env python
"""Times training and filtered ranking against PyKEEN; see --help."""

from sheafprop.experiments.training_benchmark import main

if __name__ == "__main__":
    main()
