"""Damaged files: the same for the same number; the command refuses them in one line or does what it does for whole ones."""

from __future__ import annotations

import pytest
from google.protobuf.message import DecodeError
from onnx import ModelProto

from tests.support.fuzzing import attack
from tools.fuzz.files import damaged


@pytest.mark.usefixtures("own_cache")
def test_no_damaged_file_ends_in_a_traceback_or_takes_more_than_it_may() -> None:
    done = attack("files", "--count", "60", "--seed", "3")
    assert done.returncode == 0, done.stdout
    assert "refused" in done.stdout and "unchanged" in done.stdout


@pytest.mark.usefixtures("own_cache")
def test_files_are_damaged_in_their_fields_and_in_their_bytes() -> None:
    contents = [damaged(1, number) for number in range(40)]
    assert contents[:5] == [damaged(1, number) for number in range(5)] and len(set(contents)) > 30
    readable = 0
    for content in contents:
        try:
            readable += bool(ModelProto.FromString(content).graph.node)
        except DecodeError:
            continue
    assert 15 < readable < 40
