"""What a wheel carries of ``data/results``: each packed file compressed, without the seconds of single rounds.

These are a fifth of what is left after compression, and no result. The text in a checkout has them.
"""

import json
import lzma
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class CompressedRecords(BuildHookInterface):
    """Compresses the records when a wheel is built; an editable install reads the checkout's."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Name the files that belong into the wheel, and their places."""
        if version == "editable":
            return
        results = Path(self.root) / "data" / "results"
        self.made = tempfile.TemporaryDirectory()
        for number, path in enumerate(sorted(p for kind in ("*.json", "*.jsonl") for p in results.rglob(kind))):
            place = f"hetfl_core/_data/results/{path.relative_to(results).as_posix()}"
            if path.suffix == ".jsonl":
                compressed = Path(self.made.name) / str(number)
                compressed.write_bytes(lzma.compress(b"".join(map(short, path.read_bytes().splitlines(keepends=True)))))
                path, place = compressed, f"{place}.xz"
            build_data["force_include"][str(path)] = place

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Remove what was made on the way."""
        if version != "editable":
            self.made.cleanup()


def short(line: bytes) -> bytes:
    """A record's line without the seconds of its rounds."""
    record = json.loads(line)
    record["history"].pop("seconds", None)
    return json.dumps(record, separators=(",", ":")).encode() + b"\n"
