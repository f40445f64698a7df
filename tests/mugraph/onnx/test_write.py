"""Files that are written: external data, data that candidates share, and digests of models."""

from __future__ import annotations

import os
import time
import tracemalloc
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper

from mugraph.onnx import ModelError, copy, load, open_in, save, to_bytes, to_proto
from mugraph.onnx.emit import emit
from mugraph.onnx.layout import FileLayout
from mugraph.onnx.weights import Weights
from tests.support.models import (
    BOOL,
    FLOAT,
    add_folded,
    apply,
    build,
    identical,
    random_feeds,
    session,
    two_products,
    values,
)
from tools.bench.memory import measure
from tools.zoo.built import write_big

# External data


def external_model(tmp_path: Path) -> Path:
    proto = build(
        [helper.make_node("MatMul", ["x", "w"], ["h"]), helper.make_node("Add", ["h", "b"], ["y"])],
        values(("x", FLOAT, [2, 64])),
        values(("y", FLOAT, [2, 64])),
        {"w": np.random.default_rng(0).standard_normal((64, 64), np.float32), "b": np.ones(64, np.float32)},
    )
    path = tmp_path / "model.onnx"
    onnx.save(proto, path, save_as_external_data=True, location="weights.bin", size_threshold=0)
    return path


def test_external_data_moves_with_the_model(tmp_path: Path) -> None:
    source = external_model(tmp_path)
    expected_session = session(source)
    feeds = random_feeds(expected_session)
    expected = expected_session.run(None, feeds)
    (tmp_path / "out").mkdir()
    target = tmp_path / "out" / "copy.onnx"
    for _ in range(2):
        model = load(source)
        save(model, model.graph, target)
        data = [path.name for path in target.parent.iterdir() if path != target]
        assert len(data) == 1 and data[0].startswith("copy.onnx.") and data[0].endswith(".data")
    assert identical(expected, session(target).run(None, feeds))
    onnx.checker.check_model(str(target))


def test_saving_over_the_model_itself(tmp_path: Path) -> None:
    source = external_model(tmp_path)
    first = session(source)
    feeds = random_feeds(first)
    expected = first.run(None, feeds)
    for _ in range(2):  # the second time the data file is one of ours, and is used again
        model = load(source)
        save(model, model.graph, source)
        assert identical(expected, session(source).run(None, feeds))
    assert len(list(tmp_path.glob("model.onnx.*.data"))) == 1
    inline = tmp_path / "inline.onnx"
    onnx.save(onnx.load(source), inline)
    model = load(inline)
    save(model, model.graph, inline)
    assert identical(expected, session(inline).run(None, feeds))
    with pytest.raises(ModelError, match="has changed since the model was read"):
        save(model, model.graph, inline)


def opened(path: Path, expected: list[np.ndarray], feeds: dict[str, np.ndarray]) -> bool:
    return identical(expected, session(path).run(None, feeds))


def test_data_that_this_writing_did_not_write_stays_and_is_named(tmp_path: Path) -> None:
    source, target = external_model(tmp_path), tmp_path / "out.onnx"
    feeds = random_feeds(session(source))
    expected = session(source).run(None, feeds)
    old, other = tmp_path / "out.onnx.0123456789abcdef.data", tmp_path / "out.onnx.backup.data"
    old.write_bytes(b"old")
    other.write_bytes(b"not ours")
    model = load(source)
    assert save(model, model.graph, target).left == (old,)
    (tmp_path / "v1.onnx").write_bytes(target.read_bytes())
    (data,) = {*tmp_path.glob("out.onnx.*.data")} - {old, other}
    first = load(tmp_path / "v1.onnx")
    left = save(first, add_folded(first, "w"), target).left
    assert old.read_bytes() == b"old" and other.read_bytes() == b"not ours"
    assert set(left) == {old, data} and opened(tmp_path / "v1.onnx", expected, feeds)


def test_a_name_of_data_that_another_file_has_is_not_taken(tmp_path: Path) -> None:
    source = external_model(tmp_path)
    model = load(source)
    save(model, model.graph, tmp_path / "out.onnx")
    (data,) = tmp_path.glob("out.onnx.*.data")
    data.write_bytes(b"changed by hand")
    save(model, model.graph, tmp_path / "out.onnx")
    feeds = random_feeds(session(source))
    assert opened(tmp_path / "out.onnx", session(source).run(None, feeds), feeds)
    assert data.read_bytes() == b"changed by hand" and len(list(tmp_path.glob("out.onnx.*.data"))) == 2


def test_a_failure_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = external_model(tmp_path)
    model = load(source)
    target = tmp_path / "out.onnx"
    target.write_bytes(b"old")
    before = set(tmp_path.iterdir())
    for chunks in ("data_chunks", "model_chunks"):
        with monkeypatch.context() as patch:
            patch.setattr(FileLayout, chunks, lambda *_: iter_failing())
            with pytest.raises(ModelError, match=r"out\.onnx cannot be written: No space left"):
                save(model, model.graph, target)
        assert set(tmp_path.iterdir()) == before and target.read_bytes() == b"old"


def iter_failing() -> Iterator[bytes]:
    yield b"half"
    raise OSError(28, "No space left on device")


def test_devices_are_written_to(tmp_path: Path) -> None:
    source = external_model(tmp_path)
    inline, model = tmp_path / "inline.onnx", load(source)
    onnx.save(onnx.load(source), inline)
    small = load(inline)
    for write in (lambda m, path: save(m, m.graph, path), copy):
        assert write(small, "/dev/null").nodes == 2
        with pytest.raises(ModelError, match="/dev/null is no regular file, and the model needs data files"):
            write(model, "/dev/null")
        with pytest.raises(ModelError, match="/dev/full cannot be written: No space left"):
            write(small, "/dev/full")
        os.mkfifo(tmp_path / "pipe")
        with ThreadPoolExecutor(1) as pool:
            received = pool.submit((tmp_path / "pipe").read_bytes)
            write(small, tmp_path / "pipe")
        onnx.checker.check_model(received.result())
        assert (tmp_path / "pipe").is_fifo()
        (tmp_path / "pipe").unlink()
    assert Path("/dev/null").is_char_device()


def test_links_are_followed(tmp_path: Path) -> None:
    source = external_model(tmp_path)
    inline = tmp_path / "inline.onnx"
    onnx.save(onnx.load(source), inline)
    (tmp_path / "real").mkdir()
    (tmp_path / "out.onnx").symlink_to("real/out.onnx")
    (tmp_path / "near.onnx").symlink_to("there.onnx")
    model, small = load(source), load(inline)
    for write in (lambda m, path: save(m, m.graph, path), copy):
        write(small, tmp_path / "out.onnx")
        assert (tmp_path / "out.onnx").is_symlink()
        onnx.checker.check_model(str(tmp_path / "real" / "out.onnx"))
        (tmp_path / "real" / "out.onnx").unlink()
        with pytest.raises(ModelError, match=r"out\.onnx is a link to .*name the file itself"):
            write(model, tmp_path / "out.onnx")
        write(model, tmp_path / "near.onnx")
        feeds = random_feeds(session(source))
        assert opened(tmp_path / "near.onnx", session(source).run(None, feeds), feeds)
    assert list((tmp_path / "real").iterdir()) == []


# Copies


def test_a_copy_has_the_bytes_of_the_model_and_of_its_data(tmp_path: Path) -> None:
    source = external_model(tmp_path)
    source.write_bytes(source.read_bytes() + onnx.ModelProto(doc_string="as it came").SerializeToString())
    model = load(source)
    assert copy(model, tmp_path / "near.onnx").shared == (tmp_path / "weights.bin",)
    assert (tmp_path / "near.onnx").read_bytes() == source.read_bytes() and len(list(tmp_path.iterdir())) == 3
    away = tmp_path / "away"
    away.mkdir()
    for _ in range(2):
        assert copy(model, away / "far.onnx").shared == ()
        assert (away / "far.onnx").read_bytes() == source.read_bytes() and len(list(away.iterdir())) == 2
        assert (away / "weights.bin").read_bytes() == (tmp_path / "weights.bin").read_bytes()
    assert not (away / "weights.bin").samefile(tmp_path / "weights.bin")
    before = source.stat()
    assert copy(model, source).nodes == 2 and source.stat() == before
    proto = two_products()
    copy(load(proto), tmp_path / "memory.onnx")
    assert (tmp_path / "memory.onnx").read_bytes() == proto.SerializeToString()


def test_a_copy_does_not_take_the_data_files_of_another_model(tmp_path: Path) -> None:
    source, away = external_model(tmp_path), tmp_path / "away"
    feeds = random_feeds(session(source))
    expected = session(source).run(None, feeds)
    away.mkdir()
    (away / "weights.bin").write_bytes(b"another model's")
    copy(load(source), away / "out.onnx")
    copy(load(source), tmp_path / "weights.bin.onnx")
    assert opened(away / "out.onnx", expected, feeds) and (away / "weights.bin").read_bytes() == b"another model's"
    (tmp_path / "third").mkdir()
    copy(load(source), tmp_path / "third" / "weights.bin")
    assert opened(tmp_path / "third" / "weights.bin", expected, feeds)


def test_a_copy_of_a_model_that_changed_is_refused(tmp_path: Path) -> None:
    source = external_model(tmp_path)
    (tmp_path / "away").mkdir()
    for changed in ("weights.bin", "model.onnx"):
        model = load(source)
        os.utime(tmp_path / changed, ns=(1, len(changed)))
        with pytest.raises(ModelError, match=f"{changed} has changed since the model was read"):
            copy(model, tmp_path / "away" / "out.onnx")
        assert not list((tmp_path / "away").iterdir())


def test_candidates_leave_external_data_its_one_name(tmp_path: Path) -> None:
    """onnx refuses data files with a second one."""
    source = external_model(tmp_path)
    model = load(source)
    bias = add_folded(model, "b")
    folder = tmp_path / "measure"
    folder.mkdir()
    first, second = open_in(model, model.graph, folder), open_in(model, bias, folder)
    assert first != second and (folder / "weights.bin").read_bytes() == (tmp_path / "weights.bin").read_bytes()
    assert (tmp_path / "weights.bin").stat().st_nlink == 1
    onnx.load(source)
    reference = session(source)
    feeds = random_feeds(reference)
    expected = reference.run(None, feeds)
    assert identical(expected, session(first).run(None, feeds))
    np.testing.assert_allclose(session(second).run(None, feeds)[0], expected[0], rtol=1e-5, atol=1e-5)
    assert (tmp_path / "weights.bin").stat().st_size == 64 * 65 * 4


def test_candidates_share_the_inline_weights_of_the_original(tmp_path: Path) -> None:
    source = tmp_path / "m.onnx"
    external = onnx.load(external_model(tmp_path))
    source.write_bytes(external.SerializeToString())
    model = load(source)
    (tmp_path / "measure").mkdir()
    written = [open_in(model, graph, tmp_path / "measure") for graph in (model.graph, add_folded(model, "b"), model.graph)]
    shared = [path for path in (tmp_path / "measure").iterdir() if path not in written and path.name[-5:] != ".data"]
    assert len(shared) == 1 and 64 * 64 * 4 <= shared[0].stat().st_size < 64 * 65 * 4 + 4096
    assert all(path.stat().st_size < 4096 < source.stat().st_size for path in written)
    feeds = random_feeds(session(source))
    expected = session(source).run(None, feeds)
    assert identical(expected, session(written[0]).run(None, feeds)) and identical(expected, session(written[2]).run(None, feeds))
    np.testing.assert_allclose(session(written[1]).run(None, feeds)[0], expected[0], rtol=1e-5, atol=1e-5)


def test_a_candidate_does_not_take_the_name_of_data_that_another_left(tmp_path: Path) -> None:
    """Whoever tries candidates removes the model file of one that is not wanted any more."""
    source = external_model(tmp_path)
    model, folder = load(source), tmp_path / "measure"
    folder.mkdir()
    first = open_in(model, add_folded(model, "w"), folder)
    assert first.with_name(f"{first.name}.data").exists()
    first.unlink()
    weight = model.values["w"]
    double = model.tables.apply("Add", (), [weight, weight]).values[0]
    product = model.tables.apply("MatMul", (), [model.values["x"], double])
    second = open_in(model, model.graph.substitute({model.values["h"]: (product, 0)}), folder)
    feeds = random_feeds(session(source))
    plain, doubled = (session(path).run(None, feeds)[0] - 1 for path in (source, second))  # the bias is one
    np.testing.assert_allclose(doubled, 2 * plain, rtol=1e-4, atol=1e-4)


def test_candidates_copy_external_data_where_links_are_impossible(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: Path, target: Path) -> None:
        raise OSError(18, "Invalid cross-device link")

    monkeypatch.setattr(Path, "hardlink_to", refuse)
    source = external_model(tmp_path)
    model = load(source)
    (tmp_path / "measure").mkdir()
    written = open_in(model, model.graph, tmp_path / "measure")
    feeds = random_feeds(session(source))
    assert identical(session(source).run(None, feeds), session(written).run(None, feeds))
    assert (tmp_path / "measure" / "weights.bin").stat().st_nlink == 1


def test_external_data_in_constants_and_subgraphs(tmp_path: Path) -> None:
    array = np.arange(6, dtype=np.float32)
    (tmp_path / "w.bin").write_bytes(array.tobytes())

    def stored() -> TensorProto:
        tensor = TensorProto(name="inner", data_type=FLOAT, dims=[6], data_location=TensorProto.EXTERNAL)
        tensor.external_data.add(key="location", value="w.bin")
        return tensor

    then = helper.make_graph([helper.make_node("Identity", ["inner"], ["t"])], "t", [], values(("t", FLOAT, [6])), [stored()])
    other = helper.make_graph([helper.make_node("Identity", ["x"], ["e"])], "e", [], values(("e", FLOAT, [6])))
    proto = build(
        [
            helper.make_node("Constant", [], ["c"], value=stored()),
            helper.make_node("If", ["flag"], ["picked"], then_branch=then, else_branch=other),
            helper.make_node("Add", ["picked", "c"], ["y"]),
        ],
        values(("x", FLOAT, [6]), ("flag", BOOL, [])),
        values(("y", FLOAT, [6])),
    )
    source = tmp_path / "model.onnx"
    source.write_bytes(proto.SerializeToString())
    model = load(source)
    np.testing.assert_array_equal(model.tables.constants[model.values["c"]].load(), array)
    assert any("left out" in note for note in model.notes)
    (tmp_path / "out").mkdir()
    save(model, model.graph, tmp_path / "out" / "copy.onnx")
    (data,) = (tmp_path / "out").glob("*.data")
    assert data.stat().st_size == array.nbytes  # both refer to the same bytes
    loaded = onnx.load(tmp_path / "out" / "copy.onnx")
    np.testing.assert_array_equal(numpy_helper.to_array(loaded.graph.node[0].attribute[0].t), array)


def test_new_constants_of_a_model_with_external_data_are_external(tmp_path: Path) -> None:
    source = external_model(tmp_path)
    model = load(source)
    candidate = add_folded(model, "w")
    save(model, candidate, tmp_path / "out.onnx")
    assert (tmp_path / "out.onnx").stat().st_size < 4096
    feeds = random_feeds(session(source))
    expected, actual = session(source).run(None, feeds), session(tmp_path / "out.onnx").run(None, feeds)
    np.testing.assert_allclose(actual[0], expected[0], rtol=1e-5, atol=1e-5)


def test_a_model_beyond_two_gigabytes_spills(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = external_model(tmp_path)
    inline = tmp_path / "inline.onnx"
    onnx.save(onnx.load(source), inline)
    monkeypatch.setattr("mugraph.onnx.layout._INLINE_LIMIT", 8192)
    model = load(inline)
    save(model, model.graph, tmp_path / "out.onnx")
    assert (tmp_path / "out.onnx").stat().st_size < 2048 and len(list(tmp_path.glob("out.onnx.*.data"))) == 1
    feeds = random_feeds(session(inline))
    assert identical(session(inline).run(None, feeds), session(tmp_path / "out.onnx").run(None, feeds))
    with pytest.raises(ModelError, match="too large for a string of bytes"):
        to_bytes(model, model.graph)


@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize("changed", ["model.onnx", "weights.bin"])
def test_a_file_of_the_same_size_and_time_is_another(changed: str, in_place: bool, tmp_path: Path) -> None:
    """Reproducible builds give one time to all files, and a copy may keep that of the original."""
    source = external_model(tmp_path)
    model, path, other = load(source), tmp_path / changed, tmp_path / "other"
    before = path.stat()
    content = path.read_bytes()[::-1]
    (path if in_place else other).write_bytes(content)
    os.utime(path if in_place else other, ns=(before.st_atime_ns, before.st_mtime_ns))
    if not in_place:
        other.replace(path)
    after = path.stat()
    assert (after.st_size, after.st_mtime_ns) == (before.st_size, before.st_mtime_ns)
    (tmp_path / "away").mkdir()
    with pytest.raises(ModelError, match=f"{changed} has changed since the model was read"):
        copy(model, tmp_path / "away" / "out.onnx")
    if changed == "model.onnx":
        with pytest.raises(ModelError, match="has changed since the model was read"):
            model.digest()


def test_weights_are_loaded_only_when_asked_for(tmp_path: Path) -> None:
    source = external_model(tmp_path)
    model = load(source)
    (tmp_path / "weights.bin").write_bytes(bytes(64 * 65 * 4 + 1))
    with pytest.raises(ModelError, match=r"weights.bin has changed since the model was read"):
        model.tables.constants[model.values["w"]].load()


def test_messages_refer_to_weights_where_they_are(tmp_path: Path) -> None:
    proto = two_products()
    proto.graph.initializer[0].CopyFrom(numpy_helper.from_array(np.ones((8, 300), np.float32), "w1"))
    proto.graph.output[0].type.tensor_type.shape.dim[1].dim_value = 300
    del proto.graph.value_info[:]
    path = tmp_path / "model.onnx"
    path.write_bytes(proto.SerializeToString())
    model = load(path)
    small = to_proto(model, model.graph).SerializeToString()
    assert len(small) < 2000
    options = ort.SessionOptions()
    options.add_session_config_entry("session.model_external_initializers_file_folder_path", str(tmp_path))
    opened = ort.InferenceSession(small, options, providers=["CPUExecutionProvider"])
    feeds = random_feeds(opened)
    assert identical(opened.run(None, feeds), session(path).run(None, feeds))


def test_weights_stream_through(tmp_path: Path) -> None:
    """A process that copies 200 MB of weights holds less than 64 MB of them."""
    write_big(tmp_path / "big.onnx", gigabytes=0.2)
    memory = measure(tmp_path / "big.onnx", tmp_path / "out.onnx")
    assert sum(path.stat().st_size for path in tmp_path.glob("out.onnx.*.data")) >= 200_000_000
    assert memory.peak < memory.start + 64_000_000


# The digest


def test_digest_follows_content_and_external_files(tmp_path: Path) -> None:
    source = external_model(tmp_path)
    digest = load(source).digest()
    assert load(source).digest() == digest
    os.utime(tmp_path / "weights.bin", ns=(1, 1))
    changed = load(source).digest()
    assert changed != digest
    source.write_bytes(source.read_bytes() + onnx.ModelProto(doc_string="more").SerializeToString())
    assert load(source).digest() not in (digest, changed)


def test_threads_that_ask_for_a_digest_have_it_computed_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, asked = load(external_model(tmp_path)), list[Weights]()
    computed = Weights._computed_digest

    def noted(weights: Weights) -> str:
        asked.append(weights)
        time.sleep(0.05)
        return computed(weights)

    monkeypatch.setattr(Weights, "_computed_digest", noted)
    with ThreadPoolExecutor(4) as threads:
        digests = set(threads.map(lambda _: model.digest(), range(4)))
    assert digests == {computed(model.weights)} and len(asked) == 1


def test_folded_constants_are_written_one_at_a_time(tmp_path: Path) -> None:
    """Each is as large as the weights that it is made of: the file's bytes are never there as a whole."""
    names, size = [f"w{number}" for number in range(8)], 1 << 20
    nodes = [helper.make_node("Add", ["x", name], [f"y{name}"]) for name in names]
    weights = {name: np.full(size // 4, number, np.float32) for number, name in enumerate(names)}
    proto = build(
        nodes, values(("x", FLOAT, [size // 4])), values(*((f"y{name}", FLOAT, [size // 4]) for name in names)), weights
    )
    model = load(proto)
    graph = model.graph
    for name in names:
        double = apply(model, "Add", [model.values[name], model.values[name]]).values[0]
        (user,) = graph.users[model.values[name]]
        graph = graph.substitute({user.values[0]: (apply(model, "Add", [model.values["x"], double]), 0)})
    layout = FileLayout(emit(model, graph), model.weights)
    tracemalloc.start()
    try:
        with (tmp_path / "m.onnx").open("wb") as file:
            file.writelines(layout.model_chunks(""))
        assert tracemalloc.get_traced_memory()[1] < 3 * size
    finally:
        tracemalloc.stop()
    feed = {"x": np.zeros(size // 4, np.float32)}
    assert [float(y[0]) for y in session(tmp_path / "m.onnx").run(None, feed)] == [2.0 * number for number in range(8)]
