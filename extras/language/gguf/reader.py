"""Reader of language models from GGUF files of the architectures ``llama`` and ``gpt2``."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import replace

from weft.compiler.errors import CompileError
from weft.extras.language.compiler.model import (
    Block,
    LanguageModel,
    Linear,
    Matrix,
    Norm,
    Rotary,
    Sizes,
    rows,
)
from weft.extras.language.gguf import metadata as names
from weft.extras.language.gguf.file import Source, Value, load, parse
from weft.extras.language.gguf.metadata import Metadata, read_vocabulary
from weft.extras.language.gguf.tensors import Size, Tensors, size
from weft.hdl.schema import printable, short_repr

_DISABLED: tuple[Value, ...] = (0, 0.0, False)
_DISABLED_OR_ONE: tuple[Value, ...] = (*_DISABLED, 1.0)
_UNSUPPORTED_FEATURES: Mapping[str, tuple[str, tuple[Value, ...]]] = {
    "expert_count": ("experts", _DISABLED),
    "attention.sliding_window": ("attention through a sliding window", _DISABLED),
    "attention.causal": ("attention to later tokens", (True,)),
    "attention.max_alibi_bias": ("attention with a bias by distance (ALiBi)", _DISABLED),
    "attention.clamp_kqv": ("clamped queries, keys and values", _DISABLED),
    "attention.scale": ("scores with their own scale", _DISABLED),
    "attention.temperature_scale": ("a temperature of attention", _DISABLED),
    "attention.shared_kv_layers": ("layers that share keys and values", _DISABLED),
    "use_parallel_residual": ("attention and feed-forward side by side", _DISABLED),
    "attn_logit_softcapping": ("capped scores", _DISABLED),
    "final_logit_softcapping": ("capped logits", _DISABLED),
    "logit_scale": ("scaled logits", _DISABLED_OR_ONE),
    "embedding_scale": ("scaled embeddings", _DISABLED_OR_ONE),
    "residual_scale": ("scaled residuals", _DISABLED_OR_ONE),
    "rope.scaling.attn_factor": ("scaled attention", _DISABLED_OR_ONE),
    "pooling_type": ("pooling: it makes embeddings, not text", _DISABLED),
}
"""Metadata keys that change the results, with a description and the values that leave the feature off."""
_REDUNDANT_TENSORS = re.compile(r"blk\.\d+\.attn_rot_embd(\.weight)?")
"""Rotary frequencies, which follow from metadata; older converters store them too."""
_MAX_NAME_CHARACTERS = 60
_MAX_LISTED_NAMES = 5


def read(source: Source) -> LanguageModel:
    """Read a language model from a GGUF file (a path, or its bytes).

    Weights of ``F32``, ``F16`` and ``BF16`` become float32. Weights in blocks (``Q8_0``, ``Q4_0``, ``Q4_1``, ``Q5_0``,
    ``Q5_1``, ``Q2_K`` to ``Q6_K``) become `weft.extras.language.compiler.model.BlockTensor`. Nothing is rounded. The
    query and key rows of ``llama`` files keep the file's order, in which adjacent rows are rotated together. The fused
    projection of ``gpt2`` files is split into queries, keys and values.

    Raises
    ------
    CompileError
        If the file is not a GGUF file, is damaged, has another architecture or an unsupported feature, or if its
        tensors do not fit its metadata; or if the package `gguf` is not installed.
    """
    data, label = load(source)
    file = parse(data, label)
    metadata = Metadata(file.metadata)
    architecture = metadata.text("general.architecture")
    if architecture not in names.EPSILON:
        raise CompileError(
            f"the file's architecture is {short_repr(architecture)}; weft reads {' and '.join(names.EPSILON)}"
        )
    if metadata.integer("split.count", 1, low=0) > 1:
        raise CompileError(
            "the file is one of several parts of a model; join them with llama-gguf-split --merge"
        )
    return _Reader(metadata, Tensors(file.tensors), architecture).model()


class _Reader:
    """Builder of the model of one file."""

    def __init__(self, metadata: Metadata, tensors: Tensors, architecture: str) -> None:
        self._metadata = metadata
        self._tensors = tensors
        self._architecture = architecture
        self._gpt2 = architecture == "gpt2"
        self._check_supported()
        self._vocabulary = read_vocabulary(metadata)
        self._sizes = self._read_sizes()
        self._width = self._size("width")
        self._query_width = self._size("heads") * self._size("key_length")
        self._key_width = self._size("key_value_heads") * self._size("key_length")
        self._value_width = self._size("key_value_heads") * self._size("value_length")
        self._attention_width = self._size("heads") * self._size("value_length")
        self._inner = self._size("feed_forward")

    def model(self) -> LanguageModel:
        tensors, tokens = self._tensors, size("tokenizer.ggml.tokens", len(self._vocabulary.tokens))
        embedding = tensors.matrix(names.TOKEN_EMBEDDING, tokens, self._width)
        epsilon = self._metadata.number(self._name(names.EPSILON[self._architecture]))
        model = LanguageModel(
            name=printable(self._metadata.text("general.name", ""), _MAX_NAME_CHARACTERS),
            architecture=self._architecture,
            sizes=self._sizes,
            epsilon=epsilon,
            token_embedding=embedding,
            rotary=None if self._gpt2 else self._rotary(),
            positions=self._positions(),
            blocks=tuple(self._block(at) for at in range(self._sizes.blocks)),
            output_norm=tensors.norm(names.OUTPUT_NORM, self._width, bias=self._gpt2),
            output=self._output(embedding, tokens),
            vocabulary=self._vocabulary,
            chat_template=self._metadata.text(names.CHAT_TEMPLATE, ""),
        )
        self._check_all_tensors_used()
        return replace(model, notes=tuple(self._notes()))

    def _check_all_tensors_used(self) -> None:
        # A tensor of unknown purpose changes the results, so that ignoring it would be wrong.
        if unknown := [name for name in self._tensors.unused() if not _REDUNDANT_TENSORS.fullmatch(name)]:
            raise CompileError(
                f"the file has tensors that weft does not know; without them results would be wrong: "
                f"{_format_list(unknown)}"
            )

    def _name(self, suffix: str) -> str:
        return f"{self._architecture}.{suffix}"

    def _size(self, field: str) -> Size:
        return size(self._name(names.SIZES[field]), getattr(self._sizes, field))

    def _check_supported(self) -> None:
        for suffix, (words, harmless) in _UNSUPPORTED_FEATURES.items():
            value = self._metadata.value(self._name(suffix))
            if value is not None and (not isinstance(value, int | float) or value not in harmless):
                actual = short_repr(value) if isinstance(value, int | float | str) else "an array"
                raise CompileError(
                    f"the model has {words}, which weft does not support ({self._name(suffix)} is {actual})"
                )

    def _read_sizes(self) -> Sizes:
        sizes: dict[str, int] = {}

        def integer(field: str, default: int | None = None) -> int:
            sizes[field] = self._metadata.integer(self._name(names.SIZES[field]), default)
            return sizes[field]

        width, heads = (integer(field) for field in ("width", "heads"))
        for field in ("context", "blocks", "feed_forward"):
            integer(field)
        groups = integer("key_value_heads", heads)
        if heads % groups or (self._gpt2 and groups != heads):
            expected = "one head of keys and values for each" if self._gpt2 else "a divisor of it"
            raise CompileError(
                f"{self._size_text('key_value_heads', groups)} does not fit {self._size_text('heads', heads)}: "
                f"{self._architecture} needs {expected}"
            )
        lengths = ("key_length", "value_length")
        if width % heads and not all(self._name(names.SIZES[field]) in self._metadata for field in lengths):
            raise CompileError(
                f"{self._size_text('width', width)} is no multiple of {self._size_text('heads', heads)}"
            )
        for field in lengths:
            # Files without the lengths of heads divide the width among the heads.
            integer(field, max(width // heads, 1))
        tokens = len(self._vocabulary.tokens)
        if integer("vocabulary", tokens) != tokens:
            raise CompileError(
                f"{self._size_text('vocabulary', sizes['vocabulary'])} is not the number of tokenizer.ggml.tokens, "
                f"{tokens:,}"
            )
        return Sizes(**sizes)

    def _size_text(self, field: str, value: int) -> str:
        return str(size(self._name(names.SIZES[field]), value))

    def _rotary(self) -> Rotary:
        metadata, length = self._metadata, self._sizes.key_length
        key = self._name(names.ROTARY_DIMENSIONS)
        dimensions = metadata.integer(key, length)
        if dimensions % 2 or dimensions > length:
            raise CompileError(
                f"{key} is {dimensions:,}; it must be even, and at most the length of a key, {length:,}"
            )
        base = metadata.number(self._name(names.ROTARY_BASE), 10000.0)
        factors = None
        if names.ROTARY_FACTORS in self._tensors:
            factors = self._tensors.vector(
                names.ROTARY_FACTORS, Size(dimensions // 2, f"half of {key} {dimensions:,}")
            )
            if factors.min() <= 0:
                raise CompileError(
                    f"tensor {names.ROTARY_FACTORS!r} has the element {factors.min():g}; all must be above zero"
                )
        return Rotary(dimensions, base, self._scaling(), factors)

    def _scaling(self) -> float:
        metadata, key = self._metadata, self._name(names.SCALING_TYPE)
        kind = metadata.text(key, "linear")
        if kind == "none":
            return 1.0
        if kind != "linear":
            raise CompileError(f"{key} is {short_repr(kind)}; weft supports 'linear' and 'none'")
        new, old = self._name(names.SCALING_FACTOR), self._name(names.OLD_SCALING_FACTOR)
        for name in (new, old):
            if metadata.value(name) not in (None, 0):  # 0 means no scaling
                return metadata.number(name)
        return 1.0

    def _positions(self) -> Matrix | None:
        if not self._gpt2:
            return None
        return self._tensors.matrix(names.POSITIONS, self._size("context"), self._width)

    def _output(self, embedding: Matrix, tokens: Size) -> Linear:
        if f"{names.OUTPUT}.weight" in self._tensors:
            return self._tensors.linear(names.OUTPUT, tokens, self._width, bias=False)
        # Without weights of its own, the output shares the token embeddings.
        return Linear(embedding)

    def _block(self, index: int) -> Block:
        def linear(field: str, outputs: Size, inputs: Size) -> Linear:
            name = names.block(index, names.LINEARS[field])
            return self._tensors.linear(name, outputs, inputs, bias=self._gpt2)

        def norm(field: str) -> Norm:
            return self._tensors.norm(names.block(index, names.NORMS[field]), self._width, bias=self._gpt2)

        projections = self._split_projections(index) if self._gpt2 else self._separate_projections(linear)
        return Block(
            norm("attention_norm"),
            *projections,
            linear("attention_output", self._width, self._attention_width),
            norm("feed_forward_norm"),
            None if self._gpt2 else linear("gate", self._inner, self._width),
            linear("up", self._inner, self._width),
            linear("down", self._width, self._inner),
        )

    def _separate_projections(
        self, linear: Callable[[str, Size, Size], Linear]
    ) -> tuple[Linear, Linear, Linear]:
        return (
            linear("query", self._query_width, self._width),
            linear("key", self._key_width, self._width),
            linear("value", self._value_width, self._width),
        )

    def _split_projections(self, index: int) -> tuple[Linear, Linear, Linear]:
        """Split the fused matrix into queries, keys and values."""
        parts = (self._query_width, self._key_width, self._value_width)
        total = parts[0] + parts[1] + parts[2]
        fused = self._tensors.linear(names.block(index, names.FUSED), total, self._width, bias=True)
        weight, bias = fused.weight, fused.bias
        assert bias is not None

        def part(start: int, stop: int) -> Linear:
            return Linear(rows(weight, start, stop), bias[start:stop])

        first, second = parts[0].value, parts[0].value + parts[1].value
        return part(0, first), part(first, second), part(second, total.value)

    def _notes(self) -> list[str]:
        notes = []
        if surplus := self._tensors.unused():
            notes.append(f"the file has tensors that weft does not use: {_format_list(surplus)}")
        if unknown := self._metadata.unused(f"{self._architecture}."):
            notes.append(f"the file has metadata that weft does not use: {_format_list(unknown)}")
        return notes


def _format_list(names_to_list: list[str]) -> str:
    more = (
        f" and {len(names_to_list) - _MAX_LISTED_NAMES:,} more"
        if len(names_to_list) > _MAX_LISTED_NAMES
        else ""
    )
    return ", ".join(names_to_list[:_MAX_LISTED_NAMES]) + more
