#!/usr/bin/env python
"""Times steps of propagation by several processes against one thread; see --help."""

from benchmarks.distributed_benchmark import main

if __name__ == "__main__":
    main()
