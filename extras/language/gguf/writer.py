"""Writer of language models as GGUF files, with weights in the block formats of `ggml`."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from weft.compiler.errors import CompileError
from weft.extras.language.compiler.libraries import import_library
from weft.extras.language.compiler.model import (
    Block,
    LanguageModel,
    Linear,
    Matrix,
    Norm,
    Vocabulary,
    dense,
    find_ends,
)
from weft.extras.language.gguf import metadata
from weft.extras.language.gguf.reader import read
from weft.extras.language.gguf.tensors import READABLE_TYPES

WRITABLE_TYPES = tuple(kind for kind in READABLE_TYPES if not kind.endswith("_K"))
"""Types for matrices; the package `gguf` cannot quantise to ``Q2_K`` to ``Q6_K``."""


def write(
    model: LanguageModel,
    path: str | os.PathLike[str],
    kind: str = "Q8_0",
    kinds: Mapping[str, str] | None = None,
) -> LanguageModel:
    """Write a language model as a GGUF file.

    Parameters
    ----------
    model : LanguageModel
        Matrices in blocks are dequantised to float32 first. Query and key rows must be in the order in which adjacent
        rows are rotated together (`weft.extras.language.compiler.model.interleave_heads`).
    path : path
        An existing file is replaced once the new one is complete.
    kind : str
        Type of matrices: one of `WRITABLE_TYPES`. Norms, biases and positions stay float32.
    kinds : mapping of str to str
        Other types for single tensors, by their names in the file: ``{"token_embd.weight": "F16"}``.

    Returns
    -------
    LanguageModel
        The model as `weft.extras.language.gguf.reader.read` reads it from the file.

    Raises
    ------
    CompileError
        If a type cannot be written, a tensor's rows cannot be split into its blocks, or
        `weft.extras.language.gguf.reader.read` would reject the file: wrong shapes, elements that are not finite, or an
        inconsistent vocabulary.
    OSError
        If the file cannot be written.
    """
    target = Path(path)
    part = target.with_name(f"{target.name}.{os.getpid()}.part")
    try:
        _Writer(model, part, kind, kinds or {}).write()
        # Read the new file before it replaces another one: an error leaves the old file.
        written = read(part.read_bytes())
        part.replace(target)
    finally:
        part.unlink(missing_ok=True)
    return written


class _Writer:
    def __init__(self, model: LanguageModel, path: Path, kind: str, kinds: Mapping[str, str]) -> None:
        self._gguf = import_library("gguf")
        self._model, self._kind, self._kinds = model, kind, dict(kinds)
        for requested in (kind, *kinds.values()):
            if requested not in WRITABLE_TYPES:
                raise CompileError(
                    f"matrices cannot be written as {requested!r}; choose one of {', '.join(WRITABLE_TYPES)}"
                )
        self._file: Any = self._gguf.GGUFWriter(path, model.architecture)

    def write(self) -> None:
        self._add_metadata()
        self._add_vocabulary(self._model.vocabulary)
        self._add_tensors()
        # `_add_matrix` has removed the types of matrices.
        if self._kinds:
            raise CompileError(
                f"the model has no matrix {next(iter(self._kinds))!r} that could have another type"
            )
        try:
            self._file.write_header_to_file()
            self._file.write_kv_data_to_file()
            self._file.write_tensors_to_file()
        finally:
            self._file.close()

    def _full_key(self, suffix: str) -> str:
        return f"{self._model.architecture}.{suffix}"

    def _add_metadata(self) -> None:
        model, file = self._model, self._file
        file.add_string("general.name", model.name)
        if model.chat_template:
            file.add_string(metadata.CHAT_TEMPLATE, model.chat_template)
        for field, suffix in metadata.SIZES.items():
            file.add_uint32(self._full_key(suffix), getattr(model.sizes, field))
        file.add_float32(self._full_key(metadata.EPSILON[model.architecture]), model.epsilon)
        if (rotary := model.rotary) is None:
            return
        file.add_uint32(self._full_key(metadata.ROTARY_DIMENSIONS), rotary.dimensions)
        file.add_float32(self._full_key(metadata.ROTARY_BASE), rotary.base)
        if rotary.scale != 1:
            file.add_string(self._full_key(metadata.SCALING_TYPE), "linear")
            file.add_float32(self._full_key(metadata.SCALING_FACTOR), rotary.scale)
        if rotary.factors is not None:
            self._add_vector(metadata.ROTARY_FACTORS, rotary.factors)

    def _add_vocabulary(self, vocabulary: Vocabulary) -> None:
        file, prefix = self._file, "tokenizer.ggml."
        file.add_tokenizer_model(vocabulary.model)
        file.add_token_list(vocabulary.tokens)
        file.add_token_types(list(map(int, vocabulary.kinds)))
        if vocabulary.model == "llama":
            file.add_token_scores(vocabulary.scores)
            file.add_add_space_prefix(vocabulary.add_space)
        else:
            file.add_tokenizer_pre(vocabulary.pre)
            file.add_token_merges([" ".join(pair) for pair in vocabulary.merges])
        implied = find_ends(vocabulary.tokens, vocabulary.kinds)
        # Only two further end tokens have metadata keys: first those that readers cannot recognise by name.
        others = sorted(vocabulary.ends - {vocabulary.end}, key=lambda token: (token in implied, token))
        special = {"bos": vocabulary.begin, "eos": vocabulary.end, "unknown": vocabulary.unknown}
        for name, token in (*special.items(), *zip(("eot", "eom"), others, strict=False)):
            if token is not None:
                file.add_uint32(f"{prefix}{name}_token_id", token)
        file.add_add_bos_token(vocabulary.add_begin)
        file.add_add_eos_token(vocabulary.add_end)

    def _add_tensors(self) -> None:
        model = self._model
        self._add_matrix(metadata.TOKEN_EMBEDDING, model.token_embedding)
        if model.positions is not None:
            self._add_vector(metadata.POSITIONS, dense(model.positions))
        for index, block in enumerate(model.blocks):
            self._add_block(index, block)
        self._add_norm(metadata.OUTPUT_NORM, model.output_norm)
        if not model.tied:
            self._add_linear(metadata.OUTPUT, model.output)

    def _add_block(self, index: int, block: Block) -> None:
        linears = {name: getattr(block, field) for field, name in metadata.LINEARS.items()}
        if self._model.architecture == "gpt2":
            parts = [linears.pop(metadata.LINEARS[field]) for field in ("query", "key", "value")]
            linears[metadata.FUSED] = _concatenate(parts)
        for name, linear in linears.items():
            if linear is not None:
                self._add_linear(metadata.block(index, name), linear)
        for field, name in metadata.NORMS.items():
            self._add_norm(metadata.block(index, name), getattr(block, field))

    def _add_norm(self, name: str, norm: Norm) -> None:
        self._add_bias(name, norm.bias)
        self._add_vector(f"{name}.weight", norm.weight)

    def _add_linear(self, name: str, linear: Linear) -> None:
        self._add_bias(name, linear.bias)
        self._add_matrix(f"{name}.weight", linear.weight)

    def _add_bias(self, name: str, bias: np.ndarray | None) -> None:
        if bias is not None:
            self._add_vector(f"{name}.bias", bias)

    def _add_vector(self, name: str, values: np.ndarray) -> None:
        self._file.add_tensor(name, np.ascontiguousarray(values, np.float32))

    def _add_matrix(self, name: str, matrix: Matrix) -> None:
        values, kind = np.ascontiguousarray(dense(matrix), np.float32), self._kinds.pop(name, self._kind)
        type_code = self._gguf.GGMLQuantizationType[kind]
        block = self._gguf.GGML_QUANT_SIZES[type_code][0]
        if values.shape[-1] % block:
            raise CompileError(
                f"tensor {name!r} has rows of {values.shape[-1]:,} elements, and {kind} has blocks of {block}: give it "
                "another type"
            )
        # Reading the file back reports elements that overflow.
        with np.errstate(all="ignore"):
            content = self._gguf.quants.quantize(values, type_code)
        self._file.add_tensor(name, content, raw_dtype=type_code)


def _concatenate(parts: list[Linear]) -> Linear:
    biases = [part.bias for part in parts if part.bias is not None]
    bias = np.concatenate(biases) if len(biases) == len(parts) else None
    return Linear(np.concatenate([dense(part.weight) for part in parts]), bias)
