"""Vectors for other programs."""

from sheafprop.io.exporters.vectors import EXPORT_FORMATS, export_vectors

__all__ = ["EXPORT_FORMATS", "export_vectors"]
