#!/usr/bin/env python
"""Times what is done with a large model folder without reading it whole; see --help."""

from benchmarks.folder_benchmark import main

if __name__ == "__main__":
    main()
