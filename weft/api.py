"""The Python API: compile, check and load models, and generate Verilog."""

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
from weft.compiler.errors import CompileError
from weft.compiler.frontend import import_model
from weft.compiler.ir.graph import DeviceSegment
from weft.compiler.ir.model import Graph, Shares, clamp_warnings, shares
from weft.compiler.ir.network import MAX_ELEMENTS
from weft.compiler.onnx.reader import Source
from weft.compiler.pipeline import Watch
from weft.compiler.plan.conv_plan import Chooser, plan
from weft.configurations import configuration, memory_of, room_of, sequential_boards
from weft.errors import InputError
from weft.hdl.checker.order import check_sequence
from weft.hdl.checker.program import check as check_program
from weft.hdl.errors import ProgramError
from weft.hdl.extras import provider
from weft.hdl.isa.config import Config
from weft.hdl.schema import printable
from weft.run.program import Changes, Program, folder_of

if TYPE_CHECKING:
    from weft.samples import SampleSource

DESCRIPTION = "weft description 1"
"""Format of the description that `verilog` returns."""


@contextlib.contextmanager
def without_garbage_collection() -> Iterator[None]:
    """Disable garbage collection: a program is millions of live objects, whose collection takes half of the time."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


@without_garbage_collection()
def compile(  # shadows a builtin, but is the natural public name
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
    samples: SampleSource | None = None,
) -> Program:
    """Compile a quantised ONNX (QDQ), TFLite or MLIR model.

    Parameters
    ----------
    model : path, bytes or ModelProto
        The model: a file, serialised, or in memory.
    config : str, path or Config
        Name of a preset or of a board (its own configuration), a JSON file, or a configuration.
    memory : float or str
        Bandwidth in bytes a cycle of the memory to plan for, or a board's name. Default: the memory of board `config`,
        else the bandwidth of the bus. The program computes the same bytes with any memory. If a board's memory is
        inside the FPGA, buffers share memory as far as possible.
    progress : callable
        Called with the name of every operator before it is lowered.
    reuse : bool
        Let intermediate results share memory, and stay on chip between operators. If False, all of them can be read
        after the run.
    plain_inputs : bool
        Store all inputs in NHWC order. Otherwise `Program.run` interleaves rows of an input if that makes a first
        convolution faster; the input then takes up to as many times the memory as the convolution's window has rows.
    choose : Chooser
        Chooses the plans of convolutions, for example from a tuning; default: the best plan by estimate.
    watch : callable
        Called after every pass of the compiler with the name of the pass and its device segment
        (`weft.compiler.ir.model.dump_segment` writes a segment as text).
    shapes : mapping of str to int
        Sizes of the model's open dimensions, by their names or as ``input.axis``.
    states : mapping of str to str
        Inputs of an ONNX model that are states, with the name of the output that is the state of the next run. Neither
        is then an input or output of the program. A TFLite model declares its states itself.
    substitute : int
        Search for graph substitutions that make the program faster, and measure the cycles of at most this number of
        parts of the model. Default: no search. Substitutions change no byte of an output, but intermediate results may
        disappear. `Program.substitutions` describes them.
    rules : str or path
        File of substitution rules from `weft rules --find`, instead of the rules that come with weft. Each is proven
        before it is used.
    budget : float or str
        Apply rewrites that change rounding and make the program faster, up to this error. A number is the largest
        difference of any value that leaves the device, in steps. A text such as ``"1%"`` is the largest share of runs
        in which the class with the maximum may change. Default: no rewrites. `Program.roundings` describes the
        rewrites, and `Program.graphs` are the rewritten graphs.
    samples : mapping, array or path
        Samples to measure the error on, see `quantise`.

    Raises
    ------
    CompileError
        If the model cannot be read or compiled.
    ConfigError
        If the configuration is invalid.
    InputError
        If an argument has a wrong type.
    FileError
        If samples cannot be read.
    RuleError
        If the file of rules cannot be read, or a rule cannot be proven.
    """
    configured, bandwidth = configuration(config), memory_of(memory, config)
    for name, value in (("reuse", reuse), ("plain_inputs", plain_inputs)):
        flag(name, value)
    for name, function in (("progress", progress), ("choose", choose), ("watch", watch)):
        if function is not None and not callable(function):
            raise InputError(f"{name!r} must be a function, not {type(function).__name__}")
    graph = graph_of(model, configured, shapes, states)
    # Rewrites and substitutions change the graph before anything is planned.
    report = progress or _ignore
    graph, roundings = _round_within_budget(graph, configured, bandwidth, budget, samples, report)
    replacements, substitutions = _substitute(graph, configured, bandwidth, substitute, rules, report)
    segments = tuple(
        compile_segment(
            replacements.get(segment.name, segment),
            configured,
            bandwidth=bandwidth,
            reuse=reuse,
            plain_inputs=plain_inputs,
            room=room_of(memory, config),
            sequential=bool(sequential_boards(configured)),
            progress=progress,
            choose=choose,
            watch=watch,
        )
        if isinstance(segment, DeviceSegment)
        else segment
        for segment in graph.segments
    )
    return _check_program(
        Compiled(
            configured,
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
        substitutions,
        roundings,
    )


def _round_within_budget(
    graph: Graph,
    config: Config,
    bandwidth: float | None,
    budget: float | str | None,
    samples: SampleSource | None,
    progress: Callable[[str], None],
) -> tuple[Graph, Changes | None]:
    """Apply rewrites that change rounding. Return the graph and its changes; without a budget, the graph and None."""
    if (budget is None) != (samples is None):
        raise InputError("'budget' is measured on 'samples': give both or neither")
    if budget is None or samples is None:
        return graph, None
    round_graph = provider("round within a budget")
    return round_graph(graph, config, budget, samples, bandwidth=bandwidth, progress=progress)


def _substitute(
    graph: Graph,
    config: Config,
    bandwidth: float | None,
    substitute: int | None,
    rules: str | os.PathLike[str] | None,
    progress: Callable[[str], None],
) -> tuple[dict[str, DeviceSegment], Changes | None]:
    """Return the device segments after graph substitutions by name, and the changes; an empty dict and None if off."""
    if substitute is None:
        if rules is not None:
            raise InputError("'rules' are for a search: give 'substitute' as well")
        return {}, None
    search = provider("substitute operators")
    originals = [segment for segment in graph.segments if isinstance(segment, DeviceSegment)]
    segments, changes = search(
        originals, config, most=substitute, bandwidth=bandwidth, rules=rules, progress=progress
    )
    return {segment.name: segment for segment in segments}, changes


def _ignore(text: str) -> None:
    return None


def graph_of(
    model: Source, config: Config, shapes: Mapping[str, int] | None, states: Mapping[str, str] | None
) -> Graph:
    """Import a model for `config`, and assign its nodes to device and host."""
    if not isinstance(model, Source):
        raise InputError(f"a model is a path, bytes or an onnx.ModelProto, not {type(model).__name__}")
    if not isinstance(shapes, Mapping | None):
        raise InputError(f"'shapes' must be a mapping of names to sizes, not {type(shapes).__name__}")
    sizes = {
        name: integer(f"shapes[{name!r}]", size, 1, MAX_ELEMENTS) for name, size in (shapes or {}).items()
    }
    if not isinstance(states, Mapping | None):
        raise InputError(f"'states' must be a mapping of inputs to outputs, not {type(states).__name__}")
    return import_model(model, config=config, shapes=sizes, states=states)


def _check_program(
    compiled: Compiled,
    graphs: tuple[DeviceSegment, ...] = (),
    substitutions: Changes | None = None,
    roundings: Changes | None = None,
) -> Program:
    """Check every part and instruction of a program, whether it comes from the compiler or a file, and return it."""
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
        If the folder is missing, damaged, or of another version.
    CompileError
        If parts of the program are inconsistent.
    ProgramError
        If instructions access memory outside their buffers, can race or deadlock, or cannot run on the sequential core
        that the configuration needs.
    """
    path = folder_of(folder)
    compiled = load_compiled(path)
    try:
        return _check_program(compiled)
    except (CompileError, ProgramError) as error:
        raise type(error)(f"{path} is damaged: {error}; compile the model again") from None


class Check(list[tuple[str, str, str, str]]):
    """Result of `check`: (name, operator, "device" or "host", reason) of every node of a model, and its `shares`."""

    @property
    def warnings(self) -> tuple[str, ...]:
        """A warning for each value that the device may clamp, because its range is limited."""
        return clamp_warnings(self)

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
    """Return where every node of a model runs, without compiling the model.

    Parameters
    ----------
    model, config, shapes, states
        See `compile`.

    Returns
    -------
    Check
        A list of (str, str, str, str): name, operator, "device" or "host", and for the host the reason. Its attribute
        ``shares`` has the MACs on device and host, and the bytes transferred between them.

    Raises
    ------
    CompileError, ConfigError, InputError
        See `compile`.
    """
    graph = graph_of(model, configuration(config), shapes, states)
    return Check(graph.assignment, shares(graph))


def verilog(
    config: str | os.PathLike[str] | Config = "default", *, prefix: str = ""
) -> tuple[str, dict[str, Any]]:
    """Return the accelerator as Verilog, and its description (parameters, ports, register map) as JSON values.

    The top module is ``weft`` and the modules of its units are ``weft.load``, ``weft.vec.softmax`` and so on. Each
    begins with `prefix`, so that a design can contain several accelerators. A comment above each module says what it
    is.

    The own configuration of a board with the sequential core gives the sequential core
    (`weft.configurations.sequential_boards`), all others give the pipelined core. ``core`` in the description names it.

    Raises
    ------
    ConfigError, InputError
        See `compile`.
    weft.hdl.errors.PrefixError
        If `prefix` cannot begin a Verilog identifier, or is too long.
    """
    from weft.hdl.core import Core
    from weft.hdl.sequential.core import SequentialCore
    from weft.hdl.verilog import check_prefix, describe, generate

    check_prefix(prefix)
    configured = configuration(config)
    sequential = bool(sequential_boards(configured))
    core = SequentialCore(configured) if sequential else Core(configured)
    kind = "sequential" if sequential else "pipelined"
    name = f"{prefix}weft"
    text = generate(core, name=name, comments=True)
    return text, {"format": DESCRIPTION, "core": kind} | describe(configured, name)
