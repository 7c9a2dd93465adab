#!/usr/bin/env python
"""Times propagation from files against propagation in memory; see --help."""

from benchmarks.scale_propagation_benchmark import main

if __name__ == "__main__":
    main()
