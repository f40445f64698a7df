"""What compilers made, kept on disk by content: a head of JSON and an image, under the digest of all that they depend on."""

from __future__ import annotations

import hashlib
import json
import logging
import struct
from pathlib import Path
from typing import Any

from mugraph.files import replacing

__all__ = ["KeptResults", "key_of"]

_LOG = logging.getLogger(__name__)


def key_of(*parts: str) -> str:
    """The key of a result that depends on these texts."""
    return hashlib.blake2b("\0".join(parts).encode(), digest_size=16).hexdigest()


class KeptResults:
    """Results in a folder, a file each: the length of the head in four bytes, the head, the image."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def _path(self, key: str) -> Path:
        return self.folder / key[:2] / key

    def recall(self, key: str) -> tuple[dict[str, Any], bytes] | None:
        """A result; ``None`` where it is missing or damaged, and has to be made again."""
        try:
            content = self._path(key).read_bytes()
            (length,) = struct.unpack_from("<I", content)
            head = json.loads(content[4 : 4 + length])
            return (head, content[4 + length :]) if isinstance(head, dict) else None
        except (OSError, ValueError, struct.error):
            return None

    def keep(self, key: str, head: dict[str, Any], image: bytes) -> None:
        """Keeps a result. Where that fails it is made again another time."""
        text, path = json.dumps(head).encode(), self._path(key)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with replacing(path) as file:
                file.write(struct.pack("<I", len(text)) + text + image)
        except OSError as problem:
            _LOG.warning("%s: a compiled kernel cannot be kept there: %s", self.folder, problem.strerror)
