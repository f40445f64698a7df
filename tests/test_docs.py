"""The documentation's examples run."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
import numpy as np
import onnx
import onnxruntime as ort
import pytest
from click.testing import CliRunner

from modeldiff.cli import command as diff
from mugraph.onnx import load
from rewriter import optimize
from rewriter.cli.costs import cli as costs
from rewriter.cli.main import main
from rewriter.run.outcome import Outcome
from rewriter.run.shared_buffers import named_buffers
from rulegen.cli.main import cli as rulegen
from rules_db.exchange import format_rule
from rules_db.library import shipped_rules
from tools.trusted_base import counted
from tools.zoo.decoders import Decoder, cache_names, decoder_step

ROOT = Path(__file__).parent.parent


def test_the_tour_runs() -> None:
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "tour.md").read_text(), re.S)
    assert len(blocks) >= 7
    exec(compile("\n".join(blocks), "docs/tour.md", "exec"), {})


def test_the_example_of_cleaning_runs() -> None:
    (block,) = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "cleaning.md").read_text(), re.S)
    exec(compile(block, "docs/cleaning.md", "exec"), {})


def test_the_example_of_kernels_in_c_runs() -> None:
    (block,) = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "kernels_cpu.md").read_text(), re.S)
    exec(compile(block, "docs/kernels_cpu.md", "exec"), {})


def test_the_rule_shown_is_the_rule_shipped() -> None:
    page = (ROOT / "docs" / "rules.md").read_text()
    (shown,) = re.findall(r"```\n(rule .*?)```", page, re.S)
    assert shown.strip() in {format_rule(rule).strip() for rule in shipped_rules()}


def test_the_trusted_base_is_counted_as_it_is() -> None:
    """Every trusted file belongs to a part; lines may be out by a tenth before the table is to be printed again."""
    rows = dict(re.findall(r"^\| ([a-z][^|]*) \| `[^|]*\| (\d+ \| [\d,]+) \|$", (ROOT / "docs" / "rules.md").read_text(), re.M))
    counts = counted()
    assert rows.keys() == counts.keys()
    for part, (files, lines) in counts.items():
        told_files, told_lines = (int(number.replace(",", "")) for number in rows[part].split(" | "))
        again = f"{part}: {files} files of {lines} lines; python -m tools.trusted_base prints the table of docs/rules.md"
        assert told_files == files and abs(told_lines - lines) <= max(60, lines // 10), again
    for page in ("index.md", "rules.md"):
        text = " ".join((ROOT / "docs" / page).read_text().split())
        ((told_lines, told_files),) = re.findall(r"about ([\d,]+) lines in (\d+) files", text)
        assert int(told_files) == sum(files for files, _ in counts.values()), page
        assert abs(int(told_lines.replace(",", "")) - (whole := sum(lines for _, lines in counts.values()))) <= whole // 20, page


def test_the_docs_name_every_option() -> None:
    page = (ROOT / "docs" / "options.md").read_text() + (ROOT / "docs" / "diff.md").read_text()
    documented = "".join(CliRunner().invoke(command, ["--help"]).output for command in (main, diff))
    for option in sorted(set(re.findall(r"--[a-z][a-z-]+", documented)) - {"--help", "--version"}):
        assert option in page, option


def test_the_docs_name_every_command_and_every_field_of_a_summary() -> None:
    page = (ROOT / "docs" / "options.md").read_text()
    for group in (rulegen, costs):
        for command in group.list_commands(click.Context(group)):
            assert re.search(rf"(rulegen|superopt-costs) {command}\b", page), command
    for field in json.loads(Outcome("a.onnx", "b.onnx").to_json()):
        assert f"`{field}`" in page, field


PAGES = [ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").glob("*.md"))]


def prose(page: Path) -> str:
    """A page without its blocks of code."""
    return re.sub(r"```.*?```", "", page.read_text(), flags=re.S)


def anchors(page: Path) -> set[str]:
    """What a link may name of a page, as GitHub and mkdocs spell headings."""
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in re.findall(r"^#+ (.*)$", prose(page), re.M)}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_links_between_pages_lead_somewhere(page: Path) -> None:
    for target, anchor in re.findall(r"\]\(([\w./-]+\.(?:md|png)|)(?:#([\w-]+))?\)", prose(page)):
        there = page.parent / target if target else page
        assert there.exists(), target
        assert not anchor or anchor in anchors(there), f"{target}#{anchor}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_what_pages_name_is_there(page: Path) -> None:
    """Files and folders of the packages, modules that run, and what make makes."""
    text = " ".join(page.read_text().split())
    for path in re.findall(r"`((?:mugraph|rules_db|rulegen|rewriter|modeldiff|tools|tests|docs)/[\w./-]*)`", text):
        assert (ROOT / path).exists(), path
    for module in re.findall(r"python -m (tools\.[\w.]*\w)", text):
        file = ROOT / module.replace(".", "/")
        assert file.with_suffix(".py").exists() or (file / "__main__.py").exists(), module
    for target in re.findall(r"`make (\w+)`", text):
        assert re.search(rf"^{target}:", (ROOT / "Makefile").read_text(), re.M), target


def test_code_that_cites_a_page_names_a_heading_or_a_case_of_it() -> None:
    for package in ("mugraph", "rules_db", "rulegen", "rewriter", "modeldiff", "tools"):
        for file in (ROOT / package).rglob("*.py"):
            for name, heading in re.findall(r"docs/(\w+\.md)(?:, ([A-Z][a-z][\w -]*))?", file.read_text()):
                page = (ROOT / "docs" / name).read_text()
                assert not heading or re.search(rf"^(#+ .*|[*-] )?[*]*{heading}\b", page, re.M), f"{file}: {name}, {heading}"


def shown_commands(page: Path) -> list[str]:
    """The command lines of a page, in blocks and within sentences."""
    blocks = re.findall(r"```\w*\n(.*?)```", page.read_text(), re.S)
    lines = "\n".join(blocks).replace("\\\n", " ").splitlines() + re.findall(r"`([^`\n]+)`", prose(page))
    return [part.strip() for line in lines for part in line.partition(" #")[0].split("; ")]


@pytest.mark.parametrize("page", [page for page in PAGES if page.stem != "CHANGELOG"], ids=lambda page: page.stem)  # of the past
def test_commands_that_pages_show_take_the_options_they_are_given(page: Path) -> None:
    for line in shown_commands(page):
        name, *words = line.removeprefix(".venv/bin/").split() or [""]
        command = {"onnx-superopt": main, "superopt-diff": diff, "rulegen": rulegen, "superopt-costs": costs}.get(name)
        if isinstance(command, click.Group):
            if not words or not re.fullmatch(r"[a-z-]+", words[0]) or words[0].startswith("-"):
                continue
            command = command.get_command(click.Context(command), words[0])
            assert command is not None, line
        if command is not None:
            known = {option for parameter in command.params for option in (*parameter.opts, *parameter.secondary_opts)}
            for option in re.findall(r"(?<![\w-])--[a-z][a-z-]+", line):
                assert option in known | {"--help", "--version"}, f"{line}: {option}"


def decoding_blocks() -> list[str]:
    return re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "decoding.md").read_text(), re.S)


def test_the_loop_of_decoding_gives_the_words_of_the_original(tmp_path: Path) -> None:
    """Kernels for a GPU that is not here: their plain bodies run."""
    blocks = decoding_blocks()
    assert len(blocks) == 4
    for way in (blocks[:2], blocks[2:]):
        assert sum(bool(line.strip()) for block in way for line in block.splitlines()) < 40
    scope: dict[str, Any] = {}
    exec(compile(blocks[1], "docs/decoding.md", "exec"), scope)
    which = Decoder(layers=1, hidden=128, intermediate=192, heads=8, key_heads=2, words=50, half=True)
    onnx.save(decoder_step(which), tmp_path / "step.onnx")
    outcome = optimize(
        tmp_path / "step.onnx",
        tmp_path / "fast.onnx",
        device="h200",
        deterministic=True,
        shapes={"input_ids": (2, 1), "past_key_values.0.key": (2, 2, 256, 16)},
        cache=tmp_path / "profile.sqlite",
    )
    assert outcome.improved and outcome.kernels > 2
    assert b'"ahead":["x' in (tmp_path / "fast.onnx").read_bytes(), "kernels ask for their weights before they wait"
    prompt = np.array([[3, 1, 4], [1, 5, 9]])
    texts = []
    for name in ("step.onnx", "fast.onnx"):
        session = ort.InferenceSession(tmp_path / name, providers=["CPUExecutionProvider"])
        texts.append(scope["generate"](session, prompt, 16, which.words, room=32))
    assert texts[0].shape == (2, 19) and np.array_equal(*texts)


def test_the_loop_in_one_buffer_gives_the_words_of_two(tmp_path: Path) -> None:
    """Of the original with a cache that grows, in two buffers; kernels run through their plain bodies."""
    scope: dict[str, Any] = {}
    exec(compile("\n".join(decoding_blocks()[1::2]), "docs/decoding.md", "exec"), scope)
    which = Decoder(layers=2, hidden=128, intermediate=192, heads=8, key_heads=2, words=50, half=True, room=32)
    onnx.save(decoder_step(which), tmp_path / "grows.onnx")
    onnx.save(decoder_step(replace(which, spelling="chosen", batch=2)), tmp_path / "step.onnx")
    outcome = optimize(
        tmp_path / "step.onnx", tmp_path / "fast.onnx", device="h200", deterministic=True, cache=tmp_path / "profile.sqlite"
    )
    assert len([note for note in outcome.file_notes if note.endswith("and so may 3 other pairs, which --json names")]) == 1
    assert json.loads(outcome.to_json())["shared_buffers"] == dict(cache_names(which.layers))
    nodes = onnx.load(tmp_path / "fast.onnx").graph.node
    updating = [node for node in nodes if node.op_type == "Kernel" and node.output[0].startswith("present")]
    assert [len(node.output) for node in updating] == [2, 2], "keys and values of a layer together"
    prompt, texts = np.array([[3, 1, 4], [1, 5, 9]]), []
    for name, way in (("grows", "generate"), ("step", "generate_in_place"), ("fast", "generate_in_place")):
        session = ort.InferenceSession(tmp_path / f"{name}.onnx", providers=["CPUExecutionProvider"])
        texts.append(scope[way](session, prompt, 16, which.words, room=which.room))
    assert texts[0].shape == (2, 19) and all(np.array_equal(text, texts[0]) for text in texts)


def test_a_decoder_of_transformers_is_exported_for_the_loop(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    scope: dict[str, Any] = {}
    exec(compile("\n".join(decoding_blocks()), "docs/decoding.md", "exec"), scope)
    config = transformers.LlamaConfig(
        num_hidden_layers=1, hidden_size=64, intermediate_size=96, num_attention_heads=4, num_key_value_heads=2, vocab_size=50
    )
    model = transformers.LlamaForCausalLM(config)
    scope["export"](model, str(tmp_path / "step.onnx"))
    session = ort.InferenceSession(tmp_path / "step.onnx", providers=["CPUExecutionProvider"])
    prompt = np.array([[3, 1, 4], [1, 5, 9]])
    text = scope["generate"](session, prompt, 8, 50, room=32)
    torch = scope["torch"]
    expected = model.generate(torch.from_numpy(prompt), max_new_tokens=8, do_sample=False, eos_token_id=None, pad_token_id=0)
    assert np.array_equal(text, expected.numpy())
    step = scope["StepInPlace"]()
    step.model = model.eval()
    past = [torch.zeros(2, 2, 32, 16) for _ in range(2)]
    names = [f"{{}}.0.{part}" for part in ("key", "value")]
    torch.onnx.export(
        step,
        (torch.zeros((2, 1), dtype=torch.int64), torch.zeros(1, dtype=torch.int64), *past),
        tmp_path / "in_place.onnx",
        input_names=["input_ids", "position", *(name.format("past_key_values") for name in names)],
        output_names=["logits", *(name.format("present") for name in names)],
        dynamic_shapes={"input_ids": {0: "batch"}, "position": None, "past": tuple({0: "batch", 2: "room"} for _ in past)},
    )
    assert len(named_buffers(load(tmp_path / "in_place.onnx").graph)) == 2
    session = ort.InferenceSession(tmp_path / "in_place.onnx", providers=["CPUExecutionProvider"])
    assert np.array_equal(scope["generate_in_place"](session, prompt, 8, 50, room=24), text)
