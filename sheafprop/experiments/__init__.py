"""Measurements and experiments that take many runs."""
