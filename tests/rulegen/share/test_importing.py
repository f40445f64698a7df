"""Import of substitutions from outside: TASO's files, written here by a small encoder, and the text form."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner, Result
from hypothesis import given
from hypothesis import strategies as st

from mugraph.onnx.wire import Damaged
from rulegen.cli.main import cli
from rulegen.share.audit import audit
from rulegen.share.imported import Imported, Status
from rulegen.share.importing import Importer
from rulegen.share.sources import import_file
from rulegen.taso.file import Parameter, decode, read_taso
from rulegen.taso.file import TasoKind as Kind
from rulegen.taso.operators import Untranslatable
from rulegen.taso.translation import typings
from rules_db.exchange import RuleTextError, format_rule
from rules_db.files import StoreError
from rules_db.library import open_rules, shipped_rules
from tests.support.rules import prover


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


def importer() -> Importer:
    return Importer([], "test.pb", prover=prover())


def examine(content: bytes) -> Imported:
    (one,) = decode(content)
    return importer().taso("0", one)


@pytest.mark.parametrize("name", TRUE)
def test_true_rules_are_new(name: str) -> None:
    found = examine(TRUE[name])
    assert found.status == Status.NEW, found
    assert found.counterexample is None and not any("=" in guard and "(" not in guard for guard in found.guards)
    assert audit(found.rules).passed
    assert found.rules[0].provenance == {"origin": "import", "file": "test.pb"}


@pytest.mark.parametrize("name", GUARDED)
def test_what_does_not_hold_always_gets_a_guard(name: str) -> None:
    content, guard = GUARDED[name]
    found = examine(content)
    assert found.status == Status.NEW and guard in found.guards, found
    assert found.counterexample is not None and found.counterexample["typing"]
    assert audit(found.rules).passed


@pytest.mark.parametrize("name", FALSE)
def test_false_rules_are_refuted(name: str) -> None:
    found = examine(FALSE[name])
    assert found.status == Status.REFUTED and not found.rules and not found.guards, found
    assert found.counterexample is not None and found.counterexample["shapes"]
    if "index" in found.counterexample:
        assert found.counterexample["source"] != found.counterexample["target"]


def test_a_counterexample_can_be_repeated() -> None:
    found = examine(FALSE["swapped operands"])
    assert found.counterexample is not None
    x, w = (np.array(found.counterexample["inputs"][name]) for name in ("x1", "x4"))
    index = tuple(found.counterexample["index"])
    assert ((x @ w)[index], (w @ x)[index]) == (found.counterexample["source"], found.counterexample["target"])


def test_the_second_time_a_rule_is_derivable() -> None:
    both = importer()
    (one,) = decode(TRUE["associativity"])
    assert both.taso("0", one).status == Status.NEW
    assert both.taso("1", one).status == Status.DERIVABLE
    (scalar,) = decode(TRUE["scalar"])
    assert both.taso("2", scalar).status == Status.NEW


def test_sides_that_are_one_term_are_derivable() -> None:
    same = built(lambda s, t: (s(Kind.EW_ADD, X1, X2), t(Kind.EW_ADD, X2, X1)))
    assert examine(same).status == Status.DERIVABLE
    fused = built(lambda s, t: (s(Kind.RELU, s.conv(I1, K1)), t.conv(I1, K1, ACTI=2)))
    assert examine(fused).status == Status.DERIVABLE  # an activation is an operator of its own in ONNX


def test_what_holds_for_even_sizes_only_says_so() -> None:
    """At stride 2 a kernel of two needs no padding for an even size, and one place more for an odd one."""
    window = {"KERNEL_H": 2, "KERNEL_W": 2, "STRIDE_H": 2, "STRIDE_W": 2}
    same_as_valid = built(
        lambda s, t: (s.pool(Kind.POOL2D_MAX, I1, **window, PAD=0), t.pool(Kind.POOL2D_MAX, I1, **window, PAD=1))
    )
    found = examine(same_as_valid)
    assert "spatial sizes = even" in found.guards and not found.rules


def test_what_the_file_does_not_describe_is_undecided() -> None:
    found = examine(built(lambda s, t: (s(Kind.RESHAPE, X1), t(Kind.RESHAPE, X1))))
    assert found.status == Status.UNDECIDED and "RESHAPE" in found.reason
    huge = built(lambda s, t: (s.split(1, X1), t(Kind.SPLIT, X1, AXIS=1, NUM_OUTPUTS=2**30)))
    assert examine(huge).status == Status.UNDECIDED


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


def test_nested_splits_undo_the_latest_concatenation() -> None:
    def body(s: Writer, t: Writer) -> None:
        for x in (X1, X2, -3):
            s(Kind.RELU, x)
        whole = t(Kind.RELU, t.concat(1, 2, t.concat(1, 2, X1, X2), -3))
        outer = t.split(1, whole)
        t(Kind.SPLIT, (outer, 0), AXIS=1, NUM_OUTPUTS=2)

    found = examine(built(body, (0, 4, 0, 0), (1, 4, 0, 1), (2, 3, 0, 1)))
    assert found.status == Status.NEW, found


# Files


def test_broken_files_are_one_message(tmp_path: Path) -> None:
    good = TRUE["associativity"]
    (tmp_path / "good.pb").write_bytes(good)
    assert len(read_taso(tmp_path / "good.pb")) == 1
    contents = {
        "empty": b"",
        "truncated": good[:-3],
        "other": b"\x7fELF" + bytes(60),
        "text": b"once upon a time",
        "onnx": varint(1 << 3) + varint(8) + message(7, b"graph"),
        "forward": message(1, message(1, varint(1 << 3) + varint(Kind.RELU) + record(2, (3, 0))) + record(3, (0, 0, 0, 0))),
        "unknown operator": message(1, message(1, varint(1 << 3) + varint(99)) + record(3, (0, 0, 0, 0))),
        "no such output": message(1, record(3, (4, 0, 0, 0))),
    }
    for name, content in contents.items():
        (tmp_path / name).write_bytes(content)
        with pytest.raises(StoreError, match=name) as problem:
            import_file(tmp_path / name, [])
        assert "\n" not in str(problem.value)
    with pytest.raises(StoreError, match="cannot be read"):
        import_file(tmp_path / "absent.pb", [])


def test_odd_parameters_are_undecided_or_refuted() -> None:
    odd = [
        built(lambda s, t: (s(Kind.SPLIT, X1, AXIS=0, NUM_OUTPUTS=0), t(Kind.RELU, X1))),
        built(lambda s, t: (s(Kind.CONSTANT_POOL, KERNEL_H=2, KERNEL_W=3), t(Kind.MUL, I1, SCALAR))),
        built(lambda s, t: (s.conv(I1, K1, PAD=7), t.conv(I1, K1))),
        built(lambda s, t: (s.conv(I1, K1, ACTI=9), t.conv(I1, K1))),
        built(lambda s, t: (s(Kind.BATCHNORM, I1, X1, X1, X1, X1), s.matmul(X1, X2), t(Kind.RELU, I1))),
        built(lambda s, t: (s(Kind.EW_ADD, X1), t(Kind.RELU, X1))),
        built(lambda s, t: (s.concat(3, 2, X1, X2), t.concat(0, 2, X1, X2))),
    ]
    for content in odd:
        found = examine(content)
        assert found.status in (Status.UNDECIDED, Status.REFUTED) and not found.rules
        assert json.dumps(found.as_json()) and (found.reason or found.counterexample)


def test_batched_products() -> None:
    found = examine(built(lambda s, t: (s.matmul(s.conv(I1, K1), I2), t.matmul(t.conv(I1, K1), I2))))
    assert found.status == Status.DERIVABLE


@given(st.binary(max_size=60), st.integers(0, 400))
def test_damaged_files_never_crash(noise: bytes, at: int) -> None:
    content = b"".join([*TRUE.values(), *FALSE.values()])[:400]
    try:
        decode(content[:at] + noise + content[at:])
    except Damaged as problem:
        assert str(problem)


def test_text_rules_are_proved_again(tmp_path: Path) -> None:
    shipped = next(rule for rule in shipped_rules() if "MatMul" in str(rule) and len(rule.certificate.instances) > 1)
    text = format_rule(shipped)
    without = re.sub(r"\n  proof .*", "", text)
    wrong = re.sub(r"\n  proof .*", "\n  proof  add.commutative{x=x, y=x}", text)
    false = "rule 0\n  let    x:float[m,m] y:float[m,m]\n  source MatMul(x, y)\n  target MatMul(y, x)\n"
    identity = re.search("has the identity ([0-9a-f]{16})", read_problem(tmp_path, false))
    assert identity is not None
    file = tmp_path / "some.rules"
    for content in (text, without, wrong):
        file.write_text(content)
        (found,) = import_file(file, [])
        assert found.status == Status.NEW and audit(found.rules).passed
        (again,) = import_file(file, found.rules)
        assert again.status == Status.DERIVABLE
    file.write_text(without + "\n" + false.replace("rule 0", f"rule {identity.group(1)}"))
    results = import_file(file, [])
    assert [result.status for result in results] == [Status.NEW, Status.REFUTED]


def read_problem(folder: Path, text: str) -> str:
    file = folder / "problem.rules"
    file.write_text(text)
    with pytest.raises(RuleTextError) as problem:
        import_file(file, [])
    return str(problem.value)


def test_truncated_text_is_one_message(tmp_path: Path) -> None:
    text = format_rule(shipped_rules()[0])
    assert "lacks target" in read_problem(tmp_path, text[: text.index("\n  target")] + "\n")


# The command


def run(*arguments: str | Path) -> Result:
    return CliRunner().invoke(cli, ["import", *map(str, arguments)])


def test_only_proved_rules_enter(tmp_path: Path) -> None:
    file, database, report = tmp_path / "subst.pb", tmp_path / "rules.sqlite", tmp_path / "report.json"
    file.write_bytes(TRUE["associativity"] + FALSE["relu of a sum"] + TRUE["associativity"])
    dry = run(file, "--rules", database, "--json", report, "--dry-run")
    assert dry.exit_code == 0, dry.output
    assert not database.exists()
    found = json.loads(report.read_text())["rules"]
    assert [(one["id"], one["status"]) for one in found] == [("0", "new"), ("1", "refuted"), ("2", "derivable")]
    assert found[0]["guards"] and found[1]["counterexample"]["text"]
    result = run(file, "--rules", database)
    assert result.exit_code == 0 and "1 refuted" in result.output
    (entered,) = open_rules(str(database))
    assert entered.provenance["origin"] == "import" and found[0]["rules"] == [entered.id]
    again = run(file, "--rules", database, "--json", report)
    assert again.exit_code == 0
    assert {one["status"] for one in json.loads(report.read_text())["rules"]} == {"derivable", "refuted"}


def test_the_default_database_is_the_users(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ONNX_SUPEROPT_CACHE", str(tmp_path / "cache"))
    file = tmp_path / "subst.pb"
    file.write_bytes(TRUE["identity kernel"])
    before = len(shipped_rules())
    assert run(file).exit_code == 0
    assert (tmp_path / "cache" / "rules.sqlite").exists()
    assert len(shipped_rules()) == before


def test_bad_input_is_exit_2(tmp_path: Path) -> None:
    (tmp_path / "cut.pb").write_bytes(TRUE["associativity"][:-2])
    result = subprocess.run(
        [sys.executable, "-m", "rulegen", "import", str(tmp_path / "cut.pb"), "--rules", str(tmp_path / "r.sqlite")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 2 and len(result.stderr.splitlines()) == 1 and "cut.pb" in result.stderr
    assert not (tmp_path / "r.sqlite").exists()
    assert isinstance(run(tmp_path / "cut.pb", "--rules", tmp_path / "x.rules").exception, StoreError)
