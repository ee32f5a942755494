"""Which constants of a model are trained: weights and biases of its last layers."""

from __future__ import annotations

from collections.abc import Sequence

from weft.compiler.ir.network import Network, Node
from weft.errors import InputError
from weft.hdl.schema import printable

_LAYERS = ("Conv", "ConvTranspose", "Gemm", "MatMul")
"""Operators with weights."""


Layer = tuple[Node, tuple[str, ...]]
"""A node with weights, and the names of these: weights, bias."""


def layers_of(network: Network) -> list[Layer]:
    """Layers in order, with the constants of real numbers that each is trained by: weights, bias."""
    found = []
    for node in network.nodes:
        if node.op in _LAYERS:
            names = tuple(name for name in node.inputs if _is_weight(network, name))
            if names:
                found.append((node, names))
    return found


def _is_weight(network: Network, name: str) -> bool:
    value = network.constants.get(name)
    return value is not None and value.dtype.kind == "f" and value.ndim > 0


def chosen(network: Network, last: int | None, names: Sequence[str]) -> list[Layer]:
    """Layers that are trained: the last so many (None: all), or those called `names`.

    Raises
    ------
    InputError
        If the network has no layers with weights, or none of a name.
    """
    layers = layers_of(network)
    if not layers:
        raise InputError("the model has no convolution and no matrix product with constant weights to train")
    if names:
        by_name = {node.name: constants for node, constants in layers}
        wrong = [name for name in names if name not in by_name]
        if wrong:
            known = ", ".join(repr(printable(name, 60)) for name in by_name)
            raise InputError(f"the model has no layer {printable(wrong[0], 60)!r} to train; it has {known}")
        layers = [(node, constants) for node, constants in layers if node.name in set(names)]
    elif last is not None:
        layers = layers[-last:]
    return layers
