#!/usr/bin/env python
"""Measures what might be added to the episodes on the training graphs; see --help."""

from benchmarks.episode_levers import main

if __name__ == "__main__":
    main()
