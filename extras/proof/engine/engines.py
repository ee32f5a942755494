"""The engines: property directed reachability and bounded search in ABC, temporal induction in Yosys."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import time
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from vcd.reader import TokenKind, tokenize

from weft.extras.proof.engine.netlist import AIG, FLAT, LOG, MAP
from weft.extras.proof.hardware.property import CLAIM, Bounded, Induction, Invariant, Method
from weft.hdl.errors import WeftError
from weft.hdl.verilog import yosys_command

NO_INDUCTION = "no induction over"
"""What `Verdict.how` begins with if induction does not close, however much time there is."""
_READ = "read_aiger {}; fold; strash"
_ASSERTED = re.compile(r"was asserted in frame\s+(\d+)")


class EngineError(WeftError, RuntimeError):
    """An engine that is missing, or that ended without an answer; the message is the end of its log."""


@dataclass(frozen=True)
class Verdict:
    """What an engine found.

    Attributes
    ----------
    holds : bool or None
        None if the time was up.
    how : str
        The proof in a few words.
    frame : int or None
        The cycle, from 0, in which a claim does not hold.
    """

    holds: bool | None
    how: str = ""
    frame: int | None = None


def decide(method: Method, folder: Path, seconds: float) -> Verdict:
    """Find out by `method` whether what the netlist in `folder` claims holds, in about `seconds`.

    Raises `EngineError`.
    """
    begin = time.monotonic()
    if isinstance(method, Invariant):
        return _invariant(folder, seconds)
    found = _bounded(folder, method.depth, seconds)
    if isinstance(method, Bounded) or not found.holds:
        return found
    return _induction(folder, method, seconds - (time.monotonic() - begin))


def _invariant(folder: Path, seconds: float) -> Verdict:
    said = _abc(folder, f"orpos; pdr -T {max(int(seconds), 1)}", seconds)
    if (frame := _ASSERTED.search(said)) is not None:
        return Verdict(False, frame=int(frame[1]))
    if "Property proved" not in said:
        return _unless_out_of_time(said)
    clauses = re.search(r"Verification of invariant with (\d+) clauses was successful", said)
    size = f"an invariant of {int(clauses[1]):,} clauses" if clauses else "combinational logic alone"
    return Verdict(True, size)


def _bounded(folder: Path, depth: int, seconds: float) -> Verdict:
    """The cycles from 0 to `depth`, not included."""
    said = _abc(folder, f"orpos; bmc3 -F {depth} -T {max(int(seconds), 1)}", seconds)
    if (frame := _ASSERTED.search(said)) is not None:
        return Verdict(False, frame=int(frame[1]))
    done = re.search(rf"No output asserted in {depth} frames|Property proved|does not depend on", said)
    return Verdict(True, f"all {depth} first cycles") if done else _unless_out_of_time(said)


def _induction(folder: Path, method: Induction, seconds: float) -> Verdict:
    """The step of induction; that the first cycles hold is known."""
    said = _yosys(
        folder,
        f"read_rtlil {FLAT}",
        f"sat -tempinduct-inductonly -prove-asserts -set-assumes -seq 1 -maxsteps {method.depth} "
        f"-timeout {max(int(seconds), 1)}",
        seconds=seconds,
    )
    if "Induction step proven: SUCCESS!" in said:
        steps = said.count("Induction step failed") + 1
        return Verdict(True, f"induction over {steps} {'cycle' if steps == 1 else 'cycles'}")
    if "TIMEOUT" in said or not said.strip():
        return Verdict(None, "out of time")
    return Verdict(None, f"{NO_INDUCTION} {method.depth} cycles")


def reached(folder: Path, depth: int, seconds: float) -> dict[str, int | None]:
    """By the name of an output of the netlist in `folder` the first cycle in which it can be 1; None if that is behind
    the first `depth` cycles, or took over `seconds` to find."""
    outputs = re.findall(r"^output (\d+) 0 (\S+)$", (folder / MAP).read_text(), re.MULTILINE)
    raw = (folder / AIG).read_bytes()
    frames: dict[str, int | None] = {}
    for index, name in outputs:
        # One at a time: ABC's search for several outputs at once ends with a signal where inputs are assumed.
        file = f"cover{index}.aig"
        (folder / file).write_bytes(of_one_output(raw, int(index)))
        said = _abc(folder, f"bmc3 -F {depth} -T {max(int(seconds), 1)}", seconds, file)
        found = _ASSERTED.search(said)
        frames[name] = int(found[1]) if found else None
    return frames


def simplified(folder: Path, file: str, result: str, seconds: float) -> list[int]:
    """Merge signals of a netlist without assumptions that are equal in all cycles, by ABC's `scorr`, and write it as
    the file `result`; as it was if that takes much longer than `seconds`. Returns the literals of its outputs: 0 is
    false for ever, 1 true.

    Raises `EngineError`.
    """
    _abc(folder, f"scorr; write_aiger {result}", seconds, file)
    if not (folder / result).exists():
        shutil.copy(folder / file, folder / result)
    raw = (folder / result).read_bytes()
    head, rest = raw.split(b"\n", 1)
    latches, outputs = map(int, head.split()[3:5])
    return [int(line) for line in rest.split(b"\n", latches + outputs)[latches:-1]]


def never(folder: Path, file: str, index: int, seconds: float) -> bool:
    """Whether it is proven in about `seconds` that an output of a netlist without assumptions, by its number, is never
    1, by property directed reachability.

    Raises `EngineError`.
    """
    one = folder / "one.aig"
    one.write_bytes(of_one_output((folder / file).read_bytes(), index))
    return "Property proved" in _abc(folder, f"scorr; pdr -T {max(int(seconds), 1)}", seconds, one.name)


def of_one_output(raw: bytes, index: int) -> bytes:
    """An and-inverter graph in the binary AIGER format 1.9 (Biere, Heljanko and Wieringa, 2011) with only that output,
    and all its constraints."""
    head, rest = raw.split(b"\n", 1)
    counts = head.split()
    latches, outputs = int(counts[3]), int(counts[4])
    lines = rest.split(b"\n", latches + outputs)
    counts[4] = b"1"
    return b"\n".join([b" ".join(counts), *lines[:latches], lines[latches + index], lines[-1]])


def _unless_out_of_time(said: str) -> Verdict:
    if re.search(r"imeout|UNDECIDED|ime limit|out of time|[Rr]each", said) or not said.strip():
        return Verdict(None, "out of time")
    raise EngineError("ABC gave no answer: " + "\n".join(said.strip().splitlines()[-4:]))


def _abc(folder: Path, command: str, seconds: float, file: str = AIG) -> str:
    found = find_spec("pyosys")
    if (
        found is None
        or found.origin is None
        or not (path := Path(found.origin).with_name("yosys-abc")).exists()
    ):
        raise EngineError("there is no yosys-abc beside pyosys: install the version of requirements/demo.txt")
    return _logged(folder, [str(path), "-c", f"{_READ.format(file)}; {command}"], seconds)


def _yosys(folder: Path, *commands: str, seconds: float) -> str:
    return _logged(folder, yosys_command(*commands), seconds)


def _logged(folder: Path, command: list[str], seconds: float) -> str:
    """Run a command in `folder`; what it says, nothing if it was ended after a while longer than `seconds`.

    Temporary files are in `folder`, for whoever removes that one.

    Raises `EngineError` if it was ended by a signal of its own.
    """
    try:
        process = subprocess.run(
            command, cwd=folder, capture_output=True, text=True, check=False, timeout=seconds * 1.5 + 10,
            env=os.environ | {"TMPDIR": str(folder.absolute())},
        )  # fmt: skip
        said, code = process.stdout + process.stderr, process.returncode
    except subprocess.TimeoutExpired:
        said, code = "", 0
    with (folder / LOG).open("a") as log:
        log.write(said)
    if code < 0:
        raise EngineError(f"{Path(command[0]).name} was ended by signal {-code}: {' '.join(command[-1:])}")
    return said


def trace(folder: Path, frame: int) -> Path:
    """Write the waveform of a counterexample that ends in cycle `frame`, and return its path.

    Raises `EngineError`.
    """
    said = _yosys(
        folder,
        f"read_rtlil {FLAT}",
        f"sat -prove-asserts -set-assumes -seq {frame + 1} -show-public -dump_vcd trace.vcd",
        seconds=600,
    )
    path = folder / "trace.vcd"
    if not path.exists():
        raise EngineError("Yosys found no counterexample where ABC did: " + "\n".join(said.splitlines()[-4:]))
    return path


def failing(path: Path) -> list[str]:
    """The claims that do not hold in the last cycle of the waveform at `path`."""
    names: dict[str, str] = {}
    values: dict[str, str] = {}
    with path.open("rb") as file:
        for token in tokenize(file):
            if token.kind is TokenKind.VAR and token.var.reference.startswith(CLAIM):
                names[token.var.id_code] = token.var.reference
            elif token.kind is TokenKind.CHANGE_SCALAR:
                values[token.scalar_change.id_code] = token.scalar_change.value
    return sorted(
        name.removeprefix(CLAIM).replace("_", " ") for code, name in names.items() if values.get(code) == "0"
    )
