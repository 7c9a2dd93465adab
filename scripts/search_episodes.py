#!/usr/bin/env python
"""Chooses the settings of the episodes on the training graphs; see --help."""

from benchmarks.episode_search import main

if __name__ == "__main__":
    main()
