"""Custom kernels in the whole run: optimised here for a GPU that is not here, and with a stopwatch in its place."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from click.testing import CliRunner
from onnx.parser import parse_model
from rich.console import Console

from mugraph.blocks.block import Kernel
from mugraph.blocks.sizes import specialised
from mugraph.blocks.variants import Variants
from mugraph.deadline import BudgetSpent, Deadline, heed
from mugraph.onnx import load
from mugraph.terms.text import parse_term, parse_type
from rewriter import optimize
from rewriter.cli.main import main
from rewriter.cli.summary import print_summary
from rewriter.cost.devices import default_device, get_device
from rewriter.cost.kernel_times import Measured, record
from rewriter.cost.schedules import ranked
from rewriter.cost.store import ProfileStore, default_profile_path
from rewriter.kernels import custom as kernels
from rewriter.kernels.architecture import Architecture
from rewriter.kernels.custom import CustomKernels, default_architectures, learned_path
from rewriter.kernels.fuse.builder import NotFusable
from rewriter.kernels.fuse.kernels import KernelBuilder
from rewriter.kernels.fuse.lower import lower
from rewriter.kernels.measure import processes
from rewriter.kernels.measure.trials import NoDevice, NotMeasured
from rewriter.kernels.programs import Scheduled
from rewriter.kernels.proposals import KernelProposals
from rewriter.kernels.triton.compile import Compiler, NotCompiled
from rewriter.kernels.within import kernels_of
from rewriter.reference import InputError
from rewriter.run import accept, timings
from rewriter.run.checking import Checker, Opened
from rewriter.run.clock import Clock
from rewriter.run.judgement import Judgement
from rewriter.run.judging import Judge
from rewriter.run.proposing import Proposal, Proposals
from rewriter.run.searching import _CAUTION
from rewriter.search.candidate import Candidate
from rewriter.search.misses import NearMiss
from rules_db.entries import read_all
from rules_db.store import RuleStore
from rules_db.trust.certificate import Certificate, Interpretation
from rules_db.trust.interpreted import LEAST_TESTS, kernel_of_rule, kernel_rule
from rules_db.trust.rule import Rule
from tests.support.kernel_help import at_leisure, own_nodes, with_kernel
from tests.support.runs import FASTER, SAME

SM_90 = (Architecture(90),)

pytestmark = pytest.mark.usefixtures("compiled_once")


def _run(path: Path) -> np.ndarray:
    generator = np.random.default_rng(1)
    feed = {name: generator.standard_normal((16, 64)).astype(np.float16) for name in ("x", "y")}
    (result,) = ort.InferenceSession(path, providers=["CPUExecutionProvider"]).run(None, feed)
    return np.asarray(result, np.float32)


def test_a_model_for_a_gpu_that_is_not_here_gets_kernels_and_runs_without_them(model: Path, tmp_path: Path) -> None:
    outcome = optimize(model, tmp_path / "a.onnx", device="h200", deterministic=True, kernels_folder=tmp_path / "kept")
    assert outcome.improved and outcome.kernels == 1, outcome
    assert outcome.predicted_after < 0.5 * outcome.predicted_before
    (node,) = own_nodes(tmp_path / "a.onnx")
    assert {a.name for a in node.attribute} == {"mugraph", "version", "compiler", "kernels", "plan", "images"}
    np.testing.assert_allclose(_run(tmp_path / "a.onnx"), _run(model), atol=4e-3)
    assert sorted(p.suffix for p in (tmp_path / "kept").iterdir()) == [".json", ".py", ".svg", ".txt"]
    optimize(model, tmp_path / "b.onnx", device="h200", deterministic=True)
    assert (tmp_path / "a.onnx").read_bytes() == (tmp_path / "b.onnx").read_bytes()
    assert not learned_path().exists()  # it would change what the next such run gives


def test_without_kernels_there_are_none(model: Path, tmp_path: Path) -> None:
    outcome = optimize(model, tmp_path / "out.onnx", device="h200", deterministic=True, kernels=False)
    assert outcome.kernels == 0 and not own_nodes(tmp_path / "out.onnx")


def test_a_gpu_without_matrix_units_that_triton_knows_gets_none(model: Path, tmp_path: Path) -> None:
    outcome = optimize(model, tmp_path / "out.onnx", device="t4", deterministic=True)
    assert outcome.kernels == 0 and "no custom kernels: they need a GPU of sm_80 or later" in outcome.notes


def test_a_model_with_kernels_is_optimised_again_and_keeps_them(model: Path, tmp_path: Path) -> None:
    optimize(model, tmp_path / "once.onnx", device="h200", deterministic=True)
    outcome = optimize(tmp_path / "once.onnx", tmp_path / "twice.onnx", device="h200", deterministic=True)
    assert outcome.kernels == 1
    assert [n.attribute for n in own_nodes(tmp_path / "twice.onnx")] == [n.attribute for n in own_nodes(tmp_path / "once.onnx")]


@pytest.mark.parametrize(
    "arguments, said",
    [
        (["--device", "h200", "--arch", "sm_75"], "--arch: 'sm_75' is no architecture"),
        (["--provider", "cpu", "--arch", "sm_90"], "custom kernels are for GPUs"),
        (["--provider", "cpu", "--keep-kernels", "kept"], "custom kernels are for GPUs"),
        (["--device", "h200", "--no-kernels", "--arch", "sm_90"], "custom kernels are for GPUs"),
    ],
)
def test_options_that_contradict_each_other(model: Path, arguments: list[str], said: str) -> None:
    result = CliRunner().invoke(main, [str(model), *arguments])
    assert result.exit_code == 2 and said in result.output


def test_the_command_line_names_architectures_and_keeps_sources(model: Path, tmp_path: Path) -> None:
    arguments = [str(model), "--device", "h200", "--deterministic", "--arch", "sm_90", "--keep-kernels", str(tmp_path / "kept")]
    result = CliRunner().invoke(main, arguments)
    assert result.exit_code == 0, result.output
    assert "1 custom kernel:" in result.output and len(list((tmp_path / "kept").glob("*.py"))) == 1


# What does not work


def _refusing(monkeypatch: pytest.MonkeyPatch, which: set[str]) -> None:
    plain = Compiler.compile

    def compile_(self: Compiler, sources: list, architectures: tuple = SM_90) -> list:  # type: ignore[type-arg]
        if which & set(map(str, architectures)):
            return [NotCompiled(f"kernel {label} is refused") for label, _ in sources]
        return plain(self, sources, architectures)

    monkeypatch.setattr(Compiler, "compile", compile_)


def test_a_kernel_that_does_not_compile_is_dropped_with_its_reason(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _refusing(monkeypatch, {"sm_90"})
    outcome = optimize(model, tmp_path / "out.onnx", device="h200", deterministic=True)
    assert any("is refused" in line for line in outcome.dropped)
    assert outcome.kernels == 0 and not own_nodes(tmp_path / "out.onnx")
    np.testing.assert_allclose(_run(tmp_path / "out.onnx"), _run(model), atol=4e-3)


def test_a_schedule_that_does_not_compile_gives_way_to_the_next_best(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain, refused = Compiler.compile, set[str]()

    def compile_(self: Compiler, sources: list, architectures: tuple = SM_90) -> list:  # type: ignore[type-arg]
        texts = {source.text for _, source in sources}
        if not refused or texts & refused:
            refused.update(texts)
            return [NotCompiled(f"kernel {label} wants too much memory") for label, _ in sources]
        return plain(self, sources, architectures)

    monkeypatch.setattr(Compiler, "compile", compile_)
    outcome = optimize(model, tmp_path / "out.onnx", device="h200", deterministic=True, kernels_folder=tmp_path / "kept")
    assert outcome.kernels == 1 and not outcome.dropped
    (written,) = (tmp_path / "kept").glob("*.py")
    assert written.read_text() not in refused


def test_attention_that_wants_more_memory_than_there_is_takes_a_schedule_that_fits() -> None:
    """32 heads of 128 over 4096 positions: what looks best wants more shared memory than a block of an L4 has."""
    attributes = "given=(),mask_filter_value=-10000.0,num_heads=32,present=false,scale=0.0884,unidirectional=true"
    call = f"MultiHeadAttention[{attributes}](q, k, v)"
    kernel = lower("attention", {name: parse_type("float16[1,4096,4096]") for name in "qkv"}, [("y", parse_term(call))])
    device, (best, *_) = get_device("l4"), ranked(kernel, get_device("l4"), {}, 1)
    custom = CustomKernels(device, ProfileStore(None, "l4"), {}, [], (Architecture(device.architecture),), False, measures=False)
    (refused,) = custom.compiler.compile([("attention", Scheduled.one(kernel, *best[1]).sources()[0])], custom.architectures)
    assert isinstance(refused, NotCompiled) and "bytes of shared memory, more than sm_89 has" in str(refused)
    assert custom.compile(with_kernel(kernel)[1]) == [] and custom.programs[kernel].variants != Variants.one(best[1])
    custom.close()


def test_a_known_schedule_that_does_not_compile_gives_way_to_the_best(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a store remembers, of another compiler, say, is not the one that the model likes best: that one is tried, too."""
    kernel = lower("relu", {"x": parse_type("float16[64,64]")}, [("y", parse_term("Relu(Neg(x))"))])
    device, store = get_device("h200"), ProfileStore(tmp_path / "profile.sqlite", "a GPU")
    (_, best), *_, (_, last) = ranked(kernel, device, {}, 4)
    record(store, kernel, {}, [Measured(last, 1.0)])
    plain = Compiler.compile

    def compile_(self: Compiler, sources: list, architectures: tuple = SM_90) -> list:  # type: ignore[type-arg]
        wrong = Scheduled.one(kernel, *last).sources()[0].text
        made = plain(self, sources, architectures)
        return [NotCompiled("no") if source.text == wrong else m for (_, source), m in zip(sources, made, strict=True)]

    monkeypatch.setattr(Compiler, "compile", compile_)
    custom = CustomKernels(device, store, {}, [], SM_90, False, measures=False)
    assert custom.compile(with_kernel(kernel)[1]) == [] and custom.programs[kernel].variants == Variants.one(best)
    custom.close()


def test_what_was_refused_once_is_dropped_from_later_candidates_too(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first candidate finds it out, and says so; the second must not be written with a kernel that has no image."""
    _refusing(monkeypatch, {"sm_90"})
    plain = Checker.check

    def twice(self: Checker, proposal: Proposal) -> Opened | None:
        plain(self, proposal)
        return plain(self, proposal)

    monkeypatch.setattr(Checker, "check", twice)
    outcome = optimize(model, tmp_path / "out.onnx", device="h200", deterministic=True)
    assert outcome.dropped and outcome.kernels == 0 and not own_nodes(tmp_path / "out.onnx")


def test_an_image_for_others_is_left_out_unless_it_was_asked_for(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _refusing(monkeypatch, {"compute_80"})
    outcome = optimize(model, tmp_path / "out.onnx", device="h200", deterministic=True)
    assert outcome.kernels == 1 and any("compiled for sm_90 only" in note for note in outcome.notes)
    asked = [Architecture(90), Architecture(80, is_ptx=True)]
    assert optimize(model, tmp_path / "out.onnx", device="h200", deterministic=True, architectures=asked).kernels == 0


def test_explanations_tell_why_regions_were_left(model: Path, tmp_path: Path) -> None:
    outcome = optimize(model, tmp_path / "out.onnx", device="h200", deterministic=True, explain="all")
    lines = [e for e in outcome.explanations if e.text == "a region as a kernel"]
    assert all(isinstance(e, NearMiss) and e.outcome for e in lines) and lines


# With a GPU, for which a fixed answer stands


def test_kernels_are_timed_learned_and_found_again(model: Path, tmp_path: Path, gpu: list[str]) -> None:
    first = at_leisure(model, tmp_path / "first.onnx")
    assert first.improved and first.kernels == 1 and gpu and first.measured_costs >= 2, first
    assert len(set(gpu)) == len(gpu)
    with RuleStore.open(str(learned_path())) as database:
        (learned,) = [r for r in read_all(database.entries())[0] if any(t.op == "Kernel" for t in r.target)]
    assert not learned.provenance.get("kernel")
    del gpu[:]
    second = at_leisure(model, tmp_path / "second.onnx")
    assert second.cached_verdict and not gpu
    assert (tmp_path / "first.onnx").read_bytes() == (tmp_path / "second.onnx").read_bytes()
    third = at_leisure(model, tmp_path / "third.onnx", use_verdicts=False)
    assert third.kernels == 1 and not third.cached_verdict


def test_candidates_are_ordered_with_caution_towards_kernels_that_were_not_timed(
    model: Path, tmp_path: Path, gpu: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    cautions: list[float] = []
    judge = Judge.judge

    def judged(self: Judge, proposals: Proposals) -> Judgement:
        cautions.append(proposals.search.costs.caution)
        return judge(self, proposals)

    monkeypatch.setattr(Judge, "judge", judged)
    assert at_leisure(model, tmp_path / "out.onnx").measured_costs >= 2
    assert cautions == [_CAUTION] and _CAUTION > 1


def test_where_the_time_is_over_kernels_are_run_once_before_they_are_tried(
    model: Path, tmp_path: Path, gpu: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that turns out to be slow is not tried end to end; its time is known to later runs. What is tried early, while
    the search goes on, may hold such kernels."""
    counts: list[int] = []

    def measured(_, kernel, compiled, *__):  # type: ignore[no-untyped-def]
        counts.append(len(compiled))
        return [Measured(trial.schedules, 1e6, 1e-4) for trial in compiled]

    monkeypatch.setattr("rewriter.run.proposing._TUNING", 0.0)
    monkeypatch.setattr("rewriter.run.proposing._PATIENCE", 1e9)  # however busy the machine is
    monkeypatch.setattr(Judge, "tries_early", False)
    monkeypatch.setattr(processes.KernelTimer, "measure", measured)
    monkeypatch.setattr(
        accept.Acceptance, "on_device", lambda _, path, seconds: pytest.fail("tried") if own_nodes(path) else None
    )
    outcome = at_leisure(model, tmp_path / "out.onnx")
    assert outcome.kernels == 0 and counts and set(counts) <= {1, 2}
    costs = ProfileStore(default_profile_path(), "a GPU | onnxruntime | cuda").costs
    assert [cost for signature, cost in costs.items() if signature.startswith("kernel ")] == [1e6] * len(counts)


def test_a_kernel_that_was_run_once_is_tuned_by_a_run_that_has_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = lower("relu", {"x": parse_type("float16[64,64]")}, [("y", parse_term("Relu(Neg(x))"))])
    graph, counts = with_kernel(kernel)[1], list[int]()

    def measured(_, kernel, compiled, *__):  # type: ignore[no-untyped-def]
        counts.append(len(compiled))
        return [Measured(trial.schedules, 3.0, 1e-4) for trial in compiled]

    monkeypatch.setattr(processes.KernelTimer, "measure", measured)
    monkeypatch.setattr(kernels, "_TRIALS", 4)
    store = ProfileStore(None, "a GPU")
    for asked in ([True, False, True, False], [False, False, False, False]):
        custom = CustomKernels(get_device("h200"), store, {}, [], SM_90, False)
        far = time.monotonic() + 500
        told = [custom.glance(graph, far), custom.glance(graph, far), custom.tune(graph, far), custom.tune(graph, far)]
        custom.close()
        assert told == asked
    assert counts == [2, 6]


def test_kernels_at_sizes_of_a_models_own_are_recalled(tmp_path: Path, gpu: list[str]) -> None:
    """A remembered kernel rule is checked like a foreign one; at these sizes tests would take minutes, and it is proved."""
    proto = parse_model("""
        <ir_version: 10, opset_import: ["" : 20]>
        wide (float16[8,512,512] x, float16[512] b) => (float16[8,512,512] z) {
            shifted = Add(x, b)
            scaled = Softmax<axis: int = -1>(shifted)
            z = Tanh(scaled)
        }""")
    onnx.save(proto, tmp_path / "wide.onnx")
    first = at_leisure(tmp_path / "wide.onnx", tmp_path / "first.onnx")
    assert first.improved and first.kernels == 1, first
    assert at_leisure(tmp_path / "wide.onnx", tmp_path / "again.onnx").cached_verdict
    other = optimize(tmp_path / "wide.onnx", tmp_path / "other.onnx", budget=500)
    assert other.improved and other.kernels == 1 and not other.cached_verdict


def test_a_rule_that_is_not_proved_does_not_cost_the_others(
    model: Path, tmp_path: Path, gpu: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    winning_rules = KernelProposals.winning_rules

    def with_a_large_one(self: KernelProposals, candidate: Candidate) -> list[Rule]:
        """What the candidate rests on, behind one without a proof at sizes that are too large to interpret."""
        (own,) = winning_rules(self, candidate)
        general = kernel_of_rule(own)
        assert general is not None
        large = kernel_rule(specialised(general, dict.fromkeys(general.symbols, 4096)), {})
        return [replace(large, certificate=Certificate((), interpreted=Interpretation(LEAST_TESTS, 0))), own]

    monkeypatch.setattr(KernelProposals, "winning_rules", with_a_large_one)
    outcome = at_leisure(model, tmp_path / "out.onnx")
    (note,) = [note for note in outcome.notes if "not remembered" in note]
    assert "was not remembered for other models: more than 1048576 entries" in note
    with RuleStore.open(str(learned_path())) as database:
        (learned,) = [r for r in read_all(database.entries())[0] if any(t.op == "Kernel" for t in r.target)]
    kernel = kernel_of_rule(learned)
    assert learned.id not in note and kernel is not None and kernel.symbols


def test_a_learned_rule_is_checked_before_it_is_used(
    model: Path, tmp_path: Path, gpu: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert at_leisure(model, tmp_path / "out.onnx").kernels == 1
    monkeypatch.setattr("rules_db.trust.check.check", lambda rule, axioms: ["it was tampered with"])
    outcome = at_leisure(model, tmp_path / "again.onnx", use_verdicts=False)
    assert any("is not proved and was not used: it was tampered with" in note for note in outcome.notes)
    assert outcome.kernels == 1  # built anew


def test_a_slow_kernel_is_not_used(model: Path, tmp_path: Path, gpu: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        processes.KernelTimer, "measure", lambda _, kernel, compiled, *__: [Measured(compiled[0].schedules, 1e6, 1e-4)]
    )
    assert at_leisure(model, tmp_path / "out.onnx").kernels == 0


def test_the_best_without_kernels_is_tried_beside_them(
    model: Path, tmp_path: Path, gpu: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    slower = timings.Timing(1.0, 2.0, 0.1, 0.1, 2.0, 1.9, 2.1)
    monkeypatch.setattr(timings, "confirm", lambda _, candidate, *rest, **options: slower if own_nodes(candidate) else FASTER)
    outcome = at_leisure(model, tmp_path / "out.onnx")
    assert gpu and outcome.improved and outcome.kernels == 0
    assert [n.op_type for n in onnx.load(tmp_path / "out.onnx").graph.node].count("Relu") == 1


def test_what_is_slower_on_the_device_is_not_written_however_default_settings_look(
    model: Path, tmp_path: Path, gpu: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A processor that launches slowly hides what a kernel takes: fewer nodes look faster there."""
    slower = timings.Timing(1.0, 2.0, 0.1, 0.1, 2.0, 1.9, 2.1)
    monkeypatch.setattr(accept.Acceptance, "on_device", lambda _, path, seconds: slower if own_nodes(path) else None)
    outcome = at_leisure(model, tmp_path / "out.onnx")
    assert gpu and outcome.kernels == 0


def test_the_device_decides_where_it_can_be_asked(
    model: Path, tmp_path: Path, gpu: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """No second measurement follows; a later run tells the same, and prints both."""
    monkeypatch.setattr(accept.Acceptance, "on_device", lambda *_: FASTER)
    monkeypatch.setattr(accept.Acceptance, "pair", lambda *_: SAME)
    monkeypatch.setattr(timings, "confirm", lambda *_, **__: pytest.fail("measured again"))
    captured: list[Path] = []
    monkeypatch.setattr(accept.Acceptance, "_bind", lambda _, path: captured.append(path))
    first = at_leisure(model, tmp_path / "first.onnx")
    assert (first.improved, first.on_device, first.latency) == (True, FASTER, SAME)
    assert captured, "the original's, beside the search"
    monkeypatch.setattr(accept.Acceptance, "_bind", lambda *_: pytest.fail("captured though nothing is timed"))
    again = at_leisure(model, tmp_path / "again.onnx")
    assert again.cached_verdict and (again.on_device, again.latency) == (FASTER, SAME)
    console = Console(record=True, width=160)
    print_summary(again, console)
    assert "2.00 times as fast as before on the device, 1.00 times under default settings" in console.export_text()


def test_a_wrong_kernel_is_not_used(model: Path, tmp_path: Path, gpu: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = [Measured((), None, 1.0, "kernel k: z is wrong, relative error 1.0e+00")]
    monkeypatch.setattr(processes.KernelTimer, "measure", lambda *_: wrong)
    outcome = at_leisure(model, tmp_path / "out.onnx", explain="all")
    assert outcome.kernels == 0
    assert any("z is wrong" in e.outcome for e in outcome.explanations)


def test_what_is_proved_is_tested_before_it_is_used(
    model: Path, tmp_path: Path, gpu: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def differs(self: KernelBuilder, kernel: Kernel) -> None:
        raise NotFusable(f"kernel {kernel.name} is wrong")

    monkeypatch.setattr(KernelBuilder, "test", differs)
    outcome = at_leisure(model, tmp_path / "out.onnx")
    assert gpu and outcome.kernels == 0, "it was proved, and timed"
    assert any("is wrong" in line for line in outcome.dropped), outcome.dropped


def test_without_a_driver_kernels_are_not_timed(
    model: Path, tmp_path: Path, gpu: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def nothing(*_: object) -> list[Measured]:
        raise NoDevice("nothing can be measured on a GPU here: no cuda-bindings")

    monkeypatch.setattr(processes.KernelTimer, "measure", nothing)
    outcome = at_leisure(model, tmp_path / "out.onnx")
    assert outcome.kernels == 1 and any("no cuda-bindings" in note for note in outcome.notes)


def test_after_the_deadline_nothing_is_timed(model: Path, tmp_path: Path, gpu: list[str]) -> None:
    at_leisure(model, tmp_path / "a.onnx")
    graph = load(tmp_path / "a.onnx").graph
    device = get_device("h200")
    made = CustomKernels(device, ProfileStore(None, "a"), {}, (), default_architectures(device), False)
    del gpu[:]
    for late in (0.0, time.monotonic() + 1):
        made.tune(graph, late)
    assert not gpu, "the first kernel takes longer than that"
    made.tune(graph, float("inf"))
    assert gpu == [kernel.digest.hex() for kernel in kernels_of(graph)] and made.timed == 2
    made.close()


class Slow:
    """A step that does not end before somebody does not want it any more, the first time."""

    def __init__(self, step: Callable[..., Any]) -> None:
        self.step, self.asked = step, 0

    def __call__(self, *arguments: Any) -> Any:
        self.asked += 1
        while self.asked == 1:
            heed()
            time.sleep(0.02)
        return self.step(*arguments)


@pytest.mark.parametrize(("owner", "step"), [(processes.KernelTimer, "measure"), (CustomKernels, "_compiled")])
def test_a_device_that_does_not_answer_in_time_leaves_the_time_to_decide(
    owner: type, step: str, model: Path, tmp_path: Path, gpu: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is being compiled or timed when the search has to end is left: the best candidate is tried all the same."""

    def compiled(custom: CustomKernels, kernel: Kernel, most: int) -> list[Any]:
        return [SimpleNamespace(schedules=s) for _, s in ranked(kernel, custom.device, custom.sizes, most)] if most else []

    monkeypatch.setattr(CustomKernels, "_compiled", compiled)
    slow = Slow(getattr(owner, step))
    monkeypatch.setattr(owner, step, lambda *arguments: slow(*arguments))
    monkeypatch.setattr(Clock, "instant", lambda *_: time.monotonic() + 3.0)
    outcome = optimize(model, tmp_path / "out.onnx", budget=200.0)
    assert slow.asked > 1 and outcome.improved and outcome.kernels == 1, outcome
    assert outcome.seconds["total"] < 150


def test_what_was_timed_when_the_time_is_over_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = lower("relu", {"x": parse_type("float16[64,64]")}, [("y", parse_term("Relu(Neg(x))"))])
    trial = SimpleNamespace(schedules=())
    ended = Deadline()

    def answers(known: int) -> Iterator[tuple[int, Measured | None]]:
        yield 0, None
        yield from [(0, Measured((), 3.0, 1e-4))][:known]
        ended.end()
        heed()

    for known in (1, 0):
        timer, ended = processes.KernelTimer(), Deadline()
        monkeypatch.setattr(timer, "_answers", lambda _, known=known: answers(known))
        with ended.heeded(), nullcontext() if known else pytest.raises(BudgetSpent):
            assert [result.microseconds for result in timer.measure(kernel, [trial, trial])] == [3.0]
        timer.close()


def test_kernels_are_compiled_before_they_are_asked_for(model: Path, tmp_path: Path, gpu: list[str]) -> None:
    at_leisure(model, tmp_path / "a.onnx")
    graph = load(tmp_path / "a.onnx").graph
    made = CustomKernels(get_device("h200"), ProfileStore(None, "a"), {}, (), SM_90, False)
    made.compiler = Compiler(tmp_path / "fresh", workers=1)
    made.foresee(graph)
    made.foresee(graph)
    for threads in made._compiling:
        threads.shutdown()
    assert made.compiler.compiled == 1 and not made.programs and not made.compile(graph) and made.programs
    assert made.compiler.compiled == 1, "it was there"
    made.close()


def test_where_time_is_short_fewer_schedules_are_timed(
    model: Path, tmp_path: Path, gpu: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    at_leisure(model, tmp_path / "a.onnx")
    monkeypatch.setattr(CustomKernels, "trial_seconds", 1000.0)
    made = CustomKernels(get_device("h200"), ProfileStore(None, "a"), {}, (), [Architecture(90)], False)
    made.tune(load(tmp_path / "a.onnx").graph, time.monotonic() + 500)
    assert made.timed == 1
    made.close()


def test_a_damaged_database_of_learned_kernels_is_done_without(model: Path, tmp_path: Path) -> None:
    device, path = get_device("h200"), tmp_path / "kernels.sqlite"
    path.write_bytes(b"this is not a database" * 50)
    made = CustomKernels(device, ProfileStore(None, "a"), {}, (), default_architectures(device), False, path)
    assert not made.notes, "whoever makes no search reads none"
    assert list(made.proposals.proposals(load(model).graph))
    made.close()
    (note,) = made.notes
    assert note.startswith(f"kernels of earlier runs were not used: {path}: this is no rule database") and made.learned is None


def test_a_known_time_is_the_price(model: Path, tmp_path: Path, gpu: list[str]) -> None:
    at_leisure(model, tmp_path / "a.onnx")
    loaded = load(tmp_path / "a.onnx")
    store = ProfileStore(None, "a")
    from rewriter.cost import CostModel

    costs = CostModel(store, loaded.opset, {}, "cuda", device=get_device("h200"))
    (kernel,) = kernels_of(loaded.graph)
    node = next(n for n in loaded.graph.nodes() if n.op == "Kernel")
    predicted = costs.cost(loaded.graph, node)
    assert predicted > 0 and costs.measured == 0
    record(store, kernel, {}, [Measured((), 17.5)])
    assert costs.cost(loaded.graph, node) == 17.5
    assert replace(costs, caution=2.0).cost(loaded.graph, node) == 17.5, "what was timed needs no caution"
    untimed = replace(costs, store=ProfileStore(None, "b"))
    assert untimed.cost(loaded.graph, node) == predicted
    assert replace(untimed, caution=2.0).cost(loaded.graph, node) == 2 * predicted


def test_a_device_is_known_by_what_the_machine_calls_it() -> None:
    assert default_device("cuda", "x + NVIDIA A100-SXM4-80GB, driver 570.1").name == "a100-80gb"
    assert default_device("cuda", "NVIDIA H100 80GB HBM3").name == "h100"
    assert default_device("cuda", "NVIDIA GeForce RTX 4090").name == "rtx-4090"
    assert default_device("cuda", "something new").name == "h200"
    assert default_device("cpu", "NVIDIA L4").name == "cpu"


def test_architectures_are_refused_where_they_make_no_sense(model: Path) -> None:
    with pytest.raises(InputError, match="custom kernels are for GPUs"):
        optimize(model, model.with_suffix(".out.onnx"), provider="cpu", architectures=SM_90)


def test_nothing_compiled_is_a_reason() -> None:
    assert issubclass(NoDevice, NotMeasured)
