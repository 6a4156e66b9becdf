"""What only a client knows: the secret that keys the noise over its uploads, and what has left it under that noise.

A server that could foretell the noise could subtract it, and one that got two answers to the same round could subtract
one from the other. So a client draws its noise with a secret of its own, which lies in its state folder and is sent to
nobody, and answers a round again only by the very bytes that it sent before.
"""

from __future__ import annotations

import json
import logging
import os
import secrets
from contextlib import suppress
from pathlib import Path

from hetfl_core.deployment.site import SiteError, Task
from hetfl_core.files import draft_prefix, private_folder, write_atomically
from hetfl_core.networks import Params
from hetfl_core.rng import SECRET_BYTES, digest

SECRET = "noise.key"
"""In a client's state folder: what keys its noise."""

RELEASED = "released.json"
"""In the folder of a run: by round and task, the SHA-256 of what was sent."""

LOG = logging.getLogger("hetfl.deployment")


def secret_of(folder: Path) -> bytes:
    """The secret of the client whose state a folder holds; drawn by the system's generator where there is none yet.

    Parameters
    ----------
    folder : Path
        Made if it is missing, for its owner's eyes only.

    Returns
    -------
    bytes

    Raises
    ------
    SiteError
        For a file that holds no secret.
    OSError
        Where the folder cannot be written to.
    """
    path = private_folder(folder) / SECRET
    if not path.exists():
        draft = path.with_name(f"{draft_prefix(path)}{secrets.token_hex(4)}.tmp")
        write_atomically(draft, secrets.token_bytes(SECRET_BYTES), mode=0o600)
        with suppress(FileExistsError):  # whoever came first has drawn it
            os.link(draft, path)
            LOG.warning(
                "%s: a new secret for the noise of this client. If there was one before, the rounds that were answered "
                "with it are not known any more: what is sent for them again counts as sent once more",
                path,
            )
        draft.unlink()
    secret = path.read_bytes()
    if len(secret) != SECRET_BYTES:
        raise SiteError(f"its {SECRET} must have {SECRET_BYTES} bytes, got {len(secret)}: bring back the former file")
    return secret


class Releases:
    """What a client has sent in a run under noise, round by round.

    Parameters
    ----------
    folder : Path
        That of the run, in the client's state folder.
    """

    def __init__(self, folder: Path) -> None:
        self.path = folder / RELEASED

    def known(self) -> dict[str, str]:
        """The SHA-256 of each message, by round and task.

        Raises
        ------
        SiteError
            For a file that cannot be read.
        """
        try:
            return dict(json.loads(self.path.read_text("utf8"))) if self.path.exists() else {}
        except (ValueError, TypeError) as error:
            raise SiteError(f"its {RELEASED} cannot be read, so that nobody knows what was sent before") from error

    def add(self, task: Task, sent: Params) -> None:
        """Enter a message that is about to be sent; when this returns the disk has it.

        Raises
        ------
        SiteError
            Where something else was sent for the same round and task.
        """
        known, place, content = self.known(), f"{task.round}/{task.kind}", digest(sent)
        if known.setdefault(place, content) != content:
            raise SiteError(
                f"has answered round {task.round} ({task.kind}) already, with another message: a second one would take "
                "noise off the first. A run that is to begin anew needs another name in methods.py, and its messages "
                "count as further releases"
            )
        write_atomically(self.path, json.dumps(known, indent=1).encode(), mode=0o600)
