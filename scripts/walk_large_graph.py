#!/usr/bin/env python
"""Plays the way from one file of facts to predictions in a large graph; see --help."""

from benchmarks.large_graph_walk import main

if __name__ == "__main__":
    main()
