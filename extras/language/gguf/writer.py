"""Language models as GGUF files, with their weights in the blocks of `ggml`."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from weft.compiler.ir.graph import CompileError
from weft.extras.language.compiler.libraries import library
from weft.extras.language.compiler.model import Block, LanguageModel, Linear, Matrix, Norm, dense
from weft.extras.language.compiler.vocabulary import Vocabulary, find_ends
from weft.extras.language.gguf import names
from weft.extras.language.gguf.blocks import KINDS
from weft.extras.language.gguf.reader import read

WRITTEN = tuple(kind for kind in KINDS if not kind.endswith("_K"))
"""Types that matrices can be written as; the package `gguf` does not quantise to ``Q2_K`` to ``Q6_K``."""


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
        Its matrices are float32; those in blocks are dequantised first. The rows of queries and keys must be in the
        order for a rotation of neighbours (`weft.extras.language.compiler.model.interleaved`).
    path : path
        A file that is there already is replaced, once the new one is complete.
    kind : str
        What matrices are quantised to: one of `WRITTEN`. Norms, biases and positions stay float32.
    kinds : mapping of str to str
        Other types for single tensors, by their names in the file: ``{"token_embd.weight": "F16"}``.

    Returns
    -------
    LanguageModel
        What `weft.extras.language.gguf.reader.read` reads from the file.

    Raises
    ------
    CompileError
        If a type cannot be written, a tensor's rows cannot be split into its blocks, or the file would not be read:
        shapes that do not fit, elements that are no finite numbers, a vocabulary that does not fit together.
    OSError
        If the file cannot be written.
    """
    target = Path(path)
    part = target.with_name(f"{target.name}.{os.getpid()}.part")
    try:
        _Writer(model, part, kind, kinds or {}).write()
        made = read(part.read_bytes())
        part.replace(target)
    finally:
        part.unlink(missing_ok=True)
    return made


class _Writer:
    """Writes one file."""

    def __init__(self, model: LanguageModel, path: Path, kind: str, kinds: Mapping[str, str]) -> None:
        self._gguf = library("gguf")
        self._model, self._kind, self._kinds = model, kind, dict(kinds)
        for found in (kind, *kinds.values()):
            if found not in WRITTEN:
                raise CompileError(f"matrices cannot be written as {found!r}; there are {', '.join(WRITTEN)}")
        self._to: Any = self._gguf.GGUFWriter(path, model.architecture)

    def write(self) -> None:
        self._sizes()
        self._vocabulary(self._model.vocabulary)
        self._tensors()
        if self._kinds:
            raise CompileError(
                f"the model has no matrix {next(iter(self._kinds))!r} that could have another type"
            )
        try:
            self._to.write_header_to_file()
            self._to.write_kv_data_to_file()
            self._to.write_tensors_to_file()
        finally:
            self._to.close()

    def _key(self, suffix: str) -> str:
        return f"{self._model.architecture}.{suffix}"

    def _sizes(self) -> None:
        model, to = self._model, self._to
        to.add_string("general.name", model.name)
        if model.chat_template:
            to.add_string(names.CHAT_TEMPLATE, model.chat_template)
        for field, suffix in names.SIZES.items():
            to.add_uint32(self._key(suffix), getattr(model.sizes, field))
        to.add_float32(self._key(names.EPSILON[model.architecture]), model.epsilon)
        if (rotary := model.rotary) is None:
            return
        to.add_uint32(self._key(names.ROTARY_DIMENSIONS), rotary.dimensions)
        to.add_float32(self._key(names.ROTARY_BASE), rotary.base)
        if rotary.scale != 1:
            to.add_string(self._key(names.SCALING_TYPE), "linear")
            to.add_float32(self._key(names.SCALING_FACTOR), rotary.scale)
        if rotary.factors is not None:
            self._vector(names.ROTARY_FACTORS, rotary.factors)

    def _vocabulary(self, known: Vocabulary) -> None:
        to, prefix = self._to, "tokenizer.ggml."
        to.add_tokenizer_model(known.model)
        to.add_token_list(known.tokens)
        to.add_token_types(list(map(int, known.kinds)))
        if known.model == "llama":
            to.add_token_scores(known.scores)
            to.add_add_space_prefix(known.add_space)
        else:
            to.add_tokenizer_pre(known.pre)
            to.add_token_merges([" ".join(pair) for pair in known.merges])
        found = find_ends(known.tokens, known.kinds)  # which readers find without metadata
        others = sorted(known.ends - {known.end}, key=lambda token: (token in found, token))
        special = {"bos": known.begin, "eos": known.end, "unknown": known.unknown}
        for name, token in (*special.items(), *zip(("eot", "eom"), others, strict=False)):
            if token is not None:
                to.add_uint32(f"{prefix}{name}_token_id", token)
        to.add_add_bos_token(known.add_begin)
        to.add_add_eos_token(known.add_end)

    def _tensors(self) -> None:
        model = self._model
        self._matrix(names.TOKEN_EMBEDDING, model.token_embedding)
        if model.positions is not None:
            self._vector(names.POSITIONS, dense(model.positions))
        for index, block in enumerate(model.blocks):
            self._block(index, block)
        self._norm(names.OUTPUT_NORM, model.output_norm)
        if not model.tied:
            self._linear(names.OUTPUT, model.output)

    def _block(self, index: int, block: Block) -> None:
        linears = {name: getattr(block, field) for field, name in names.LINEARS.items()}
        if self._model.architecture == "gpt2":
            parts = [linears.pop(names.LINEARS[field]) for field in ("query", "key", "value")]
            linears[names.FUSED] = _fused(parts)
        for name, linear in linears.items():
            if linear is not None:
                self._linear(names.block(index, name), linear)
        for field, name in names.NORMS.items():
            self._norm(names.block(index, name), getattr(block, field))

    def _norm(self, name: str, norm: Norm) -> None:
        self._with_bias(name, norm.bias)
        self._vector(f"{name}.weight", norm.weight)

    def _linear(self, name: str, linear: Linear) -> None:
        self._with_bias(name, linear.bias)
        self._matrix(f"{name}.weight", linear.weight)

    def _with_bias(self, name: str, bias: np.ndarray | None) -> None:
        if bias is not None:
            self._vector(f"{name}.bias", bias)

    def _vector(self, name: str, values: np.ndarray) -> None:
        self._to.add_tensor(name, np.ascontiguousarray(values, np.float32))

    def _matrix(self, name: str, matrix: Matrix) -> None:
        values, kind = np.ascontiguousarray(dense(matrix), np.float32), self._kinds.pop(name, self._kind)
        kind_of = self._gguf.GGMLQuantizationType[kind]
        block = self._gguf.GGML_QUANT_SIZES[kind_of][0]
        if values.shape[-1] % block:
            raise CompileError(
                f"tensor {name!r} has rows of {values.shape[-1]:,} elements, and {kind} has blocks of {block}: give it "
                "another type"
            )
        with np.errstate(all="ignore"):  # what becomes infinite is found when the file is read
            content = self._gguf.quants.quantize(values, kind_of)
        self._to.add_tensor(name, content, raw_dtype=kind_of)


def _fused(parts: list[Linear]) -> Linear:
    """One product with the rows of several behind each other."""
    biases = [part.bias for part in parts if part.bias is not None]
    bias = np.concatenate(biases) if len(biases) == len(parts) else None
    return Linear(np.concatenate([dense(part.weight) for part in parts]), bias)
