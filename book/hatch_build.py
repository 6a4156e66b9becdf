"""The book's wheel carries of ``data`` all but the registry and the cards.

The core carries the registry, and pages alone show the cards. Packed records are
compressed, without the seconds of single rounds: these are a fifth of what is left
after compression, and no result. The text in a checkout has them.
"""

import json
import lzma
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class CarriedData(BuildHookInterface):
    """Names the data files of what is built; an editable one has the checkout's."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Name the files that belong into what is built, and their places."""
        if version == "editable":
            return
        data = Path(self.root) / "data"  # as an sdist has it
        if not data.is_dir():
            data = Path(self.root).parent / "data"
        self.made = tempfile.TemporaryDirectory()
        for path, place in carried(data):
            if self.target_name == "sdist":
                build_data["force_include"][str(path)] = f"data/{place}"
                continue
            if path.suffix == ".jsonl":
                compressed = Path(self.made.name) / place.replace("/", "-")
                lines = path.read_bytes().splitlines(keepends=True)
                compressed.write_bytes(lzma.compress(b"".join(map(short, lines))))
                path, place = compressed, f"{place}.xz"
            build_data["force_include"][str(path)] = f"hetfl_book/_data/{place}"

    def finalize(
        self, version: str, build_data: dict[str, Any], artifact_path: str
    ) -> None:
        """Remove what was made on the way."""
        if version != "editable":
            self.made.cleanup()


def carried(data: Path) -> list[tuple[Path, str]]:
    """The files that are carried, each with its place below ``data``."""
    paths = [
        (path, path.relative_to(data))
        for path in sorted(data.rglob("*"))
        if path.is_file()
    ]
    return [
        (path, place.as_posix())
        for path, place in paths
        if place.parts[0] not in ("registry.toml", "cards")
        and not any(part.startswith(".") for part in place.parts)
    ]


def short(line: bytes) -> bytes:
    """A record's line without the seconds of its rounds."""
    record = json.loads(line)
    record["history"].pop("seconds", None)
    return json.dumps(record, separators=(",", ":")).encode() + b"\n"
