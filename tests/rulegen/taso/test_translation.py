"""TASO's rules as terms: every typing, and permutations as TASO numbers them."""

from __future__ import annotations

import pytest

from rulegen.taso.file import TasoKind as Kind
from rulegen.taso.file import decode
from rulegen.taso.operators import Untranslatable
from rulegen.taso.translation import typings
from tests.support.taso_files import GUARDED, I1, X1, Writer, built


def test_typings_leave_nothing_out() -> None:
    (one,) = decode(GUARDED["sum of convolutions"][0])
    found = typings(one)
    assert isinstance(found, list)
    assert {typed.choices["group"] for typed in found} >= {"1", "2"}
    (one,) = decode(GUARDED["average as convolution"][0])
    found = typings(one)
    assert isinstance(found, list)
    assert [typed.choices["count_include_pad"] for typed in found] == ["0", "1"]


def test_permutations_are_numbers_of_base_n() -> None:
    def body(s: Writer, t: Writer) -> None:
        for side in (s, t):
            side(Kind.TRANSPOSE, I1, NUMDIM=4, PERM=0 * 64 + 3 * 16 + 1 * 4 + 2)

    (one,) = decode(built(body))
    found = typings(one)
    assert isinstance(found, list) and str(found[0].source[0]) == "Transpose[perm=(2,0,1)](x7)"
    (one,) = decode(built(lambda s, t: (s(Kind.TRANSPOSE, X1, NUMDIM=2, PERM=3), t(Kind.RELU, X1))))
    with pytest.raises(Untranslatable, match="PERM 3"):
        typings(one)
