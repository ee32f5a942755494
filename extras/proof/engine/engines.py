"""Proof engines: property directed reachability and bounded model checking in ABC, k-induction in Yosys."""

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
"""Prefix of `Verdict.how` if the step of induction fails, whatever the time limit."""
_READ = "read_aiger {}; fold; strash"
_ASSERTED = re.compile(r"was asserted in frame\s+(\d+)")


class EngineError(WeftError, RuntimeError):
    """Engine that is missing, or that ended without an answer; the message is the end of its log."""


@dataclass(frozen=True)
class Verdict:
    """Result of an engine.

    Attributes
    ----------
    holds : bool or None
        None if time was up.
    how : str
        The proof in a few words.
    frame : int or None
        Cycle, from 0, in which a claim fails.
    """

    holds: bool | None
    how: str = ""
    frame: int | None = None


def decide(method: Method, folder: Path, seconds: float) -> Verdict:
    """Check the claims of the netlist in `folder` by `method`, in about `seconds`.

    Raises `EngineError`.
    """
    begin = time.monotonic()
    if isinstance(method, Invariant):
        return _invariant(folder, seconds)
    verdict = _bounded(folder, method.depth, seconds)
    if isinstance(method, Bounded) or not verdict.holds:
        return verdict
    return _induction(folder, method, seconds - (time.monotonic() - begin))


def _invariant(folder: Path, seconds: float) -> Verdict:
    output = _abc(folder, f"orpos; pdr -T {max(int(seconds), 1)}", seconds)
    if (frame := _ASSERTED.search(output)) is not None:
        return Verdict(False, frame=int(frame[1]))
    if "Property proved" not in output:
        return _timeout_or_error(output)
    clauses = re.search(r"Verification of invariant with (\d+) clauses was successful", output)
    size = f"an invariant of {int(clauses[1]):,} clauses" if clauses else "combinational logic alone"
    return Verdict(True, size)


def _bounded(folder: Path, depth: int, seconds: float) -> Verdict:
    """Check the cycles from 0 up to, but not including, `depth`."""
    output = _abc(folder, f"orpos; bmc3 -F {depth} -T {max(int(seconds), 1)}", seconds)
    if (frame := _ASSERTED.search(output)) is not None:
        return Verdict(False, frame=int(frame[1]))
    done = re.search(rf"No output asserted in {depth} frames|Property proved|does not depend on", output)
    return Verdict(True, f"all {depth} first cycles") if done else _timeout_or_error(output)


def _induction(folder: Path, method: Induction, seconds: float) -> Verdict:
    """Prove the step of induction; the first cycles are proven before."""
    output = _yosys(
        folder,
        f"read_rtlil {FLAT}",
        f"sat -tempinduct-inductonly -prove-asserts -set-assumes -seq 1 -maxsteps {method.depth} "
        f"-timeout {max(int(seconds), 1)}",
        seconds=seconds,
    )
    if "Induction step proven: SUCCESS!" in output:
        steps = output.count("Induction step failed") + 1
        return Verdict(True, f"induction over {steps} {'cycle' if steps == 1 else 'cycles'}")
    if "TIMEOUT" in output or not output.strip():
        return Verdict(None, "out of time")
    return Verdict(None, f"{NO_INDUCTION} {method.depth} cycles")


def find_covers(folder: Path, depth: int, seconds: float) -> dict[str, int | None]:
    """Return, by output of the netlist in `folder`, the first cycle in which it can be 1.

    It is None if that is not in the first `depth` cycles, or the search takes over `seconds`.
    """
    outputs = re.findall(r"^output (\d+) 0 (\S+)$", (folder / MAP).read_text(), re.MULTILINE)
    raw = (folder / AIG).read_bytes()
    frames: dict[str, int | None] = {}
    for index, name in outputs:
        # One at a time: with assumptions, ABC's search for several outputs crashes.
        file = f"cover{index}.aig"
        (folder / file).write_bytes(select_output(raw, int(index)))
        output = _abc(folder, f"bmc3 -F {depth} -T {max(int(seconds), 1)}", seconds, file)
        verdict = _ASSERTED.search(output)
        frames[name] = int(verdict[1]) if verdict else None
    return frames


def simplify(folder: Path, file: str, result: str, seconds: float) -> list[int]:
    """Merge signals that are equal in all cycles, by ABC's `scorr`, and write the netlist as the file `result`.

    The netlist has no assumptions. It is copied if ABC takes much longer than `seconds`. Returns the literals of its
    outputs: 0 is constant false, 1 constant true. Raises `EngineError`.
    """
    _abc(folder, f"scorr; write_aiger {result}", seconds, file)
    if not (folder / result).exists():
        shutil.copy(folder / file, folder / result)
    raw = (folder / result).read_bytes()
    head, rest = raw.split(b"\n", 1)
    latches, outputs = map(int, head.split()[3:5])
    return [int(line) for line in rest.split(b"\n", latches + outputs)[latches:-1]]


def is_never_1(folder: Path, file: str, index: int, seconds: float) -> bool:
    """Return whether property directed reachability proves that an output, by its number, is never 1.

    The netlist has no assumptions. The search takes about `seconds`. Raises `EngineError`.
    """
    one = folder / "one.aig"
    one.write_bytes(select_output((folder / file).read_bytes(), index))
    return "Property proved" in _abc(folder, f"scorr; pdr -T {max(int(seconds), 1)}", seconds, one.name)


def select_output(raw: bytes, index: int) -> bytes:
    """Return an and-inverter graph with only one output, and all constraints.

    The format is binary AIGER 1.9 (Biere, Heljanko and Wieringa, 2011).
    """
    head, rest = raw.split(b"\n", 1)
    counts = head.split()
    latches, outputs = int(counts[3]), int(counts[4])
    lines = rest.split(b"\n", latches + outputs)
    counts[4] = b"1"
    return b"\n".join([b" ".join(counts), *lines[:latches], lines[latches + index], lines[-1]])


def _timeout_or_error(output: str) -> Verdict:
    if re.search(r"imeout|UNDECIDED|ime limit|out of time|[Rr]each", output) or not output.strip():
        return Verdict(None, "out of time")
    raise EngineError("ABC gave no answer: " + "\n".join(output.strip().splitlines()[-4:]))


def _abc(folder: Path, command: str, seconds: float, file: str = AIG) -> str:
    verdict = find_spec("pyosys")
    if (
        verdict is None
        or verdict.origin is None
        or not (path := Path(verdict.origin).with_name("yosys-abc")).exists()
    ):
        raise EngineError("pyosys has no yosys-abc: install the version of requirements/demo.txt")
    return _run_logged(folder, [str(path), "-c", f"{_READ.format(file)}; {command}"], seconds)


def _yosys(folder: Path, *commands: str, seconds: float) -> str:
    return _run_logged(folder, yosys_command(*commands), seconds)


def _run_logged(folder: Path, command: list[str], seconds: float) -> str:
    """Run a command in `folder`, with its temporary files there, and return its output.

    The output is empty if the command was killed after a timeout. Raises `EngineError` if a signal ended it.
    """
    try:
        process = subprocess.run(
            command, cwd=folder, capture_output=True, text=True, check=False, timeout=seconds * 1.5 + 10,
            env=os.environ | {"TMPDIR": str(folder.absolute())},
        )  # fmt: skip
        output, code = process.stdout + process.stderr, process.returncode
    except subprocess.TimeoutExpired:
        output, code = "", 0
    with (folder / LOG).open("a") as log:
        log.write(output)
    if code < 0:
        raise EngineError(f"{Path(command[0]).name} was ended by signal {-code}: {' '.join(command[-1:])}")
    return output


def trace(folder: Path, frame: int) -> Path:
    """Write the waveform of a counterexample that ends in cycle `frame`, and return its path.

    Raises `EngineError`.
    """
    output = _yosys(
        folder,
        f"read_rtlil {FLAT}",
        f"sat -prove-asserts -set-assumes -seq {frame + 1} -show-public -dump_vcd trace.vcd",
        seconds=600,
    )
    path = folder / "trace.vcd"
    if not path.exists():
        raise EngineError(
            "Yosys found no counterexample where ABC did: " + "\n".join(output.splitlines()[-4:])
        )
    return path


def failing_claims(path: Path) -> list[str]:
    """Return the claims that fail in the last cycle of the waveform at `path`."""
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
