#!/usr/bin/env python
"""Ranks on entity-disjoint splits of whole graphs; see --help."""

from benchmarks.own_splits import main

if __name__ == "__main__":
    main()
