"""Readers and writers of graph formats: RDF, OBO and JSON lines."""
