#!/usr/bin/env python
"""Times the reading of a large file of N-Triples, and its memory; see --help."""

from benchmarks.reading_benchmark import main

if __name__ == "__main__":
    main()
