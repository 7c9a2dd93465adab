"""Trained models: extension, prediction, queries, explanation, and model folders."""

from sheafprop.pretrained.change_reports import ExtensionReport, RemovalReport
from sheafprop.pretrained.model_folder import (
    check_model_target,
    load_model_folder,
    write_model_folder,
)
from sheafprop.pretrained.sheaf_model import SheafModel
from sheafprop.pretrained.stored_model import StoredModel
from sheafprop.pretrained.vector_export import EXPORT_FORMATS, export_vectors

__all__ = [
    "EXPORT_FORMATS",
    "ExtensionReport",
    "RemovalReport",
    "SheafModel",
    "StoredModel",
    "check_model_target",
    "export_vectors",
    "load_model_folder",
    "write_model_folder",
]
