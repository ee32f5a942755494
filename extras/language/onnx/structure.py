"""Structure of a decoder's graph: a residual stream to which halves of layers add, one after the other.

For every value that depends on tokens, the products, streams and cache inputs that it depends on are known. A product
whose input depends only on the stream is the first of a half. The product whose result is added to the stream is the
half's last.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field

from weft.compiler.errors import CompileError
from weft.compiler.ir.network import Node
from weft.extras.language.onnx.graph import ALIASES, SHAPES, Graph
from weft.extras.language.onnx.products import Product

_LOOKUPS = ("Gather", "GatherBlockQuantized")
_TOKEN_OPERATORS = ("Reshape", "Cast", "Identity", "Unsqueeze", "Squeeze", "Flatten")
"""Operators that leave token numbers unchanged before the embedding lookup."""


@dataclass(eq=False)
class Half:
    """Half of a layer, which adds once to the stream: attention, or a feed-forward network.

    Attributes
    ----------
    stream : str
        Stream that it reads.
    normalised : str
        Input of its first products.
    first : tuple of Product
    last : Product
    added : str
        Value that is added to the stream.
    pasts : tuple of str
        Inputs of the graph with past keys and values; empty in a feed-forward network.
    """

    stream: str
    normalised: str
    first: tuple[Product, ...]
    last: Product
    added: str
    pasts: tuple[str, ...]


@dataclass(eq=False)
class Structure:
    """Structure of a whole decoder.

    Attributes
    ----------
    tokens : str
        Input with token numbers.
    lookup : Node
        Lookup of the embeddings, `embedded`.
    positions : str
        Value that is added to the embeddings before the first half; "" if there is none.
    halves : list of Half
    stream : str
        Stream after the last half.
    normalised : str
        Input of the head.
    head : Product
    presents : dict of str to frozenset
        Outputs other than logits, with the values that they depend on.
    ends : dict of str to int
        Streams and results of products, with the number of elements of their rows.
    """

    tokens: str
    lookup: Node
    embedded: str
    positions: str = ""
    halves: list[Half] = field(default_factory=list)
    stream: str = ""
    normalised: str = ""
    head: Product | None = None
    presents: dict[str, frozenset[str]] = field(default_factory=dict)
    ends: dict[str, int] = field(default_factory=dict)


class Finder:
    """Search for the structure of a graph, from the tokens to the logits.

    Parameters
    ----------
    graph : Graph
    products : list of Product
    """

    def __init__(self, graph: Graph, products: list[Product]) -> None:
        self._graph = graph
        self._products = {product.output: product for product in products}
        self._product_of_node = {node.index: product for product in products for node in product.nodes}
        self._origins: dict[str, frozenset[str]] = {}
        self._stream = ""
        self._sums: dict[str, tuple[str, str]] = {}  # operands of each stream's addition
        self._sources: dict[str, Product] = {}
        network = graph.network
        # Keys and values are the only inputs of floats with four axes.
        self._pasts = [
            name for name in network.inputs
            if (known := network.type_of(name)) is not None and known.dtype == "float32" and len(known.shape or ()) == 4
        ]  # fmt: skip
        self._origins.update({name: frozenset({name}) for name in self._pasts})

    def structure(self) -> Structure:
        """Return the structure of the graph.

        Raises
        ------
        CompileError
            If it is not that of a decoder; the message names the node that does not fit.
        """
        if not self._pasts:
            raise CompileError(
                "the graph has no inputs with keys and values of tokens before: export the model with past_key_values"
            )
        structure = self._find_lookup()
        self._follow(structure)
        return self._assemble(structure)

    def _find_lookup(self) -> Structure:
        """Return a structure with the first lookup of rows by tokens."""
        network = self._graph.network
        integer_inputs = [
            name
            for name in network.inputs
            if (known := network.type_of(name)) and known.dtype in ("int64", "int32")
        ]
        tokens = {name: name for name in integer_inputs}
        for node in network.nodes:
            if not node.domain and node.operator in _TOKEN_OPERATORS and node.inputs[0] in tokens:
                tokens[node.outputs[0]] = tokens[node.inputs[0]]
            if node.operator in _LOOKUPS and node.input(1) in tokens and node.inputs[0] in self._graph.fixed:
                name = tokens[node.inputs[1]]
                # Positions are looked up like tokens: only the input's name tells them apart.
                if "position" not in name and "mask" not in name:
                    embedding = node.outputs[0]
                    # A table of integers is dequantised after the lookup.
                    dequantise = self._graph.only_reader(embedding)
                    if dequantise is not None and dequantise.operator == "DequantizeLinear":
                        embedding = dequantise.outputs[0]
                    return Structure(name, node, embedding)
        raise CompileError(
            "the graph has no Gather that makes vectors of tokens, an input of integers: it is no decoder of text, or "
            "takes embeddings as its input"
        )

    def _follow(self, structure: Structure) -> None:
        """Determine what every value depends on."""
        self._find_first_stream(structure)
        for node in self._graph.network.nodes:
            if self._stream in node.outputs or structure.embedded in node.outputs:
                continue
            product = self._product_of_node.get(node.index)
            if product is not None:
                if product.output in node.outputs:
                    self._record_product(product)
                continue
            # A value's shape does not depend on its elements.
            reads = () if not node.domain and node.operator in SHAPES else node.reads
            origins = frozenset().union(*(self._origins.get(name, frozenset()) for name in reads))
            if not origins:
                continue
            if self._extend_stream(node):
                continue
            for name in node.outputs:
                self._origins[name] = origins

    def _find_first_stream(self, structure: Structure) -> None:
        """Find the stream before the first half: embeddings, scaled or with positions added."""
        graph = self._graph
        raw = structure.lookup.outputs[0]
        while not structure.positions:
            readers = [node for node in graph.readers(structure.embedded) if node.operator not in SHAPES]
            # Several readers: a norm and an addition begin the first half.
            if len(readers) != 1 or readers[0].domain:
                break
            node = readers[0]
            (other,) = [name for name in node.inputs if name != structure.embedded][:1] or ("",)
            if node.operator in ALIASES or (node.operator == "Mul" and other in graph.fixed):
                structure.embedded = node.outputs[0]
            elif node.operator == "Add" and self._is_position_lookup(other):
                structure.positions, self._stream = other, node.outputs[0]
            else:
                break
        self._stream = self._stream or structure.embedded
        self._origins.update({name: frozenset({name}) for name in (raw, structure.embedded, self._stream)})
        structure.stream = self._stream

    def _is_position_lookup(self, name: str) -> bool:
        """Return whether a value is rows of a constant table."""
        node = self._graph.makers.get(self._graph.origin(name))
        return node is not None and node.operator in _LOOKUPS and node.inputs[0] in self._graph.fixed

    def _record_product(self, product: Product) -> None:
        origins = self._origins.get(product.source, frozenset())
        if not origins:
            raise CompileError(
                f"{product.node.label} multiplies with weights what does not depend on the tokens"
            )
        self._sources[product.output] = product
        # What follows depends on the product, no longer on its source.
        self._origins[product.output] = frozenset({product.output})

    def _extend_stream(self, node: Node) -> bool:
        """Return whether a node adds a product's result to the stream; if so, its output is the new stream."""
        if node.domain or node.operator != "Add":
            return False
        # The stream may be either operand.
        for stream_input, other in (node.inputs, node.inputs[::-1]):
            ends = self._origins.get(other, frozenset())
            if (
                self._graph.origin(stream_input) == self._graph.origin(self._stream)
                and len(ends) == 1
                and next(iter(ends)) in self._products
            ):
                self._sums[node.outputs[0]] = (self._stream, other)
                self._stream = node.outputs[0]
                self._origins[self._stream] = frozenset({self._stream})
                return True
        return False

    def _assemble(self, structure: Structure) -> Structure:
        streams = [structure.stream, *self._sums]
        for before, after in itertools.pairwise(streams):
            structure.halves.append(self._read_half(before, after))
        structure.stream = streams[-1]
        last = self._products_reading(structure.stream)
        if len(last) != 1:
            reason = "no product reads" if not last else f"{len(last)} products read"
            raise CompileError(
                f"{reason} the last sum {structure.stream!r} of the graph; weft expects one, which makes logits"
                + (f": {last[1].node.label} is too much" if last else "")
            )
        structure.head, structure.normalised = last[0], last[0].source
        known_outputs = {
            product.output for half in structure.halves for product in (*half.first, half.last)
        } | {structure.head.output}
        for product in self._products.values():
            if product.output not in known_outputs:
                raise CompileError(
                    f"{product.node.label} is a product that belongs to no layer; weft expects products of queries, "
                    "keys and values, of attention's output, and of a feed-forward network"
                )
        self._record_outputs(structure)
        for product in self._products.values():
            structure.ends[product.output] = product.outputs
        structure.ends.update(dict.fromkeys((*streams, structure.embedded), structure.head.inputs))
        return structure

    def _products_reading(self, stream: str) -> list[Product]:
        """Return the products whose input depends only on this stream."""
        return [p for p in self._sources.values() if self._origins[p.source] == {stream}]

    def _read_half(self, before: str, after: str) -> Half:
        stream, added = self._sums[after]
        assert stream == before
        (end,) = self._origins[added]
        last, first = self._products[end], self._products_reading(before)
        ends = self._origins[last.source]
        first_outputs = {product.output for product in first}
        pasts = tuple(sorted(ends - first_outputs))
        if not first or not first_outputs <= ends or any(name not in self._pasts for name in pasts):
            unexpected = sorted({*ends, *first_outputs} - (ends & first_outputs) - set(self._pasts))
            raise CompileError(
                f"{last.node.label} is added to the stream {before!r}, but is not made of the products that read this "
                f"stream alone: {', '.join(map(repr, unexpected)) or 'there are none'}; weft expects attention and "
                "feed-forward networks one after the other"
            )
        sources = dict.fromkeys(product.source for product in first)
        if len(sources) > 1:
            raise CompileError(
                f"{first[-1].node.label} reads {first[-1].source!r} and {first[0].node.label} {first[0].source!r}; "
                "weft expects one norm in front of them"
            )
        return Half(before, first[0].source, tuple(first), last, added, pasts)

    def _record_outputs(self, structure: Structure) -> None:
        assert structure.head is not None
        for name in self._graph.network.outputs:
            origins = self._origins.get(name, frozenset())
            if origins == {structure.head.output}:
                continue
            if not origins & set(self._pasts):
                raise CompileError(
                    f"output {name!r} is neither logits nor keys or values of tokens so far; export the model "
                    "without it"
                )
            structure.presents[name] = origins
