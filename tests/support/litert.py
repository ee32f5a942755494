"""LiteRT as an outside oracle: its reference kernels' results for a file, and for each operator alone."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator

import numpy as np
from ai_edge_litert.interpreter import Interpreter, OpResolverType

from support.graph_runs import run_graph
from weft.compiler.frontend import import_loaded
from weft.compiler.ir.model import Graph
from weft.compiler.onnx.model import COMPLETE, prepare
from weft.compiler.tflite.file import File, Operator, Tensor
from weft.compiler.tflite.reader import network_of
from weft.hdl.isa.config import Config


def tensors(content: bytes, inputs: dict[int, np.ndarray]) -> dict[int, np.ndarray]:
    """Return all tensors of a file after a run on `inputs`, by index."""
    return next(runs(content, [inputs]))


def runs(content: bytes, feeds: Iterable[dict[int, np.ndarray]]) -> Iterator[dict[int, np.ndarray]]:
    """Return all tensors after each of several runs of one interpreter, which keeps variables between runs."""
    interpreter = _interpreter(content, OpResolverType.BUILTIN_REF)
    for inputs in feeds:
        for index, value in inputs.items():
            interpreter.set_tensor(index, value)
        interpreter.invoke()
        yield _contents(interpreter)


def _contents(interpreter: Interpreter) -> dict[int, np.ndarray]:
    found = {}
    for detail in interpreter.get_tensor_details():
        try:
            found[detail["index"]] = interpreter.get_tensor(detail["index"])
        except ValueError:  # nothing is in it
            continue
    return found


def _interpreter(content: bytes, kernels: OpResolverType) -> Interpreter:
    """Return an interpreter with the reference kernels, or the others for the few operators that lack them."""
    try:
        made = Interpreter(
            model_content=content,
            experimental_op_resolver_type=kernels,
            experimental_preserve_all_tensors=True,
            num_threads=1,
        )
        made.allocate_tensors()
    except (RuntimeError, ValueError):
        if kernels is not OpResolverType.BUILTIN_REF:
            raise
        return _interpreter(content, OpResolverType.BUILTIN_WITHOUT_DEFAULT_DELEGATES)
    return made


def draw(tensor: Tensor, rng: np.random.Generator) -> np.ndarray:
    """Draw any value of an input."""
    dtype = np.dtype(tensor.dtype)
    if dtype.kind in "iu":
        info = np.iinfo(dtype)
        return rng.integers(info.min, info.max, tensor.shape, dtype, endpoint=True)
    if dtype.kind == "b":
        return rng.integers(0, 2, tensor.shape).astype(bool)
    return rng.normal(0, 2, tensor.shape).astype(dtype)


def alone(file: File, operator: Operator) -> File:
    """Return a file with one operator, whose non-constant inputs are the model's."""
    used = {index for index in (*operator.inputs, *operator.outputs) if index >= 0}
    entering = dict.fromkeys(
        index for index in operator.inputs if index >= 0 and file.tensors[index].data is None
    )
    kept = tuple(
        tensor if tensor.index in used else dataclasses.replace(tensor, data=None) for tensor in file.tensors
    )
    return File(kept, (operator,), tuple(entering), operator.outputs)


def graph_of(file: File, config: Config = COMPLETE) -> Graph:
    return import_loaded(prepare(network_of(file)), config=config)


def steps(ours: np.ndarray, theirs: np.ndarray) -> np.ndarray:
    """Return the distance of results: integers, or floats relative to the largest."""
    if ours.dtype.kind == "f":
        return np.abs(ours - theirs) / max(float(np.abs(theirs).max(initial=0)), 1e-6) * 127
    return np.abs(ours.astype(np.int64) - theirs.astype(np.int64))


def layers(
    file: File, found: dict[int, np.ndarray], config: Config = COMPLETE
) -> Iterator[tuple[Operator, float, float, Graph]]:
    """Run every operator on LiteRT's inputs: return the largest step from LiteRT's result, and the differing share."""
    for operator in file.operators:
        single = alone(file, operator)
        graph = graph_of(single, config)
        names = dict(zip(single.inputs, graph.inputs, strict=True))
        results = run_graph(graph, {name: found[index] for index, name in names.items()})
        apart = [
            steps(value, found[index]).ravel()
            for index, value in zip(single.outputs, results.values(), strict=True)
        ]
        every = np.concatenate(apart)
        yield operator, float(every.max()), float((every > 0).mean()), graph
