"""Unsupported graphs of ONNX language models: each is refused in one sentence."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from weft.compiler.errors import CompileError
from weft.extras.language.compiler.model import Block, LanguageModel, Linear, Norm
from weft.extras.language.onnx.reader import read
from weft.extras.language.tests.support.language_models import SIZES, random_model
from weft.extras.language.tests.support.onnx_decoders import MICROSOFT, Builder, Form, put

PLAIN = Form(style="plain")
SIXTEEN = dataclasses.replace(SIZES, key_length=16, value_length=16)


def small(seed: int = 0, architecture: str = "llama") -> LanguageModel:
    return random_model(np.random.default_rng(seed), architecture, SIXTEEN)


def refuse(builder: Builder, folder: Path, **config: object) -> str:
    path = put(folder, builder.model_proto(), builder.model, **config)
    with pytest.raises(CompileError) as caught:
        read(path)
    message = str(caught.value)
    assert "\n" not in message
    return message


class Capped(Builder):
    """Scores through a hyperbolic tangent."""

    def node(self, operator: str, *inputs: str, **options: Any) -> str:
        if operator == "Softmax":
            inputs = (super().node("Tanh", inputs[0]), *inputs[1:])
        return super().node(operator, *inputs, **options)


class Scaled(Builder):
    """Scores by another factor."""

    def node(self, operator: str, *inputs: str, **options: Any) -> str:
        if operator == "Softmax":
            inputs = (super().node("Mul", inputs[0], self.constant(1.25)), *inputs[1:])
        return super().node(operator, *inputs, **options)


class Windowed(Builder):
    """Sliding-window attention."""

    def node(self, operator: str, *inputs: str, **options: Any) -> str:
        if operator == "Greater":
            before = super().node("Sub", inputs[1], self.constant(15, np.int64))
            both = super().node("Greater", *inputs), super().node("Less", inputs[0], before)
            return super().node("Or", *both)
        return super().node(operator, *inputs, **options)


class Everywhere(Builder):
    """Attention without a causal mask."""

    def node(self, operator: str, *inputs: str, **options: Any) -> str:
        if operator == "Greater":
            inputs = (inputs[0], super().node("Add", inputs[1], self.constant(2, np.int64)))
        return super().node(operator, *inputs, **options)


class NormedKeys(Builder):
    """Norms of queries and keys, as in Qwen3."""

    def rotate(self, x: str) -> str:
        length = self.model.sizes.key_length
        return super().rotate(self.norm(Norm(np.full(length, 1.5, np.float32)), x))


class WrongGate(Builder):
    """ReLU in place of the SiLU."""

    def node(self, operator: str, *inputs: str, **options: Any) -> str:
        return super().node("Relu" if operator == "Sigmoid" else operator, *inputs, **options)


class ExactGelu(Builder):
    """GELU by the error function."""

    def node(self, operator: str, *inputs: str, **options: Any) -> str:
        if operator == "Gelu":
            options["approximate"] = "none"
        return super().node(operator, *inputs, **options)


class ScaledResidual(Builder):
    """Halved residual updates."""

    def add_and_norm(self, x: str, added: str, norm: Norm) -> tuple[str, str]:
        return super().add_and_norm(x, self.node("Mul", added, self.constant(0.5)), norm)


class CappedLogits(Builder):
    """Logits through a hyperbolic tangent."""

    def node(self, operator: str, *inputs: str, **options: Any) -> str:
        return super().node(
            "Tanh" if list(options.get("outputs", ())) == ["logits"] else operator, *inputs, **options
        )


class SideBySide(Builder):
    """Attention and feed-forward network in parallel after one norm."""

    last = ""

    def norm(self, norm: Norm, x: str) -> str:
        if not any(norm is block.feed_forward_norm for block in self.model.blocks):
            self.last = super().norm(norm, x)
        return self.last


class Experts(Builder):
    """Mixture of experts, gated by a product's largest element."""

    def feed_forward(self, block: Block, x: str) -> str:
        gates = self.linear(Linear(np.ones((2, self.model.sizes.width), np.float32)), x)
        chosen = self.node("Softmax", gates, axis=-1)
        share = self.slice_last(chosen)
        return self.node("Mul", super().feed_forward(block, x), share)

    def slice_last(self, x: str) -> str:
        return self.node("Slice", x, *(self.integers(value) for value in (0, 1, 2, 1)))


class TwoEpsilons(Builder):
    """One norm with a different epsilon."""

    def norm(self, norm: Norm, x: str) -> str:
        other = dataclasses.replace(self.model, epsilon=1e-3)
        model, self.model = self.model, other if norm is self.model.output_norm else self.model
        output = super().norm(norm, x)
        self.model = model
        return output


class Centred(Builder):
    """Norm by the largest element in place of the mean square."""

    def node(self, operator: str, *inputs: str, **options: Any) -> str:
        return super().node("ReduceMax" if operator == "ReduceMean" else operator, *inputs, **options)


class OddTurns(Builder):
    """Scaled cosines and sines."""

    def shared(self) -> None:
        super().shared()
        for name in ("cos", "sin"):
            self.initialisers[name] = self.initialisers[name] * np.float32(1.1)


class Uneven(Builder):
    """Rotation angles that are no geometric series."""

    def shared(self) -> None:
        super().shared()
        angles = np.sqrt(np.arange(self.model.sizes.context))[:, None] * np.ones(
            self.model.sizes.key_length // 2
        )
        self.initialisers |= {
            "cos": np.cos(angles).astype(np.float32),
            "sin": np.sin(angles).astype(np.float32),
        }


class Shifted(Builder):
    """Positions looked up two rows later, as in OPT."""

    def node(self, operator: str, *inputs: str, **options: Any) -> str:
        if operator == "Gather" and inputs[1] == "position_ids":
            context = self.model.sizes.context - 3
            places = super().node("Min", inputs[1], self.constant(context, np.int64))
            inputs = (inputs[0], super().node("Add", places, self.constant(2, np.int64)))
        return super().node(operator, *inputs, **options)


GRAPHS: list[tuple[type[Builder], Form, str]] = [
    (Capped, PLAIN, r"node 'Tanh\d+' \(Tanh\) caps scores"),
    (Scaled, PLAIN, r"attention up to node .* is not softmax\(q k / sqrt\(16\)\) v .* a trial of 5 tokens"),
    (Windowed, PLAIN, r"attention up to node .* does not see all of 24 tokens: sliding windows"),
    (Everywhere, PLAIN, r"attention up to node .* is not softmax"),
    (NormedKeys, PLAIN, r"keys at the first position are not what their product made: .* no norms of keys"),
    (NormedKeys, Form(style="standard"), r"node .* \(RMSNormalization\) is a norm of queries or keys"),
    (WrongGate, PLAIN, r"the feed-forward network up to node .* is not silu\(gate\) \* up"),
    (ScaledResidual, PLAIN, r"node 'Mul\d+' \(Mul\) changes what is added to the stream"),
    (CappedLogits, PLAIN, r"node 'Tanh\d+' \(Tanh\) changes logits"),
    (SideBySide, PLAIN, r"node .* is added to the stream .* but is not made of the products that read this"),
    (Experts, PLAIN, r"products? .*|the feed-forward network .*|node .*"),
    (TwoEpsilons, PLAIN, r"norms have epsilons from 1e-05 to 0.001"),
    (Centred, PLAIN, r"node .*: weft expects RMSNorm or LayerNorm between .* it computes something else"),
    (OddTurns, PLAIN, r"keys at the first position are not what"),
    (Uneven, PLAIN, r"keys are turned by angles that do not grow evenly"),
]


@pytest.mark.parametrize(
    ("kind", "form", "message"), GRAPHS, ids=lambda value: getattr(value, "__name__", None)
)
def test_unsupported_architectures_are_refused(
    kind: type[Builder], form: Form, message: str, tmp_path: Path
) -> None:
    actual = refuse(kind(small(), form, np.random.default_rng(0)), tmp_path)
    assert re.search(message, actual), actual


def test_gpt2_position_offsets_are_refused(tmp_path: Path) -> None:
    model = small(architecture="gpt2")
    message = refuse(Shifted(model, PLAIN, np.random.default_rng(0)), tmp_path)
    assert "looks up other rows than those of the tokens' positions" in message or "no Gather" in message


WITHOUT = {
    "learned positions and RMSNorm": (
        "gpt2",
        False,
        "no rotary positions, learned positions, no gate and RMSNorm",
    ),
    "rotary positions and LayerNorm": (
        "llama",
        True,
        "rotary positions, no learned positions, a gate and LayerNorm",
    ),
}


@pytest.mark.parametrize(("architecture", "centred", "words"), WITHOUT.values(), ids=WITHOUT)
def test_parts_of_two_architectures(architecture: str, centred: bool, words: str, tmp_path: Path) -> None:
    """Norms of the other architecture."""
    model = small(architecture=architecture)

    def other(norm: Norm) -> Norm:
        return Norm(norm.weight, np.full_like(norm.weight, 0.1) if centred else None)

    blocks = tuple(
        dataclasses.replace(
            block,
            attention_norm=other(block.attention_norm),
            feed_forward_norm=other(block.feed_forward_norm),
        )
        for block in model.blocks
    )
    mixed = dataclasses.replace(model, blocks=blocks, output_norm=other(model.output_norm))
    message = refuse(Builder(mixed, PLAIN, np.random.default_rng(0)), tmp_path)
    assert message.startswith(f"the model has {words}; weft knows architecture llama"), message


def test_gelu_by_the_error_function(tmp_path: Path) -> None:
    message = refuse(ExactGelu(small(architecture="gpt2"), PLAIN, np.random.default_rng(0)), tmp_path)
    assert "computes another function, the GELU by the error function for example" in message


@pytest.mark.parametrize(
    ("attribute", "value", "words"),
    [
        ("local_window_size", 4, "attention through a sliding window (local_window_size 4)"),
        ("softcap", 30.0, "capped scores (softcap 30)"),
        ("smooth_softmax", 1, "a softmax with one more share (smooth_softmax 1)"),
        ("scale", 0.5, "is not softmax(q k / sqrt(16)) v"),
        ("num_heads", 3, "do not fit"),
        ("kv_num_heads", 0, "four axes"),
    ],
)
def test_attributes_of_grouped_attention(attribute: str, value: Any, words: str, tmp_path: Path) -> None:
    builder = Builder(small(), Form(), np.random.default_rng(0))
    proto = builder.model_proto()
    for node in proto.graph.node:
        if node.op_type == "GroupQueryAttention":
            for item in [item for item in node.attribute if item.name == attribute]:
                node.attribute.remove(item)
            node.attribute.append(helper.make_attribute(attribute, value))
    with pytest.raises(CompileError) as caught:
        read(put(tmp_path, proto, builder.model))
    assert words in str(caught.value)


def changed(folder: Path, edit: Callable[[onnx.ModelProto], None], form: Form = PLAIN) -> str:
    model = small()
    proto = Builder(model, form, np.random.default_rng(0)).model_proto()
    edit(proto)
    with pytest.raises(CompileError) as caught:
        read(put(folder, proto, model))
    message = str(caught.value)
    assert "\n" not in message
    return message


def test_another_output(tmp_path: Path) -> None:
    def edit(proto: onnx.ModelProto) -> None:
        proto.graph.node.append(helper.make_node("Shape", ["logits"], ["sizes"]))
        proto.graph.output.append(helper.make_tensor_value_info("sizes", TensorProto.INT64, [3]))

    assert "output 'sizes' is neither logits nor keys or values" in changed(tmp_path, edit)


def test_operators_after_the_logits_are_refused(tmp_path: Path) -> None:
    """Further operators after the last product."""

    def edit(proto: onnx.ModelProto) -> None:
        (last,) = (node for node in proto.graph.node if node.output[0] == "logits")
        last.op_type = "Tanh"
        product = helper.make_tensor_value_info(last.input[0], TensorProto.FLOAT, None)
        outputs = [product, *proto.graph.output]
        del proto.graph.output[:]
        proto.graph.output.extend(outputs)

    assert re.search(r"node 'Identity\d+' \(Tanh\) changes logits", changed(tmp_path, edit))


def test_an_unknown_operator(tmp_path: Path) -> None:
    def edit(proto: onnx.ModelProto) -> None:
        node = next(node for node in proto.graph.node if node.op_type == "Sigmoid")
        node.op_type, node.domain = "Wobble", MICROSOFT

    message = changed(tmp_path, edit)
    assert re.match(
        r"node 'Sigmoid\d+' \(com.microsoft.Wobble\) cannot be tried out: operator 'Wobble'", message
    )


def test_no_past(tmp_path: Path) -> None:
    def edit(proto: onnx.ModelProto) -> None:
        others = [value for value in proto.graph.input if not value.name.startswith("past")]
        names = [value.name for value in proto.graph.input if value.name.startswith("past")]
        del proto.graph.input[:]
        proto.graph.input.extend(others)
        for name in names:
            empty = np.zeros((1, SIXTEEN.key_value_heads, 0, 16), np.float32)
            proto.graph.initializer.append(numpy_helper.from_array(empty, name))

    assert "past_key_values" in changed(tmp_path, edit)


def test_a_cycle(tmp_path: Path) -> None:
    def edit(proto: onnx.ModelProto) -> None:
        node = next(node for node in proto.graph.node if node.op_type == "Pow")
        node.input[0] = "logits"

    message = changed(tmp_path, edit)
    assert "not valid ONNX" in message or "cycle" in message


def test_control_flow(tmp_path: Path) -> None:
    def edit(proto: onnx.ModelProto) -> None:
        body = helper.make_graph(
            [helper.make_node("Identity", ["logits"], ["inner"])], "body", [],
            [helper.make_tensor_value_info("inner", TensorProto.FLOAT, None)],
        )  # fmt: skip
        proto.graph.initializer.append(numpy_helper.from_array(np.array(True), "yes"))
        node = helper.make_node("If", ["yes"], ["chosen"], then_branch=body, else_branch=body)
        proto.graph.node.append(node)
        proto.graph.output[0].name = "chosen"

    assert "export one graph with past_key_values, not a merged one" in changed(tmp_path, edit)


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("K", 1 << 40, "its sizes ask for"),
        ("N", 1 << 62, "its sizes ask for"),
        ("K", -5, "has K -5; it must be a whole number above zero"),
        ("block_size", 0, "has block_size 0"),
        ("block_size", 48, "blocks of 48"),
        ("bits", 3, "has 3 bits"),
        ("bits", "four", "has bits 'four'"),
    ],
)
def test_sizes_of_packed_weights(name: str, value: Any, words: str, tmp_path: Path) -> None:
    def edit(proto: onnx.ModelProto) -> None:
        node = next(node for node in proto.graph.node if node.op_type == "MatMulNBits")
        for item in [item for item in node.attribute if item.name == name]:
            node.attribute.remove(item)
        node.attribute.append(helper.make_attribute(name, value))

    message = changed(tmp_path, edit, Form(weights="bits"))
    assert words in message
    assert "MatMulNBits" in message


@pytest.mark.parametrize("domain", ["ai.example", "zzz.example"])
def test_packed_weights_of_another_domain(domain: str, tmp_path: Path) -> None:
    """Operators of equal name in another domain are unknown."""

    def edit(proto: onnx.ModelProto) -> None:
        node = next(node for node in proto.graph.node if node.op_type == "MatMulNBits")
        node.domain = domain
        proto.opset_import.append(helper.make_opsetid(domain, 1))

    message = changed(tmp_path, edit, Form(weights="bits"))
    assert "is not made of the products that read this stream" in message


def test_weights_that_are_no_numbers(tmp_path: Path) -> None:
    def edit(proto: onnx.ModelProto) -> None:
        tensor = next(item for item in proto.graph.initializer if list(item.dims) == [32, 64])
        value = numpy_helper.to_array(tensor).copy()
        value[3, 4] = np.nan
        tensor.CopyFrom(numpy_helper.from_array(value, tensor.name))

    assert "weights that are infinite or not a number (NaN)" in changed(tmp_path, edit)
