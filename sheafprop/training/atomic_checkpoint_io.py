import io
from typing import Any

import torch
from lightning.fabric.plugins import TorchCheckpointIO
from lightning.fabric.utilities.types import _PATH

from sheafprop.files import write_bytes


class AtomicCheckpointIO(TorchCheckpointIO):
    """Writes a checkpoint beside the old one and renames it, so that one of them is always whole.

    Lightning's own way goes through the folder for temporary files. Where that lies on another
    disk, the last step is a copy, and a process that is killed meanwhile leaves half a checkpoint.
    """

    def save_checkpoint(
        self, checkpoint: dict[str, Any], path: _PATH, storage_options: Any | None = None
    ) -> None:
        """Saves a checkpoint.

        Raises:
            StorageError: If it cannot be written; the old one is still there then.
        """
        if storage_options is not None or "://" in str(path):
            super().save_checkpoint(checkpoint, path, storage_options)
            return
        buffer = io.BytesIO()
        torch.save(checkpoint, buffer)
        write_bytes(path, buffer.getvalue())
