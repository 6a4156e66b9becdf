"""Files that are written whole or not at all."""

from __future__ import annotations

import os
from pathlib import Path


def write_atomically(path: Path, content: bytes) -> None:
    """Write a file so that a reader, or a crash at any moment, finds either the old content or the new.

    Parameters
    ----------
    path : Path
        Its folder is made if it is missing.
    content : bytes

    Raises
    ------
    OSError
        If the disk refuses (full, read-only …). The message names the file; the old one is untouched and no part of
        the new one is left.
    """
    draft = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(draft, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(draft, path)
    except BaseException as error:
        if draft.exists():
            draft.unlink()
        if not isinstance(error, OSError):
            raise
        why = error.strerror or str(error)
        raise OSError(
            error.errno, f"cannot write {path} ({len(content)} bytes): {why}; what was there before is untouched"
        ) from error
