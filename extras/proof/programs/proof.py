"""Proof that a program computes its network: both are executed on values, and their results compared."""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from weft.extras.proof.programs.field import PRIMES
from weft.extras.proof.programs.formula_check import formula_error
from weft.extras.proof.programs.graph import Graph
from weft.extras.proof.programs.network import NOTHING, Network, Unknown
from weft.extras.proof.programs.value_device import Unproven, ValueDevice
from weft.extras.proof.programs.values import Values
from weft.hdl.isa.config import Config
from weft.sim.device import DeviceError

DEGREE = 4
"""Degree of polynomials between two roundings outside of kernels: a product of two values, multiplied once more."""
_ADDRESSES = 1 << 32


@dataclass(frozen=True)
class Placement:
    """Memory layout of a program and its buffers, in bytes.

    Attributes
    ----------
    bases : mapping of int to int
        Base registers.
    entry : int
        Address of the first instruction.
    memory_bytes : int
        Size of the memory.
    contents : sequence of (int, bytes)
        Addresses and contents of constants and instructions.
    inputs : mapping of str to (int, ndarray)
        Address and layout of each input's buffer. The layout has, for each byte, the index of its element, or
        ``-1 - byte`` for a constant byte.
    buffers : mapping of str to (int, int)
        Address and size of each buffer that the program writes.
    results : collection of str
        Buffers that the host, or the next run, reads. The network has to compute each of their bytes.
    """

    bases: Mapping[int, int]
    entry: int
    memory_bytes: int
    contents: Sequence[tuple[int, bytes]]
    inputs: Mapping[str, tuple[int, np.ndarray]]
    buffers: Mapping[str, tuple[int, int]]
    results: Collection[str] = ()


@dataclass(frozen=True)
class Proof:
    """Statistics of a proof.

    Attributes
    ----------
    compared : int
        Bytes of outputs that are equal functions of the inputs in program and network.
    instructions : int
        Number of instructions executed.
    values : int
        Number of values.
    forms : int
        Number of different roundings, with clamp and table.
    error : float
        The proof is wrong with a probability below ``2**error``.
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
    progress: Callable[[str], None] = lambda text: None,
) -> Proof:
    """Prove that the program at a placement computes a network.

    Parameters
    ----------
    graph : Graph
    config : Config
        Configuration of the device.
    placement : Placement
    seed : int
        Seed of primes and residues. If it is secret, nobody can construct a wrong program that passes.
    progress : callable
        Is called with a description of each step.

    Raises
    ------
    Unproven
        If program and network differ, or equality cannot be shown.
    """
    begin = time.perf_counter()
    check_fit(graph, placement)
    _check_formulas(graph, np.random.default_rng(seed))
    values = Values(seed)
    network, device = Network(values, config), ValueDevice(config, placement.memory_bytes, values)
    for name, size in graph.inputs.items():
        network.buffers[name] = values.new_inputs(size)
    _place(device, values, placement, network.buffers)
    before = device.get_values(0, placement.memory_bytes)
    progress("executing the program")
    try:
        device.offsets = network.offsets(graph)
        device.start(placement.entry)
        device.wait()
        network.run(graph, lambda name: progress(f"executing {name}"))
    except (DeviceError, Unknown) as error:
        raise Unproven(str(error)) from None
    expected = _expected_contents(graph, network, placement)
    after = device.get_values(0, placement.memory_bytes)
    # Different values may be equal functions, and so unchanged.
    changed = (after != before) & (values.residues(after) != values.residues(before)).any(axis=-1)
    _check_unchanged(changed, placement)
    compared = 0
    for name, contents in expected.items():
        address, size = placement.buffers[name]
        part = slice(address, address + size)
        compared += _compare(values, name, after[part], contents, changed[part])
    # Any two of `count` functions collide with the probability of Schwartz and Zippel.
    degree, count = max(DEGREE, values.degree), len(values) + values.function_count
    error_log2 = math.ceil(math.log2(degree * count**2) - 30 * PRIMES)
    seconds = time.perf_counter() - begin
    return Proof(compared, device.instructions, len(values), values.form_count, error_log2, seconds)


def check_fit(graph: Graph, placement: Placement) -> None:
    """Check that network and program have equal inputs and outputs, which do not overlap in memory.

    Raises
    ------
    Unproven
        If a buffer is missing on one side or has another size, if buffers that the host writes or reads overlap, or if
        a buffer overlaps instructions and constants.
    """
    sizes = {name: size for name, (_, size) in placement.buffers.items()}
    outputs = _outputs(graph, placement)
    for name in sorted({*outputs, *graph.states} ^ {*placement.results}):
        if name not in sizes:
            raise Unproven(f"the network computes {name!r}, and the program has no such buffer")
        if name in placement.results:
            raise Unproven(
                f"the program has {sizes[name]:,} bytes of {name!r}, which the network does not compute"
            )
    for name, size in outputs.items():
        if size != sizes[name]:
            raise _size_error(placement, name, size)
    for name, size in graph.inputs.items():
        if name not in placement.inputs:
            raise Unproven(f"the network reads {name!r}, and the program has no such input")
        layout = placement.inputs[name][1]
        if not int(layout.max(initial=-1)) < size <= _ADDRESSES:
            raise Unproven(f"the network reads {size:,} bytes of {name!r}, unlike the program")
    _check_overlaps(placement)


def _check_overlaps(placement: Placement) -> None:
    """Raise `Unproven` if buffers overlap that must not.

    Buffers that only the program uses may be anywhere but over its words and constants. Results may be over inputs,
    because they are written later.
    """
    fixed = [("words and constants", address, len(payload)) for address, payload in placement.contents]
    inputs = [(repr(name), address, len(layout)) for name, (address, layout) in placement.inputs.items()]
    written = [(repr(name), *at) for name, at in placement.buffers.items()]
    results = [(repr(name), *placement.buffers[name]) for name in placement.results]
    check_disjoint(fixed + inputs)
    check_disjoint(results)
    for name, address, size in written:
        for _, start, length in fixed:
            if max(address, start) < min(address + size, start + length):
                raise Unproven(
                    f"{name} overlaps the program's words and constants at {max(address, start):#x}"
                )


def check_disjoint(regions: Iterable[tuple[str, int, int]]) -> None:
    """Raise `Unproven` if regions of memory, each a name, an address and a size, overlap."""
    ordered = sorted((item for item in regions if item[2]), key=lambda item: item[1])
    for (name, address, size), (other, start, _) in itertools.pairwise(ordered):
        if start < address + size:
            raise Unproven(f"{name} and {other} share memory at {start:#x}")


def _check_formulas(graph: Graph, rng: np.random.Generator) -> None:
    for op in graph.operators:
        try:
            reason = formula_error(op, rng)
        except (ArithmeticError, LookupError, TypeError, ValueError) as error:
            reason = f"the formula of {op.name!r} ({op.kind}) is invalid: {error}"
        if reason:
            raise Unproven(reason)


def _expected_contents(graph: Graph, network: Network, placement: Placement) -> dict[str, np.ndarray]:
    """Return the contents of buffers after a run of the network, by name.

    Raises `Unproven` if the network does not compute all of a result.
    """
    sources = {**{name: name for name in _outputs(graph, placement)}, **graph.states}
    contents = {}
    for name, source in sources.items():
        if source not in network.buffers:
            raise Unproven(f"no operator of the network computes {source!r}")
        contents[name] = network.buffers[source]
        size = len(contents[name])
        if size != placement.buffers[name][1]:
            raise _size_error(placement, name, size)
        missing = int((contents[name] == NOTHING).sum())
        if missing and name in placement.results:
            raise Unproven(f"no operator of the network computes {missing:,} of {size:,} bytes of {name!r}")
    return contents


def _outputs(graph: Graph, placement: Placement) -> dict[str, int]:
    """Return the sizes of a network's outputs, without outputs that only become states.

    The program may write those only to the state.
    """
    only_states = {*graph.states.values()} - {*placement.results}
    return {name: size for name, size in graph.outputs.items() if name not in only_states}


def _size_error(placement: Placement, name: str, size: int) -> Unproven:
    own = placement.buffers[name][1]
    return Unproven(f"the network computes {size:,} bytes of {name!r}; the program has {own:,}")


def _place(
    device: ValueDevice, values: Values, placement: Placement, inputs: Mapping[str, np.ndarray]
) -> None:
    """Fill memory like the host before a start. Bytes that it does not write are arbitrary.

    So are inputs that the network does not have.
    """
    for base, address in placement.bases.items():
        device.set_base(base, address)
    numbers, written = np.zeros(placement.memory_bytes, np.int64), np.zeros(placement.memory_bytes, bool)
    contents = [(address, np.frombuffer(payload, np.uint8)) for address, payload in placement.contents]
    input_values = [
        (address, np.where(layout < 0, -1 - layout, inputs[name][np.maximum(layout, 0)]))
        for name, (address, layout) in placement.inputs.items()
        if name in inputs
    ]
    for address, part in (*contents, *input_values):
        numbers[address : address + len(part)] = part
        written[address : address + len(part)] = True
    numbers[~written] = values.new_inputs(placement.memory_bytes - int(written.sum()))
    device.set_values(0, numbers)


def _check_unchanged(changed: np.ndarray, placement: Placement) -> None:
    """Raise `Unproven` if bytes outside of buffers are changed: then the program cannot be started again."""
    changed = changed.copy()
    for address, size in placement.buffers.values():
        changed[address : address + size] = False
    wrong = np.flatnonzero(changed)
    if wrong.size:
        raise Unproven(
            f"the program changes {wrong.size:,} bytes of memory outside of its buffers, first the byte at "
            f"{int(wrong[0]):#x}"
        )


def _compare(
    values: Values, name: str, computed: np.ndarray, expected: np.ndarray, changed: np.ndarray
) -> int:
    """Return the number of bytes of a buffer that the network computes.

    Raises `Unproven` if one of them differs, or if the program has `changed` another byte.
    """
    written = expected != NOTHING
    other = (values.residues(computed) != values.residues(np.maximum(expected, 0))).any(axis=-1)
    wrong = np.flatnonzero(np.where(written, other, changed))
    if wrong.size:
        raise Unproven(
            f"{wrong.size:,} of {len(expected):,} bytes of {name!r} differ from the network's, first byte "
            f"{int(wrong[0]):,}"
        )
    return int(written.sum())
