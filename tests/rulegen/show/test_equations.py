"""Equations as people type them."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from rulegen.show.equations import EquationError, parse_equation


@given(st.text(alphabet="MatMulxyAdd(),;=[]$.0' ", max_size=30))
def test_any_text_is_an_equation_or_a_message(text: str) -> None:
    try:
        parse_equation(text)
    except EquationError as problem:
        assert "\n" not in str(problem)
