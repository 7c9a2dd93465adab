#!/usr/bin/env python
"""Times logical queries against a loop over them and against bare distances; see --help."""

from benchmarks.query_benchmark import main

if __name__ == "__main__":
    main()
