"""Networks for several samples at a time, of one for a single sample."""

from __future__ import annotations

import dataclasses

import numpy as np

from weft.compiler.ir.network import Network, Node, Type
from weft.compiler.onnx.folding import resolve
from weft.extras.training.gradient.derivative import GradientError


def for_batch(network: Network, count: int) -> Network:
    """The network with `count` samples along the first axis of its inputs, which has one now, or `count`.

    Raises
    ------
    GradientError
        If an input has another first axis, or what the network computes does not keep samples apart.
    CompileError
        If the network is not valid for so many.
    """
    known = resolve(network).network
    kinds: dict[str, Type] = {}
    for name in known.inputs:
        kind = known.types[name]
        if not kind.shape or kind.shape[0] not in (1, count):
            raise GradientError(
                f"input {name!r} has shape {kind.shape}: its first axis must be of 1 sample, or of {count}"
            )
        kinds[name] = Type(kind.dtype, (count, *kind.shape[1:]))
    if all(known.types[name] == kinds[name] for name in known.inputs):
        return known
    constants = dict(known.constants)
    nodes = tuple(_widened(node, constants, count) for node in known.nodes)
    made = resolve(dataclasses.replace(known, nodes=nodes, constants=constants, types=kinds)).network
    for name in made.outputs:
        before, after = known.types[name].shape, made.types[name].shape
        if not before or not after or before[0] != 1 or after != (count, *before[1:]):
            raise GradientError(
                f"output {name!r} of shape {before} is {after} for {count} samples; it must keep them apart"
            )
    return made


def _widened(node: Node, constants: dict[str, np.ndarray], count: int) -> Node:
    """A Reshape of one sample becomes one of `count`: samples are outermost, so that only the first size grows."""
    if node.op != "Reshape" or node.inputs[1] not in constants:
        return node
    wanted = constants[node.inputs[1]]
    if wanted.size < 1 or int(wanted[0]) < 1:
        return node
    name = f"{node.inputs[1]}/{count}"
    constants[name] = np.array([count * wanted[0], *wanted[1:]], np.int64)
    return dataclasses.replace(node, inputs=(node.inputs[0], name))
