"""What a graph's inputs are for a text: tokens, masks, positions, and keys and values of tokens before."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from weft.compiler.ir.graph import CompileError
from weft.compiler.ir.network import dtype_of
from weft.extras.language.onnx.graph import SHAPES, Graph
from weft.extras.language.onnx.structure import Half, Structure
from weft.extras.language.onnx.trials import Trials


class Texts:
    """Computes values of a graph for texts of a single row.

    Parameters
    ----------
    graph : Graph
    structure : Structure
    """

    def __init__(self, graph: Graph, structure: Structure) -> None:
        self.graph, self.structure = graph, structure
        self.trials = Trials(graph)
        assert structure.head is not None
        every = [structure.head, *(part for half in structure.halves for part in (*half.first, half.last))]
        self._flat = {product.output for product in every if product.node.operator == "Gemm"}
        self.pasts = {name: self._past(half, name) for half in structure.halves for name in half.pasts}
        """(heads, length) of each."""

    def shape(self, name: str, tokens: int) -> tuple[int, ...]:
        """The shape of a stream, or of a product's result, for so many tokens."""
        width = self.structure.ends[name]
        return (tokens, width) if name in self._flat else (1, tokens, width)

    def values(
        self,
        names: list[str],
        given: Mapping[str, np.ndarray],
        tokens: int,
        before: int = 0,
        numbers: np.ndarray | None = None,
    ) -> list[np.ndarray]:
        """Values for `tokens` behind so many `before`, where streams and products are as `given`, in any shape.

        Raises
        ------
        CompileError
            If they depend on more than that, or cannot be computed.
        """
        inputs = self._inputs(tokens, before, numbers)
        own = {name: value for name, value in given.items() if name in self.structure.ends}
        known = {**inputs, **given}
        self._check(names, known)
        known |= {name: value.reshape(self.shape(name, tokens)) for name, value in own.items()}
        others = [name for name in self.structure.ends if name not in given and name not in names]
        known |= {name: np.zeros(self.shape(name, tokens), np.float32) for name in others}
        return self.trials.values(names, known)

    def _check(self, names: list[str], known: Mapping[str, np.ndarray]) -> None:
        """Raise if values are made of streams and products that are not known, but for their sizes."""
        ends = self.structure.ends
        for node in self.trials.needed(names, known, shapes=False):
            for name in () if not node.domain and node.operator in SHAPES else node.reads:
                if name in ends and name not in known and name not in names:
                    raise CompileError(
                        f"{node.label} reads {name!r}, which belongs to another part of the decoder"
                    )

    def _inputs(self, tokens: int, before: int, numbers: np.ndarray | None) -> dict[str, np.ndarray]:
        network, structure = self.graph.network, self.structure
        total = before + tokens
        at = np.arange(before, total)
        found: dict[str, np.ndarray] = {}
        for name in network.inputs:
            known = network.type_of(name)
            assert known is not None
            dtype, rank = dtype_of(known.dtype), len(known.shape or ())
            if name == structure.tokens:
                made = np.zeros(tokens, dtype) if numbers is None else numbers
            elif name in self.pasts:
                heads, length = self.pasts[name]
                found[name] = np.zeros((1, heads, before, length), np.float32)
                continue
            elif rank == 4 and dtype.kind == "f":
                continue  # of a layer that no output depends on
            elif "mask" in name:
                made = np.ones(total)
            elif "position" in name:
                made = at
            else:
                raise CompileError(
                    f"input {name!r} is none that weft knows: tokens, a mask of tokens, positions, and keys and "
                    "values of tokens before"
                )
            found[name] = made.astype(dtype).reshape((1,) * (rank - 1) + (-1,))
        return found

    def _past(self, half: Half, name: str) -> tuple[int, int]:
        """Heads and elements of keys or values of tokens before; operators tell what the input leaves open."""
        known = self.graph.network.type_of(name)
        shape = known.shape if known is not None and known.shape is not None else ()
        groups, length = shape[1::2] if len(shape) == 4 else (None, None)
        for node in self.graph.readers(name):
            if node.operator == "GroupQueryAttention" and {"num_heads", "kv_num_heads"} <= set(
                node.attributes
            ):
                heads, groups = int(node.attributes["num_heads"]), int(node.attributes["kv_num_heads"])
                # All of them have one length, so that it does not matter if products are one or three.
                length = length or sum(part.outputs for part in half.first) // max(heads + 2 * groups, 1)
        if not groups or not length or groups < 1:
            raise CompileError(
                f"input {name!r} has shape {shape}; keys and values of tokens before must have four axes: texts, "
                "heads, tokens and elements, heads and elements of fixed size"
            )
        return groups, length
