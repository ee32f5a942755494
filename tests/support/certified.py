"""Proofs of compiled segments, as they are or with faults in their words."""

from __future__ import annotations

import dataclasses

import numpy as np

from support.op_cases import apart
from weft.certificate import graph_of, placement_of
from weft.compiler.backend import DeviceProgram, compile_segment
from weft.compiler.ir.graph import Conv, DeviceOp, DeviceSegment, View
from weft.hdl.isa.config import Config
from weft.sim.certify.graph import Graph, decode, encode
from weft.sim.certify.proof import Proven, prove
from weft.sim.certify.words import Unproven


def graph_before(segment: DeviceSegment) -> Graph:
    """The network of a segment, with what convolutions of tests have behind them as operators of their own."""
    ops = tuple(
        _own(item, index)
        for index, op in enumerate(segment.ops)
        for item in (apart(op) if isinstance(op, Conv) else (op,))
    )
    return decode(encode(graph_of(DeviceSegment(segment.name, ops, states=segment.states))))


def _own(op: DeviceOp, index: int) -> DeviceOp:
    """The same with the buffer between a convolution and its pooling under a name of its own."""

    def renamed(view: View) -> View:
        if view.buffer.name != "unpooled":
            return view
        return dataclasses.replace(view, buffer=dataclasses.replace(view.buffer, name=f"unpooled {index}"))

    return op.on(renamed)


def proven(
    segment: DeviceSegment, config: Config, program: DeviceProgram | None = None, seed: int = 1
) -> Proven:
    """Prove a segment's program, the compiler's if none is given."""
    made = compile_segment(segment, config) if program is None else program
    return prove(graph_before(segment), config, placement_of(made), seed)


def refused(segment: DeviceSegment, config: Config, program: DeviceProgram) -> str:
    """Why a program is not proven; empty if it is."""
    try:
        proven(segment, config, program)
    except Unproven as error:
        return str(error)
    return ""


def rng_of(seed: int) -> np.random.Generator:
    print(f"seed {seed}")
    return np.random.default_rng(seed)
