"""TFLite files: contents as read, and every kind of damage with its whole message."""

from __future__ import annotations

import contextlib

import numpy as np
import pytest
from support import tflite_networks
from support.tflite_cases import CASES, draw
from support.tflite_models import Model

from weft.compiler.errors import CompileError
from weft.compiler.frontend import import_model
from weft.compiler.tflite.file import File, _Parser, parse


def one(**changes: object) -> tuple[Model, int, int]:
    """A Relu, whose result has fields changed."""
    model = Model()
    source = model.tensor((1, 4), "int8", 0.1, 3, name="x")
    result = model.tensor((1, 4), "int8", 0.1, 3, name="y", **changes)
    model.operator("RELU", [source], [result])
    return model, source, result


def fails(content: bytes) -> str:
    with pytest.raises(CompileError) as caught:
        import_model(content)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def read(model: Model, source: int, result: int) -> File:
    return parse(model.write([source], [result]), "it")


def with_result(*arguments: object, **options: object) -> str:
    """Return the message that refuses a model whose result tensor has these arguments."""
    model = Model()
    source = model.tensor((1, 4), "int8", 0.1, 3, name="x")
    result = model.tensor(*arguments, name="y", **options)  # type: ignore[arg-type]
    model.operator("RELU", [source], [result])
    return fails(model.write([source], [result]))


def test_what_is_read() -> None:
    model = Model()
    source = model.tensor((1, 2, 3, 2), "int8", 0.5, -7, name="x")
    weights = np.arange(8, dtype=np.int8).reshape(4, 1, 1, 2)
    filters = model.tensor((4, 1, 1, 2), "int8", [1, 2, 3, 4], [0] * 4, data=weights, name="w")
    result = model.tensor((1, 2, 3, 4), "int8", 0.25, 1, name="y")
    model.operator("CONV_2D", [source, filters, -1], [result], "Conv2D", StrideH=1, StrideW=2)
    file = read(model, source, result)
    assert [(tensor.name, tensor.shape, tensor.dtype) for tensor in file.tensors] == [
        ("x", (1, 2, 3, 2), "int8"),
        ("w", (4, 1, 1, 2), "int8"),
        ("y", (1, 2, 3, 4), "int8"),
    ]
    quantisation = file.tensors[1].quantisation
    assert quantisation is not None
    assert quantisation.scales.tolist() == [1, 2, 3, 4]
    assert quantisation.axis == 0
    assert np.array_equal(file.tensors[1].data, weights)  # type: ignore[arg-type]
    (operator,) = file.operators
    assert operator.inputs == (0, 1, -1)
    assert operator.options["StrideW"] == 2
    assert operator.options["DilationHFactor"] == 1
    assert (file.inputs, file.outputs) == ((0,), (2,))


def test_numbers_of_four_bits_are_two_in_a_byte() -> None:
    model, source, result = one()
    model.tensor((3,), "int4", 1.0, 0, data=bytes([0x2F, 0x08]))
    tensor = read(model, source, result).tensors[2]
    assert tensor.dtype == "int8"
    assert tensor.data is not None
    assert tensor.data.tolist() == [-1, 2, -8]


def test_names_can_be_printed() -> None:
    model, source, result = one()
    model.tensors[source].name = "a\nb\0"
    model.tensors[result].name = ""
    names = [tensor.name for tensor in read(model, source, result).tensors]
    assert names == ["a\\nb\\x00", "tensor_1"]


@pytest.mark.parametrize(
    ("content", "actual"),
    [(b"", "missing"), (b"\x1c\0\0\0TFL", "'TFL'"), (b"\x1c\0\0\0\x00\n\x1b3rest", "'\\x00\\n\\x1b3'")],
)
def test_no_identifier(content: bytes, actual: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.mktemp("model") / "x.TFLite"
    path.write_bytes(content)
    with pytest.raises(CompileError) as caught:
        import_model(path)
    assert str(caught.value) == (
        f"{path} is not a TFLite model: its bytes 4 to 8 must be 'TFL3', but are {actual}"
    )


def test_a_file_of_another_name_is_one_by_its_content(tmp_path_factory: pytest.TempPathFactory) -> None:
    model, source, result = one()
    path = tmp_path_factory.mktemp("model") / "x.bin"
    path.write_bytes(model.write([source], [result]))
    assert list(import_model(path).inputs) == ["x"]


@pytest.mark.parametrize("name", ["convolutions", "rows"])
def test_every_truncated_file_is_refused(name: str) -> None:
    """The last bytes may be those of a name, which nothing needs."""
    content = {"convolutions": tflite_networks.convolutions, "rows": tflite_networks.rows}[name]()
    for size in range(8, len(content) - 64, 40):
        fails(content[:size])


def test_damaged_bytes_are_refused_in_a_sentence_or_taken() -> None:
    """tests/fuzz draws more. Accepted models are not run."""
    rng = np.random.default_rng(4)
    refused = 0
    for name in CASES:
        content = draw(name, 3).finish()
        for _ in range(6):
            at, value = int(rng.integers(len(content))), int(rng.integers(256))
            with contextlib.suppress(CompileError):
                import_model(content[:at] + bytes([value]) + content[at + 1 :])
                continue
            refused += 1
    assert refused > 30


def test_other_versions() -> None:
    model, source, result = one()
    assert fails(model.write([source], [result], version=2)) == (
        "the file is of version 2 of the TFLite format; weft reads version 3"
    )


@pytest.mark.parametrize("count", [0, 2])
def test_subgraphs(count: int) -> None:
    model, source, result = one()
    assert fails(model.write([source], [result], subgraphs=count)) == (
        f"the file has {count} subgraphs; weft reads the first, whose CALL_ONCE operators must call all others"
    )


def test_a_buffer_that_is_not_there() -> None:
    model, source, result = one(Buffer=77)
    assert fails(model.write([source], [result])) == (
        "tensor 1 ('y') has its contents in buffer 77; the file has 3 buffers"
    )


def test_contents_of_another_size() -> None:
    model, source, result = one()
    model.tensor((5, 2), "int32", data=bytes(36), name="c")
    assert fails(model.write([source], [result])) == (
        "tensor 2 ('c') of type int32 and shape 5x2 has 36 bytes of contents; it must have 40"
    )


def test_more_contents_than_elements() -> None:
    model, source, result = one()
    model.tensor((3,), "int16", data=bytes(8), name="c")
    assert fails(model.write([source], [result])) == (
        "tensor 2 ('c') of type int16 and shape 3 has 8 bytes of contents; it must have 6"
    )


def test_a_code_that_is_not_there() -> None:
    model, source, result = one()
    model.operators[0].code = 5
    assert fails(model.write([source], [result])) == "operator 0 has code 5; the file lists 1 codes"


def test_negative_and_giant_shapes() -> None:
    assert with_result((1, -4)) == "tensor 1 ('y') has shape 1x-4; sizes must not be negative"
    assert with_result((70000, 70000)) == (
        "tensor 1 ('y') has shape 70000x70000, 4,900,000,000 elements; weft takes up to 1,073,741,824"
    )
    assert with_result((1,) * 65) == "tensor 1 ('y') has 65 dimensions; weft takes up to 64"


def test_scales_that_make_no_sense() -> None:
    shaped = (
        "tensor 1 ('y') of shape 1x4 has 3 scales along dimension 1; it must have 1, or 1 per element there"
    )
    assert with_result((1, 4), "int8", [1, 2, 3], [0] * 3, axis=1) == shaped
    assert with_result((1, 4), "int8", [1] * 4, [0] * 4, axis=9) == (
        "tensor 1 ('y') of shape 1x4 has 4 scales along dimension 9; it must have 1, or 1 per element there"
    )
    assert (
        with_result((1, 4), "int8", [1] * 4, [0] * 3, axis=1)
        == "tensor 1 ('y') has 4 scales, but 3 zero points"
    )
    for scale in (float("nan"), float("inf"), -1.0):
        assert with_result((1, 4), "int8", scale) == (
            f"tensor 1 ('y') has scale {scale:g}; scales must be finite and not below zero"
        )
    assert with_result((1, 4), "uint8", 1.0, -1) == (
        "tensor 1 ('y') of type uint8 has zero point -1, which it cannot hold"
    )


def test_tensors_that_share_much() -> None:
    """A hundred tensors of a hundred kilobytes in a small file."""
    model, source, result = one()
    large = model.tensor((100_000,), "int8", 0.1, data=bytes(100_000))
    for _ in range(100):
        model.tensor((100_000,), "int8", 0.1, Buffer=large + 1)
    assert fails(model.write([source], [result])).endswith(
        "is truncated or damaged: it cannot be read as a TFLite model (its tables overlap)"
    )


def test_bytes_read_are_counted() -> None:
    """Tables have an offset of 4 bytes each, arrays their bytes."""
    for read, size in ((lambda parser, count: parser._range(count), 4),
                       (lambda parser, count: parser._array(np.zeros(count, np.int16)), 2)):  # fmt: skip
        parser = _Parser(bytes(100))
        most = parser._left
        read(parser, most // size)
        assert parser._left == most % size < size
        with pytest.raises(ValueError, match="its tables overlap"):
            read(parser, 1)


def test_constants_without_elements() -> None:
    """The shape of a scalar is one."""
    model = Model()
    source, result = model.tensor((1,), "int8", 0.1), model.tensor((), "int8", 0.1)
    model.operator("RESHAPE", [source, model.tensor((0,), "int32", data=b"")], [result], "Reshape")
    assert import_model(model.write([source], [result])).outputs == {"t1": ("int8", ())}
