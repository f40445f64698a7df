"""Functions of 32-bit floats in Triton that kernels call where Triton's own lose digits, or take more of them than are needed.

``tl.exp`` is a power of two of a rounded product: off by |x|/2²⁴, 44 units at 88. Quotients and powers are off by two units.
"""

from __future__ import annotations

from collections.abc import Iterable

__all__ = ["FUNCTION_TEXTS", "SHORT_ERF", "functions_called"]

SHORT_ERF = """\
@triton.jit
def short_erf(x):
    # Abramowitz and Stegun, 7.1.26: off by at most 1.5e-7, in 32-bit floats by 7e-7. A division is ten instructions, rsqrt one.
    size = tl.abs(x)
    t = 1.0 + 0.3275911 * size
    t = tl.rsqrt(t * t)
    rest = ((((1.061405429 * t - 1.453152027) * t + 1.421413741) * t - 0.284496736) * t + 0.254829592) * t
    result = 1.0 - rest * tl.exp2(size * size * -1.4426950408889634)
    return tl.where(x < 0, -result, result)
"""
"""The function that kernels which read and write no float of more than 16 bits call for erf: half the work of Triton's."""

_EXP = """\
@triton.jit
def f32_exp(x):
    # What the product with log2(e) loses is a factor of the power: 1.44269502 and 1.92596299e-8 are log2(e).
    product = x * 1.44269502
    lost = tl.fma(x, 1.44269502, -product) + x * 1.92596299e-8
    power = tl.exp2(product)
    return tl.where(tl.abs(product) < 128.0, power + power * (lost * 0.693147181), power)
"""
_LOG1P = """\
@triton.jit
def f32_log1p(x):
    # Of what is not negative; what rounding 1 + x loses is added to first order.
    more = 1.0 + x
    return tl.log(more) + (x - (more - 1.0)) / more
"""
_TANH = """\
@triton.jit
def f32_tanh(x):
    # Up to 0.6 an odd polynomial (that of the kernels in C), beyond it 1 - 2 / (exp(2x) + 1), whose digits cancel near 0.
    size = tl.abs(x)
    square = x * x
    p = ((((-0.0062691197 * square + 0.02111096) * square - 0.05387395) * square + 0.13332915) * square - 0.3333333) * square
    far = 1.0 - 2.0 / (tl.exp(2.0 * size) + 1.0)
    return tl.where(size > 0.6, tl.where(x < 0, -far, far), x + x * p)
"""
FUNCTION_TEXTS = {"short_erf": SHORT_ERF, "f32_exp": _EXP, "f32_log1p": _LOG1P, "f32_tanh": _TANH}
"""Their definitions by their names."""


def functions_called(texts: Iterable[str]) -> list[str]:
    """The definitions of those that texts call."""
    whole = "\n".join(texts)
    return [text for name, text in FUNCTION_TEXTS.items() if f"{name}(" in whole]
