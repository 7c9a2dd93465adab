#!/usr/bin/env python
"""Ranks new entities with features by the number of their facts; see --help."""

from benchmarks.feature_benchmark import main

if __name__ == "__main__":
    main()
