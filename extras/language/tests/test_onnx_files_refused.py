"""Damaged and incomplete files of ONNX language models: each is refused."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto

from weft.compiler.errors import CompileError
from weft.extras.language.onnx.reader import read
from weft.extras.language.tests.support.language_models import SIZES, random_model
from weft.extras.language.tests.support.onnx_decoders import Form, write


@pytest.fixture
def path(tmp_path: Path) -> Path:
    sizes = dataclasses.replace(SIZES, key_length=16, value_length=16)
    model = random_model(np.random.default_rng(0), "llama", sizes)
    return write(tmp_path, model, Form(style="plain"), np.random.default_rng(0))


def refusal_of(path: Path) -> str:
    with pytest.raises(CompileError) as caught:
        read(path)
    return str(caught.value)


def test_without_a_tokenizer(path: Path) -> None:
    (path.parent / "tokenizer.json").unlink()
    assert refusal_of(path) == (
        f"there is no {path.parent / 'tokenizer.json'}: weft takes the vocabulary of an ONNX model from "
        "tokenizer.json beside it"
    )


def test_without_a_context(path: Path) -> None:
    (path.parent / "config.json").unlink()
    assert "nothing says how many tokens a text may have: put the model's config.json beside" in refusal_of(
        path
    )


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("config.json", {"max_position_embeddings": 1}),
        ("config.json", {"n_positions": 1}),
        ("genai_config.json", {"model": {"context_length": 1}}),
        ("genai_config.json", {"model": {"decoder": {"sliding_window": {"window_size": 1}}}}),
    ],
)
def test_texts_of_one_token(name: str, content: dict[str, Any], path: Path) -> None:
    """Models with a context of two are read."""
    (path.parent / name).write_text(json.dumps(content))
    message = "texts of the model have 1 token at most, by its configuration or the tables of its graph; weft tries "
    assert refusal_of(path).startswith(message)
    (path.parent / name).write_text(json.dumps(content).replace("1", "2"))
    assert read(path).sizes.context == 2


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"{", "config.json: it is not JSON"),
        (b"[1]", "config.json: expected object, got array"),
        (b'{"max_position_embeddings": "many"}', "has max_position_embeddings 'many'"),
        (b'{"max_position_embeddings": 1e30}', "has max_position_embeddings 1e+30"),
        (b'{"max_position_embeddings": 8, "rope_theta": -1}', "has rope_theta -1"),
        (b'{"max_position_embeddings": 8, "eos_token_id": {}}', "has eos_token_id {}"),
    ],
)
def test_a_damaged_configuration(content: bytes, words: str, path: Path) -> None:
    (path.parent / "config.json").write_bytes(content)
    assert words in refusal_of(path)


@pytest.mark.parametrize("share", [0.0, 0.2, 0.5, 0.9, 0.999])
def test_a_truncated_file(share: float, path: Path) -> None:
    content = path.read_bytes()
    path.write_bytes(content[: int(len(content) * share)])
    assert refusal_of(path)


def test_data_outside_the_folder(path: Path) -> None:
    inner = path.parent / "inner"
    inner.mkdir()
    for name in ("config.json", "tokenizer.json"):
        (inner / name).write_bytes((path.parent / name).read_bytes())
    proto = onnx.load(path)
    (path.parent / "weights").write_bytes(bytes(1 << 16))
    tensor = next(item for item in proto.graph.initializer if list(item.dims) == [32, 64])
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    for key, value in (("location", "../weights"), ("offset", "0"), ("length", str(4 * 32 * 64))):
        tensor.external_data.add(key=key, value=value)
    (inner / "model.onnx").write_bytes(proto.SerializeToString())
    assert "external data" in refusal_of(inner / "model.onnx")


def test_initialisers_that_claim_to_be_huge(path: Path) -> None:
    proto = onnx.load(path)
    tensor = next(item for item in proto.graph.initializer if list(item.dims) == [32, 64])
    tensor.dims[0] = 1 << 40
    path.write_bytes(proto.SerializeToString())
    assert refusal_of(path)


def test_fewer_tokens_than_the_tokenizer_has(path: Path) -> None:
    tokenizer = path.parent / "tokenizer.json"
    actual = json.loads(tokenizer.read_text())
    actual["added_tokens"].append({"id": 5000, "content": "<more>", "special": True})
    tokenizer.write_text(json.dumps(actual))
    assert "token 5,000 is '<more>', and the model has 319 tokens" in refusal_of(path)
