"""Reader of ONNX files as language models: decoders of the architectures ``llama`` and ``gpt2``.

Exporters write decoders in many forms. The reader therefore recognises only products with weights, and runs the parts
between them on random numbers. It accepts a part if the results equal those of weft.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np

from weft.compiler.errors import CompileError
from weft.compiler.onnx.reader import read_open
from weft.extras.language.compiler.model import (
    Block,
    BlockTensor,
    LanguageModel,
    Linear,
    Matrix,
    Norm,
    Rotary,
    Sizes,
    dense,
    rows,
)
from weft.extras.language.onnx.attention import Attention, AttentionLayer
from weft.extras.language.onnx.facts import Facts, read_facts
from weft.extras.language.onnx.graph import Graph
from weft.extras.language.onnx.norms import Norms, is_close
from weft.extras.language.onnx.products import Weights, products
from weft.extras.language.onnx.structure import Finder, Half, Structure
from weft.extras.language.onnx.tokenizer_file import read_tokenizer
from weft.extras.language.onnx.trials import Texts
from weft.hdl.schema import printable

_TOKENS = 4
_GELU_TOLERANCE = 1e-5
"""Tolerance for GELU by the hyperbolic tangent; GELU by the error function differs by more."""
_INPUT_SCALES = np.array([0.3, 1.0, 3.0, 6.0], np.float32)[:, None]
"""Magnitude of the elements of each token."""
_MAX_NAME_CHARACTERS = 60
_MIN_CONTEXT = 2
"""Minimum context length, because attention of a single token reveals nothing."""


def read_feed_forward(texts: Texts, half: Half) -> tuple[Linear | None, Linear]:
    """Return the gate, or None, and the other product before the activation.

    Raises
    ------
    CompileError
        If the network between the products is neither ``silu(gate) * up`` nor ``gelu(up)``.
    """
    inner_width, first = half.last.inputs, half.first
    nodes = texts.trials.needed_nodes([half.last.source], [part.output for part in first], shapes=False)
    place = nodes[-1].label if nodes else half.last.node.label
    random = np.random.default_rng(4)
    inputs = {
        part.output: random.normal(0, 1, (_TOKENS, part.outputs)).astype(np.float32) * _INPUT_SCALES
        for part in first
    }
    (result,) = texts.values([half.last.source], inputs, _TOKENS)
    result = result.reshape(_TOKENS, -1)
    values = [inputs[part.output].astype(np.float64) for part in first]
    if len(first) == 2 and {part.outputs for part in first} == {inner_width}:
        # Nothing but the result tells the gate from the other factor.
        for gate, up in ((0, 1), (1, 0)):
            if is_close(result, silu(values[gate]) * values[up]):
                return first[gate].linear, first[up].linear
    elif len(first) == 1 and first[0].outputs == 2 * inner_width:
        for gate, up in ((0, inner_width), (inner_width, 0)):
            both = values[0]
            if is_close(result, silu(both[:, gate : gate + inner_width]) * both[:, up : up + inner_width]):
                return _take_rows(first[0].linear, gate, inner_width), _take_rows(
                    first[0].linear, up, inner_width
                )
    elif len(first) == 1 and first[0].outputs == inner_width:
        if (np.abs(result - gelu(values[0])) <= _GELU_TOLERANCE * (1 + np.abs(values[0]))).all():
            return None, first[0].linear
        activation = _name_activation(result, values[0])
        raise CompileError(
            f"the feed-forward network up to {place} computes {activation}; weft expects the GELU by the hyperbolic "
            "tangent where there is no gate"
        )
    raise CompileError(
        f"the feed-forward network up to {place} is not silu(gate) * up of two products with {inner_width:,} elements, "
        "which weft expects; experts and other functions are not supported"
    )


def silu(x: np.ndarray) -> np.ndarray:
    """Return x times its sigmoid."""
    return x / (1 + np.exp(-x))


def gelu(x: np.ndarray) -> np.ndarray:
    """Return GELU by the hyperbolic tangent."""
    return x / 2 * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))


_OTHER_ACTIVATIONS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "ReLU": lambda x: np.maximum(x, 0),
    "SiLU": silu,
    "its input itself": lambda x: x,
}


def _name_activation(result: np.ndarray, x: np.ndarray) -> str:
    names = [name for name, function in _OTHER_ACTIVATIONS.items() if is_close(result, function(x))]
    return names[0] if names else "another function, the GELU by the error function for example"


def _take_rows(linear: Linear, start: int, count: int) -> Linear:
    bias = None if linear.bias is None else linear.bias[start : start + count]
    return Linear(rows(linear.weight, start, start + count), bias)


def read(source: str | os.PathLike[str]) -> LanguageModel:
    """Read a language model from an ONNX file, with ``tokenizer.json`` and configurations beside it.

    Weights of float16 and bfloat16 become float32. Integers with scales stay integers in
    `weft.extras.language.compiler.model.BlockTensor`, without rounding.

    Raises
    ------
    CompileError
        If the file is not ONNX or is damaged, if its graph is not a decoder that weft supports, or if the vocabulary is
        missing or unsupported.
    """
    path = Path(source)
    facts = read_facts(path.parent)
    graph = Graph(read_open(path))
    structure = Finder(graph, products(graph)).structure()
    return _Reader(graph, structure, facts, path).model()


class _Reader:
    def __init__(self, graph: Graph, structure: Structure, facts: Facts, path: Path) -> None:
        assert structure.head is not None
        self._graph, self._structure, self._facts, self._path = graph, structure, facts, path
        self._head = structure.head
        self._texts = Texts(graph, structure)
        self._notes = list(graph.notes)
        self._epsilons: list[float] = []

    def model(self) -> LanguageModel:
        tokens = self._head.outputs
        vocabulary = read_tokenizer(self._path.parent, self._facts, tokens)
        embedding = self._embedding(tokens)
        table = self._positions()
        context = self._context(table)
        attention = Attention(self._texts, context, self._facts.base)
        if attention.context < context:
            self._notes.append(
                f"texts may have {attention.context:,} tokens, as many as attention was tried with; the model was made "
                f"for {context:,}"
            )
        norms = Norms(self._texts)
        blocks, layers = self._blocks(attention, norms)
        output_norm, epsilon = norms.read(self._structure.stream, self._structure.normalised)
        self._epsilons.append(epsilon)
        self._check_logits()
        self._check_all()
        rotary = layers[0].rotary
        architecture = self._architecture(rotary, table, (*blocks[0][:2], output_norm), blocks[0][2].gate)
        sizes = self._sizes(layers[0], attention.context, tokens)
        return LanguageModel(
            name=printable(self._facts.name or self._path.stem, _MAX_NAME_CHARACTERS),
            architecture=architecture,
            sizes=sizes,
            epsilon=self._epsilon(),
            token_embedding=embedding,
            rotary=rotary,
            positions=None if table is None else table[: sizes.context],
            blocks=tuple(block for _, _, block in blocks),
            output_norm=output_norm,
            output=self._output(embedding),
            vocabulary=vocabulary.vocabulary,
            notes=(*self._notes, *vocabulary.notes),
            chat_template=self._facts.template,
        )

    def _sizes(self, layer: AttentionLayer, context: int, tokens: int) -> Sizes:
        heads = layer.heads
        return Sizes(
            context=context,
            width=self._head.inputs,
            blocks=len(self._structure.halves) // 2,
            heads=heads.heads,
            key_value_heads=heads.groups,
            key_length=heads.key_length,
            value_length=heads.value_length,
            feed_forward=self._structure.halves[1].last.inputs,
            vocabulary=tokens,
        )

    def _blocks(
        self, attention: Attention, norms: Norms
    ) -> tuple[list[tuple[Norm, Norm, Block]], list[AttentionLayer]]:
        halves = self._structure.halves
        if (
            not halves
            or len(halves) % 2
            or any(bool(half.pasts) == bool(at % 2) for at, half in enumerate(halves))
        ):
            kinds = ", ".join(
                "attention" if half.pasts else "no keys and values of tokens before" for half in halves[:4]
            )
            raise CompileError(
                f"what is added to the stream is, one after the other: {kinds or 'nothing'}; weft expects attention "
                "with past_key_values and a feed-forward network in turns"
            )
        layer_parts: list[tuple[Norm, Norm, Block]] = []
        layers: list[AttentionLayer] = []
        for first, second in zip(halves[::2], halves[1::2], strict=True):
            layer = attention.read(first)
            if layers and (layer.heads != layers[0].heads or second.last.inputs != halves[1].last.inputs):
                raise CompileError(f"{second.last.node.label}: this layer has other sizes than the first one")
            attention_norm, feed_norm = self._norm(norms, first), self._norm(norms, second)
            gate, up = read_feed_forward(self._texts, second)
            for half in (first, second):
                self._check_added(half.added, half.last.output)
            block = Block(
                attention_norm, layer.query, layer.key, layer.value, first.last.linear, feed_norm, gate, up,
                second.last.linear,
            )  # fmt: skip
            layer_parts.append((attention_norm, feed_norm, block))
            layers.append(layer)
        return layer_parts, layers

    def _norm(self, norms: Norms, half: Half) -> Norm:
        norm, epsilon = norms.read(half.stream, half.normalised)
        self._epsilons.append(epsilon)
        return norm

    def _epsilon(self) -> float:
        smallest, largest = min(self._epsilons), max(self._epsilons)
        # Measured epsilons differ a little from norm to norm.
        if largest > smallest * 1.05:
            raise CompileError(
                f"norms have epsilons from {smallest:g} to {largest:g}; weft expects one for all"
            )
        return self._epsilons[0]

    def _check_added(self, added: str, output: str) -> None:
        """Raise unless the product itself, in any shape, is added to the stream."""
        random = np.random.default_rng(5)
        values = random.normal(0, 1, (3, self._structure.ends[output])).astype(np.float32)
        if added == output:
            return
        (result,) = self._texts.values([added], {output: values}, 3)
        if not is_close(result, values):
            raise CompileError(
                f"{self._graph.makers[added].label} changes what is added to the stream; weft expects it as it is"
            )

    def _check_logits(self) -> None:
        logits = [name for name in self._graph.network.outputs if name not in self._structure.presents]
        values = np.random.default_rng(6).normal(0, 1, (3, self._head.outputs)).astype(np.float32)
        for name in logits:
            if name == self._head.output:
                continue
            (result,) = self._texts.values([name], {self._head.output: values}, 3)
            if not is_close(result, values):
                raise CompileError(
                    f"{self._graph.makers[name].label} changes logits, or leaves some out; weft expects those of "
                    "every token as the last product makes them"
                )

    def _check_all(self) -> None:
        """Raise for nodes that were neither run nor have a place in the structure."""
        structure, trials, graph = self._structure, self._texts.trials, self._graph
        products = [self._head, *(part for half in structure.halves for part in (*half.first, half.last))]
        tried_nodes = {node.index for product in products for node in product.nodes} | trials.used_nodes
        tried_nodes |= {
            node.index for node in trials.needed_nodes([structure.embedded, structure.positions], ())
        }
        for node in graph.network.nodes:
            in_structure = any(
                graph.origin(name) in structure.ends or name in graph.fixed for name in node.outputs
            )
            if node.index not in tried_nodes and not in_structure:
                raise CompileError(f"{node.label} belongs to no part of a decoder that weft knows")

    def _embedding(self, tokens: int) -> Matrix:
        """Return the embeddings of all tokens."""
        structure = self._structure
        table = structure.lookup.inputs[0]
        if structure.lookup.outputs[0] == structure.embedded and not structure.lookup.domain:
            matrix = Weights(self._graph).matrix(table, transposed=False)
            if matrix is not None:
                return self._check_embedding(matrix, tokens)
        # The lookup is no plain matrix: run the graph on every token.
        numbers = np.arange(tokens)
        (values,) = self._texts.trials.values(
            [structure.embedded], {structure.tokens: self._token_input(numbers)}
        )
        return self._check_embedding(values.reshape(tokens, -1).astype(np.float32), tokens)

    def _token_input(self, numbers: np.ndarray) -> np.ndarray:
        type_of_tokens = self._graph.network.type_of(self._structure.tokens)
        rank = len(type_of_tokens.shape or (None, None)) if type_of_tokens else 2
        return numbers.astype(type_of_tokens.dtype if type_of_tokens else "int64").reshape(
            (1,) * (rank - 1) + (-1,)
        )

    def _check_embedding(self, matrix: Matrix, tokens: int) -> Matrix:
        if matrix.shape[0] < tokens or matrix.shape[1] != self._head.inputs:
            raise CompileError(
                f"{self._structure.lookup.label} looks up rows of a {matrix.shape[0]}x{matrix.shape[1]} matrix; logits "
                f"are of {tokens:,} tokens, and the stream has {self._head.inputs:,} elements"
            )
        return (
            matrix
            if isinstance(matrix, BlockTensor) and matrix.shape[0] == tokens
            else dense(matrix)[:tokens]
        )

    def _positions(self) -> np.ndarray | None:
        """Return the position embeddings, or None."""
        name = self._structure.positions
        if not name:
            return None
        node = self._graph.makers[self._graph.origin(name)]
        table = Weights(self._graph).value(node.inputs[0])
        for tokens, before in ((3, 0), (2, 3)):
            (rows,) = self._texts.values([name], {}, tokens, before)
            if table.ndim != 2 or not np.array_equal(
                rows.reshape(tokens, -1), table[before : before + tokens]
            ):
                raise CompileError(
                    f"{node.label} looks up other rows than those of the tokens' positions, which weft expects"
                )
        return table.astype(np.float32)

    def _context(self, table: np.ndarray | None) -> int:
        """Return the context length: the minimum of the graph's tables and the files' facts."""
        sizes = [] if table is None else [len(table)]
        for node in self._graph.network.nodes:
            # The input with the cosines, which have a row for each position.
            table_input = {"GroupQueryAttention": 7, "RotaryEmbedding": 2}.get(node.operator)
            if node.domain and table_input is not None and node.input(table_input) in self._graph.fixed:
                sizes.append(len(Weights(self._graph).value(node.input(table_input))))
        if self._facts.context is not None:
            sizes.append(self._facts.context)
        if not sizes:
            raise CompileError(
                f"nothing says how many tokens a text may have: put the model's config.json beside {self._path}, "
                "with max_position_embeddings"
            )
        if self._facts.window is not None and self._facts.window < min(sizes):
            self._notes.append(
                f"genai_config.json has a sliding window of {self._facts.window:,} tokens: longer texts are not "
                "supported"
            )
            sizes.append(self._facts.window)
        if min(sizes) < _MIN_CONTEXT:
            raise CompileError(
                f"texts of the model have {min(sizes)} token at most, by its configuration or the tables of its graph; "
                f"weft tries attention with {_MIN_CONTEXT} tokens or more: give the model's own max_position_embeddings"
            )
        return min(sizes)

    def _architecture(
        self, rotary: Rotary | None, table: np.ndarray | None, norms: tuple[Norm, ...], gate: Linear | None
    ) -> str:
        biased = {norm.bias is not None for norm in norms}
        if rotary is not None and table is None and gate is not None and biased == {False}:
            return "llama"
        if rotary is None and table is not None and gate is None and biased == {True}:
            return "gpt2"
        raise CompileError(
            f"the model has {'rotary' if rotary else 'no rotary'} positions, "
            f"{'learned' if table is not None else 'no learned'} "
            f"positions, {'a' if gate else 'no'} gate and {'LayerNorm' if True in biased else 'RMSNorm'}; weft knows "
            "architecture llama (rotary positions, a gate, RMSNorm) and gpt2 (learned positions, no gate, LayerNorm)"
        )

    def _output(self, embedding: Matrix) -> Linear:
        """Return the output layer, which shares the token embedding if the weights are equal."""
        weight = self._head.weight
        if weight.shape == embedding.shape and np.array_equal(dense(weight), dense(embedding)):
            return Linear(embedding, self._head.bias)
        return self._head.linear
