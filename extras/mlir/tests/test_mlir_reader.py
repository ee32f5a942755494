"""MLIR files in the front end and on the command line: recognition and refusal."""
# ruff: noqa: E501  # operations are printed in one line

from __future__ import annotations

import random
import re
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from support import qdq_models

import weft
from weft.cli.main import main
from weft.compiler.errors import CompileError
from weft.compiler.frontend import import_model
from weft.extras.mlir.program import import_with_xdsl
from weft.extras.mlir.reader import FORMAT, is_mlir, read

HERE = Path(__file__).parent
IDENTITY = (
    b"func.func @main(%x: tensor<4x!quant.uniform<i8:f32, 0.5>>) -> tensor<4x!quant.uniform<i8:f32, 0.5>> {\n"
    + (
        b"  %0 = stablehlo.abs %x : tensor<4x!quant.uniform<i8:f32, 0.5>>\n"
        b"  return %0 : tensor<4x!quant.uniform<i8:f32, 0.5>>\n}\n"
    )
)


@pytest.mark.parametrize(
    ("head", "wanted"),
    [
        (b"module {\n", True),
        (b"  \n// a comment\n// another\nmodule @jit_f attributes {", True),
        (b'"builtin.module"() ({', True),
        (b"func.func @main(", True),
        (b'#loc = loc("x")\nmodule', True),
        (b"#map = affine_map<(d0) -> (d0)>\nmodule", True),
        (b"ML\xefR\x0dStableHLO", True),
        (b"\x08\x08\x12\x07pytorch", False),
        (b"\x1c\x00\x00\x00TFL3", False),
        (b"modules = 3", False),
        (b"// nothing else\n", False),
        (b"", False),
    ],
)
def test_recognition(head: bytes, wanted: bool) -> None:
    assert is_mlir(head) is wanted


def test_files_by_suffix(tmp_path: Path) -> None:
    path = tmp_path / f"model{FORMAT.suffix.upper()}"
    path.write_bytes(b"nonsense\n")
    with pytest.raises(CompileError, match=rf"^{re.escape(str(path))}, line 1: nonsense is not supported"):
        import_model(path)
    path.write_bytes(IDENTITY)
    assert import_model(path).inputs == import_model(IDENTITY).inputs == {"x": ("int8", (4,))}


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"ML\xefR\x0d", "the model is MLIR bytecode; weft reads text"),
        (b"module {\xff}", "the model is not text: byte 8 is not UTF-8"),
        (IDENTITY.replace(b"return %0 : tensor<4x!quant.uniform<i8:f32, 0.5>>", b"return").replace(
            b"-> tensor<4x!quant.uniform<i8:f32, 0.5>> ", b""), "returns nothing"),
        (b"func.func @main(%x: tensor<4xf64>) -> tensor<4xf64> { return %x : tensor<4xf64> }", "argument x has type float64"),
        (b"func.func @main(%x: tensor<4xf32>) -> tensor<4xf32> {\n %0 = stablehlo.abs %x : tensor<4xf32>\n return %0 : tensor<4xf32> }",
         "the model is not quantised: quantise the model before exporting it"),
        (b'func.func @main(%x: tensor<4xi8> {weft.scale = -1.0 : f64}) -> tensor<4xi8> { return %x : tensor<4xi8> }',
         "weft.scale -1.0"),
    ],
)  # fmt: skip
def test_refused_files(data: bytes, why: str) -> None:
    with pytest.raises(CompileError, match=why):
        read(data)


def test_large_files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("weft.extras.mlir.reader.BYTES", 100)
    with pytest.raises(CompileError, match="weft reads MLIR text of up to 100"):
        read(IDENTITY)


def test_shapes_and_states_are_fixed() -> None:
    with pytest.raises(CompileError, match="the shapes of an MLIR model are fixed, so N=3 cannot be given"):
        import_model(IDENTITY, shapes={"N": 3})
    with pytest.raises(CompileError, match="an MLIR model has no state between runs, so x=y cannot be given"):
        import_model(IDENTITY, states={"x": "y"})


def test_without_xdsl(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "xdsl", None)
    with pytest.raises(
        CompileError,
        match=r"needs the Python package 'xdsl', which is not installed: pip install 'weft\[mlir\]'",
    ):
        import_with_xdsl("inline")
    with pytest.raises(CompileError, match="pip install"):
        read(IDENTITY)
    with pytest.raises(CompileError, match="pip install"):
        weft.convert(qdq_models.random_rescale(np.random.default_rng(0)))


def test_constants_do_not_grow_without_bounds() -> None:
    """A repeated number takes no memory until all elements are needed, which is refused."""
    text = """
func.func @main(%x: tensor<1x4xf32>) -> tensor<1x4xf32> {
  %c = stablehlo.constant dense<1.0> : tensor<16384x16384xf32>
  %d = stablehlo.broadcast_in_dim %c, dims = [1, 2] : (tensor<16384x16384xf32>) -> tensor<4x16384x16384xf32>
  %e = stablehlo.add %d, %d : tensor<4x16384x16384xf32>
  %f = stablehlo.slice %e [0:1, 0:1, 0:4] : (tensor<4x16384x16384xf32>) -> tensor<1x1x4xf32>
  %g = stablehlo.reshape %f : (tensor<1x1x4xf32>) -> tensor<1x4xf32>
  %h = stablehlo.add %x, %g : tensor<1x4xf32>
  return %h : tensor<1x4xf32>
}
"""
    started = time.monotonic()
    with pytest.raises(
        CompileError, match=r"line 6: stablehlo\.slice makes constants of more than 16 times the bytes"
    ):
        read(text.encode())
    assert time.monotonic() - started < 10


TOKENS = ["-1", "0", "99999999999", "i8", "f32", "dense<1> : tensor<4xi8>", "%0", "[", "}", '"', "tensor<?xi8>", "@main",
          "tosa.rescale", "stablehlo.add", "2", "127", "!quant.uniform<i8:f32, 0.5>", ""]  # fmt: skip


def damage(text: str, rng: random.Random) -> str:
    """Return the text cut off, with other words, or with lines in another order."""
    kind = rng.random()
    if kind < 0.2:
        return text[: rng.randrange(len(text))]
    lines = text.split("\n")
    if kind < 0.4:
        one, other = rng.randrange(len(lines)), rng.randrange(len(lines))
        lines[one], lines[other] = lines[other], lines[one]
        return "\n".join(lines)
    for _ in range(rng.randint(1, 3)):
        words = [result.span() for result in re.finditer(r"[\w.%-]+", text)]
        start, end = rng.choice(words)
        text = text[:start] + rng.choice(TOKENS) + text[end:]
    return text


@pytest.mark.parametrize("name", ["jax_integers.mlir", "tosa"])
def test_damaged_files(name: str) -> None:
    """Every file is read or refused in one sentence."""
    model = qdq_models.random_cnn(np.random.default_rng(0))
    text = weft.convert(model) if name == "tosa" else (HERE / name).read_text()
    rng, messages = random.Random(0), []
    for _ in range(40):
        try:
            import_model(damage(text, rng).encode().ljust(1))
        except CompileError as error:
            messages.append(str(error))
    assert len(messages) > 20
    assert all("\n" not in sentence for sentence in messages)


def test_command_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("model.onnx").write_bytes(qdq_models.random_dense(np.random.default_rng(1)).SerializeToString())
    for arguments in (["convert", "model.onnx", "-o", "model.mlir"], ["check", "model.mlir"]):
        with pytest.raises(SystemExit) as left:
            main(arguments)
        assert not left.value.code
    assert "operations of TOSA" in capsys.readouterr().out
    Path("bad.mlir").write_text("module {\n  nonsense\n}\n")
    with pytest.raises(SystemExit) as left:
        main(["compile", "bad.mlir", "-o", "program"])
    error = capsys.readouterr().err
    assert left.value.code == 2
    assert "error: bad.mlir, line 2: nonsense is not supported" in error
    assert "Traceback" not in error
    np.savez("samples.npz", x=np.zeros((4, 3), np.float32))
    with pytest.raises(SystemExit) as left:
        main(["quantise", "model.mlir", "--data", "samples.npz", "-o", "x.onnx"])
    assert left.value.code == 2
    assert "takes ONNX models, and this is an MLIR model" in capsys.readouterr().err
    with pytest.raises(SystemExit) as left:
        main(["convert", "model.mlir", "-o", "model.mlir"])
    assert left.value.code == 2
