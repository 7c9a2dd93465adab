#!/usr/bin/env python
"""Times training and filtered ranking against PyKEEN; see --help."""

from benchmarks.training_benchmark import main

if __name__ == "__main__":
    main()
