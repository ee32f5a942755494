"""Written files: read by other readers, and refused models."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import gguf
import numpy as np
import pytest

from weft.compiler.errors import CompileError
from weft.extras.language.compiler.model import LanguageModel, Linear, Norm, dense
from weft.extras.language.gguf.reader import read
from weft.extras.language.gguf.writer import WRITABLE_TYPES, write
from weft.extras.language.tests.support import language_models
from weft.extras.language.tests.support.language_models import SIZES


@pytest.fixture(scope="module")
def model() -> LanguageModel:
    return language_models.random_model(np.random.default_rng(1))


def refusal(model: LanguageModel, folder: Path, *arguments: object) -> str:
    """Return why a model is refused, and check that an existing file stays and no new one appears."""
    path = folder / "x.gguf"
    path.write_bytes(b"before")
    with pytest.raises(CompileError) as caught:
        write(model, path, *arguments)  # type: ignore[arg-type]
    assert [item.name for item in folder.iterdir()] == ["x.gguf"]
    assert path.read_bytes() == b"before"
    return str(caught.value)


@pytest.mark.parametrize("kind", WRITABLE_TYPES)
def test_the_library_reads_written_files(kind: str, model: LanguageModel, tmp_path: Path) -> None:
    actual = write(model, tmp_path / "x.gguf", kind)
    reader = gguf.GGUFReader(tmp_path / "x.gguf")
    tensors = {tensor.name: tensor for tensor in reader.tensors}
    key = reader.get_field("llama.attention.head_count_kv")
    assert key is not None
    assert key.contents() == 2
    down = tensors["blk.1.ffn_down.weight"]
    wanted = gguf.quants.dequantize(down.data, down.tensor_type)
    assert down.tensor_type.name == kind
    assert np.array_equal(dense(actual.blocks[1].down.weight), wanted)
    step = {"F32": 0, "F16": 1e-3, "BF16": 1e-2, "Q8_0": 0.01, "Q5_0": 0.05, "Q5_1": 0.05}.get(kind, 0.13)
    assert np.abs(wanted - model.blocks[1].down.weight).max() <= step * np.abs(wanted).max()
    assert [path.name for path in tmp_path.iterdir()] == ["x.gguf"]


def test_models_can_be_written_again(model: LanguageModel, tmp_path: Path) -> None:
    """Blocks of Q8_0 whose largest element is 127 survive quantisation unchanged."""
    first = write(model, tmp_path / "x.gguf", "Q8_0")
    write(read(tmp_path / "x.gguf"), tmp_path / "y.gguf", "Q8_0")
    second = read(tmp_path / "y.gguf")
    assert np.array_equal(dense(first.blocks[0].up.weight), dense(second.blocks[0].up.weight))
    assert first.vocabulary == second.vocabulary == model.vocabulary


@pytest.mark.parametrize("architecture", ["llama", "gpt2"])
def test_other_types_for_single_tensors(architecture: str, tmp_path: Path) -> None:
    kinds = {"token_embd.weight": "F16", "blk.0.ffn_up.weight": "Q4_0"}
    model = language_models.random_model(np.random.default_rng(2), architecture)
    write(model, tmp_path / "x", kinds=kinds)
    actual = {tensor.name: tensor.tensor_type.name for tensor in gguf.GGUFReader(tmp_path / "x").tensors}
    assert {name: actual[name] for name in kinds} == kinds
    assert actual["blk.1.ffn_up.weight"] == "Q8_0"


def test_vocabularies(tmp_path: Path) -> None:
    known = language_models.byte_pairs(pre="llama-bpe", added=("<tag>",))
    last = len(known.tokens) - 1
    ends = frozenset({last, last - 1, 3})
    known = replace(known, begin=last, end=last, ends=ends, add_begin=True, add_end=True, unknown=5)
    actual = write(language_models.random_model(np.random.default_rng(3), vocabulary=known), tmp_path / "x")
    assert actual.vocabulary == known
    own = replace(language_models.pieces(), begin=None, add_begin=False, add_space=False, unknown=None)
    actual = write(language_models.random_model(np.random.default_rng(3), vocabulary=own), tmp_path / "x")
    assert actual.vocabulary == replace(
        own, begin=1, unknown=0
    )  # which the format has unless a file says otherwise


def test_models_are_refused(model: LanguageModel, tmp_path: Path) -> None:
    assert refusal(model, tmp_path, "Q6_K") == (
        "matrices cannot be written as 'Q6_K'; choose one of F32, F16, BF16, Q8_0, Q4_0, Q4_1, Q5_0, Q5_1"
    )
    assert refusal(model, tmp_path, "Q8_0", {"output.weight": "x"}).startswith(
        "matrices cannot be written as 'x'; "
    )
    assert refusal(model, tmp_path, "Q8_0", {"blk.7.attn_q.weight": "F16"}) == (
        "the model has no matrix 'blk.7.attn_q.weight' that could have another type"
    )
    narrow = language_models.random_model(np.random.default_rng(4), sizes=replace(SIZES, feed_forward=40))
    assert refusal(narrow, tmp_path) == (
        "tensor 'blk.0.ffn_down.weight' has rows of 40 elements, and Q8_0 has blocks of 32: give it another type"
    )
    write(narrow, tmp_path / "x.gguf", "Q8_0", {f"blk.{at}.ffn_down.weight": "F16" for at in range(2)})
    assert refusal(replace(model, sizes=replace(model.sizes, heads=8)), tmp_path).startswith(
        "tensor 'blk.0.attn_q.weight' has shape 32x32; it must have 64 rows (llama.attention.head_count 8 x "
    )
    vocabulary = replace(model.vocabulary, tokens=model.vocabulary.tokens[:-1])
    assert refusal(replace(model, vocabulary=vocabulary), tmp_path).startswith(
        "tokenizer.ggml.token_type has "
    )


@pytest.mark.parametrize("wrong", [np.nan, np.inf, 1e38])
@pytest.mark.parametrize("kind", ["Q8_0", "Q4_0", "F16"])
def test_weights_that_are_no_numbers_or_too_large(
    wrong: float, kind: str, model: LanguageModel, tmp_path: Path
) -> None:
    weight = np.array(model.output.weight)
    weight[1, 2] = wrong
    assert refusal(replace(model, output=Linear(weight)), tmp_path, kind) == (
        "tensor 'output.weight' has elements that are infinite or not a number (NaN)"
    )
    norm = Norm(np.full(32, np.nan, np.float32))
    assert refusal(replace(model, output_norm=norm), tmp_path, kind) == (
        "tensor 'output_norm.weight' has elements that are infinite or not a number (NaN)"
    )
