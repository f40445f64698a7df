"""TASO's substitution files, written by a small encoder: true rules, rules that need guards, false ones."""

from __future__ import annotations

from collections.abc import Callable

from rulegen.taso.file import Parameter
from rulegen.taso.file import TasoKind as Kind


def varint(value: int) -> bytes:
    value &= (1 << 64) - 1
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*encoded, value])


def message(number: int, payload: bytes) -> bytes:
    return varint(number << 3 | 2) + varint(len(payload)) + payload


def record(number: int, values: tuple[int, ...]) -> bytes:
    return message(number, b"".join(varint(i << 3) + varint(value) for i, value in enumerate(values, 1)))


P = Parameter


CONV = {P.KERNEL_H: 3, P.KERNEL_W: 3, P.STRIDE_H: 1, P.STRIDE_W: 1, P.PAD: 0, P.ACTI: 0}


POOL = {P.KERNEL_H: 3, P.KERNEL_W: 3, P.STRIDE_H: 1, P.STRIDE_W: 1, P.PAD: 0, P.ACTI: 0}


class Writer:
    """One side of a rule: operators in order; a call returns the place of the first output."""

    def __init__(self) -> None:
        self.nodes: list[bytes] = []

    def __call__(self, kind: Kind, *inputs: int | tuple[int, int], **parameters: int) -> int:
        places = [place if isinstance(place, tuple) else (place, 0) for place in inputs]
        node = varint(1 << 3) + varint(kind) + b"".join(record(2, place) for place in places)
        node += b"".join(record(3, (Parameter[key], value)) for key, value in parameters.items())
        self.nodes.append(node)
        return len(self.nodes) - 1

    def conv(self, x: int, w: int, **parameters: int) -> int:
        return self(Kind.CONV2D, x, w, **{key.name: value for key, value in CONV.items()} | parameters)

    def pool(self, kind: Kind, x: int, **parameters: int) -> int:
        return self(kind, x, **{key.name: value for key, value in POOL.items()} | parameters)

    def matmul(self, a: int, b: int) -> int:
        return self(Kind.MATMUL, a, b, ACTI=0)

    def concat(self, axis: int, rank: int, *inputs: int) -> int:
        return self(Kind.CONCAT, *inputs, NUM_INPUTS=len(inputs), AXIS=axis, NUMDIM=rank)

    def split(self, axis: int, x: int) -> int:
        return self(Kind.SPLIT, x, AXIS=axis, NUM_OUTPUTS=2)

    def transpose(self, x: int) -> int:
        return self(Kind.TRANSPOSE, x, NUMDIM=2, PERM=2, OUTSHUFFLE=1)


def rule(source: Writer, target: Writer, *outputs: tuple[int, int, int, int]) -> bytes:
    """A rule message; an output is (source operator, target operator, source output, target output)."""
    outputs = outputs or ((len(source.nodes) - 1, len(target.nodes) - 1, 0, 0),)
    parts = [message(1, node) for node in source.nodes] + [message(2, node) for node in target.nodes]
    return message(1, b"".join([*parts, *(record(3, output) for output in outputs)]))


X1, X2, W1, W2, I1, I2, K1, K2, SCALAR = -1, -2, -4, -5, -7, -8, -10, -11, -20


Body = Callable[[Writer, Writer], object]


def built(body: Body, *outputs: tuple[int, int, int, int]) -> bytes:
    source, target = Writer(), Writer()
    body(source, target)
    return rule(source, target, *outputs)


TRUE: dict[str, bytes] = {
    "associativity": built(lambda s, t: (s.matmul(s.matmul(X1, W1), W2), t.matmul(X1, t.matmul(W1, W2)))),
    "shared input": built(
        lambda s, t: (s.matmul(X1, W1), s.matmul(X1, W2), t.split(1, t.matmul(X1, t.concat(1, 2, W1, W2)))),
        (0, 2, 0, 0),
        (1, 2, 0, 1),
    ),
    "transpose of a product": built(lambda s, t: (s.transpose(s.matmul(X1, X2)), t.matmul(t.transpose(X2), t.transpose(X1)))),
    "relu of a concatenation": built(
        lambda s, t: (s.concat(1, 2, s(Kind.RELU, X1), s(Kind.RELU, X2)), t(Kind.RELU, t.concat(1, 2, X1, X2)))
    ),
    "scalar": built(lambda s, t: (s(Kind.MUL, s.matmul(X1, W1), SCALAR), t.matmul(X1, t(Kind.MUL, W1, SCALAR)))),
    "enlarged kernel": built(lambda s, t: (s.conv(I1, K1, KERNEL_H=1), t.conv(I1, t(Kind.ENLARGE, K1, KERNEL_H=3, KERNEL_W=3)))),
    "greatest of a function": built(
        lambda s, t: (
            s.pool(Kind.POOL2D_MAX, s(Kind.TANH, I1)),
            t(Kind.TANH, t.pool(Kind.POOL2D_MAX, I1)),
        )
    ),
    "identity kernel": built(
        lambda s, t: (
            s.conv(s.conv(I1, K1), s(Kind.CONSTANT_ICONV, KERNEL_H=3, KERNEL_W=3), ACTI=2),
            t.conv(I1, K1, ACTI=2),
        )
    ),
}
"""Rules without exception."""


GUARDED: dict[str, tuple[bytes, str]] = {
    "sum of convolutions": (
        built(
            lambda s, t: (
                s(Kind.EW_ADD, s.conv(I1, K1), s.conv(I2, K2)),
                t.conv(t.concat(1, 4, I1, I2), t.concat(1, 4, K1, K2)),
            )
        ),
        "group = 1",
    ),
    "convolutions of one input": (
        built(
            lambda s, t: (s.conv(I1, K1), s.conv(I1, K2), t.split(1, t.conv(I1, t.concat(0, 4, K1, K2)))),
            (0, 2, 0, 0),
            (1, 2, 0, 1),
        ),
        "group = 1",
    ),
    "average as convolution": (
        built(lambda s, t: (s.pool(Kind.POOL2D_AVG, I1), t.conv(I1, t(Kind.CONSTANT_POOL, KERNEL_H=3, KERNEL_W=3)))),
        "count_include_pad = 1",
    ),
    "enlarged kernel at stride 2": (
        built(
            lambda s, t: (
                s.conv(I1, K1, KERNEL_H=1, STRIDE_H=2, STRIDE_W=2),
                t.conv(I1, t(Kind.ENLARGE, K1, KERNEL_H=3, KERNEL_W=3), STRIDE_H=2, STRIDE_W=2),
            )
        ),
        "spatial sizes = odd",
    ),
    "groups side by side": (
        built(
            lambda s, t: (
                s.concat(1, 4, s.conv(I1, K1), s.conv(I2, K2)),
                t.conv(t.concat(1, 4, I1, I2), t.concat(0, 4, K1, K2)),
            )
        ),
        "same_per_group(y, 1, w, 1)",
    ),
}
"""Rules that hold under a guard, refuted without it."""


FALSE: dict[str, bytes] = {
    "swapped operands": built(lambda s, t: (s.matmul(X1, W1), t.matmul(W1, X1))),
    "wrong axis": built(lambda s, t: (s.concat(1, 2, s.matmul(X1, W1), s.matmul(X1, W2)), t.matmul(X1, t.concat(0, 2, W1, W2)))),
    "product of averages": built(
        lambda s, t: (
            s(Kind.EW_MUL, s.pool(Kind.POOL2D_AVG, I1), s.pool(Kind.POOL2D_AVG, I2)),
            t.pool(Kind.POOL2D_AVG, t(Kind.EW_MUL, I1, I2)),
        )
    ),
    "wrong order of transposes": built(lambda s, t: (s.transpose(s.matmul(X1, X2)), t.matmul(t.transpose(X1), t.transpose(X2)))),
    "relu of a sum": built(
        lambda s, t: (
            s(Kind.RELU, s(Kind.EW_ADD, X1, X2)),
            t(Kind.EW_ADD, t(Kind.RELU, X1), t(Kind.RELU, X2)),
        )
    ),
    "concatenation is not its part": built(lambda s, t: (s(Kind.RELU, X1), t(Kind.RELU, t.concat(1, 2, X1, X2)))),
    "wrong part of a split": built(
        lambda s, t: (s(Kind.RELU, X1), s(Kind.RELU, X2), t.split(1, t(Kind.RELU, t.concat(1, 2, X1, X2)))),
        (0, 2, 0, 1),
        (1, 2, 0, 0),
    ),
}


ROW = {"KERNEL_H": 1, "KERNEL_W": 3}
KERNEL = {"KERNEL_H": 3, "KERNEL_W": 3}


def identity(side: Writer) -> int:
    return side(Kind.CONSTANT_ICONV, **KERNEL)


DERIVABLE: dict[str, bytes] = {
    "sums of rows": built(
        lambda s, t: (
            s.concat(0, 2, s(Kind.EW_ADD, X1, X2), s(Kind.EW_ADD, W1, W2)),
            t(Kind.EW_ADD, t.concat(0, 2, X1, W1), t.concat(0, 2, X2, W2)),
        )
    ),
    "factors of columns": built(
        lambda s, t: (
            s.concat(1, 2, s(Kind.MUL, X1, SCALAR), s(Kind.MUL, W1, SCALAR)),
            t(Kind.MUL, t.concat(1, 2, X1, W1), SCALAR),
        )
    ),
    "concatenations of concatenations": built(
        lambda s, t: (
            s.concat(0, 2, s.concat(1, 2, X1, X2), s.concat(1, 2, W1, W2)),
            t.concat(1, 2, t.concat(0, 2, X1, W1), t.concat(0, 2, X2, W2)),
        )
    ),
    "parts exchanged under a sum": built(
        lambda s, t: (
            s(Kind.EW_ADD, s.concat(1, 4, I1, I2), s.concat(1, 4, K1, K2)),
            t(Kind.EW_ADD, t.concat(1, 4, K1, I2), t.concat(1, 4, I1, K2)),
        )
    ),
    "a row enlarged": built(lambda s, t: (s.conv(I1, K1, **ROW), t.conv(I1, t(Kind.ENLARGE, K1, **KERNEL)))),
    "a row added to a kernel": built(
        lambda s, t: (
            s(Kind.EW_ADD, s.conv(I1, K2), s.conv(I1, K1, **ROW)),
            t.conv(I1, t(Kind.EW_ADD, K2, t(Kind.ENLARGE, K1, **KERNEL))),
        )
    ),
    "an image added": built(
        lambda s, t: (s(Kind.EW_ADD, I1, s.conv(I1, K1)), t.conv(I1, t(Kind.EW_ADD, K1, identity(t)))),
    ),
    "a matrix added": built(
        lambda s, t: (s(Kind.EW_ADD, X1, s.matmul(X1, X2)), t.matmul(X1, t(Kind.EW_ADD, X2, t(Kind.CONSTANT_IMM)))),
    ),
    "an average of an identity kernel": built(
        lambda s, t: (s.pool(Kind.POOL2D_AVG, I1), t.conv(I1, t.pool(Kind.POOL2D_AVG, identity(t)))),
    ),
    "a kernel mirrored twice": built(
        lambda s, t: (s(Kind.RELU, s.conv(identity(s), s.conv(identity(s), K1))), t(Kind.RELU, K1)),
    ),
    "a row mirrored twice": built(
        lambda s, t: (
            s(Kind.RELU, s.conv(identity(s), s(Kind.RELU, s.conv(identity(s), K1, **ROW)))),
            t(Kind.RELU, t(Kind.ENLARGE, K1, **KERNEL)),
        )
    ),
}
"""Rules of TASO's generator, or like them, for which a part of a workload, a property or a condition was missing once."""


SUMS_FOR_AVERAGES: dict[str, bytes] = {
    "150": built(lambda s, t: (s.pool(Kind.POOL2D_AVG, I1), t.conv(I1, t.pool(Kind.POOL2D_MAX, identity(t))))),
    "386": built(
        lambda s, t: (
            s(Kind.MUL, s.conv(s.pool(Kind.POOL2D_AVG, I1), K1, **ROW), SCALAR),
            t.pool(Kind.POOL2D_AVG, t.conv(t(Kind.MUL, I1, SCALAR), K1, **ROW)),
        )
    ),
    "387": built(
        lambda s, t: (
            s(Kind.EW_MUL, I1, s(Kind.MUL, s(Kind.CONSTANT_POOL, **KERNEL), SCALAR)),
            t(Kind.MUL, I1, SCALAR),
        )
    ),
}
"""The rules of TASO's generator that are false, by number: it adds up where a pool averages, and its images may be of width 1."""
