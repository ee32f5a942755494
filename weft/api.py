"""The Python API: compile a model, run it on a device, look at what it cost."""

from __future__ import annotations

import contextlib
import gc
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from weft.arguments import flag, integer
from weft.compiler.artefact import Compiled
from weft.compiler.artefact import load as load_compiled
from weft.compiler.artefact_verify import verify
from weft.compiler.backend import DeviceProgram, compile_segment
from weft.compiler.frontend import import_model
from weft.compiler.ir.graph import CompileError, DeviceSegment
from weft.compiler.ir.model import Graph, Shares, clamps, shares
from weft.compiler.onnx.limits import ELEMENTS
from weft.compiler.onnx.reader import Source
from weft.compiler.pipeline import Watch
from weft.compiler.plan.conv_plan import Chooser, plan
from weft.configurations import configuration, memory_of, room_of, sequential_boards
from weft.errors import InputError
from weft.hdl.checker.order import check_sequence
from weft.hdl.checker.program import ProgramError
from weft.hdl.checker.program import check as check_program
from weft.hdl.extras import provider
from weft.hdl.isa.config import Config
from weft.hdl.schema import printable
from weft.run.program import Changes, Program, folder_of

if TYPE_CHECKING:
    from weft.samples import Given

DESCRIPTION = "weft description 1"
"""Format of what `verilog` says of an accelerator."""


@contextlib.contextmanager
def without_collection() -> Iterator[None]:
    """A program is millions of objects that stay alive: looking for garbage among them takes half of the time."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


@without_collection()
def compile(  # the public name, and what it does
    model: Source,
    config: str | os.PathLike[str] | Config = "default",
    *,
    memory: float | str | None = None,
    progress: Callable[[str], None] | None = None,
    reuse: bool = True,
    plain_inputs: bool = False,
    choose: Chooser = plan,
    watch: Watch | None = None,
    shapes: Mapping[str, int] | None = None,
    states: Mapping[str, str] | None = None,
    substitute: int | None = None,
    rules: str | os.PathLike[str] | None = None,
    budget: float | str | None = None,
    samples: Given | None = None,
) -> Program:
    """Compile a quantised ONNX (QDQ), TFLite or MLIR model.

    Parameters
    ----------
    model : path, bytes or ModelProto
        The model: a file, or serialised, or in memory.
    config : str, path or Config
        A preset's name, a board's (its own configuration), a JSON file, or a configuration.
    memory : float or str
        The memory that the program is planned for: bytes a cycle, or a board's name. By default it is that of the board
        whose name `config` is; else it is as fast as the bus is wide. The program computes the same behind any memory.
        Where it is a board's that is inside the FPGA, values share it as far as they can.
    progress : callable
        Told the name of every operator before it is lowered.
    reuse : bool
        Let intermediates share memory, and stay on chip between operators; without it every one can be looked at
        after the run.
    plain_inputs : bool
        Have all inputs in memory in NHWC order. Otherwise `Program.run` lays rows of an input side by side where that
        makes a first convolution quicker, which takes up to as many times the memory as its kernel has rows.
    choose : Chooser
        Plans convolutions, for example from a tuning; the best by estimate if it is not
        given. All decisions are by these plans.
    watch : callable
        Told the name of every pass of the compiler and the device segment that it made
        (`weft.compiler.ir.model.dump_segment` writes it as text).
    shapes : mapping of str to int
        Sizes of dimensions that the model leaves open, by their names, or by ``input.axis``.
    states : mapping of str to str
        Inputs of an ONNX model that are kept from run to run, each by the name of the output that it becomes for the
        next run; both are then neither inputs nor outputs of the program. A TFLite model says itself what it keeps.
    substitute : int
        Search for graph substitutions that make the program quicker, and measure the cycles of so many parts of it at
        most; none without. They change no byte of an output, while values between operators may no longer exist;
        `Program.substitutions` tells what was done.
    rules : str or path
        A file of rules for it, as `weft rules --find` writes them, in place of those that weft carries. All of them are
        proven first.
    budget : float or str
        Make rewrites that round otherwise where the program gets quicker: as many as keep every value that leaves the
        device within so many steps of what it would be, or, as a text such as ``"1%"``, as move the maximum of an
        output of classes in at most that share of runs. None without. `Program.roundings` tells what was done, and
        `Program.graphs` are the networks that were made.
    samples : mapping, array or path
        What the budget is measured on: as `quantise` takes them.

    Raises
    ------
    CompileError
        If the model cannot be read or compiled.
    ConfigError
        If the configuration is not valid.
    InputError
        If an argument has another type.
    FileError
        If samples cannot be read.
    RuleError
        If a file of rules cannot be read, or one of them does not hold.
    """
    chosen, bandwidth = configuration(config), memory_of(memory, config)
    for name, value in (("reuse", reuse), ("plain_inputs", plain_inputs)):
        flag(name, value)
    for name, function in (("progress", progress), ("choose", choose), ("watch", watch)):
        if function is not None and not callable(function):
            raise InputError(f"{name!r} must be a function, not {type(function).__name__}")
    graph = graph_of(model, chosen, shapes, states)
    told = progress or _silent
    graph, roundings = _rounded(graph, chosen, bandwidth, budget, samples, told)
    planned, done = _substituted(graph, chosen, bandwidth, substitute, rules, told)
    segments = tuple(
        compile_segment(
            planned.get(segment.name, segment),
            chosen,
            bandwidth=bandwidth,
            reuse=reuse,
            plain_inputs=plain_inputs,
            room=room_of(memory, config),
            sequential=bool(sequential_boards(chosen)),
            progress=progress,
            choose=choose,
            watch=watch,
        )
        if isinstance(segment, DeviceSegment)
        else segment
        for segment in graph.segments
    )
    return _checked(
        Compiled(
            chosen,
            segments,
            graph.to_device,
            graph.from_device,
            graph.inputs,
            graph.outputs,
            graph.assignment,
            graph.states,
            bandwidth,
        ),
        tuple(segment for segment in graph.segments if isinstance(segment, DeviceSegment)),
        done,
        roundings,
    )


def _rounded(
    graph: Graph,
    config: Config,
    bandwidth: float | None,
    budget: float | str | None,
    samples: Given | None,
    progress: Callable[[str], None],
) -> tuple[Graph, Changes | None]:
    """The model with rewrites that round otherwise, and what was done; as it is if there is no budget for them."""
    if (budget is None) != (samples is None):
        raise InputError("'budget' is measured on 'samples': give both or neither")
    if budget is None or samples is None:
        return graph, None
    rounded = provider("round within a budget")
    return rounded(graph, config, budget, samples, bandwidth=bandwidth, progress=progress)


def _substituted(
    graph: Graph,
    config: Config,
    bandwidth: float | None,
    substitute: int | None,
    rules: str | os.PathLike[str] | None,
    progress: Callable[[str], None],
) -> tuple[dict[str, DeviceSegment], Changes | None]:
    """By name, device segments with graph substitutions in place of those of a model, and what was done; neither if
    they are not asked for."""
    if substitute is None:
        if rules is not None:
            raise InputError("'rules' are for a search: give 'substitute' as well")
        return {}, None
    substituted = provider("substitute operators")
    own = [segment for segment in graph.segments if isinstance(segment, DeviceSegment)]
    found, done = substituted(
        own, config, most=substitute, bandwidth=bandwidth, rules=rules, progress=progress
    )
    return {segment.name: segment for segment in found}, done


def _silent(text: str) -> None:
    """Tells nobody."""


def graph_of(
    model: Source, config: Config, shapes: Mapping[str, int] | None, states: Mapping[str, str] | None
) -> Graph:
    """The model as `config` runs it: what `compile` compiles, and what `check` tells of."""
    if not isinstance(model, Source):
        raise InputError(f"a model is a path, bytes or an onnx.ModelProto, not {type(model).__name__}")
    if not isinstance(shapes, Mapping | None):
        raise InputError(f"'shapes' must be a mapping of names to sizes, not {type(shapes).__name__}")
    sizes = {name: integer(f"shapes[{name!r}]", size, 1, ELEMENTS) for name, size in (shapes or {}).items()}
    if not isinstance(states, Mapping | None):
        raise InputError(f"'states' must be a mapping of inputs to outputs, not {type(states).__name__}")
    return import_model(model, config=config, shapes=sizes, states=states)


def _checked(
    compiled: Compiled,
    graphs: tuple[DeviceSegment, ...] = (),
    substitutions: Changes | None = None,
    roundings: Changes | None = None,
) -> Program:
    """The program, after a look at every part and instruction: neither compiler nor files are taken on trust."""
    verify(compiled)
    for segment in compiled.segments:
        if isinstance(segment, DeviceProgram):
            try:
                check_program(segment.instructions, compiled.config, extents=segment.areas.extents)
                if sequential_boards(compiled.config):
                    check_sequence(segment.instructions)
            except ProgramError as error:
                raise ProgramError(f"{printable(segment.name)}: {error}") from None
    return Program(compiled, graphs, substitutions, roundings)


def load(folder: str | os.PathLike[str]) -> Program:
    """Read a program that `Program.save` wrote.

    Raises
    ------
    ProgramFileError
        If it is missing, damaged, or of another version.
    CompileError
        If its parts do not fit each other.
    ProgramError
        If its instructions leave what they may read and write, can race or can block each other, or are in no order
        for the sequential core.
    """
    path = folder_of(folder)
    compiled = load_compiled(path)
    try:
        return _checked(compiled)
    except (CompileError, ProgramError) as error:
        raise type(error)(f"{path} is damaged: {error}; compile the model again") from None


class Check(list[tuple[str, str, str, str]]):
    """What `check` tells: (name, operator, "device" or "host", reason) for every node of a model, and its `shares`."""

    @property
    def warnings(self) -> tuple[str, ...]:
        """A sentence for each value that may leave the range that the device has for it."""
        return clamps(self)

    def __init__(self, nodes: Iterable[tuple[str, str, str, str]], shares: Shares) -> None:
        super().__init__(nodes)
        self.shares = shares


def check(
    model: Source,
    config: str | os.PathLike[str] | Config = "default",
    *,
    shapes: Mapping[str, int] | None = None,
    states: Mapping[str, str] | None = None,
) -> Check:
    """Tell where every node of a model runs, without compiling it.

    Parameters
    ----------
    model, config, shapes, states
        As of `compile`.

    Returns
    -------
    Check
        A list of (str, str, str, str): name, operator, "device" or "host", and for the host the reason. Its attribute
        ``shares`` has the multiplications on either side and the bytes that cross.

    Raises
    ------
    CompileError, ConfigError, InputError
        As `compile`.
    """
    graph = graph_of(model, configuration(config), shapes, states)
    return Check(graph.assignment, shares(graph))


def verilog(config: str | os.PathLike[str] | Config = "default") -> tuple[str, dict[str, Any]]:
    """The accelerator as Verilog, and its description (parameters, ports, register map) as JSON values.

    It is the pipelined core, but for the own configurations of boards that have the sequential core
    (`weft.configurations.sequential_boards`); ``core`` of the description says which.

    Raises
    ------
    ConfigError, InputError
        As `compile`.
    """
    from weft.hdl.core import Core
    from weft.hdl.sequential.core import SequentialCore
    from weft.hdl.verilog import describe, generate

    chosen = configuration(config)
    sequential = bool(sequential_boards(chosen))
    core = SequentialCore(chosen) if sequential else Core(chosen)
    kind = "sequential" if sequential else "pipelined"
    return generate(core, name="weft"), {"format": DESCRIPTION, "core": kind} | describe(chosen)
