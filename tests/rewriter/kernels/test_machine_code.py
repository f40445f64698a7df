"""Operands that an assembler overwrites while a loop still reads them: found in what it made, and refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from mugraph.blocks.schedule import Schedule
from mugraph.blocks.text import parse_kernel
from rewriter.kernels.architecture import Architecture
from rewriter.kernels.machine_code import kept_operands, overwritten_operands
from rewriter.kernels.triton import generate
from rewriter.kernels.triton.compile import Compiler, NotCompiled

triton = pytest.importorskip("triton")

TWO_PASSES = """
kernel f
input q: float16[12,257,64]
input b: float16[64]
input k: float16[12,64,257]
input v: float16[12,257,64]
output y: float16[12,257,64] = MatMul(Softmax[axis=-1](MatMul(Add(q, b), k)), v)
block f
axes h=12, s=257, d=64, w=257, t=257, e=64
grid h, s
loop t
q_tile = load q[h, s, d]
b_tile = load b[d]
left = Add(q_tile, b_tile)
whole = load k[h, d, w]
all = dot(left, whole, d)
row_max = reduce max(all; w)
k_tile = load k[h, d, t]
dot = dot(left, k_tile, d)
scores = Sub(dot, row_max)
v_tile = load v[h, t, e]
shift, total, weighted = softmax(scores, v_tile)
share = Reciprocal(total)
y_value = Mul(weighted, share)
store y[h, s, e] = y_value
"""
"""Queries with a bias, computed once, multiply the keys before the loop and in it."""

FIXED = (13, 3)
"""The first version of ptxas that keeps such operands."""


def version_of(tool: object) -> tuple[int, ...]:
    return tuple(map(int, str(tool.version).split(".")[:2]))  # type: ignore[attr-defined]


@pytest.mark.parametrize("is_older", [True, False])
def test_a_kernel_whose_operand_is_overwritten_is_refused(
    is_older: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tools = [triton.knobs.nvidia.ptxas, triton.knobs.nvidia.ptxas_blackwell]
    chosen = [tool for tool in tools if (version_of(tool) < FIXED) == is_older]
    if not chosen:
        pytest.skip("Triton has no such assembler")
    for name in ("TRITON_PTXAS_PATH", "TRITON_PTXAS_BLACKWELL_PATH"):
        monkeypatch.setenv(name, chosen[0].path)
    kernel = parse_kernel(TWO_PASSES)
    source = generate(kernel, (Schedule((("h", 1), ("s", 64), ("t", 64)), warps=8, stages=3),))
    with Compiler(tmp_path, workers=1) as compiler:
        (result,) = compiler.compile([("f", source)], [Architecture(90)])
    if is_older:
        assert isinstance(result, NotCompiled)
        assert str(result) == (
            "kernel f for sm_90: f: ptxas overwrites an operand that a loop reads again; that of CUDA 13.3 does not"
        )
    else:
        assert not isinstance(result, NotCompiled), result


LOOP = """HADD2 R56, R8, R9 ;
.L_x_1:
{before}
HGMMA.64x32x16.F32 R24, {operand}, gdesc[UR24], RZ, !UPT ;
{after}
@!P0 BRA `(.L_x_1) ;"""


@pytest.mark.parametrize(
    ("before", "operand", "after", "is_wrong"),
    [
        ("", "R56", "LDSM.16.M88.4 R56, [R180+UR5+0x12000] ;", True),
        ("", "R56", "LDSM.16.MT88.4 R54, [R180+UR5+0x12000] ;", True),
        ("", "R56", "FFMA R59, R39, 0.125, -R69.reuse ;", True),
        ("", "R56", "@P2 IMAD.WIDE R58, R39, 0x2, R4 ;", True),
        ("", "R56", "SHFL.BFLY PT, R57, R148, 0x2, 0x1f ;", True),
        ("", "R56", "HGMMA.64x64x16.F32 R40, gdesc[UR8], R40 ;", True),
        ("", "R56", "HGMMA.64x32x16.F32 R40, gdesc[UR8], R40 ;", False),  # to R55
        ("", "R56", "STS.128 [R179+UR5+0x12000], R56 ;", False),
        ("", "R56", "FFMA R60, R39, 0.125, -R56 ;", False),
        ("", "R56", "ISETP.GE.U32.AND P0, PT, R56, 0xc2, PT ;", False),
        ("", "gdesc[UR20]", "FFMA R56, R39, 0.125, R56 ;", False),
        ("IMAD.MOV.U32 R56, RZ, RZ, R90 ;", "R56", "FFMA R56, R39, 0.125, R56 ;", False),  # kept elsewhere
        ("IMAD.MOV.U32 R56, RZ, RZ, R90 ;", "R56", "FFMA R57, R39, 0.125, R56 ;", True),  # of four registers one
        ("@P2 IMAD.MOV.U32 R56, RZ, RZ, R90 ;", "R56", "FFMA R56, R39, 0.125, R56 ;", True),  # perhaps
        ("", "R24", "", True),  # by the product itself
    ],
)
def test_machine_code_that_overwrites_an_operand(before: str, operand: str, after: str, is_wrong: bool, tmp_path: Path) -> None:
    loop = LOOP.format(before=before, operand=operand, after=after)
    other = "HGMMA.64x32x16.F32 R40, R80, gdesc[UR24], RZ, !UPT ;"
    assert overwritten_operands(b"", ["f"], disassembler(tmp_path, f=f"{loop}\n{other}")) == (["f"] if is_wrong else [])


def disassembler(folder: Path, **functions: str) -> str:
    """One that writes these functions, whatever it is given."""
    listing = []
    for name, code in functions.items():
        lines = [line for line in code.splitlines() if line]
        listing += [f"\t.section\t.text.{name}", "\t.align\t128", f"        .type           {name},@function", f".text.{name}:"]
        listing += [
            line if line.startswith((".", "?")) else f"        /*{16 * n:04x}*/    {line}" for n, line in enumerate(lines)
        ]
    path = folder / "nvdisasm"
    path.write_text("#!/bin/sh\ncat <<'END'\n" + "\n".join(listing) + "\nEND\n")
    path.chmod(0o755)
    return str(path)


def test_functions_that_keep_no_operand_are_not_looked_at(tmp_path: Path) -> None:
    """Theirs are loaded ahead for the next iteration."""
    loaded = LOOP.format(before="", operand="R56", after="LDSM.16.M88.4 R56, [R180+UR5+0x12000] ;")
    kept = LOOP.format(before="", operand="R56", after="")
    assert overwritten_operands(b"", ["f"], disassembler(tmp_path, f=kept, g=loaded)) == []
    assert overwritten_operands(b"", ["f", "g"], disassembler(tmp_path, f=kept, g=loaded)) == ["g"]


@pytest.mark.parametrize(
    ("before", "operand", "after", "reason"),
    [
        ("", "R[56]", "", r"'R\[56\]' is no operand"),
        ("", "", "", "'' is no operand"),
        ("", "R56", "FFMA %r59, R39 ;", "what FFMA %r59, R39 writes"),
        ("", "R56", "FFMA R56:R57, R39 ;", "what FFMA R56:R57, R39 writes"),
        ("", "R56", "HGMMA.32x32x16.F32 R40, R56, gdesc[UR24] ;", "HGMMA.32x32x16.F32 is no product"),
        ("", "R56", "@P1 BRA 0x120 ;", "goes is not told"),
        ("", "R56", "BRX R4 -0x120 ;", "goes is not told"),
        ("", "R56", "?? FFMA R56", "is no instruction"),
        ("", "gdesc[UR20]", "", "no product of registers"),
    ],
)
def test_machine_code_that_is_not_understood_is_refused(
    before: str, operand: str, after: str, reason: str, tmp_path: Path
) -> None:
    code = LOOP.format(before=before, operand=operand, after=after)
    with pytest.raises(ValueError, match=f"^the machine code cannot be read again, .*{reason}"):
        overwritten_operands(b"", ["f"], disassembler(tmp_path, f=code))
    with pytest.raises(ValueError, match="function h is not in it"):
        overwritten_operands(b"", ["h"], disassembler(tmp_path, f=code))


def test_what_the_disassembler_refuses_is_no_code(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"^nvdisasm: "):
        overwritten_operands(b"no code", ["f"], triton.knobs.nvidia.nvdisasm.path)


PRODUCT = "wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16 {%r1,%r2,%r3,%r4}, {%r5,%r6,%r7,%r8}, %rd1, 1, 1, 1, 0;"


@pytest.mark.parametrize(
    ("loop", "keeps"),
    [
        ([PRODUCT], True),
        (["mov.b32 %r5, %r15;", "mov.b32 %r6, %r16;", PRODUCT], True),
        (["ld.shared.v4.b32 {%r5, %r6, %r7, %r8}, [%r20];", PRODUCT], False),
        (["ld.shared.b32 %r20, [%r21];", "cvt.rn.f16x2.f32 %r7, %r20, %r20;", PRODUCT], True),  # three of four
        (["ld.shared.b32 %r20, [%r21];", *(f"cvt.f32.f16 %r{n}, %r20;" for n in (5, 6, 7, 8)), PRODUCT], False),
        (["mul.f32 %r8, %r1, %r9;", PRODUCT], True),  # of what the product gave, but the others are kept
        ([f"mul.f32 %r{register}, %r1, %r9;" for register in (5, 6, 7, 8)] + [PRODUCT], False),
        ([PRODUCT.replace("{%r5,%r6,%r7,%r8}", "%rd2")], False),
    ],
)
def test_operands_that_a_loop_keeps(loop: list[str], keeps: bool) -> None:
    text = ["mov.b32 %r15, %r0;", "$L__BB0_1:", *loop, "@%p1 bra $L__BB0_1;", "ret;"]
    whole, without = ("\n".join(f"\t{line}" for line in lines) for lines in (text, text[:-2]))
    assert bool(kept_operands(whole)) == keeps and not kept_operands(without), "it is no loop"
    heads = [f".visible .entry {name}(\n\t.param .u64 x\n)\n" for name in "abc"]
    assert kept_operands(f"{heads[0]}{without}\n{heads[1]}{whole}\n{heads[2]}{without}") == (["b"] if keeps else [])


def test_a_text_for_drivers_keeps_no_operand(tmp_path: Path) -> None:
    """What assembles it is theirs, and cannot be read."""
    source = generate(parse_kernel(TWO_PASSES), (Schedule((("h", 1), ("s", 64), ("t", 64)), warps=8, stages=3),))
    with Compiler(tmp_path, workers=1) as compiler:
        (first,) = compiler.compile([("f", source)], [Architecture(90, is_ptx=True)])
        (second,) = compiler.compile([("f", source)], [Architecture(80, is_ptx=True)])
    assert isinstance(first, NotCompiled) and "drivers before CUDA 13.3 overwrite: take the GPU's own architecture, sm_90" in str(
        first
    )
    assert not isinstance(second, NotCompiled), "it has no products of warpgroups"
