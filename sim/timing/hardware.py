"""Constants and layouts of the hardware for the cycle model, read from their definitions in `weft.hdl`."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Sequence

from weft.hdl import store
from weft.hdl.bus import axi
from weft.hdl.control import fetch, sequencer
from weft.hdl.isa import (
    INSTRUCTIONS,
    PARAMETER_VECTORS,
    PROGRAM_REGISTERS,
    SEMAPHORES,
    WORD_BYTES,
    Instruction,
    Mm,
    Mode,
    Opcode,
    Place,
    Queue,
    VectorInstruction,
    places,
    program_lists,
    register_fields,
)
from weft.hdl.isa.config import MAX_KERNEL_ENTRIES, Config, Feature
from weft.hdl.isa.encoding import FACTOR_FRACTION_BITS, FACTORS_SHIFT, GROUP_WORDS
from weft.hdl.isa.kernel import STRIP_ROWS, Op, micro_places
from weft.hdl.isa.loops import READ_BYTES, SLOTS
from weft.hdl.isa.memmap import Counter
from weft.hdl.isa.operands import (
    DIVISION_LATENCY,
    KERNEL_LATENCY,
    READ_LATENCY,
    kernel_min_cycles,
    kernel_serial_cycles,
    lookup_latency,
    rmw_latency,
)
from weft.hdl.lib import arithmetic
from weft.hdl.lib.loopnest import Walk
from weft.hdl.load import load, unpack
from weft.hdl.matrix import mm_rows
from weft.hdl.matrix.array import array_latency
from weft.hdl.vector import probabilities, requantise, softmax, vec_reader, vec_softmax, vec_streams
from weft.sim.memories import Sdram

# Most register fields in an instruction
_MAX_REGISTERS = 2
# Names of fields that are reserved words in C++
_KEYWORDS = {"register", "unsigned"}
NORMALISING = 5
"""Typical cycles for the divider to normalise a sum, because the model has no data. The real number is 8 for a sum of 1
to 2 full probabilities, 1 less for every doubling, and 2 for a sum below 1."""
MASKED = 5
"""Cycles from accepting a Softmax to `weft.hdl.vector.softmax.Mask.ready`: its phase counts to 4."""


def parameters(config: Config) -> dict[str, int]:
    """Return the parameters of the model for a configuration, in cycles unless they are fields of `Config`."""
    # Stages of the vector unit, in cycles after a granted read.
    result = vec_softmax.CHOSEN + requantise.LATENCY
    ends = result + probabilities.tree_stages(config) + 2 + config.groups
    state = ends + probabilities.sum_latency(config) - softmax.TOTAL
    early = vec_softmax.CHOSEN + 1 + config.groups
    return {
        **config.to_dict(),
        "groups": config.groups,
        "softmax": int(config.softmax),
        "features": _feature_mask(feature for feature in Feature if not feature.missing(config)),
        "scratchpad_size": config.scratchpad_size,
        "accumulator_size": config.accumulator_size,
        "word_bytes": WORD_BYTES,
        "list_pitch": program_lists.pitch(config),
        "descriptor_read": program_lists.RECORD_READ_BYTES,
        "descriptor_record": program_lists.RECORD_BYTES,
        # Scratchpad, array and accumulator
        "read_latency": READ_LATENCY,
        "row_latency": mm_rows.ROW_LATENCY,
        "array_latency": array_latency(config),
        "rmw_latency": rmw_latency(config),
        # Instruction fetch
        "fetch_burst_bytes": fetch.BURST_BYTES,
        "fetch_bursts": fetch.BURSTS,
        "fetch_block_depth": fetch.BLOCK_DEPTH,
        "fetch_page": fetch.PAGE,
        # LOAD and STORE: bursts, queues of descriptors, credits
        "load_block": axi.block_beats(config, load.BURST_BEATS),
        "load_descriptors": min(load.DESCRIPTORS, config.queue_depth),
        "load_ahead": load.AHEAD_BEATS,
        "unpack_vectors": unpack.VECTORS,
        "store_block": axi.block_beats(config),
        "store_descriptors": min(store.DESCRIPTORS, config.queue_depth),
        "store_unconfirmed": min(store.UNCONFIRMED, 2 * config.queue_depth),
        "store_bursts": store.BURSTS,
        "store_reads": store.READS,
        "burst_page": axi.PAGE,
        # Vector unit: results and writes after a granted read
        "vec_latency": result + lookup_latency(config),
        "vec_settling": vec_reader.SETTLING,
        "softmax_write": ends + probabilities.PROBABILITY + 1,
        "softmax_end": state + softmax.ALIGNED,
        "mask_ready": MASKED,
        "under_way_most": vec_softmax._IN_FLIGHT,
        "under_way_latency": vec_softmax.CHOSEN + max(softmax.WRITTEN + 1 - early, 0),
        # Divider of NORMALISE
        "divider_lead": arithmetic.LEAD,
        "divider_steps": DIVISION_LATENCY,
        "divider_read": arithmetic._SUM_LATENCY,
        "divider_normalising": NORMALISING,
        # Kernel engine
        "kernel_result": KERNEL_LATENCY,
        "kernel_least": kernel_min_cycles(config.groups),
        "kernel_reciprocal": kernel_serial_cycles(config.lanes, 1, root=False),
        "kernel_root": kernel_serial_cycles(config.lanes, 1, root=True),
        "kernel_row_reciprocal": kernel_serial_cycles(1, config.groups, root=False),
        "kernel_row_root": kernel_serial_cycles(1, config.groups, root=True),
    }


def _feature_mask(features: Iterable[Feature]) -> int:
    return sum(1 << list(Feature).index(feature) for feature in features)


def struct(name: str, fields: list[str]) -> str:
    members = "".join(f" {field}{'_' if field in _KEYWORDS else ''}," for field in fields)
    return f"struct {name} {{\n    int64_t{members[:-1]};\n}};\n"


def _names(kind: type[Instruction]) -> list[str]:
    return [field.name for field in dataclasses.fields(kind)]


def _field(place: Place) -> str:
    return f"{{{place.position}, {place.width}, {str(place.signed).lower()}, {place.low}}}"


def _table(opcode: str, kind: type[Instruction]) -> str:
    rows = [_field(place) for place in places(kind.OPCODE).values()]
    return f"constexpr Field FIELDS_{opcode}[] = {{ {', '.join(rows)} }};\n"


def _kind(opcode: str, kind: type[Instruction]) -> str:
    names = _names(kind)
    parameters = names.index("params") if "params" in names else -1
    indices = [names.index(name) for name in register_fields(kind.OPCODE)]
    assert len(indices) <= _MAX_REGISTERS
    fields = ", ".join(map(str, indices + [-1] * (_MAX_REGISTERS - len(indices))))
    requires = _feature_mask([kind.REQUIRES] if kind.REQUIRES else [])
    return f"{{FIELDS_{opcode}, {len(names)}, {parameters}, {requires}, {{{fields}}}}}"


WALKS: dict[str, tuple[Walk, list[type[Instruction]]]] = {
    "RowWalk": (mm_rows.WALK, [Mm]),
    "TileWalk": (mm_rows.WEIGHTS_WALK, [Mm]),
    "VectorWalk": (
        vec_streams.WALK,
        [kind for kind in INSTRUCTIONS.values() if issubclass(kind, VectorInstruction)],
    ),
}
"""Loop nests of units by their names in C++, and the instructions that set them."""


def _walk(name: str, walk: Walk, kinds: Sequence[type[Instruction]]) -> str:
    """Return C++ with a nest's loops and values as enumerations, and functions that set it for an instruction."""
    values = [value for value, _ in walk.values()]
    lines = [
        f"struct {name} {{",
        f"    enum Loop {{ {', '.join(loop.upper() for loop in walk.loops)}, LOOPS }};",
        f"    enum Value {{ {', '.join(value.upper() for value in values)}, VALUES }};",
    ]
    for kind in kinds:
        lines += [
            "    template <class Nest>",
            f"    static void take(Nest& nest, [[maybe_unused]] const Parameters& p, const {kind.__name__}& op) {{",
            *(f"        {line};" for line in _assignments(walk, kind)),
            "    }",
        ]
    lines += [
        "    // For any opcode; an instruction without these loops leaves the nest unchanged.",
        "    template <class Nest>",
        "    static void take(Nest& nest, const Parameters& p, int opcode, const int64_t* fields) {",
        *(f"        if (opcode == OP_{kind.OPCODE.name}) take(nest, p, {_cast(kind)});" for kind in kinds),
        "    }",
    ]
    return "\n".join([*lines, "};\n"])


def _cast(kind: type[Instruction]) -> str:
    return f"*reinterpret_cast<const {kind.__name__}*>(fields)"


def _assignments(walk: Walk, kind: type[Instruction]) -> Iterator[str]:
    """Yield the assignments that set a nest for an instruction of this class; loops that it lacks run once."""
    fields = _names(kind)
    for loop in walk.loops:
        count = walk.count(loop)
        if isinstance(count, str):
            yield f"nest.count[{loop.upper()}] = {f'op.{count}' if count in fields else 1}"
        else:
            yield f"nest.count[{loop.upper()}] = {' * '.join(f'p.{name}' for name in count.parameters)}"
    for name, value in walk.values():
        strides = [value.stride(loop) for loop in walk.loops]
        expressions = [f"op.{stride}" if stride in fields else "0" for stride in strides]
        yield f"nest.set({name.upper()}, {f'op.{name}' if name in fields else 0}, {{{', '.join(expressions)}}})"


def _micro_operations() -> str:
    names = ", ".join(f"OP_MICRO_{op.name} = {int(op)}" for op in Op)
    rows = ", ".join(_field(place) for place in micro_places().values())
    return (
        f"constexpr int STRIP_ROW_COUNT = {STRIP_ROWS}, MICRO_MOST = {MAX_KERNEL_ENTRIES};\n"
        f"enum MicroOperation {{ {names} }};\n"
        + struct("MicroOp", list(micro_places()))
        + f"constexpr Field FIELDS_MICRO[] = {{ {rows} }};\n"
    )


def _int4_groups() -> str:
    """Return C++ for LOADs of int4 groups: constants, and the DRAM bytes of a row of any LOAD."""
    return (
        f"constexpr int GROUP = {GROUP_WORDS}, FACTOR_PLACES = {FACTOR_FRACTION_BITS};\n"
        "constexpr int64_t taken(int64_t run, bool blocks) {\n"
        f"    return blocks ? run + (run >> {FACTORS_SHIFT}) : run;\n"
        "}\n"
    )


def _control() -> str:
    """Return C++ constants of SET, NEXT and READ, and the number of registers."""
    numbers = {
        "SLOT_COUNT": SLOTS,
        "SLOT_FIELD": list(places(Opcode.SET)).index("register0"),
        "SLOT_WORD": sequencer.FIRST_VALUE_WORD,
        "BACK_WORD": sequencer.BACK_WORD,
        "READ_LENGTH": READ_BYTES,
        "MODE_SET": int(Mode.SET),
        "MODE_ADD_REGISTER": int(Mode.ADD_REGISTER),
        "REGISTER_COUNT": PROGRAM_REGISTERS,
    }
    return "".join(f"constexpr unsigned {name} = {value};\n" for name, value in numbers.items())


def header() -> str:
    """Return C++ with the definitions of `weft.hdl`: instructions, queues, counters, and names of `parameters`."""
    kinds = [(opcode.name, cls) for opcode, cls in sorted(INSTRUCTIONS.items())]
    assert sorted(INSTRUCTIONS) == list(range(len(kinds)))  # opcodes index the tables in C++
    queues = ", ".join(str(-1 if cls.QUEUE is None else int(cls.QUEUE)) for _, cls in kinds)
    structs: list[type[Instruction]] = [VectorInstruction, *(cls for _, cls in kinds)]
    return "".join([
        "#pragma once\n#include <cstdint>\nnamespace weft {\n",
        f"enum Unit {{ {', '.join(queue.name for queue in Queue)}, QUEUE_COUNT }};\n",
        f"enum Opcode {{ {', '.join('OP_' + name for name, _ in kinds)} }};\n",
        f"constexpr int OPCODE_QUEUE[] = {{ {queues} }};\n",
        f"constexpr unsigned WORD_LENGTH = {WORD_BYTES};\n",
        f"constexpr unsigned SEMAPHORE_COUNT = {SEMAPHORES}, PARAMETER_VECTOR_COUNT = {PARAMETER_VECTORS};\n",
        f"enum CounterIndex {{ {', '.join('COUNT_' + counter.name for counter in Counter)} }};\n",
        struct("Parameters", list(parameters(Config()))),
        struct("SdramParameters", [field.name for field in dataclasses.fields(Sdram)]),
        struct("Header", _names(Instruction)),
        *(struct(cls.__name__, _names(cls)) for cls in structs),
        *(_walk(name, walk, users) for name, (walk, users) in WALKS.items()),
        "struct Field { uint16_t position, width; bool is_signed; int64_t least; };\n",
        _micro_operations(),
        _control(),
        _int4_groups(),
        *(_table(name, cls) for name, cls in kinds),
        "struct Kind { const Field* fields; unsigned count; int parameters; int64_t features; int registers[2]; };\n",
        f"constexpr Kind KINDS[] = {{ {', '.join(_kind(name, cls) for name, cls in kinds)} }};\n",
        "}  // namespace weft\n",
    ])  # fmt: skip
