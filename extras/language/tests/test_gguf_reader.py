"""Round trips of models through files, and the full message of every refusal."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

from weft.compiler.errors import CompileError
from weft.compiler.frontend import import_model
from weft.extras.language.compiler.model import Block, BlockTensor, LanguageModel, Linear, Norm, Rotary, dense
from weft.extras.language.gguf import file
from weft.extras.language.gguf.file import File, parse
from weft.extras.language.gguf.reader import read
from weft.extras.language.gguf.writer import write
from weft.extras.language.tests.support import language_models
from weft.extras.language.tests.support.gguf_bytes import KINDS, Gguf, Tensor, blocks

NUMBERS: dict[type, str] = {bool: "bool", int: "u32", float: "f32", str: "text"}


def parse_path(path: Path) -> File:
    return parse(np.fromfile(path, np.uint8), "it")


def as_bytes(file: File) -> Gguf:
    """Return a file as an editable structure."""
    source = Gguf()
    for key, item in file.metadata.items():
        if isinstance(item, tuple):
            source.entry(key, "[text]", list(item))
        elif isinstance(item, np.ndarray):
            source.entry(key, "[f32]" if item.dtype.kind == "f" else "[i32]", item.tolist())
        else:
            source.entry(key, NUMBERS[type(item)], item)
    source.tensors = [
        Tensor(name, item.kind, item.shape[::-1], item.content.tobytes())
        for name, item in file.tensors.items()
    ]
    return source


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Gguf]:
    """Return a fresh editable file of an architecture."""
    folder = tmp_path_factory.mktemp("models")
    for name in ("llama", "gpt2"):
        language_models.write_random(folder / name, np.random.default_rng(1), name)
    return lambda name: as_bytes(parse_path(folder / name))


def refusal(source: Gguf) -> str:
    with pytest.raises(CompileError) as caught:
        read(source.write())
    assert str(caught.value).isprintable()
    return str(caught.value)


def arrays(item: Any) -> list[np.ndarray]:
    """Return all weights of a model or of a part, in order."""
    if item is None:
        return []
    if isinstance(item, np.ndarray | BlockTensor):
        return [dense(item)]
    if isinstance(item, tuple):
        return [array for part in item for array in arrays(part)]
    assert isinstance(item, LanguageModel | Block | Linear | Norm | Rotary)
    parts = (getattr(item, field.name) for field in fields(item))
    kinds = (np.ndarray, BlockTensor, tuple, Block, Linear, Norm, Rotary)
    return [array for part in parts if isinstance(part, kinds) for array in arrays(part)]


def check_equal(actual: LanguageModel, expected: LanguageModel) -> bool:
    pairs = list(zip(arrays(replace(actual, notes=())), arrays(expected), strict=True))
    assert len(pairs) > 20
    scalars = all(
        getattr(actual, name) == getattr(expected, name)
        for name in ("architecture", "sizes", "name", "vocabulary", "tied")
    )
    return scalars and all(np.array_equal(*pair) for pair in pairs)


@pytest.mark.parametrize("architecture", ["llama", "gpt2"])
@pytest.mark.parametrize(("tied", "biases"), [(False, None), (True, None), (True, True)])
def test_float_weights_round_trip(architecture: str, tied: bool, biases: bool | None, tmp_path: Path) -> None:
    model = language_models.random_model(np.random.default_rng(2), architecture, tied=tied, biases=biases)
    write(model, tmp_path / "x.gguf", "F32")
    actual = read(tmp_path / "x.gguf")
    assert check_equal(actual, model)
    assert actual.notes == ()
    assert actual.tied == tied
    assert actual.epsilon == np.float32(1e-5)
    assert (actual.rotary is None) == (architecture == "gpt2") == (actual.positions is not None)
    assert (actual.blocks[0].gate is None) == (architecture == "gpt2")
    assert check_equal(read((tmp_path / "x.gguf").read_bytes()), model)


@pytest.mark.parametrize("architecture", ["llama", "gpt2"])
@pytest.mark.parametrize("kind", ["Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1"])
def test_blocks_stay_blocks(architecture: str, kind: str, tmp_path: Path) -> None:
    model = language_models.write_random(tmp_path / "x", np.random.default_rng(3), architecture, kind)
    for tensor in gguf.GGUFReader(tmp_path / "x").tensors:
        assert tensor.tensor_type.name == (
            kind if len(tensor.shape) == 2 and "pos" not in tensor.name else "F32"
        )
    first = model.blocks[0]
    linears = [getattr(first, field.name) for field in fields(first) if "norm" not in field.name]
    matrices = [linear.weight for linear in linears if linear is not None]
    for matrix in (model.token_embedding, model.output.weight, *matrices):
        assert isinstance(matrix, BlockTensor)
        assert matrix.block == 32
    tensors = {tensor.name: tensor for tensor in gguf.GGUFReader(tmp_path / "x").tensors}
    query = tensors["blk.0.attn_qkv.weight" if architecture == "gpt2" else "blk.0.attn_q.weight"]
    wanted = gguf.quants.dequantize(query.data, query.tensor_type)[: first.query.weight.shape[0]]
    assert np.array_equal(dense(first.query.weight), wanted)


def test_all_types_in_one_file(files: Callable[[str], Gguf]) -> None:
    """Includes types that the gguf library cannot write."""
    sizes = replace(language_models.SIZES, width=256, feed_forward=512, blocks=2)
    rng = np.random.default_rng(4)
    model = language_models.random_model(rng, sizes=sizes)
    source = files("llama")
    for field, suffix in (("width", "embedding_length"), ("feed_forward", "feed_forward_length")):
        source.entry(f"llama.{suffix}", "u32", getattr(sizes, field))
    source.tensors, wanted = [], {}
    kinds = iter([kind for kind in KINDS if kind not in ("IQ4_NL", "I32")] * 9)
    shapes = {"token_embd": model.token_embedding.shape, "output": model.output.weight.shape}
    for at, block in enumerate(model.blocks):
        names = {"attn_q": "query", "attn_k": "key", "attn_v": "value", "attn_output": "attention_output",
                 "ffn_gate": "gate", "ffn_up": "up", "ffn_down": "down"}  # fmt: skip
        shapes |= {f"blk.{at}.{name}": getattr(block, field).weight.shape for name, field in names.items()}
    for name, shape in shapes.items():
        kind = next(kinds) if shape[1] % 256 == 0 else "Q8_0"
        source.tensors.append(Tensor(f"{name}.weight", kind, shape[::-1], blocks(rng, kind, shape)))
        raw = np.frombuffer(source.tensors[-1].content, np.uint8).reshape(shape[0], -1)
        wanted[name] = gguf.quants.dequantize(raw, gguf.GGMLQuantizationType[kind]).reshape(shape)
    norms = ["output_norm", *(f"blk.{at}.{name}" for at in range(2) for name in ("attn_norm", "ffn_norm"))]
    source.tensors += [Tensor(f"{name}.weight", "F16", (256,), blocks(rng, "F16", (256,))) for name in norms]
    actual = read(source.write())
    assert np.array_equal(dense(actual.token_embedding), wanted["token_embd"])
    assert np.array_equal(dense(actual.output.weight), wanted["output"])
    for at, block in enumerate(actual.blocks):
        assert block.gate is not None
        for name, linear in {
            "attn_q": block.query,
            "attn_output": block.attention_output,
            "ffn_gate": block.gate,
        }.items():
            assert np.array_equal(dense(linear.weight), wanted[f"blk.{at}.{name}"])
        assert np.array_equal(dense(block.down.weight), wanted[f"blk.{at}.ffn_down"])


def test_rotation(tmp_path: Path, files: Callable[[str], Gguf]) -> None:
    factors = np.array([1, 2.5, 8], np.float32)
    model = language_models.random_model(
        np.random.default_rng(5), rotary=Rotary(6, 5e5, 4.0, factors), biases=True
    )
    rotary = write(model, tmp_path / "x").rotary
    assert rotary is not None
    assert (rotary.dimensions, rotary.base, rotary.scale) == (6, 5e5, 4.0)
    assert np.array_equal(rotary.factors, factors)  # type: ignore[arg-type]
    source = files("llama").without("llama.rope.dimension_count").without("llama.rope.freq_base")
    assert _rotary(source) == (8, 10000.0, 1.0)
    assert _rotary(source.entry("llama.rope.scale_linear", "f32", 2.0)) == (8, 10000.0, 2.0)
    assert _rotary(source.entry("llama.rope.scaling.factor", "f32", 8.0)) == (8, 10000.0, 8.0)
    assert _rotary(source.entry("llama.rope.scaling.factor", "f32", 0.0)) == (8, 10000.0, 2.0)
    assert _rotary(source.entry("llama.rope.scaling.type", "text", "none")) == (8, 10000.0, 1.0)


def _rotary(source: Gguf) -> tuple[int, float, float]:
    rotary = read(source.write()).rotary
    assert rotary is not None
    return rotary.dimensions, rotary.base, rotary.scale


def test_defaults_of_sizes(files: Callable[[str], Gguf]) -> None:
    source = files("llama")
    for name in ("vocab_size", "attention.key_length", "attention.value_length"):
        source.without(f"llama.{name}")
    sizes = read(source.write()).sizes
    assert (sizes.key_length, sizes.value_length, sizes.vocabulary) == (
        8,
        8,
        len(language_models.pieces().tokens),
    )
    source.entry("llama.attention.head_count", "[i32]", [4, 4]).entry(
        "llama.feed_forward_length", "[u64]", [64] * 2
    )
    assert read(source.write()).sizes == sizes
    assert refusal(source.entry("llama.attention.head_count", "[i32]", [4, 2])) == (
        "llama.attention.head_count is 4 for some layers and 2 for others; weft reads models whose layers are alike"
    )
    source.entry("llama.attention.head_count", "u32", 4).without("llama.attention.head_count_kv")
    assert refusal(source) == (
        "tensor 'blk.0.attn_k.weight' has shape 16x32; it must have 32 rows (llama.attention.head_count_kv 4 x "
        "llama.attention.key_length 8) and 32 columns (llama.embedding_length 32)"
    )


@pytest.mark.parametrize(
    ("key", "kind", "value", "why"),
    [
        ("general.architecture", "text", "mamba", "the file's architecture is 'mamba'; weft reads llama and gpt2"),
        ("split.count", "u16", 3,
         "the file is one of several parts of a model; join them with llama-gguf-split --merge"),
        ("llama.expert_count", "u32", 8,
         "the model has experts, which weft does not support (llama.expert_count is 8)"),
        ("llama.attention.sliding_window", "u32", 4096,
         "the model has attention through a sliding window, which weft does not support "
         "(llama.attention.sliding_window is 4096)"),
        ("llama.attention.sliding_window", "u32", 1,
         "the model has attention through a sliding window, which weft does not support "
         "(llama.attention.sliding_window is 1)"),
        ("llama.attention.clamp_kqv", "f32", -1.0,
         "the model has clamped queries, keys and values, which weft does not support "
         "(llama.attention.clamp_kqv is -1.0)"),
        ("llama.attention.causal", "bool", False,
         "the model has attention to later tokens, which weft does not support (llama.attention.causal is False)"),
        ("llama.logit_scale", "f32", 0.5,
         "the model has scaled logits, which weft does not support (llama.logit_scale is 0.5)"),
        ("llama.attention.scale", "[f32]", [1.0],
         "the model has scores with their own scale, which weft does not support (llama.attention.scale is an array)"),
        ("llama.rope.scaling.type", "text", "yarn",
         "llama.rope.scaling.type is 'yarn'; weft supports 'linear' and 'none'"),
        ("llama.rope.dimension_count", "u32", 7,
         "llama.rope.dimension_count is 7; it must be even, and at most the length of a key, 8"),
        ("llama.rope.dimension_count", "u32", 10,
         "llama.rope.dimension_count is 10; it must be even, and at most the length of a key, 8"),
        ("llama.rope.freq_base", "f32", float("nan"), "llama.rope.freq_base is nan; it must be a number above zero"),
        ("llama.rope.scaling.factor", "f32", -1.0,
         "llama.rope.scaling.factor is -1.0; it must be a number above zero"),
        ("llama.attention.layer_norm_rms_epsilon", "f32", float("inf"),
         "llama.attention.layer_norm_rms_epsilon is inf; it must be a number above zero"),
        ("llama.attention.layer_norm_rms_epsilon", "text", "x",
         "llama.attention.layer_norm_rms_epsilon is 'x'; it must be a number"),
        ("llama.block_count", "u32", 0, "llama.block_count is 0; it must be an integer from 1 to 1,073,741,824"),
        ("llama.block_count", "u64", 1 << 62,
         "llama.block_count is 4611686018427387904; it must be an integer from 1 to 1,073,741,824"),
        ("llama.block_count", "f32", 2.0, "llama.block_count is 2.0; it must be an integer"),
        ("llama.block_count", "bool", True, "llama.block_count is True; it must be an integer"),
        ("llama.block_count", "[u32]", [], "llama.block_count is an array; it must be an integer"),
        ("llama.block_count", "u32", 3,
         "the file has no tensor 'blk.2.attn_q.weight', which a model of its architecture must have"),
        ("llama.attention.head_count_kv", "u32", 3,
         "llama.attention.head_count_kv 3 does not fit llama.attention.head_count 4: llama needs a divisor of it"),
        ("llama.vocab_size", "u32", 5, "llama.vocab_size 5 is not the number of tokenizer.ggml.tokens, 319"),
        ("llama.feed_forward_length", "u32", 96,
         "tensor 'blk.0.ffn_gate.weight' has shape 64x32; it must have 96 rows (llama.feed_forward_length 96) and 32 "
         "columns (llama.embedding_length 32)"),
        ("llama.embedding_length", "u32", 1 << 20,
         "tensor 'token_embd.weight' has shape 319x32; it must have 319 rows (tokenizer.ggml.tokens 319) and 1,048,576 "
         "columns (llama.embedding_length 1,048,576)"),
        ("general.name", "u32", 1, "general.name is 1; it must be text"),
    ],
)  # fmt: skip
def test_metadata(files: Callable[[str], Gguf], key: str, kind: str, value: object, why: str) -> None:
    assert refusal(files("llama").entry(key, kind, value)) == why


def test_harmless_metadata(files: Callable[[str], Gguf]) -> None:
    source = (
        files("llama").entry("llama.expert_count", "u32", 0).entry("llama.attention.causal", "bool", True)
    )
    source.entry("llama.logit_scale", "f32", 1.0).entry("tokenizer.chat_template", "text", "{{ x }}")
    assert read(source.write()).notes == ()
    assert read(source.write()).chat_template == "{{ x }}"


@pytest.mark.parametrize(
    "key",
    ["general.architecture", "tokenizer.ggml.model", "llama.embedding_length", "llama.context_length",
     "llama.attention.layer_norm_rms_epsilon", "tokenizer.ggml.tokens", "tokenizer.ggml.scores"],
)  # fmt: skip
def test_missing_metadata(files: Callable[[str], Gguf], key: str) -> None:
    assert (
        refusal(files("llama").without(key))
        == f"the file has no metadata {key!r}, which a language model must have"
    )


def test_heads_that_do_not_fit(files: Callable[[str], Gguf]) -> None:
    source = (
        files("llama").without("llama.attention.key_length").entry("llama.attention.head_count", "u32", 6)
    )
    assert refusal(source) == "llama.embedding_length 32 is no multiple of llama.attention.head_count 6"
    assert refusal(files("gpt2").entry("gpt2.attention.head_count_kv", "u32", 2)) == (
        "gpt2.attention.head_count_kv 2 does not fit gpt2.attention.head_count 4: gpt2 needs one head of keys and "
        "values for each"
    )
    assert refusal(files("gpt2").entry("gpt2.attention.key_length", "u32", 12)) == (
        "tensor 'blk.0.attn_qkv.weight' has shape 96x32; it must have 128 rows (gpt2.attention.head_count 4 x "
        "gpt2.attention.key_length 12 + gpt2.attention.head_count_kv 4 x gpt2.attention.key_length 12 + "
        "gpt2.attention.head_count_kv 4 x gpt2.attention.value_length 8) and 32 columns "
        "(gpt2.embedding_length 32)"
    )


@pytest.mark.parametrize("architecture", ["llama", "gpt2"])
def test_every_missing_tensor_is_named(files: Callable[[str], Gguf], architecture: str) -> None:
    names = [tensor.name for tensor in files(architecture).tensors]
    assert len(names) > 20
    for name in names:
        source = files(architecture)
        source.tensors.remove(source.tensor(str(name)))
        if name == "output.weight":
            assert read(source.write()).tied
            continue
        assert (
            refusal(source) == f"the file has no tensor {name!r}, which a model of its architecture must have"
        )


@pytest.mark.parametrize("architecture", ["llama", "gpt2"])
def test_every_tensor_of_another_shape_is_named(files: Callable[[str], Gguf], architecture: str) -> None:
    for tensor in files(architecture).tensors:
        source = files(architecture)
        changed = source.tensor(str(tensor.name))
        changed.dimensions = (*changed.dimensions[:-1], changed.dimensions[-1] - 1)
        if tensor.kind != "F32" and len(tensor.dimensions) == 1:
            continue
        assert refusal(source).startswith(f"tensor {tensor.name!r} has shape "), tensor.name
        changed.dimensions = (*tensor.dimensions, 1)
        assert refusal(source).startswith(f"tensor {tensor.name!r} has shape "), tensor.name


@pytest.mark.parametrize("architecture", ["llama", "gpt2"])
def test_every_tensor_with_non_finite_numbers_is_named(
    files: Callable[[str], Gguf], architecture: str
) -> None:
    for tensor in files(architecture).tensors:
        source = files(architecture)
        changed = source.tensor(str(tensor.name))
        changed.content = b"\xff" * 4 + changed.content[4:]
        assert (
            refusal(source) == f"tensor {tensor.name!r} has elements that are infinite or not a number (NaN)"
        )


def test_unsupported_types(files: Callable[[str], Gguf]) -> None:
    source = files("llama")
    changed = source.tensor("blk.1.attn_norm.weight")
    for kind in ("I32", "IQ4_NL"):
        changed.kind = kind
        assert refusal(source) == (
            f"tensor 'blk.1.attn_norm.weight' has type {kind}; weft reads F32, F16, BF16, Q8_0, Q4_0, Q4_1, Q5_0, "
            "Q5_1, Q2_K, Q3_K, Q4_K, Q5_K, Q6_K: convert the file to one of these, as 'llama-quantize "
            "--allow-requantize IN OUT Q8_0' of llama.cpp does"
        )


def test_rotary_factors_must_be_above_zero(files: Callable[[str], Gguf]) -> None:
    source = files("llama")
    source.tensors.append(Tensor("rope_freqs.weight", "F32", (4,), np.array([1, 0, 1, 1], "<f4").tobytes()))
    assert refusal(source) == "tensor 'rope_freqs.weight' has the element 0; all must be above zero"
    source.tensors[-1].dimensions = (2,)
    assert refusal(source) == (
        "tensor 'rope_freqs.weight' has shape 2; it must have 4 elements (half of llama.rope.dimension_count 8)"
    )


def test_unused_entries_are_reported(files: Callable[[str], Gguf]) -> None:
    source = files("llama").entry("llama.own_thing", "u32", 1)
    source.tensors.append(Tensor("blk.0.attn_rot_embd.weight", "F32", (4,), bytes(16)))
    assert read(source.write()).notes == (
        "the file has tensors that weft does not use: blk.0.attn_rot_embd.weight",
        "the file has metadata that weft does not use: llama.own_thing",
    )


@pytest.mark.parametrize(
    ("architecture", "name"),
    [
        ("llama", "blk.0.attn_q_norm.weight"),  # of Qwen3
        ("llama", "blk.1.attn_norm.bias"),
        ("llama", "blk.0.post_attention_norm.weight"),  # of Gemma 2
        ("llama", "blk.0.ffn_gate_exps.weight"),
        ("llama", "position_embd.weight"),
        ("llama", "blk.2.attn_q.weight"),  # of a block behind the last one
        ("gpt2", "blk.0.ffn_gate.weight"),
        ("gpt2", "rope_freqs.weight"),
    ],
)
def test_unknown_tensors_are_refused(files: Callable[[str], Gguf], architecture: str, name: str) -> None:
    source = files(architecture)
    source.tensors.append(Tensor(name, "F32", (4,), bytes(16)))
    assert refusal(source) == (
        f"the file has tensors that weft does not know; without them results would be wrong: {name}"
    )


def test_many_unknown_tensors(files: Callable[[str], Gguf]) -> None:
    source = files("llama")
    source.tensors += [Tensor(f"more.{at}", "F32", (1,), bytes(4)) for at in range(7)]
    assert refusal(source).endswith(": more.0, more.1, more.2, more.3, more.4 and 2 more")


def test_without_the_library(files: Callable[[str], Gguf], monkeypatch: pytest.MonkeyPatch) -> None:
    content = files("llama").write()
    for remembered in (file._value_types, file._tensor_types):
        remembered.cache_clear()
    monkeypatch.setitem(sys.modules, "gguf", None)
    with pytest.raises(CompileError) as caught:
        read(content)
    assert str(caught.value) == (
        "language models need the Python package 'gguf', which is not installed: pip install 'weft[lm]'"
    )


def test_other_commands_name_the_right_command(files: Callable[[str], Gguf], tmp_path: Path) -> None:
    content = files("llama").write()
    (tmp_path / "x.onnx").write_bytes(content)
    for source, label in (
        (content, f"the model of {len(content):,} bytes"),
        (tmp_path / "x.onnx", tmp_path / "x.onnx"),
    ):
        with pytest.raises(CompileError) as caught:
            import_model(source)
        assert str(caught.value) == (
            f"{label} is a GGUF file, which holds a language model: `weft generate` and `weft serve` take it"
        )
