"""ONNX files as language models: decoders of the architectures ``llama`` and ``gpt2``, as exporters write them.

What a graph computes is found by trying out its parts, not by their form: products with weights are recognised, and
what is between them is computed for random numbers and held to what weft computes of the same.
"""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np

from weft.compiler.ir.graph import CompileError
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
)
from weft.extras.language.onnx import feed_forward
from weft.extras.language.onnx.attention import Attention, Found
from weft.extras.language.onnx.facts import Facts, read_facts
from weft.extras.language.onnx.graph import Graph
from weft.extras.language.onnx.norms import Norms, close
from weft.extras.language.onnx.products import Weights, products
from weft.extras.language.onnx.structure import Finder, Half, Structure
from weft.extras.language.onnx.texts import Texts
from weft.extras.language.onnx.tokenizer_file import read_tokenizer
from weft.hdl.schema import printable

_SHOWN = 60
"""Characters of a name."""
_SHORTEST = 2
"""Tokens of the longest text of a model at least: attention of a single token shows nothing."""


def read(source: str | os.PathLike[str]) -> LanguageModel:
    """Read a language model from an ONNX file, with ``tokenizer.json`` and configurations beside it.

    Weights of float16 and bfloat16 become float32; whole numbers with scales stay whole numbers in
    `weft.extras.language.compiler.model.BlockTensor`, and nothing of them is rounded.

    Raises
    ------
    CompileError
        If it is no ONNX file, or damaged; if its graph computes anything else than a decoder that weft knows, or the
        vocabulary is missing or of another kind.
    """
    path = Path(source)
    facts = read_facts(path.parent)
    graph = Graph(read_open(path))
    structure = Finder(graph, products(graph)).structure()
    return _Reader(graph, structure, facts, path).model()


class _Reader:
    """Puts the model of one graph together."""

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
                f"texts may have {attention.context:,} tokens, up to which attention was tried; the model was made "
                f"for {context:,}"
            )
        norms = Norms(self._texts)
        blocks, layers = self._blocks(attention, norms)
        output_norm, epsilon = norms.read(self._structure.stream, self._structure.normed)
        self._epsilons.append(epsilon)
        self._check_logits()
        self._check_all()
        rotary = layers[0].rotary
        architecture = self._architecture(rotary, table, (*blocks[0][:2], output_norm), blocks[0][2].gate)
        sizes = self._sizes(layers[0], attention.context, tokens)
        return LanguageModel(
            name=printable(self._facts.name or self._path.stem, _SHOWN),
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

    def _sizes(self, layer: Found, context: int, tokens: int) -> Sizes:
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
    ) -> tuple[list[tuple[Norm, Norm, Block]], list[Found]]:
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
        made: list[tuple[Norm, Norm, Block]] = []
        layers: list[Found] = []
        for first, second in zip(halves[::2], halves[1::2], strict=True):
            found = attention.read(first)
            if layers and (found.heads != layers[0].heads or second.last.inputs != halves[1].last.inputs):
                raise CompileError(f"{second.last.node.label}: this layer has other sizes than the first one")
            attention_norm, feed_norm = self._norm(norms, first), self._norm(norms, second)
            gate, up = feed_forward.read(self._texts, second)
            for half in (first, second):
                self._check_added(half.added, half.last.output)
            block = Block(
                attention_norm, found.query, found.key, found.value, first.last.linear, feed_norm, gate, up,
                second.last.linear,
            )  # fmt: skip
            made.append((attention_norm, feed_norm, block))
            layers.append(found)
        return made, layers

    def _norm(self, norms: Norms, half: Half) -> Norm:
        norm, epsilon = norms.read(half.stream, half.normed)
        self._epsilons.append(epsilon)
        return norm

    def _epsilon(self) -> float:
        least, most = min(self._epsilons), max(self._epsilons)
        if most > least * 1.05:
            raise CompileError(f"norms have epsilons from {least:g} to {most:g}; weft expects one for all")
        return self._epsilons[0]

    def _check_added(self, added: str, output: str) -> None:
        """What is added to the stream must be the product itself, in any shape."""
        random = np.random.default_rng(5)
        given = random.normal(0, 1, (3, self._structure.ends[output])).astype(np.float32)
        if added == output:
            return
        (found,) = self._texts.values([added], {output: given}, 3)
        if not close(found, given):
            raise CompileError(
                f"{self._graph.makers[added].label} changes what is added to the stream; weft expects it as it is"
            )

    def _check_logits(self) -> None:
        logits = [name for name in self._graph.network.outputs if name not in self._structure.presents]
        given = np.random.default_rng(6).normal(0, 1, (3, self._head.outputs)).astype(np.float32)
        for name in logits:
            if name == self._head.output:
                continue
            (found,) = self._texts.values([name], {self._head.output: given}, 3)
            if not close(found, given):
                raise CompileError(
                    f"{self._graph.makers[name].label} changes logits, or leaves some out; weft expects those of "
                    "every token as the last product makes them"
                )

    def _check_all(self) -> None:
        """Every node must be one that was tried out, or have a place in the structure."""
        structure, trials, graph = self._structure, self._texts.trials, self._graph
        products = [self._head, *(part for half in structure.halves for part in (*half.first, half.last))]
        known = {node.index for product in products for node in product.inside} | trials.seen
        known |= {node.index for node in trials.needed([structure.embedded, structure.positions], ())}
        for node in graph.network.nodes:
            placed = any(graph.origin(name) in structure.ends or name in graph.fixed for name in node.outputs)
            if node.index not in known and not placed:
                raise CompileError(f"{node.label} belongs to no part of a decoder that weft knows")

    def _embedding(self, tokens: int) -> Matrix:
        """Vectors of all tokens."""
        structure = self._structure
        table = structure.lookup.inputs[0]
        if structure.lookup.outputs[0] == structure.embedded and not structure.lookup.domain:
            found = Weights(self._graph).matrix(table, turned=False)
            if found is not None:
                return self._checked_embedding(found, tokens)
        numbers = np.arange(tokens)
        (values,) = self._texts.trials.values(
            [structure.embedded], {structure.tokens: self._numbers(numbers)}
        )
        return self._checked_embedding(values.reshape(tokens, -1).astype(np.float32), tokens)

    def _numbers(self, numbers: np.ndarray) -> np.ndarray:
        known = self._graph.network.type_of(self._structure.tokens)
        rank = len(known.shape or (None, None)) if known else 2
        return numbers.astype(known.dtype if known else "int64").reshape((1,) * (rank - 1) + (-1,))

    def _checked_embedding(self, found: Matrix, tokens: int) -> Matrix:
        if found.shape[0] < tokens or found.shape[1] != self._head.inputs:
            raise CompileError(
                f"{self._structure.lookup.label} looks up rows of a {found.shape[0]}x{found.shape[1]} matrix; logits "
                f"are of {tokens:,} tokens, and the stream has {self._head.inputs:,} elements"
            )
        return found if isinstance(found, BlockTensor) and found.shape[0] == tokens else dense(found)[:tokens]

    def _positions(self) -> np.ndarray | None:
        """Rows that are added to tokens by their positions."""
        name = self._structure.positions
        if not name:
            return None
        node = self._graph.makers[self._graph.origin(name)]
        table = Weights(self._graph).value(node.inputs[0])
        for tokens, before in ((3, 0), (2, 3)):
            (found,) = self._texts.values([name], {}, tokens, before)
            if table.ndim != 2 or not np.array_equal(
                found.reshape(tokens, -1), table[before : before + tokens]
            ):
                raise CompileError(
                    f"{node.label} looks up other rows than those of the tokens' positions, which weft expects"
                )
        return table.astype(np.float32)

    def _context(self, table: np.ndarray | None) -> int:
        """Most tokens of a text: what the graph has tables for, and files say."""
        sizes = [] if table is None else [len(table)]
        for node in self._graph.network.nodes:
            place = {"GroupQueryAttention": 7, "RotaryEmbedding": 2}.get(node.operator)
            if node.domain and place is not None and node.input(place) in self._graph.fixed:
                sizes.append(len(Weights(self._graph).value(node.input(place))))
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
        if min(sizes) < _SHORTEST:
            raise CompileError(
                f"texts of the model have {min(sizes)} token at most, by its configuration or the tables of its graph; "
                f"weft tries attention with {_SHORTEST} tokens or more: give the model's own max_position_embeddings"
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
        """The head; its weight is the embeddings of tokens themselves if they are the same."""
        weight = self._head.weight
        if weight.shape == embedding.shape and np.array_equal(dense(weight), dense(embedding)):
            return Linear(embedding, self._head.bias)
        return self._head.linear
