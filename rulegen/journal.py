"""The journal of a growth or of mining: finished stages stand on disk, so that what is killed resumes where it stopped.

Each has one file in the cache folder, named by all that determines its outcome: group, operators, seed or models, operator
properties and the source of the generator. A record is a line, written at once, with a checksum: one that a kill or a full disk
cut off does not count, and is done again. The file goes when all is done.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import zlib
from collections.abc import Callable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

import mugraph
import rulegen
import rules_db
from mugraph.terms.term import format_term
from mugraph.terms.text import parse_term, parse_type
from rulegen.candidate import CandidateRule
from rules_db.files import cache_folder
from rules_db.trust.properties import load_axioms

__all__ = ["Journal", "generator_digest", "pack", "unpack"]

logger = logging.getLogger(__name__)


@lru_cache(maxsize=1)
def generator_digest() -> str:
    """A digest of all that a growth's outcome depends on besides its parameters."""
    state = hashlib.blake2b(digest_size=8)
    for package in (mugraph, rules_db, rulegen):
        folder = Path(str(package.__file__)).parent
        for file in sorted(folder.rglob("*.py")):
            state.update(str(file.relative_to(folder)).encode() + file.read_bytes())
    for axiom in load_axioms().values():
        state.update(axiom.digest.encode())
    return state.hexdigest()


class Journal:
    """Records by key, in memory and, where there is a file, on disk.

    Data are what JSON can say. A journal without a file remembers nothing beyond the process.
    """

    def __init__(self, path: Path | None = None, *, fresh: bool = False) -> None:
        self.path, self._records = path, dict[str, Any]()
        self._file: int | None = None
        if path is None:
            return
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | (os.O_TRUNC if fresh else 0), 0o644)
            self._read(path.read_bytes())
        except OSError as problem:
            self._give_up(problem)

    @staticmethod
    def of(parameters: Mapping[str, object], *, fresh: bool = False, folder: Path | None = None) -> Journal:
        """The journal of a growth, empty where there was none or a fresh one is wanted.

        Args:
            parameters: that determine the outcome besides the generator itself: group, operators, seed.
            fresh: whether to forget the stages that an earlier growth finished.
            folder: default: ``grow`` in the cache folder.
        """
        text = json.dumps({**parameters, "generator": generator_digest()}, sort_keys=True, default=str)
        name = hashlib.blake2b(text.encode(), digest_size=8).hexdigest()
        path = (folder or cache_folder() / "grow") / f"{parameters.get('group', 'growth')}-{name}.journal"
        return Journal(path, fresh=fresh)

    def _read(self, content: bytes) -> None:
        for line in content.split(b"\n"):
            checksum, _, record = line.partition(b" ")
            if checksum == _checksum(record):
                key, data = json.loads(record)
                self._records[key] = data
        if content and not content.endswith(b"\n"):
            self._append(b"\n")  # so that the next record does not continue a torn one

    def get(self, key: str) -> Any | None:
        """The data put under the key, also by an earlier process; ``None`` where there are none."""
        return self._records.get(key)

    def put(self, key: str, data: Any) -> None:
        """Records data; it stands on disk when this returns."""
        record = json.dumps([key, data], separators=(",", ":")).encode()
        self._records[key] = json.loads(record)[1]  # as a later process will read it
        self._append(_checksum(record) + b" " + record + b"\n")

    def recalled(self, key: str, compute: Callable[[], Any]) -> Any:
        """The data put under the key; computed and put there where there are none, and then as a later process will read them."""
        if self._records.get(key) is None:
            self.put(key, compute())
        return self._records[key]

    def _append(self, line: bytes) -> None:
        if self._file is None:
            return
        try:
            while line:
                line = line[os.write(self._file, line) :]
        except OSError as problem:
            self._give_up(problem)

    def _give_up(self, problem: OSError) -> None:
        logger.warning(
            "%s: cannot be written (%s), so this growth cannot be resumed; set ONNX_SUPEROPT_CACHE", self.path, problem.strerror
        )
        self.close()
        self.path = None

    def close(self) -> None:
        """Closes the file; a later journal finds it."""
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def remove(self) -> None:
        """Forgets everything: the growth is done."""
        self.close()
        if self.path is not None:
            self.path.unlink(missing_ok=True)


def pack(candidate: CandidateRule) -> list[Any]:
    """A candidate as JSON can say it."""
    sides = [list(map(_text, side)) for side in (candidate.source, candidate.target)]
    return [*sides, {name: str(type_) for name, type_ in candidate.types.items()}]


def unpack(data: list[Any]) -> CandidateRule:
    """The candidate that was packed."""
    source, target, types = data
    return CandidateRule(
        tuple(map(_term, source)), tuple(map(_term, target)), {name: _type(text) for name, text in types.items()}
    )


_text = lru_cache(maxsize=1 << 14)(format_term)
_term = lru_cache(maxsize=1 << 14)(parse_term)
_type = lru_cache(maxsize=1 << 10)(parse_type)
"""Many candidates of a growth share a side; all share the types."""


def _checksum(record: bytes) -> bytes:
    return b"%08x" % zlib.crc32(record)
