"""How the products of a graph hang together: a stream that halves of layers add to, one after the other.

Of every value that depends on tokens it is known which products, streams and pasts of the cache it is made of. A
product with inputs of the stream alone is the first of a half; the one whose result is added to the stream is its last.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field

from weft.compiler.ir.graph import CompileError
from weft.compiler.ir.network import Node
from weft.extras.language.onnx.graph import ALIASES, SHAPES, Graph
from weft.extras.language.onnx.products import Product

_LOOKUPS = ("Gather", "GatherBlockQuantized")
_TOKENS = ("Reshape", "Cast", "Identity", "Unsqueeze", "Squeeze", "Flatten")
"""Operators in front of the look-up of tokens that leave them as they are."""


@dataclass(eq=False)
class Half:
    """What is added to the stream at once: attention, or a feed-forward network.

    Attributes
    ----------
    stream : str
        The value that it reads.
    normed : str
        What its first products read.
    first : tuple of Product
    last : Product
    added : str
        What is added to the stream.
    pasts : tuple of str
        Inputs of the graph, keys and values of tokens before; empty in a feed-forward network.
    """

    stream: str
    normed: str
    first: tuple[Product, ...]
    last: Product
    added: str
    pasts: tuple[str, ...]


@dataclass(eq=False)
class Structure:
    """The whole of a decoder.

    Attributes
    ----------
    tokens : str
        The input with numbers of tokens.
    lookup : Node
        Where they become vectors, `embedded`.
    positions : str
        What is added to these in front of the first half; "" if nothing is.
    halves : list of Half
    stream : str
        What is left behind the last half.
    normed : str
        The same as the head reads it.
    head : Product
    presents : dict of str to frozenset
        Other outputs, with what they are made of.
    ends : dict of str to int
        Streams and results of products, and how many elements their rows have.
    """

    tokens: str
    lookup: Node
    embedded: str
    positions: str = ""
    halves: list[Half] = field(default_factory=list)
    stream: str = ""
    normed: str = ""
    head: Product | None = None
    presents: dict[str, frozenset[str]] = field(default_factory=dict)
    ends: dict[str, int] = field(default_factory=dict)


class Finder:
    """Follows values from the tokens to the logits.

    Parameters
    ----------
    graph : Graph
    products : list of Product
    """

    def __init__(self, graph: Graph, products: list[Product]) -> None:
        self._graph = graph
        self._products = {product.output: product for product in products}
        self._inside = {node.index: product for product in products for node in product.inside}
        self._made_of: dict[str, frozenset[str]] = {}
        self._stream = ""
        self._sums: dict[str, tuple[str, str]] = {}  # what streams are the sum of
        self._sources: dict[str, Product] = {}
        network = graph.network
        self._pasts = [
            name for name in network.inputs
            if (known := network.type_of(name)) is not None and known.dtype == "float32" and len(known.shape or ()) == 4
        ]  # fmt: skip
        self._made_of.update({name: frozenset({name}) for name in self._pasts})

    def structure(self) -> Structure:
        """The structure of the graph.

        Raises
        ------
        CompileError
            If it is none of a decoder: the sentence names the node that does not fit.
        """
        if not self._pasts:
            raise CompileError(
                "the graph has no inputs with keys and values of tokens before: export the model with past_key_values"
            )
        found = self._lookup()
        self._follow(found)
        return self._assembled(found)

    def _lookup(self) -> Structure:
        """The first look-up of rows by the tokens."""
        network = self._graph.network
        whole = [
            name
            for name in network.inputs
            if (known := network.type_of(name)) and known.dtype in ("int64", "int32")
        ]
        tokens = {name: name for name in whole}
        for node in network.nodes:
            if not node.domain and node.operator in _TOKENS and node.inputs[0] in tokens:
                tokens[node.outputs[0]] = tokens[node.inputs[0]]
            if node.operator in _LOOKUPS and node.input(1) in tokens and node.inputs[0] in self._graph.fixed:
                name = tokens[node.inputs[1]]
                if "position" not in name and "mask" not in name:
                    made = node.outputs[0]
                    after = self._graph.only_reader(made)
                    if after is not None and after.operator == "DequantizeLinear":
                        made = after.outputs[0]
                    return Structure(name, node, made)
        raise CompileError(
            "the graph has no Gather that makes vectors of tokens, an input of integers: it is no decoder of text, or "
            "takes embeddings as its input"
        )

    def _follow(self, found: Structure) -> None:
        """What every value is made of."""
        self._begin(found)
        for node in self._graph.network.nodes:
            if self._stream in node.outputs or found.embedded in node.outputs:
                continue
            product = self._inside.get(node.index)
            if product is not None:
                if product.output in node.outputs:
                    self._multiplied(product)
                continue
            reads = () if not node.domain and node.operator in SHAPES else node.reads
            made_of = frozenset().union(*(self._made_of.get(name, frozenset()) for name in reads))
            if not made_of:
                continue
            if self._adds(node):
                continue
            for name in node.outputs:
                self._made_of[name] = made_of

    def _begin(self, found: Structure) -> None:
        """The stream in front of the first half: vectors of tokens, scaled or with positions added."""
        graph = self._graph
        raw = found.lookup.outputs[0]
        while not found.positions:
            readers = [node for node in graph.readers(found.embedded) if node.operator not in SHAPES]
            if len(readers) != 1 or readers[0].domain:
                break
            node = readers[0]
            (other,) = [name for name in node.inputs if name != found.embedded][:1] or ("",)
            if node.operator in ALIASES or (node.operator == "Mul" and other in graph.fixed):
                found.embedded = node.outputs[0]
            elif node.operator == "Add" and self._placed(other):
                found.positions, self._stream = other, node.outputs[0]
            else:
                break
        self._stream = self._stream or found.embedded
        self._made_of.update({name: frozenset({name}) for name in (raw, found.embedded, self._stream)})
        found.stream = self._stream

    def _placed(self, name: str) -> bool:
        """Whether a value is rows of a constant table by their positions."""
        node = self._graph.makers.get(self._graph.origin(name))
        return node is not None and node.operator in _LOOKUPS and node.inputs[0] in self._graph.fixed

    def _multiplied(self, product: Product) -> None:
        made_of = self._made_of.get(product.source, frozenset())
        if not made_of:
            raise CompileError(
                f"{product.node.label} multiplies with weights what does not depend on the tokens"
            )
        self._sources[product.output] = product
        self._made_of[product.output] = frozenset({product.output})

    def _adds(self, node: Node) -> bool:
        """Whether a node adds the result of a product to the stream, which goes on with that."""
        if node.domain or node.operator != "Add":
            return False
        for mine, other in (node.inputs, node.inputs[::-1]):
            ends = self._made_of.get(other, frozenset())
            if (
                self._graph.origin(mine) == self._graph.origin(self._stream)
                and len(ends) == 1
                and next(iter(ends)) in self._products
            ):
                self._sums[node.outputs[0]] = (self._stream, other)
                self._stream = node.outputs[0]
                self._made_of[self._stream] = frozenset({self._stream})
                return True
        return False

    def _assembled(self, found: Structure) -> Structure:
        streams = [found.stream, *self._sums]
        for before, after in itertools.pairwise(streams):
            found.halves.append(self._half(before, after))
        found.stream = streams[-1]
        last = self._reading(found.stream)
        if len(last) != 1:
            what = "no product reads" if not last else f"{len(last)} products read"
            raise CompileError(
                f"{what} the last sum {found.stream!r} of the graph; weft expects one, which makes logits"
                + (f": {last[1].node.label} is too much" if last else "")
            )
        found.head, found.normed = last[0], last[0].source
        used = {product.output for half in found.halves for product in (*half.first, half.last)} | {
            found.head.output
        }
        for product in self._products.values():
            if product.output not in used:
                raise CompileError(
                    f"{product.node.label} is a product that belongs to no layer; weft expects products of queries, "
                    "keys and values, of attention's output, and of a feed-forward network"
                )
        self._outputs(found)
        for product in self._products.values():
            found.ends[product.output] = product.outputs
        found.ends.update(dict.fromkeys((*streams, found.embedded), found.head.inputs))
        return found

    def _reading(self, stream: str) -> list[Product]:
        """The products that read a stream and nothing else."""
        return [p for p in self._sources.values() if self._made_of[p.source] == {stream}]

    def _half(self, before: str, after: str) -> Half:
        stream, added = self._sums[after]
        assert stream == before
        (end,) = self._made_of[added]
        last, first = self._products[end], self._reading(before)
        ends = self._made_of[last.source]
        named = {product.output for product in first}
        pasts = tuple(sorted(ends - named))
        if not first or not named <= ends or any(name not in self._pasts for name in pasts):
            strange = sorted({*ends, *named} - (ends & named) - set(self._pasts))
            raise CompileError(
                f"{last.node.label} is added to the stream {before!r}, but is not made of the products that read this "
                f"stream alone: {', '.join(map(repr, strange)) or 'there are none'}; weft expects attention and "
                "feed-forward networks one behind the other"
            )
        sources = dict.fromkeys(product.source for product in first)
        if len(sources) > 1:
            raise CompileError(
                f"{first[-1].node.label} reads {first[-1].source!r} and {first[0].node.label} {first[0].source!r}; "
                "weft expects one norm in front of them"
            )
        return Half(before, first[0].source, tuple(first), last, added, pasts)

    def _outputs(self, found: Structure) -> None:
        assert found.head is not None
        for name in self._graph.network.outputs:
            made_of = self._made_of.get(name, frozenset())
            if made_of == {found.head.output}:
                continue
            if not made_of & set(self._pasts):
                raise CompileError(
                    f"output {name!r} is neither logits nor keys or values of tokens so far; export the model "
                    "without it"
                )
            found.presents[name] = made_of
