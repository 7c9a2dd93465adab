"""Readers of graph formats: RDF, OBO and JSON lines, each a file that yields facts."""
