#!/usr/bin/env python
"""Compares training of the rows of a batch with training of the whole table; see --help."""

from benchmarks.sparse_quality import main

if __name__ == "__main__":
    main()
