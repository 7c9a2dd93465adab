"""Out-of-core propagation with files that are memory-mapped or read sequentially.

These modules do not load model folders; they share the intermediate files from which an interrupted
process resumes.
"""

from sheafprop.pretrained.mapped.propagation_job import PropagationInput, PropagationJob

__all__ = ["PropagationInput", "PropagationJob"]
