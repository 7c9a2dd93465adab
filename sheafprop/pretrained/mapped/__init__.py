"""Propagation of vectors that are larger than memory: files that are mapped or read in order.

A subpackage of its own, since none of it loads a model folder and all of it shares files that a
killed process leaves for the next one.
"""

from sheafprop.pretrained.mapped.propagation_job import PropagationInput, PropagationJob

__all__ = ["PropagationInput", "PropagationJob"]
