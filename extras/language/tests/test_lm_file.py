"""Language models from ONNX files on the device and the command line."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest

import weft.extras.language.run.lm
from weft import __main__ as command
from weft.compiler.errors import CompileError
from weft.extras.language.compiler.model import LanguageModel, Linear
from weft.extras.language.gguf import writer as gguf
from weft.extras.language.run.lm import digest, read
from weft.extras.language.tests.support.language_models import SIZES, random_model
from weft.extras.language.tests.support.onnx_decoders import Form, write

PROMPT = "the quick fox"


def model(seed: int = 5) -> LanguageModel:
    sizes = dataclasses.replace(SIZES, key_length=16, value_length=16)
    return random_model(np.random.default_rng(seed), sizes=sizes, biases=False)


def put(folder: Path, form: Form) -> Path:
    return write(folder, model(), form, np.random.default_rng(0))


def test_the_same_model_from_both_formats(tmp_path: Path) -> None:
    gguf.write(model(), tmp_path / "model.gguf", "F32")
    texts, digests = [], []
    for path in (
        tmp_path / "model.gguf",
        put(tmp_path / "one", Form()),
        put(tmp_path / "two", Form(style="plain")),
    ):
        with weft.extras.language.run.lm.load(path, "small") as device:
            texts.append(device.generate(PROMPT, tokens=6).result)
            assert device.decoder.places.sizes.context == SIZES.context
        digests.append(digest(path, read(path)))
    assert texts[0] == texts[1] == texts[2]
    assert len(texts[0].tokens) == 6
    assert digests[0] != digests[1] == digests[2]  # two graphs, in which the same was found, bit for bit


def test_blocks_of_4_bits_are_kept(tmp_path: Path) -> None:
    path = put(tmp_path, Form(weights="bits", block=32))
    with weft.extras.language.run.lm.load(path, "small", rows=2) as device:
        assert "int4=2" in device.added
        tokens = device.encode(PROMPT)
        actual, wanted = device.logits(tokens), device.reference.logits(tokens)
        assert np.abs(actual - wanted).mean() < 0.1 * wanted.std()


def test_the_digest_covers_the_whole_model(tmp_path: Path) -> None:
    path = put(tmp_path, Form())
    model = read(path)
    digests = {digest(path, model)}
    assert digest(path, read(path)) in digests
    other = model.blocks[1].down.weight.copy()  # type: ignore[union-attr]
    other[3, 5] += 1
    block = dataclasses.replace(model.blocks[1], down=Linear(other))
    for changed in (
        dataclasses.replace(model, blocks=(model.blocks[0], block)),
        dataclasses.replace(model, epsilon=0.5),
        dataclasses.replace(model, vocabulary=dataclasses.replace(model.vocabulary, ends=frozenset({3}))),
    ):
        digests.add(digest(path, changed))
    assert len(digests) == 4


def test_bytes_of_an_onnx_file(tmp_path: Path) -> None:
    content = put(tmp_path, Form()).read_bytes()
    with pytest.raises(CompileError, match=r"bytes are no GGUF file; an ONNX model is read from its path"):
        weft.extras.language.run.lm.load(content)


def test_a_gguf_file_may_have_any_name(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    gguf.write(model(), path, "F32")
    assert read(path).architecture == "llama"


def test_unsupported_biases_are_read(tmp_path: Path) -> None:
    sizes = dataclasses.replace(SIZES, key_length=16, value_length=16)
    biased = random_model(np.random.default_rng(1), sizes=sizes, biases=True)
    path = write(tmp_path, biased, Form(packed=True), np.random.default_rng(0))
    actual = read(path).blocks[1]
    for name in ("query", "value", "attention_output", "up"):
        assert np.array_equal(getattr(actual, name).bias is None, False)
    assert np.array_equal(actual.value.bias, biased.blocks[1].value.bias)  # type: ignore[arg-type]


def call(*arguments: str) -> int:
    with pytest.raises(SystemExit) as left:
        command.main(list(arguments))
    return int(left.value.code or 0)


def test_commands(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = put(tmp_path, Form(packed=True, neighbours=True))
    options = ["--prompt", PROMPT, "--tokens", "4", "--config", "small", "--on", "golden", "--json"]
    assert call("generate", str(path), *options) == 0
    generated = json.loads(capsys.readouterr().out)
    assert len(generated["tokens"]) == 4
    (tmp_path / "text.txt").write_text("the quick brown fox jumps")
    assert call("perplexity", str(path), str(tmp_path / "text.txt"), "--config", "small", "--json") == 0
    measured = json.loads(capsys.readouterr().out)
    assert measured["device"] == pytest.approx(measured["float32"], rel=0.5)
    (tmp_path / "tokenizer.json").unlink()
    assert call("generate", str(path), *options) == 2
    err = capsys.readouterr().err
    assert "weft takes the vocabulary of an ONNX model from tokenizer.json beside it" in err
