#!/usr/bin/env python
"""Trains, propagates and answers the queries of the FB15k-237 splits; see --help."""

from benchmarks.queries import main

if __name__ == "__main__":
    main()
