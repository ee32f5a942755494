"""Contents of GGUF files, and the full message for every kind of damage."""

from __future__ import annotations

import contextlib
import struct
import tracemalloc
from pathlib import Path

import gguf
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from weft.compiler.errors import CompileError
from weft.extras.language.gguf import file
from weft.extras.language.tests.support.gguf_bytes import TYPES, Gguf, Tensor, blocks, text, value

HUGE = 1 << 60


def build_file(kind: str = "F32", dimensions: tuple[int, ...] = (32, 4), **options: object) -> Gguf:
    """Return a file with an entry and two tensors."""
    content = blocks(np.random.default_rng(1), kind, dimensions)
    tensors = [
        Tensor("a", kind, dimensions, content, **options),  # type: ignore[arg-type]
        Tensor("b", "F32", (3,), np.arange(3, dtype="<f4").tobytes()),
    ]
    return Gguf([("x.y", "u32", 7)], tensors)


def parse_file(source: Gguf) -> file.File:
    return file.parse(np.frombuffer(source.write(), np.uint8), "it")


def refusal(source: Gguf | bytes) -> str:
    data = source if isinstance(source, bytes) else source.write()
    with pytest.raises(CompileError) as caught:
        file.parse(np.frombuffer(data, np.uint8), "it")
    message = str(caught.value)
    assert message.isprintable()
    assert message.startswith("it ")
    return message.removeprefix("it ")


@pytest.mark.parametrize("version", [2, 3])
def test_contents_are_read(version: int) -> None:
    values = {
        "u8": 255, "i8": -128, "u16": 65535, "i16": -32768, "u32": 1 << 31, "i32": -5, "u64": 1 << 63,
        "i64": -(1 << 62), "f32": 0.5, "f64": 0.1, "bool": True, "text": "é\n\0",
    }  # fmt: skip
    source = build_file()
    source.version = version
    for kind, single in values.items():
        source.entry(kind, kind, single)
        source.entry(f"[{kind}]", f"[{kind}]", [single, single])
    source.entry("empty", "[text]", [])
    actual = parse_file(source)
    for kind, single in values.items():
        assert actual.metadata[kind] == single
        assert type(actual.metadata[kind]) is type(single)
        assert list(actual.metadata[f"[{kind}]"]) == [single] * 2  # type: ignore[arg-type]
    assert actual.metadata["empty"] == ()
    first, second = actual.tensors["a"], actual.tensors["b"]
    assert (first.kind, first.shape, first.content.size) == ("F32", (4, 32), 4 * 32 * 4)
    assert np.array_equal(second.content.view("<f4"), [0, 1, 2])
    assert first.content.tobytes() == source.tensors[0].content


def test_files_of_the_library(tmp_path: Path) -> None:
    path = tmp_path / "x.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_custom_alignment(64)
    writer.add_array("words", ["one", "two"])
    writer.add_array("numbers", [1, -2])
    values = np.random.default_rng(0).normal(size=(6, 64)).astype(np.float32)
    for kind in ("Q8_0", "Q4_0"):
        code = gguf.GGMLQuantizationType[kind]
        writer.add_tensor(kind, gguf.quants.quantize(values, code), raw_dtype=code)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    actual = file.parse(*file.load(path))
    assert actual.metadata["general.alignment"] == 64
    assert actual.metadata["words"] == ("one", "two")
    assert list(actual.metadata["numbers"]) == [1, -2]  # type: ignore[arg-type]
    for tensor in gguf.GGUFReader(path).tensors:
        ours = actual.tensors[tensor.name]
        assert (ours.kind, ours.shape) == (tensor.tensor_type.name, tuple(tensor.shape[::-1]))
        assert np.array_equal(ours.content, tensor.data.reshape(-1))


def test_other_files_are_refused(tmp_path: Path) -> None:
    no = "is no GGUF file: the first four bytes of one are 'GGUF', here they are"
    assert refusal(b"") == f"{no} missing"
    assert refusal(b"GG") == f"{no} 'GG'"
    assert refusal(b"\x08\x09\n\x00more") == f"{no} '\\x08\\t\\n\\x00'"
    path = tmp_path / "x.gguf"
    with pytest.raises(CompileError, match=r"^cannot read model .*x\.gguf: No such file or directory$"):
        file.load(path)
    for other in (tmp_path, Path("/dev/zero")):
        with pytest.raises(CompileError, match=f"^cannot read model {other}: it is no regular file$"):
            file.load(other)
    with pytest.raises(CompileError, match=r"^cannot read model a\\x00b: embedded null byte$"):
        file.load("a\0b")
    with path.open("wb") as source:
        source.truncate((1 << 33) + 1)
    with pytest.raises(CompileError) as caught:
        file.load(path)
    assert str(caught.value) == f"{path} has 8,589,934,593 bytes; weft reads models of up to 8,589,934,592"


def test_versions_and_byte_order() -> None:
    source = build_file()
    for version, why in {
        1: "is of version 1 of GGUF; weft reads 2 and 3",
        4: "is of version 4 of GGUF; weft reads 2 and 3",
        3 << 24: "has its numbers in big-endian order; weft reads little-endian GGUF files",
    }.items():
        source.version = version
        assert refusal(source) == why


def test_every_truncated_file_is_refused() -> None:
    source = build_file("Q8_0").entry("words", "[text]", ["a", "bc"]).entry("n", "[f32]", [1.0, 2.0])
    content = source.write()
    needed = len(content) - 32 + 3 * 4  # padding behind the last tensor is not needed
    file.parse(np.frombuffer(content[:needed], np.uint8), "it")
    for size in range(4, needed):
        assert refusal(content[:size]).startswith("is truncated or damaged: "), size


def test_counts_that_are_too_large() -> None:
    """They are refused without time or memory in proportion to the count."""
    source = build_file()
    tracemalloc.start()
    for counts, items in (((HUGE, None), "tensors"), ((None, HUGE), "metadata entries")):
        source.counts = counts
        assert (
            refusal(source) == f"says that it has 1,152,921,504,606,846,976 {items}; weft takes up to 65,536"
        )
    source.counts = (None, 60_000)
    assert refusal(source) == "is truncated or damaged: it says that it has 60,000 metadata entries"
    for kind in TYPES.keys() - {"text", "array"}:
        wrong = build_file().entry("k", f"[{kind}]", value(f"[{kind}]", [], HUGE))
        assert refusal(wrong) == (
            "has 1,152,921,504,606,846,976 elements in metadata 'k'; weft takes up to 4,194,304"
        )
        wrong = build_file().entry("k", f"[{kind}]", value(f"[{kind}]", [], 1 << 20))
        assert refusal(wrong).startswith("is truncated or damaged: metadata 'k' has ")
    wrong = build_file().entry("k", "[text]", value("[text]", [], 1 << 20))
    assert refusal(wrong) == "is truncated or damaged: element 1 of metadata 'k' ends beyond the file"
    assert tracemalloc.get_traced_memory()[1] < 1 << 20
    tracemalloc.stop()


def test_lengths_that_are_too_large() -> None:
    for size in (HUGE, (1 << 64) - 1):
        wrong = build_file().entry("k", "text", text("x", size))
        assert refusal(wrong).startswith(f"is truncated or damaged: metadata 'k' has {size:,} bytes, and ")
    wrong = build_file().entry("k", "text", text("x", 5000))
    left = len(wrong.write()) - wrong.write().index(text("x", 5000)) - 8
    assert refusal(wrong) == (
        f"is truncated or damaged: metadata 'k' has 5,000 bytes, and {left} are left of the file"
    )
    assert refusal(build_file().entry("k" * 129, "u8", 1)) == (
        "is damaged: the key of metadata entry 1 has 129 bytes, where up to 128 are allowed"
    )
    source = build_file()
    source.tensors[1].name = "b" * 129
    assert refusal(source) == "is damaged: the name of tensor 1 has 129 bytes, where up to 128 are allowed"
    source.tensors[1].name = "b" * 128
    assert "b" * 128 in parse_file(source).tensors


def test_invalid_metadata() -> None:
    assert refusal(build_file().entry("k", "u32", 1).entry(b"k", "u32", 2)) == "has the metadata 'k' twice"
    assert refusal(build_file().entry("k", "bool", 2)) == (
        "is damaged: metadata 'k' is 2, where only 0 and 1 are truth values"
    )
    assert refusal(build_file().entry("k", "[bool]", [1, 255])) == (
        "is damaged: metadata 'k' is 255, where only 0 and 1 are truth values"
    )
    assert refusal(build_file().entry("k", "text", b"\x01\0\0\0\0\0\0\0\xff")) == (
        "is damaged: metadata 'k' is not UTF-8 text"
    )
    assert refusal(build_file().entry("k", "[text]", ["a", "b", b"\xff"])) == (
        "is damaged: element 2 of metadata 'k' is not UTF-8 text"
    )
    assert (
        refusal(build_file().entry(b"\xff", "u8", 1))
        == "is damaged: the key of metadata entry 1 is not UTF-8 text"
    )
    inner = struct.pack("<IQ", TYPES["array"][0], 1) + value("[u8]", [1])
    assert (
        refusal(build_file().entry("k", "[u8]", inner))
        == "has arrays in the array metadata 'k', which weft does not read"
    )
    content = (
        build_file().write().replace(text("x.y") + struct.pack("<I", 4), text("x.y") + struct.pack("<I", 13))
    )
    assert refusal(content) == "is damaged: metadata 'x.y' has type 13, which GGUF does not have"
    assert refusal(build_file().entry("k", "[u8]", struct.pack("<IQ", 77, 1))) == (
        "is damaged: an element of metadata 'k' has type 77, which GGUF does not have"
    )


@pytest.mark.parametrize(
    ("kind", "value", "shown"),
    [("u32", 0, "0"), ("u32", 3, "3"), ("u32", 48, "48"), ("u32", 1 << 17, "131072"), ("bool", 1, "True"),
     ("f32", 32.0, "32.0"), ("text", "32", "'32'"), ("i32", -32, "-32")],
)  # fmt: skip
def test_alignments(kind: str, value: object, shown: str) -> None:
    assert refusal(build_file().entry("general.alignment", kind, value)) == (
        f"has general.alignment {shown}; it must be a power of two up to 65,536"
    )


@pytest.mark.parametrize("alignment", [1, 8, 4096])
def test_valid_alignments(alignment: int) -> None:
    source = build_file().entry("general.alignment", "u32", alignment)
    source.alignment = alignment
    assert parse_file(source).tensors["b"].content.tobytes() == source.tensors[1].content


def test_invalid_tensors() -> None:
    assert refusal(build_file(dimensions=())) == "has tensor 'a' of 0 dimensions; GGUF has tensors of 1 to 4"
    source = build_file()
    source.tensors[0].dimensions = (1,) * 5
    assert refusal(source) == "has tensor 'a' of 5 dimensions; GGUF has tensors of 1 to 4"
    for shape, shown in {
        (
            1 << 63,
            1 << 63,
        ): "9223372036854775808x9223372036854775808, 85,070,591,730,234,615,865,843,651,857,942,052,864",
        (1 << 32, 1 << 32, 1): "1x4294967296x4294967296, 18,446,744,073,709,551,616",
        (0, 4): "4x0, 0",
    }.items():
        source.tensors[0].dimensions = shape
        assert refusal(source) == f"has tensor 'a' of shape {shown} elements; weft takes 1 to 1,073,741,824"
    assert refusal(build_file(code=99)) == "has tensor 'a' of type 99, which GGUF does not have"
    source = build_file("Q8_0")
    source.tensors[0].dimensions = (33, 32)
    assert refusal(source) == (
        "has tensor 'a' of shape 32x33 and type Q8_0, which has blocks of 32 elements in a row"
    )
    source = build_file()
    source.tensors[1].name = "a"
    assert refusal(source) == "has two tensors 'a'"


def test_offsets() -> None:
    assert refusal(build_file(offset=8)) == "has tensor 'a' at offset 8, no multiple of 32"
    assert refusal(build_file(offset=1 << 20)) == (
        "is truncated or damaged: tensor 'a' has 512 bytes at offset 1,048,576 of the 544 after the file's head"
    )
    assert refusal(build_file(offset=(1 << 64) - 32)).startswith(
        "is truncated or damaged: tensor 'a' has 512 bytes at offset 18,446,744,073,709,551,584 of the 544"
    )
    assert refusal(build_file(offset=512)).startswith(
        "is truncated or damaged: tensor 'a' has 512 bytes at offset 512"
    )
    source = build_file()
    source.tensors[1].offset = 480
    assert refusal(source) == "has tensors 'a' and 'b' in the same bytes"
    source.tensors[1].offset = 0
    assert refusal(source) == "has tensors 'b' and 'a' in the same bytes"


def test_names_can_be_printed() -> None:
    source = build_file().entry("a\nb", "u8", 1)
    source.tensors[0].name = "\x1b[31m"
    actual = parse_file(source)
    assert "a\\nb" in actual.metadata
    assert "\\x1b[31m" in actual.tensors


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_damaged_bytes_are_refused_in_a_sentence_or_accepted(data: st.DataObject) -> None:
    """tests/fuzz covers more damages."""
    content = bytearray(
        build_file("Q4_1").entry("words", "[text]", ["a", "bc"]).entry("n", "[f32]", [1.0]).write()
    )
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(4, 200))
        size = data.draw(st.sampled_from([1, 4, 8]))
        content[at : at + size] = data.draw(st.sampled_from([b"\xff", b"\0", b"\x7f", b"\x01"])) * size
    with contextlib.suppress(CompileError):
        file.parse(np.frombuffer(bytes(content), np.uint8), "it")
        return
    assert len(refusal(bytes(content))) < 400
