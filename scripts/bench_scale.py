#!/usr/bin/env python
"""Times training steps of large tables against steps of the whole table; see --help."""

from benchmarks.scale_benchmark import main

if __name__ == "__main__":
    main()
