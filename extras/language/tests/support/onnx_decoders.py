"""Random decoders as ONNX graphs in exporters' forms, and ONNX Runtime's results for them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from support.ort_sessions import plain_session

from weft.extras.language.compiler.encoders import SPACE
from weft.extras.language.compiler.model import Block, Kind, LanguageModel, Linear, Norm, Vocabulary, dense

MICROSOFT = "com.microsoft"


@dataclass(frozen=True)
class Form:
    """Form in which a graph is written.

    Attributes
    ----------
    style : str
        ``grouped``: ONNX Runtime's operators, as onnxruntime-genai writes them. ``plain``: ONNX's own of old, as
        exporters of PyTorch do. ``standard``: Attention, RotaryEmbedding and RMSNormalization of opset 23.
    weights : str
        ``float``, ``half``, ``bits`` (MatMulNBits), ``channels`` (DequantizeLinear by rows), ``blocks``
        (DequantizeLinear by blocks) or ``dynamic`` (DynamicQuantizeLinear and MatMulInteger).
    block, bits, zeros : int, int, bool
        Of blocks; whether they have zero points.
    neighbours, packed, apart : bool
        Rotation of neighbours; queries, keys and values in one product; rotation by an operator of its own.
    """

    style: str = "grouped"
    weights: str = "float"
    block: int = 32
    bits: int = 4
    zeros: bool = False
    neighbours: bool = False
    packed: bool = False
    apart: bool = False


class Builder:
    """Writes one graph; methods return names of values."""

    def __init__(self, model: LanguageModel, form: Form, rng: np.random.Generator) -> None:
        self.model, self.form, self._rng = model, form, rng
        self.nodes: list[onnx.NodeProto] = []
        self.initialisers: dict[str, np.ndarray] = {}
        self.tensors: list[onnx.TensorProto] = []
        self.weights: dict[str, np.ndarray] = {}
        """Weights of products after rounding, (outputs, inputs)."""
        self.float = np.float16 if form.weights == "half" else np.float32

    def constant(self, value: Any, dtype: Any = None) -> str:
        array = np.asarray(value, dtype or self.float)
        name = f"c{len(self.initialisers)}"
        self.initialisers[name] = array
        return name

    def integers(self, *values: int) -> str:
        return self.constant(values, np.int64)

    def node(
        self, operator: str, *inputs: str, outputs: Sequence[str] = (), domain: str = "", **attributes: Any
    ) -> str:
        names = list(outputs) or [f"v{len(self.nodes)}"]
        name = f"{operator}{len(self.nodes)}"
        self.nodes.append(helper.make_node(operator, inputs, names, name, domain=domain, **attributes))
        return names[0]

    def linear(self, linear: Linear, x: str) -> str:
        """Add a product with weights in the form's representation."""
        weight, kind = dense(linear.weight), self.form.weights
        if kind == "bits":
            product = self._bits(weight, x)
        elif kind in ("channels", "blocks"):
            product = self._dequantise(weight, x, kind == "blocks")
        elif kind == "dynamic":
            product = self._dynamic(weight, x)
        else:
            product = self.node("MatMul", x, self.constant(weight.T))
        return product if linear.bias is None else self.node("Add", product, self.constant(linear.bias))

    def _bits(self, weight: np.ndarray, x: str) -> str:
        form = self.form
        rows, columns = weight.shape
        count, middle, most = -(-columns // form.block), 1 << form.bits - 1, (1 << form.bits) - 1
        padded = np.zeros((rows, count * form.block), np.float32)
        padded[:, :columns] = weight
        blocks = padded.reshape(rows, count, form.block)
        zeros = (
            self._rng.integers(middle - 2, middle + 3, (rows, count))
            if form.zeros
            else np.full((rows, count), middle)
        )
        scales = (np.abs(blocks).max(axis=2) / (middle - 2)).astype(self.float).astype(
            np.float32
        ) + np.float32(1e-6)
        values = np.clip(np.rint(blocks / scales[..., None]) + zeros[..., None], 0, most).astype(np.uint8)
        inputs = [x, self.constant(_pack(values, form.bits), np.uint8), self.constant(scales.reshape(-1))]
        if form.zeros:
            inputs.append(self.constant(_pack(zeros.astype(np.uint8), form.bits).reshape(-1), np.uint8))
        return self.node(
            "MatMulNBits", *inputs, domain=MICROSOFT, K=columns, N=rows, bits=form.bits, block_size=form.block
        )

    def _dequantise(self, weight: np.ndarray, x: str, blocks: bool) -> str:
        """Return dequantised weights (inputs, outputs)."""
        inputs, outputs = weight.T.shape
        block = next(size for size in (32, 16, 8) if inputs % size == 0) if blocks else inputs
        most = 7 if blocks else 127
        parts = weight.T.reshape(inputs // block, block, outputs)
        scales = np.abs(parts).max(axis=1, keepdims=True) / most + 1e-6
        values = np.rint(parts / scales).astype(np.int64).reshape(inputs, outputs)
        kind = TensorProto.INT4 if blocks else TensorProto.INT8
        name = f"w{len(self.tensors)}"
        self.tensors.append(helper.make_tensor(name, kind, values.shape, values.reshape(-1).tolist()))
        extra: dict[str, Any] = {"axis": 0, "block_size": block} if blocks else {"axis": 1}
        scale = scales.reshape(-1, outputs) if blocks else scales.reshape(-1)
        zeros = [] if blocks else [self.constant(np.zeros(outputs), np.int8)]
        return self.node(
            "MatMul", x, self.node("DequantizeLinear", name, self.constant(scale), *zeros, **extra)
        )

    def _dynamic(self, weight: np.ndarray, x: str) -> str:
        n = len(self.nodes)
        scales = np.abs(weight).max(axis=1) / 127 + 1e-6
        values = np.rint(weight / scales[:, None]).astype(np.int8)
        quantised, step, zero = f"q{n}", f"s{n}", f"z{n}"
        self.node("DynamicQuantizeLinear", x, outputs=(quantised, step, zero))
        product = self.node("MatMulInteger", quantised, self.constant(values.T, np.int8), zero)
        real = self.node("Cast", product, to=TensorProto.FLOAT)
        return self.node("Mul", real, self.node("Mul", step, self.constant(scales)))

    def norm(self, norm: Norm, x: str) -> str:
        weight, epsilon = self.constant(norm.weight), self.model.epsilon
        if norm.bias is not None:
            return self.node(
                "LayerNormalization", x, weight, self.constant(norm.bias), axis=-1, epsilon=epsilon
            )
        if self.form.style == "grouped":
            return self.node("SimplifiedLayerNormalization", x, weight, axis=-1, epsilon=epsilon)
        if self.form.style == "standard":
            return self.node("RMSNormalization", x, weight, axis=-1, epsilon=epsilon)
        square = self.node("Pow", x, self.constant(2.0))
        mean = self.node("ReduceMean", square, self.integers(-1), keepdims=1)
        root = self.node("Sqrt", self.node("Add", mean, self.constant(epsilon)))
        return self.node("Mul", weight, self.node("Mul", x, self.node("Div", self.constant(1.0), root)))

    def add_and_norm(self, x: str, added: str, norm: Norm) -> tuple[str, str]:
        """Return the next residual stream and its norm."""
        if self.form.style != "grouped" or norm.bias is not None:
            total = self.node("Add", x, added)
            return total, self.norm(norm, total)
        n = len(self.nodes)
        self.node(
            "SkipSimplifiedLayerNormalization", x, added, self.constant(norm.weight),
            outputs=(f"n{n}", "", "", f"t{n}"), domain=MICROSOFT, epsilon=self.model.epsilon,
        )  # fmt: skip
        return f"t{n}", f"n{n}"

    def rows(self, linear: Linear, heads: int) -> Linear:
        """Order rows of queries or keys as the form's rotation requires."""
        rotary = self.model.rotary
        if self.form.neighbours or rotary is None:
            return linear
        length = self.model.sizes.key_length
        rotate = np.arange(rotary.dimensions).reshape(-1, 2).T.reshape(-1)
        order = np.concatenate([rotate, np.arange(rotary.dimensions, length)])
        every_row = (np.arange(0, heads * length, length)[:, None] + order).reshape(-1)
        return Linear(
            dense(linear.weight)[every_row], None if linear.bias is None else linear.bias[every_row]
        )

    def attention(self, block: Block, x: str, index: int) -> str:
        sizes = self.model.sizes
        parts = (
            self.rows(block.query, sizes.heads),
            self.rows(block.key, sizes.key_value_heads),
            block.value,
        )
        if self.form.packed:
            biases = [part.bias for part in parts]
            joined = Linear(
                np.concatenate([dense(part.weight) for part in parts]),
                None if biases[0] is None else np.concatenate([bias for bias in biases if bias is not None]),
            )
            packed = self.linear(joined, x)
            names = [packed]
            if self.form.style != "grouped" or self.form.apart:
                widths = self.integers(*(len(dense(part.weight)) for part in parts))
                names = [f"{packed}_{part}" for part in "qkv"]
                self.node("Split", packed, widths, outputs=names, axis=-1)
        else:
            names = [self.linear(part, x) for part in parts]
        return (
            self.grouped(names, index)
            if self.form.style == "grouped"
            else self.standard_attention(names, index)
        )

    def grouped(self, names: list[str], index: int) -> str:
        sizes, rotary, form = self.model.sizes, self.model.rotary, self.form
        rotate = rotary is not None and not form.apart
        style = {"rotary_interleaved": int(form.neighbours), "do_rotary": 1} if rotate else {}
        if rotary is not None and form.apart:
            options: dict[str, Any] = {"interleaved": int(form.neighbours), "domain": MICROSOFT}
            partial = rotary.dimensions != sizes.key_length
            for at, heads in ((0, sizes.heads), (1, sizes.key_value_heads)):
                if partial:
                    options |= {"num_heads": heads, "rotary_embedding_dim": rotary.dimensions}
                names[at] = self.node("RotaryEmbedding", names[at], "position_ids", "cos", "sin", **options)
        inputs = [
            *names,
            *[""] * (3 - len(names)),
            f"past.{index}.key",
            f"past.{index}.value",
            "seqlens",
            "total",
        ]
        self.node(
            "GroupQueryAttention", *inputs, *(("cos", "sin") if rotate else ()), domain=MICROSOFT,
            outputs=(f"a{index}", f"present.{index}.key", f"present.{index}.value"), num_heads=sizes.heads,
            kv_num_heads=sizes.key_value_heads, **style,
        )  # fmt: skip
        return f"a{index}"

    def standard_attention(self, names: list[str], index: int) -> str:
        """Build attention of ONNX's own operators."""
        sizes = self.model.sizes
        lengths = (sizes.key_length, sizes.key_length, sizes.value_length)
        counts = (sizes.heads, sizes.key_value_heads, sizes.key_value_heads)
        parts = []
        for name, count, length in zip(names, counts, lengths, strict=True):
            shaped = self.node("Reshape", name, self.integers(0, 0, count, length))
            parts.append(self.node("Transpose", shaped, perm=[0, 2, 1, 3]))
        if self.model.rotary is not None:
            parts[:2] = [self.rotate(part) for part in parts[:2]]
        query, key, value = parts
        if self.form.style == "standard":
            outputs = (f"a{index}", f"present.{index}.key", f"present.{index}.value")
            scores = self.node(
                "Attention",
                query,
                key,
                value,
                "bias",
                f"past.{index}.key",
                f"past.{index}.value",
                outputs=outputs,
            )
        else:
            present = [f"present.{index}.key", f"present.{index}.value"]
            self.node("Concat", f"past.{index}.key", key, outputs=present[:1], axis=2)
            self.node("Concat", f"past.{index}.value", value, outputs=present[1:], axis=2)
            keys, values = (
                self.repeat_heads(name, length) for name, length in zip(present, lengths[1:], strict=True)
            )
            scores = self.node("MatMul", query, self.node("Transpose", keys, perm=[0, 1, 3, 2]))
            scores = self.node("Mul", scores, self.constant(sizes.key_length**-0.5))
            scores = self.node(
                "MatMul", self.node("Softmax", self.node("Add", scores, "bias"), axis=-1), values
            )
        flat = self.node("Transpose", scores, perm=[0, 2, 1, 3])
        return self.node("Reshape", flat, self.integers(0, 0, sizes.heads * sizes.value_length))

    def repeat_heads(self, name: str, length: int) -> str:
        sizes = self.model.sizes
        if sizes.heads == sizes.key_value_heads:
            return name
        wide = self.node("Unsqueeze", name, self.integers(2))
        shape = self.integers(1, 1, sizes.heads // sizes.key_value_heads, 1, 1)
        return self.node(
            "Reshape", self.node("Expand", wide, shape), self.integers(0, sizes.heads, -1, length)
        )

    def rotate(self, x: str) -> str:
        rotary = self.model.rotary
        assert rotary is not None
        if self.form.style == "standard":
            options: dict[str, Any] = {"interleaved": int(self.form.neighbours)}
            if rotary.dimensions < self.model.sizes.key_length:
                options["rotary_embedding_dim"] = rotary.dimensions
            return self.node("RotaryEmbedding", x, "cos", "sin", "position_ids", **options)
        half = rotary.dimensions // 2
        if self.form.neighbours:
            first, second = (self.slice_columns(x, at, rotary.dimensions, 2) for at in (0, 1))
        else:
            first, second = self.slice_columns(x, 0, half), self.slice_columns(x, half, 2 * half)
        one = self.node("Sub", self.node("Mul", first, "cosines"), self.node("Mul", second, "sines"))
        two = self.node("Add", self.node("Mul", first, "sines"), self.node("Mul", second, "cosines"))
        if self.form.neighbours:
            pairs = [self.node("Unsqueeze", part, self.integers(4)) for part in (one, two)]
            shape = self.integers(0, 0, 0, rotary.dimensions)
            parts = [self.node("Reshape", self.node("Concat", *pairs, axis=4), shape)]
        else:
            parts = [one, two]
        if rotary.dimensions < self.model.sizes.key_length:
            parts.append(self.slice_columns(x, rotary.dimensions, self.model.sizes.key_length))
        return self.node("Concat", *parts, axis=-1) if len(parts) > 1 else parts[0]

    def slice_columns(self, x: str, start: int, stop: int, step: int = 1) -> str:
        return self.node("Slice", x, *(self.integers(value) for value in (start, stop, 3, step)))

    def feed_forward(self, block: Block, x: str) -> str:
        if block.gate is None:
            up = self.linear(block.up, x)
            return self.linear(block.down, self.node("Gelu", up, approximate="tanh"))
        pair = (block.gate, block.up) if self.form.neighbours else (block.up, block.gate)
        parts = [self.linear(part, x) for part in pair]
        gate, up = parts if self.form.neighbours else parts[::-1]
        if self.form.apart:
            silu = self.node("QuickGelu", gate, domain=MICROSOFT, alpha=1.0)
        else:
            silu = self.node("Mul", gate, self.node("Sigmoid", gate))
        return self.linear(block.down, self.node("Mul", silu, up))

    def shared(self) -> None:
        """Build the inputs that all layers read: lengths, masks, cosines and sines."""
        rotary, context = self.model.rotary, self.model.sizes.context
        if rotary is not None:
            angles = rotary.angles(np.arange(context))
            self.initialisers |= {
                "cos": np.cos(angles).astype(self.float),
                "sin": np.sin(angles).astype(self.float),
            }
        if self.form.style == "grouped":
            total = self.node("ReduceSum", "attention_mask", self.integers(1), keepdims=0)
            less = self.node("Sub", total, self.integers(1))
            self.node("Cast", less, outputs=["seqlens"], to=TensorProto.INT32)
            length = self.node("Gather", self.node("Shape", "attention_mask"), self.constant(1, np.int64))
            self.node("Cast", length, outputs=["total"], to=TensorProto.INT32)
            return
        total = self.node("Gather", self.node("Shape", "attention_mask"), self.constant(1, np.int64))
        keys = self.node("Range", self.constant(0, np.int64), total, self.constant(1, np.int64))
        later = self.node("Greater", keys, self.node("Unsqueeze", "position_ids", self.integers(2)))
        bias = self.node("Where", later, self.constant(-65504.0), self.constant(0.0))
        self.node("Unsqueeze", bias, self.integers(1), outputs=["bias"])
        if self.form.style == "plain" and rotary is not None:
            for table, name in (("cos", "cosines"), ("sin", "sines")):
                result = self.node("Gather", table, "position_ids")
                self.node("Unsqueeze", result, self.integers(1), outputs=[name])

    def model_proto(self) -> onnx.ModelProto:
        model, sizes = self.model, self.model.sizes
        self.shared()
        x = self.node("Gather", self.constant(dense(model.token_embedding)), "input_ids")
        if model.positions is not None:
            x = self.node(
                "Add", x, self.node("Gather", self.constant(dense(model.positions)), "position_ids")
            )
        normed = self.norm(model.blocks[0].attention_norm, x)
        after = [block.attention_norm for block in model.blocks[1:]] + [model.output_norm]
        for index, (block, following) in enumerate(zip(model.blocks, after, strict=True)):
            attended = self.linear(block.attention_output, self.attention(block, normed, index))
            x, normed = self.add_and_norm(x, attended, block.feed_forward_norm)
            x, normed = self.add_and_norm(x, self.feed_forward(block, normed), following)
        logits = self.linear(model.output, normed)
        self.node("Identity", logits, outputs=["logits"])
        kind = TensorProto.FLOAT16 if self.float is np.float16 else TensorProto.FLOAT
        values: list[tuple[str, int, list[Any]]] = [
            ("input_ids", 7, ["batch", "tokens"]),
            ("attention_mask", 7, ["batch", "total"]),
        ]
        if any("position_ids" in node.input for node in self.nodes):
            values.append(("position_ids", 7, ["batch", "tokens"]))
        outputs: list[tuple[str, int, list[Any]]] = [("logits", kind, ["batch", "tokens", sizes.vocabulary])]
        for index in range(sizes.blocks):
            for name, length in (("key", sizes.key_length), ("value", sizes.value_length)):
                shape = ["batch", sizes.key_value_heads, "before", length]
                values.append((f"past.{index}.{name}", kind, shape))
                outputs.append((f"present.{index}.{name}", kind, [*shape[:2], "total", length]))
        graph = helper.make_graph(
            self.nodes, "decoder",
            [helper.make_tensor_value_info(name, kind, shape) for name, kind, shape in values],
            [helper.make_tensor_value_info(name, kind, shape) for name, kind, shape in outputs],
            [*(numpy_helper.from_array(value, name) for name, value in self.initialisers.items()), *self.tensors],
        )  # fmt: skip
        opset = 23 if self.form.style == "standard" or self.form.weights == "blocks" else 20
        opsets = [helper.make_opsetid("", opset), helper.make_opsetid(MICROSOFT, 1)]
        return helper.make_model(graph, opset_imports=opsets, ir_version=10)


def _pack(values: np.ndarray, bits: int) -> np.ndarray:
    """Pack numbers along the last axis, two to a byte if they have 4 bits."""
    if bits == 8:
        return values
    if values.shape[-1] % 2:
        values = np.concatenate([values, np.zeros((*values.shape[:-1], 1), np.uint8)], axis=-1)
    return values[..., ::2] | values[..., 1::2] << 4


def write(folder: Path, model: LanguageModel, form: Form, rng: np.random.Generator, **config: object) -> Path:
    proto = Builder(model, form, rng).model_proto()
    return put(folder, proto, model, **config)


def put(folder: Path, proto: onnx.ModelProto, model: LanguageModel, **config: object) -> Path:
    """Write an existing graph with its tokenizer and configuration."""
    folder.mkdir(parents=True, exist_ok=True)
    known = model.vocabulary
    stated = {
        "max_position_embeddings": model.sizes.context,
        "bos_token_id": known.begin,
        "eos_token_id": known.end,
        **config,
    }
    (folder / "config.json").write_text(
        json.dumps({key: value for key, value in stated.items() if value is not None})
    )
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer_file(known)))
    path = folder / "model.onnx"
    onnx.save(proto, path)
    return path


def tokenizer_file(known: Vocabulary) -> dict[str, Any]:
    """Return a vocabulary in tokenizer.json's format."""
    tokens = list(enumerate(zip(known.tokens, known.kinds, strict=True)))
    plain = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    added = [
        {"id": at, "content": text, "special": kind is not Kind.USER_DEFINED, **plain}
        for at, (text, kind) in tokens
        if kind in (Kind.CONTROL, Kind.USER_DEFINED)
    ]
    pieces = known.model == "llama"
    named: dict[str, Any] = {
        "type": "BPE",
        "vocab": {text: at for at, (text, _) in tokens},
        "byte_fallback": pieces,
    }
    content: dict[str, Any] = {"version": "1.0", "added_tokens": added, "model": named}
    if pieces:
        named |= {"unk_token": known.tokens[known.unknown or 0], "merges": _pairs(known)}
        content["normalizer"] = {
            "type": "Sequence",
            "normalizers": [
                {"type": "Prepend", "prepend": SPACE},
                {"type": "Replace", "pattern": {"String": " "}, "content": SPACE},
            ],
        }
        begin = known.tokens[known.begin or 0]
        content["post_processor"] = {
            "type": "TemplateProcessing",
            "single": [
                {"SpecialToken": {"id": begin, "type_id": 0}},
                {"Sequence": {"id": "A", "type_id": 0}},
            ],
            "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
            "special_tokens": {begin: {"id": begin, "ids": [known.begin], "tokens": [begin]}},
        }
    else:
        named["merges"] = [list(pair) for pair in known.merges]
        content["pre_tokenizer"] = {"type": "ByteLevel", "add_prefix_space": False, "use_regex": True}
    return content


def _pairs(known: Vocabulary) -> list[str]:
    """Return all pairs of pieces that form a piece, highest score first."""
    pieces = {
        text: known.scores[at] for at, text in enumerate(known.tokens) if known.kinds[at] is Kind.NORMAL
    }
    pairs = [
        (-score, text, text[:at])
        for text, score in pieces.items()
        for at in range(1, len(text))
        if text[:at] in pieces and text[at:] in pieces
    ]
    return [f"{left} {text[len(left) :]}" for _, text, left in sorted(pairs)]


def run_onnxruntime(
    path: Path, tokens: Sequence[int], past: dict[str, np.ndarray] | None = None
) -> tuple[np.ndarray, dict[str, Any]]:
    """Return ONNX Runtime's logits (tokens, vocabulary) and its cache of keys and values."""
    session = plain_session(onnx.load(path))
    before = 0 if past is None else next(iter(past.values())).shape[2]
    feeds: dict[str, np.ndarray] = {}
    for item in session.get_inputs():
        if item.name == "input_ids":
            feeds[item.name] = np.array([tokens], np.int64)
        elif item.name == "attention_mask":
            feeds[item.name] = np.ones((1, before + len(tokens)), np.int64)
        elif item.name == "position_ids":
            feeds[item.name] = np.arange(before, before + len(tokens))[None]
        else:
            dtype = np.float16 if "16" in item.type else np.float32
            empty = np.zeros((1, item.shape[1], 0, item.shape[3]), dtype)
            feeds[item.name] = empty if past is None else past[item.name]
    names = [item.name for item in session.get_outputs()]
    results = dict(zip(names, session.run(None, feeds), strict=True))
    logits = results.pop("logits")[0].astype(np.float32)
    return logits, {name.replace("present", "past"): value for name, value in results.items()}
