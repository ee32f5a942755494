"""The microprogram of the sequential core: fetch, decode, and the bodies of all instructions.

Constants of the configuration are part of its words. Fields of instructions are variables ``f.<field>``.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from weft.hdl.isa import (
    INSTRUCTIONS,
    WORD_BYTES,
    Instruction,
    Microcode,
    Normalise,
    Queue,
    Softmax,
    Vec,
    VectorInstruction,
    required_features,
)
from weft.hdl.isa.config import Config
from weft.hdl.sequential import (  # noqa: F401 -- bodies
    micro_kernel,
    micro_memory,
    micro_softmax,
    micro_vector,
    processor,
)
from weft.hdl.sequential.assembler import BODIES, Condition, Function, MemoryOut, Micro, Out, Port
from weft.hdl.sequential.control import PROGRAM

_LEAST_OPERAND = 11


_VECTOR_NAMES = {
    "alignment": "b", "alignment_ob": "b_ob", "alignment_oy": "b_oy", "alignment_ox": "b_ox",
    "state": "s", "state_ob": "s_ob", "state_oy": "s_oy", "state_ox": "s_ox",
}  # fmt: skip
"""Names under which Softmax and Normalise share variables with Vec: ``b``, the second address, and ``s``, a third."""

_COMMON = len(dataclasses.fields(VectorInstruction))


class Microprogram:
    """Microprogram of a configuration, and the layout of its data memory.

    Parameters
    ----------
    config : Config

    Attributes
    ----------
    words : list of int
    operand_bits : int
    constants : list of int
        Initial content of data memory.
    depth : int
        Words of data memory.
    """

    def __init__(self, config: Config) -> None:
        # The first two passes determine the number of variables and the bits of operands.
        shared = _write(Micro(config, 24)).shared_words
        first = _write(Micro(config, 24, shared))
        blocks, depth = _blocks(config, first.used_words)
        words = len(first.assemble())
        self.operand_bits = max(_LEAST_OPERAND, (depth - 1).bit_length(), (words - 1).bit_length())
        micro = Micro(config, self.operand_bits, shared)
        micro.blocks = blocks
        if config.kernel:
            micro.variables["immediate"] = processor.immediate(config.n, depth)
        _write(micro)
        self.words = micro.assemble()
        self.depth = depth
        self.constants = [micro.constants.get(address, 0) for address in range(micro.shared_words)]


def _blocks(config: Config, start: int) -> tuple[dict[str, int], int]:
    """Return the addresses of the blocks, from `start` on, and the depth of data memory."""
    sizes = {"parameters": 2 * config.n}
    if config.softmax:
        sizes |= {"logits": config.n, "states": 2 * config.row_states, "alignments": config.alignments}
    if config.kernel:
        sizes |= {"microcode": 2 * config.kernel}
    blocks, end = {}, start + start % 2
    for name, size in sizes.items():
        blocks[name] = end
        end += size
    if not config.kernel:
        return blocks, 1 << (end - 1).bit_length()
    numbered, used = processor.last_words(config.n)
    return blocks, max(1 << (end + used - 1).bit_length(), numbered)


def _write(m: Micro) -> Micro:
    """Write the whole program to `m`, beginning with the fetch loop."""
    _boot(m)
    kinds = [kind for kind in INSTRUCTIONS.values() if kind in BODIES and not kind().unsupported(m.config)]
    for name in ("error", "trash", "places", "shifted"):
        m.variable(name)
    _fetch(m, kinds)
    groups: dict[Queue | None, dict[str, int]] = {kind.QUEUE: {} for kind in kinds}
    for kind in kinds:
        assert kind.QUEUE is not None
        m.group(groups[kind.QUEUE])
        m.label(_label(kind))
        names = _VECTOR_NAMES if kind in (Softmax, Normalise) else {}
        if issubclass(kind, VectorInstruction):
            m.call("common")
            m.fields(kind, names, _COMMON, _field_count(kind, m.config))
        else:
            m.fields(kind, names, 0, _field_count(kind, m.config))
        # The unit counts as busy only from here on, because the code before waits for the fetch.
        if kind.QUEUE is Queue.VEC and kind is not Microcode:
            m.call("start")
        else:
            if kind is not Microcode:  # the body of Microcode takes the remaining fields
                m.call("rest")
            _busy(m, kind.QUEUE)
        BODIES[kind](m)
        m.jump("next")
    m.group(groups[Queue.VEC])
    m.label("common")
    m.fields(Vec, {}, 0, _COMMON)
    m.back()
    m.label("rest")
    _rest(m)
    m.back()
    m.label("start")
    _rest(m)
    _busy(m, Queue.VEC)
    m.back()
    micro_vector.write_shared(m)
    if m.config.softmax:
        micro_softmax.write_shared(m)
    return m


def _rest(m: Micro) -> None:
    """Discard the rest of an instruction, and wait until memory is idle."""
    m.ld(0)
    m.memory(MemoryOut.REMAIN)
    m.wait(Condition.MEMORY_IDLE)


def _busy(m: Micro, queue: Queue) -> None:
    m.ld(1 << queue)
    m.memory(MemoryOut.EVENTS)


def _field_count(kind: type[Instruction], config: Config) -> int:
    """Return the number of fields to store: all fields after the last one that the configuration has are 0."""
    names = [field.name for field in dataclasses.fields(kind)]
    if kind is Microcode:
        return names.index("op0")
    lacking = {name for name, feature in required_features(kind.OPCODE).items() if feature.missing(config)}
    return max(count for count, name in enumerate(names, 1) if name not in lacking)


def _label(kind: type[Instruction]) -> str:
    return kind.OPCODE.name.lower()


def _boot(m: Micro) -> None:
    """Clear the row of zeros, and wait for a program."""
    # Writes go to the row of zeros.
    m.ld(0b100, Out.MODE)
    m.ld(0, Out.COLUMN)
    clear = m.label()
    m.out(Out.ACCUMULATOR_WRITE)
    m.jump(clear, Condition.COLUMN_ZERO, unless=True)
    m.label("ready")
    m.out(Out.MODE)
    m.wait(Condition.STARTED)


def _fetch(m: Micro, kinds: Sequence[type[Instruction]]) -> None:
    m.variables["program"] = PROGRAM
    m.copy("pc", "program")
    m.jump("fetch")
    m.label("next")
    m.ld(0)
    m.memory(MemoryOut.EVENTS)
    m.label("fetch")
    m.ld("pc")
    m.memory(MemoryOut.ADDRESS)
    m.ld(WORD_BYTES)
    m.memory(MemoryOut.REMAIN)
    m.op(Function.ADD, "pc", write=True)
    m.ld(Port.WORD, Out.BITS)
    m.take(8, "code")
    m.jump("end", Condition.ZERO)
    # Compare the opcode with all kinds, by repeated subtraction.
    before = 0
    for kind in kinds:  # in order of their opcodes
        m.sub(kind.OPCODE - before)
        m.jump(_label(kind), Condition.ZERO)
        before = kind.OPCODE
    m.ld(1)
    m.label("end")  # jumps to this label arrive with 0 in the accumulator
    m.st("error")
    m.call("rest")  # leaves 0 in the accumulator
    m.memory(MemoryOut.EVENTS)
    m.ld("error")
    m.memory(MemoryOut.FINISH)
    m.ld(0)
    m.jump("ready")
