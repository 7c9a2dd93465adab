"""Model folders, and files that are written completely or not at all."""

from sheafprop.io.atomic import remove_temporaries, write_bytes, write_json, write_text
from sheafprop.io.model_folder import (
    check_model_target,
    load_model_folder,
    save_model_folder,
    write_model_folder,
)
from sheafprop.io.storage_error import StorageError
from sheafprop.io.stored_model import StoredModel

__all__ = [
    "StorageError",
    "StoredModel",
    "check_model_target",
    "load_model_folder",
    "remove_temporaries",
    "save_model_folder",
    "write_bytes",
    "write_json",
    "write_model_folder",
    "write_text",
]
