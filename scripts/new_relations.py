#!/usr/bin/env python
"""Ranks triples of relations that were hidden from training; see --help."""

from benchmarks.new_relations import main

if __name__ == "__main__":
    main()
