"""sheafprop: sheaf propagation layers for knowledge graph embeddings (PyTorch Geometric)."""

from sheafprop.version import __version__

__all__ = ["__version__"]
