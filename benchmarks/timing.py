"""The cycle model against the RTL: cycles, counters, and speed, on programs of every kind.

    python benchmarks/timing.py [--only TEXT] [--model] [--update]

Every case is compiled as users' models are and runs on both devices behind the same memory. Columns: cycles of both;
*error*, of the model's; *counter*, the largest difference in a counter other than cycles, in parts of the RTL's cycles;
*speed*, the RTL simulation's processor time over the model's, decoding the program included. It fails if a case's
error is above 2 %, a counter's difference above 4 %, or all RTL time together less than 100 times that of the model.

`timing_baseline.json` remembers the RTL's counters and the model's cycles. A case that takes over 1 % longer now is
listed, and fails, until `--update` stores what is. With `--model` the RTL does not run: the model's cycles are compared
with what they were, which takes seconds.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from timing_cases import CASES, Case, Run

from weft.run.runtime import Image
from weft.sim.device import Device
from weft.sim.rtl.device import RtlDevice
from weft.sim.timing import TimingDevice

BASELINE = Path(__file__).with_name("timing_baseline.json")
ERROR, COUNTER, SPEED, SLOWER = 0.02, 0.04, 100, 0.01
HEADER = "| case | RTL cycles | model cycles | error | counter | speed |\n|---|---|---|---|---|---|"

Counters = dict[str, int]


@dataclass(frozen=True)
class Measured:
    """Counters of both devices, and processor time in seconds that they took; 0 where one did not run."""

    rtl: Counters
    model: Counters
    rtl_time: float
    model_time: float

    @property
    def error(self) -> float:
        return self.model["cycles"] / self.rtl["cycles"] - 1

    def counter(self) -> tuple[float, str]:
        """The largest difference in a counter, in parts of the cycles, and which."""
        differences = {
            name: abs(self.model[name] - value) / self.rtl["cycles"]
            for name, value in self.rtl.items()
            if name != "cycles"
        }
        return max((value, name) for name, value in differences.items())


class _Timed:
    """A device that notes the processor time of its programs; loading them is not what is measured."""

    def __init__(self, device: Device) -> None:
        self.device = device
        self.seconds = 0.0

    def __getattr__(self, name: str) -> Any:
        return getattr(self.device, name)

    def start(self, program: int) -> None:
        self.seconds -= time.process_time()
        self.device.start(program)

    def wait(self, timeout: int | None = None) -> None:
        self.device.wait(timeout)
        self.seconds += time.process_time()


def run(device: Device, made: Run) -> tuple[Counters, float]:
    """Counters, and processor time in seconds of the program."""
    timed = _Timed(device)
    Image(made.program).run(timed, made.contents, registers=made.registers)
    return {counter.name.lower(): value for counter, value in device.counters().items()}, timed.seconds


def measure(case: Case, stored: Counters | None) -> Measured:
    """Run `case`; `stored` stands for the RTL's counters if it is given."""
    made = case.make(case.config)
    size = Image(made.program).memory_bytes
    model, model_time = run(TimingDevice(case.config, size, **case.settings()), made)
    if stored is not None:
        return Measured(stored, model, 0.0, model_time)
    with RtlDevice(case.config, size, **case.settings()) as device:
        rtl, rtl_time = run(device, made)
    return Measured(rtl, model, rtl_time, model_time)


def row(case: Case, measured: Measured) -> str:
    counter, name = measured.counter()
    speed = f"{measured.rtl_time / measured.model_time:.0f}" if measured.rtl_time else "-"
    return (
        f"| {case.name} | {measured.rtl['cycles']:,} | {measured.model['cycles']:,} | {measured.error:+.2%} "
        f"| {f'{counter:.2%} {name}' if counter else '-'} | {speed} |"
    )


def off(case: Case, measured: Measured) -> list[str]:
    """In which way model and RTL differ by too much, a sentence each."""
    found = []
    if abs(measured.error) > ERROR:
        found.append(f"{case.name}: the model is {measured.error:+.2%} off")
    counter, name = measured.counter()
    if counter > COUNTER:
        found.append(f"{case.name}: counter {name} is off by {counter:.2%} of the cycles")
    return found


def slower(case: Case, measured: Measured, stored: dict[str, Any]) -> list[str]:
    """Whether the case takes longer than in the baseline, on the RTL or, if that did not run, on the model."""
    on_rtl = measured.rtl_time > 0
    before = stored["rtl"]["cycles"] if on_rtl else stored["model"]
    now = (measured.rtl if on_rtl else measured.model)["cycles"]
    if now <= before * (1 + SLOWER):
        return []
    return [f"{case.name}: takes {now:,} cycles, {now / before - 1:+.1%} on the baseline"]


def write_baseline(stored: dict[str, Any]) -> None:
    """A line a case, so that a difference shows which."""
    lines = [f"{json.dumps(name)}: {json.dumps(value)}" for name, value in sorted(stored.items())]
    BASELINE.write_text("{\n" + ",\n".join(lines) + "\n}\n")


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", default="", help="run cases whose name contains this")
    parser.add_argument("--model", action="store_true", help="compare with the stored counters")
    parser.add_argument("--update", action="store_true", help="store the RTL's counters")
    options = parser.parse_args()
    if options.model and options.update:
        parser.error("--model does not run what --update stores")
    baseline = json.loads(BASELINE.read_text()) if BASELINE.exists() else {}
    chosen = [case for case in CASES if options.only in case.name]
    print(HEADER, flush=True)
    wrong: list[str] = []
    results: dict[str, Measured] = {}
    for case in chosen:
        stored = baseline.get(case.name)
        if options.model and stored is None:
            wrong.append(f"{case.name}: the baseline does not have it")
            continue
        results[case.name] = measured = measure(case, stored["rtl"] if options.model else None)
        print(row(case, measured), flush=True)
        wrong += off(case, measured) if not options.model else []
        wrong += slower(case, measured, stored) if stored and not options.update else []
    wrong += summary(list(results.values()))
    if options.update:
        new = {name: {"model": item.model["cycles"], "rtl": item.rtl} for name, item in results.items()}
        write_baseline(baseline | new)
    for sentence in wrong:
        print(sentence)
    return 1 if wrong else 0


def summary(results: list[Measured]) -> list[str]:
    """Print totals; returns what is out of bounds in them."""
    if not results:
        return ["no case has that name"]
    exact = sum(measured.rtl["cycles"] == measured.model["cycles"] for measured in results)
    whole = sum(measured.rtl == measured.model for measured in results)
    worst = max(abs(measured.error) for measured in results)
    rtl, model = (sum(getattr(measured, f"{name}_time") for measured in results) for name in ("rtl", "model"))
    cycles = sum(measured.rtl["cycles"] for measured in results)
    print(
        f"\n{len(results)} cases: {exact} exact in cycles, {whole} in all counters; largest error {worst:.2%}; "
        f"{cycles:,} cycles in {model:.2f} s on the model"
        + (f", {rtl:.1f} s on the RTL: {rtl / model:.0f} times" if rtl else "")
    )
    if rtl and rtl < SPEED * model and len(results) == len(CASES):
        return [f"the model is only {rtl / model:.0f} times as fast as the RTL simulation"]
    return []


if __name__ == "__main__":
    sys.exit(main())
