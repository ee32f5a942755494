"""The proof that a program computes what its network does: both are carried out on values, and results compared."""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from weft.extras.proof.programs.field import PRIMES
from weft.extras.proof.programs.graph import Graph
from weft.extras.proof.programs.meaning import NOTHING, Network, Unknown
from weft.extras.proof.programs.nearness import far
from weft.extras.proof.programs.values import Values
from weft.extras.proof.programs.words import Unproven, ValueDevice
from weft.hdl.isa.config import Config
from weft.sim.device import DeviceError

DEGREE = 4
"""Of polynomials between two roundings outside of kernels: a product of two values, in what is multiplied once more."""


_MOST = 1 << 32
"""Bytes that a buffer may have: addresses end there."""


@dataclass(frozen=True)
class Placement:
    """Where a program and its buffers lie in memory, in bytes.

    Attributes
    ----------
    bases : mapping of int to int
        What base registers hold.
    entry : int
        Address of the first word.
    memory_bytes : int
    contents : sequence of (int, bytes)
        Addresses and what is there: constants and words.
    inputs : mapping of str to (int, ndarray)
        For each input the address of its buffer, and for each byte there the place of the element that it holds, or -1
        less a byte that is the same for all inputs.
    buffers : mapping of str to (int, int)
        Address and size of each buffer that the program writes.
    results : collection of str
        Those of `buffers` that the host, or the next run, reads: each byte has to be one that the network computes.
    """

    bases: Mapping[int, int]
    entry: int
    memory_bytes: int
    contents: Sequence[tuple[int, bytes]]
    inputs: Mapping[str, tuple[int, np.ndarray]]
    buffers: Mapping[str, tuple[int, int]]
    results: Collection[str] = ()


@dataclass(frozen=True)
class Proven:
    """A proof.

    Attributes
    ----------
    compared : int
        Bytes of outputs that are the same function of the inputs in program and network.
    instructions : int
        Instructions that were carried out.
    values : int
        Values that there were.
    forms : int
        Different ways to round, clamp and look up.
    error : float
        The probability that it is wrong is below this power of two.
    seconds : float
    """

    compared: int
    instructions: int
    values: int
    forms: int
    error: float
    seconds: float


def prove(
    graph: Graph,
    config: Config,
    placement: Placement,
    seed: int,
    told: Callable[[str], None] = lambda text: None,
) -> Proven:
    """Prove that the program at a placement computes a network.

    Parameters
    ----------
    graph : Graph
    config : Config
        Of the device.
    placement : Placement
    seed : int
        Of all that is drawn. Who does not know it cannot make a wrong program that is taken for a right one.
    told : callable
        Told what is being done.

    Raises
    ------
    Unproven
        If program and network differ, or it is not known that they do not.
    """
    begin = time.perf_counter()
    check_fit(graph, placement)
    _check_formulas(graph, np.random.default_rng(seed))
    values = Values(seed)
    network, device = Network(values, config), ValueDevice(config, placement.memory_bytes, values)
    for name, size in graph.inputs.items():
        network.buffers[name] = values.inputs(size)
    _place(device, values, placement, network.buffers)
    before = device.get_values(0, placement.memory_bytes)
    told("following the program")
    try:
        device.offsets = network.offsets(graph)
        device.start(placement.entry)
        device.wait()
        network.run(graph, lambda name: told(f"following {name}"))
    except (DeviceError, Unknown) as error:
        raise Unproven(str(error)) from None
    meant = _meant(graph, network, placement)
    after = device.get_values(0, placement.memory_bytes)
    changed = (after != before) & (values.residues(after) != values.residues(before)).any(axis=-1)
    _check_kept(changed, placement)
    compared = 0
    for name, contents in meant.items():
        address, size = placement.buffers[name]
        part = slice(address, address + size)
        compared += _compare(values, name, after[part], contents, changed[part])
    degree, count = max(DEGREE, values.degree), len(values) + values.symbols
    chance = math.log2(degree * count**2) - 30 * PRIMES
    return Proven(
        compared,
        device.instructions,
        len(values),
        values.forms,
        math.ceil(chance),
        time.perf_counter() - begin,
    )


def check_fit(graph: Graph, placement: Placement) -> None:
    """Check that a network and a program have the same ends, and that no byte of memory serves two of them.

    Raises
    ------
    Unproven
        If a buffer is missing on one side or has another size, if what the host writes or reads overlaps, or if a
        buffer lies over words and constants.
    """
    sizes = {name: size for name, (_, size) in placement.buffers.items()}
    outputs = _ends(graph, placement)
    for name in sorted({*outputs, *graph.states} ^ {*placement.results}):
        if name not in sizes:
            raise Unproven(f"the network computes {name!r}, and the program has no such buffer")
        if name in placement.results:
            raise Unproven(
                f"the program has {sizes[name]:,} bytes of {name!r}, of which the network says nothing"
            )
    for name, size in outputs.items():
        if size != sizes[name]:
            raise Unproven(f"the network computes {size:,} bytes of {name!r}; {_size(placement, name)}")
    for name, size in graph.inputs.items():
        if name not in placement.inputs:
            raise Unproven(f"the network reads {name!r}, and the program has no such input")
        layout = placement.inputs[name][1]
        if not int(layout.max(initial=-1)) < size <= _MOST:
            raise Unproven(f"the network reads {size:,} bytes of {name!r}, unlike the program")
    _check_apart(placement)


def _check_apart(placement: Placement) -> None:
    """Raises `Unproven` if memory that has to hold two things overlaps. Buffers that only the program uses may lie
    anywhere but over its words and constants, and so may results over inputs: they are written later."""
    fixed = [("words and constants", address, len(payload)) for address, payload in placement.contents]
    given = [(repr(name), address, len(layout)) for name, (address, layout) in placement.inputs.items()]
    written = [(repr(name), *at) for name, at in placement.buffers.items()]
    results = [(repr(name), *placement.buffers[name]) for name in placement.results]
    check_disjoint(fixed + given)
    check_disjoint(results)
    for name, address, size in written:
        for _, start, length in fixed:
            if max(address, start) < min(address + size, start + length):
                raise Unproven(
                    f"{name} lies over the program's words and constants at {max(address, start):#x}"
                )


def check_disjoint(regions: Iterable[tuple[str, int, int]]) -> None:
    """Raises `Unproven` if regions of memory, each a name, an address and a size, overlap."""
    ordered = sorted((item for item in regions if item[2]), key=lambda item: item[1])
    for (name, address, size), (other, start, _) in itertools.pairwise(ordered):
        if start < address + size:
            raise Unproven(f"{name} and {other} share memory at {start:#x}")


def _check_formulas(graph: Graph, rng: np.random.Generator) -> None:
    """Raises `Unproven` if a formula is far from its operator on sample rows."""
    for op in graph.operators:
        try:
            reason = far(op, rng)
        except (ArithmeticError, LookupError, TypeError, ValueError) as error:
            reason = f"the formula of {op.name!r} ({op.kind}) means nothing: {error}"
        if reason:
            raise Unproven(reason)


def _meant(graph: Graph, network: Network, placement: Placement) -> dict[str, np.ndarray]:
    """By name, what buffers hold after a run according to the network. Raises `Unproven` where it says nothing."""
    makers = {**{name: name for name in _ends(graph, placement)}, **graph.states}
    found = {}
    for name, maker in makers.items():
        if maker not in network.buffers:
            raise Unproven(f"no operator of the network computes {maker!r}")
        found[name] = network.buffers[maker]
        if len(found[name]) != placement.buffers[name][1]:
            raise Unproven(
                f"the network computes {len(found[name]):,} bytes of {name!r}; {_size(placement, name)}"
            )
        missing = int((found[name] == NOTHING).sum())
        if missing and name in placement.results:
            raise Unproven(
                f"no operator of the network computes {missing:,} of {len(found[name]):,} bytes of {name!r}"
            )
    return found


def _ends(graph: Graph, placement: Placement) -> dict[str, int]:
    """The outputs of a network, with their sizes, but for those that only become states: the program may write these
    nowhere else."""
    kept = {*graph.states.values()} - {*placement.results}
    return {name: size for name, size in graph.outputs.items() if name not in kept}


def _size(placement: Placement, name: str) -> str:
    return f"the program has {placement.buffers[name][1]:,}"


def _place(
    device: ValueDevice, values: Values, placement: Placement, inputs: Mapping[str, np.ndarray]
) -> None:
    """Fill memory as the host does before a start: all that it does not write may hold anything, and so may an input
    that the network does not have."""
    for base, address in placement.bases.items():
        device.set_base(base, address)
    numbers, known = np.zeros(placement.memory_bytes, np.int64), np.zeros(placement.memory_bytes, bool)
    contents = [(address, np.frombuffer(payload, np.uint8)) for address, payload in placement.contents]
    given = [
        (address, np.where(layout < 0, -1 - layout, inputs[name][np.maximum(layout, 0)]))
        for name, (address, layout) in placement.inputs.items()
        if name in inputs
    ]
    for address, part in (*contents, *given):
        numbers[address : address + len(part)] = part
        known[address : address + len(part)] = True
    numbers[~known] = values.inputs(placement.memory_bytes - int(known.sum()))
    device.set_values(0, numbers)


def _check_kept(changed: np.ndarray, placement: Placement) -> None:
    """Raises `Unproven` if memory was changed that is no buffer's: the program could not be started again."""
    changed = changed.copy()
    for address, size in placement.buffers.values():
        changed[address : address + size] = False
    wrong = np.flatnonzero(changed)
    if wrong.size:
        raise Unproven(
            f"{wrong.size:,} bytes of memory are changed that are in no buffer of the program, the one at "
            f"{int(wrong[0]):#x} first"
        )


def _compare(values: Values, name: str, found: np.ndarray, meant: np.ndarray, changed: np.ndarray) -> int:
    """How many bytes of a buffer are the same; raises `Unproven` if one is not, or one was `changed` of which the
    network says nothing."""
    written = meant != NOTHING
    other = (values.residues(found) != values.residues(np.maximum(meant, 0))).any(axis=-1)
    wrong = np.flatnonzero(np.where(written, other, changed))
    if wrong.size:
        raise Unproven(
            f"{wrong.size:,} of {len(meant):,} bytes of {name!r} are not what the network says, byte "
            f"{int(wrong[0]):,} first"
        )
    return int(written.sum())
