"""Traces: valid Trace Events, each instruction once, sums equal to the counters, drawings of bounded size."""

from __future__ import annotations

import dataclasses
import json
from collections import Counter as Tally
from itertools import pairwise
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest

import weft
from weft.api import Program
from weft.cli import main, timelines
from weft.compiler.backend import DeviceProgram
from weft.errors import FileError
from weft.examples import attention, digits
from weft.hdl.checker.extents import Memory, on_chip_accesses
from weft.hdl.isa import Load, Queue, Store
from weft.hdl.isa.code import assemble
from weft.hdl.isa.config import PRESETS
from weft.hdl.isa.memmap import Counter
from weft.run.trace import LAYERS, TRACKS, Slice, Timeline, timelines_of
from weft.sim.rtl.trace import TracedRtl
from weft.sim.timing.device import occupancy

Event = dict[str, Any]
MEMORY: dict[str, Any] = {"latency": 20, "bandwidth": 3.0}
CASES = {"digits": (digits, "tiny"), "attention": (attention, "small")}
SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture(scope="module", params=CASES)
def program(request: pytest.FixtureRequest) -> Program:
    example, config = CASES[request.param]
    return weft.compile(example.model(), config)


@pytest.fixture(scope="module")
def timeline(program: Program) -> Timeline:
    (recorded,) = timelines_of(program, **MEMORY)
    return recorded


@pytest.fixture(scope="module")
def events(timeline: Timeline) -> list[Event]:
    document = json.loads(timelines.trace_json([timeline], {"program": "p"}))
    assert document["displayTimeUnit"] == "ns"
    assert document["otherData"] == {"time": "1 us of the trace is 1 clock cycle", "program": "p"}
    return list(document["traceEvents"])


def segment_of(program: Program) -> DeviceProgram:
    (segment,) = (item for item in program.segments if isinstance(item, DeviceProgram))
    return segment


def on_tracks(events: list[Event], pid: int = 1) -> dict[str, list[Event]]:
    """Slices by thread name."""
    names = {
        event["tid"]: event["args"]["name"]
        for event in events
        if event["name"] == "thread_name" and event["pid"] == pid
    }
    assert list(names.values()) == list(TRACKS)
    slices = [event for event in events if event["ph"] == "X" and event["pid"] == pid]
    return {name: [event for event in slices if event["tid"] == tid] for tid, name in names.items()}


def check_structure(events: list[Event]) -> None:
    """Check the Trace Event format of all used phases, and that slices do not overlap."""
    keys = {"M": {"args"}, "X": {"ts", "dur", "cat", "args"}, "C": {"ts", "args"}}
    for event in events:
        assert {"ph", "pid", "tid", "name"} | keys[event["ph"]] == set(event) - {"cname"}
        assert isinstance(event["name"], str)
        for key in {"pid", "tid", "ts", "dur"} & set(event):
            assert isinstance(event[key], int)
            assert event[key] >= 0
        if event["ph"] == "C":
            assert all(isinstance(value, int | float) and value >= 0 for value in event["args"].values())
    phases = "".join(event["ph"] for event in events)
    assert "M" not in phases.lstrip("M")
    times = [event["ts"] for event in events if event["ph"] != "M"]
    assert times == sorted(times)
    for pid in {event["pid"] for event in events}:
        for slices in on_tracks(events, pid).values():
            assert all(before["ts"] + before["dur"] <= after["ts"] for before, after in pairwise(slices))


def test_events_are_valid(events: list[Event], timeline: Timeline) -> None:
    check_structure(events)
    ends = [event["ts"] + event.get("dur", 0) for event in events if event["ph"] != "M"]
    assert max(ends) == timeline.cycles
    tally = Tally(event["name"] for event in events if event["ph"] == "M")
    tracks = len(TRACKS)
    assert tally == {
        "process_name": 1, "process_sort_index": 1, "thread_name": tracks, "thread_sort_index": tracks,
    }  # fmt: skip


def test_every_instruction_appears_once(events: list[Event], program: Program) -> None:
    instructions = segment_of(program).instructions
    result = []
    for track, slices in on_tracks(events).items():
        for event in slices:
            if track == LAYERS or event["cat"] == "waits":
                continue
            layer, index, accepted, opcode, *fields = event["args"].items()
            assert (layer[0], index[0], accepted[0]) == ("layer", "index", "accepted")
            assert accepted[1] <= event["ts"]
            (read,) = assemble(" ".join([opcode[1], *(f"{name}={value}" for name, value in fields)]))
            assert read == instructions[index[1]]
            assert read.QUEUE is Queue[track]
            result.append(index[1])
    assert sorted(result) == list(range(len(instructions) - 1))


def test_slices_last_as_long_as_units_are_busy(events: list[Event], program: Program) -> None:
    inputs = {name: np.zeros(shape, dtype) for name, (dtype, shape) in program.inputs.items()}
    report = program.run(inputs, on="timing", **MEMORY).report
    for track, slices in on_tracks(events).items():
        durations = [event["dur"] for event in slices if event["cat"] == "runs"]
        waited = sum(event["dur"] for event in slices if event["cat"] == "waits")
        if track == LAYERS:
            assert durations == [layer["cycles"] for layer in report["layers"]]
            assert waited == 0
        else:
            assert sum(durations) == report["counters"][f"{track.lower()}_busy"]
            # Waiting for the unit counts: it has taken the instruction, and is not busy yet.
            semaphore = report["counters"][f"{track.lower()}_semaphore"]
            assert semaphore <= waited <= semaphore + 2 * len(slices)
            assert sum(durations) + waited <= report["cycles"]


def test_slices_carry_their_layer(timeline: Timeline, program: Program) -> None:
    segment = segment_of(program)
    for index, layer in enumerate(segment.layers):
        moved = Tally[str]()
        for track in (queue.name for queue in Queue):
            own = [item for item in timeline.tracks[track] if item.layer == index and not item.waits]
            count = layer.queued[track]
            assert [item.name for item in own] == [f"{layer.name} {at + 1}/{count}" for at in range(count)]
            for item in own:
                instruction = segment.instructions[item.instruction or 0]
                if isinstance(instruction, Load):
                    moved["read"] += instruction.rows * instruction.run
                if isinstance(instruction, Store):
                    moved["written"] += instruction.rows * instruction.pixels * instruction.length
        assert (moved["read"], moved["written"]) == (layer.read_bytes, layer.written_bytes)
        assert sum(layer.queued.values()) > 0


def test_bandwidth_adds_up_to_the_beats(timeline: Timeline, events: list[Event], program: Program) -> None:
    bus = program.config.bus_bytes
    assert sum(window.read for window in timeline.windows) == timeline.counters[Counter.READ_BEATS] * bus
    assert sum(window.written for window in timeline.windows) == timeline.counters[Counter.WRITE_BEATS] * bus
    assert [timeline.windows[0].start, timeline.windows[-1].end] == [0, timeline.cycles]
    assert all(before.end == after.start for before, after in pairwise(timeline.windows))
    rates = [event for event in events if event["name"] == timelines.BANDWIDTH]
    for kind in ("read", "written"):
        moved = sum(event["args"][kind] * (after["ts"] - event["ts"]) for event, after in pairwise(rates))
        assert moved == pytest.approx(sum(getattr(window, kind) for window in timeline.windows), rel=0.001)
    assert max(event["args"]["read"] + event["args"]["written"] for event in rates) <= bus
    assert rates[-1]["args"] == {"read": 0, "written": 0}


def test_occupancy_equals_a_count_by_vector(
    timeline: Timeline, events: list[Event], program: Program
) -> None:
    size = program.config.scratchpad_size
    counted = [event["args"]["vectors"] for event in events if event["name"] == timelines.OCCUPANCY]
    assert counted == [vectors for _, vectors in timeline.vectors]
    assert 0 < max(counted) <= size
    assert counted[-1] == 0
    # Recompute the occupancy vector by vector.
    spans = {
        item.instruction: (item.details["accepted"], item.end)
        for queue in Queue
        for item in timeline.tracks[queue.name]
        if not item.waits
    }
    touched: list[list[tuple[bool, tuple[int, int]]]] = [[] for _ in range(size)]
    for index, instruction in enumerate(segment_of(program).instructions[:-1]):
        for access in on_chip_accesses(instruction, program.config):
            if access.memory is Memory.SCRATCHPAD:
                for cell in np.arange(size)[access.cells]:
                    touched[cell].append((access.write, spans[index]))
    total = np.zeros(timeline.cycles + 1, np.int64)
    for accesses in touched:
        used = np.zeros(timeline.cycles + 1, bool)
        since = None
        for write, (start, end) in accesses:
            since = start if write else since
            if since is not None:
                used[since:end] = True
        total += used
    steps = np.flatnonzero(np.diff(total, prepend=0))
    drawn = [(int(cycle), int(total[cycle])) for cycle in steps]
    held = [(cycle, value) for (_, before), (cycle, value) in pairwise([(0, 0), *timeline.vectors])
            if before != value]  # fmt: skip
    assert held == drawn


def test_occupancy_ends_with_the_last_read() -> None:
    load = Load(run=64, length=64, dst_vector=1)  # 4 lanes in tiny: vectors 0 to 15
    store = Store(length=32, src_vector=1)
    config = PRESETS["tiny"]
    assert config.n == 4
    spans = {0: (10, 20), 1: (30, 40), 2: (38, 50), 3: (60, 70)}
    program = [load, store, load, store]
    assert occupancy(program, spans, config) == [(10, 16), (20, 8), (38, 16), (50, 8), (70, 0)]
    assert occupancy(program, {0: (10, 20)}, config) == [(10, 16), (20, 0)]


def test_segments_follow_each_other(program: Program) -> None:
    segment = segment_of(program)
    twice = Program(dataclasses.replace(program._compiled, segments=(segment, segment)))
    first, second = timelines_of(twice)
    assert (first.origin, second.origin) == (0, first.cycles)
    events = timelines.events([first, second])
    check_structure(events)
    assert min(event["ts"] for event in events if event["pid"] == 2 and event["ph"] != "M") == first.cycles
    names = [event["args"]["name"] for event in events if event["name"] == "process_name"]
    assert names == [segment.name] * 2
    ElementTree.fromstring(timelines.svg([first, second], 512))


def rectangles(text: str) -> list[list[ElementTree.Element]]:
    """Rectangles of each row."""
    return [group.findall(f"{SVG}rect") for group in ElementTree.fromstring(text).findall(f"{SVG}g")]


def check_rows(text: str, total: int) -> None:
    """Check that rectangles of a row follow each other up to half a pixel, within the axis."""
    for row in rectangles(text):
        spans = [(float(item.attrib["x"]), float(item.attrib["width"])) for item in row]
        assert all(x + width <= after + 0.61 for (x, width), (after, _) in pairwise(spans))
        assert all(0 <= x <= x + width <= 1400.6 for x, width in spans)
    assert f"to {total:,}<" in text or len(text) > 100_000


def test_drawing(timeline: Timeline) -> None:
    text = timelines.svg([timeline], 512)
    check_rows(text, timeline.tracks[LAYERS][-1].end)
    root = ElementTree.fromstring(text)
    labels = [item.text for item in root.iter(f"{SVG}text")]
    assert {*timeline.layers, *TRACKS, "waits", timeline.name} <= set(labels)
    layers = rectangles(text)[0]
    for item in timeline.tracks[LAYERS]:
        (drawn,) = (one for one in layers if (one.findtext(f"{SVG}title") or "").startswith(f"{item.name}: "))
        assert float(drawn.attrib["width"]) == pytest.approx(
            (item.end - item.start) * 1400 / timeline.cycles, abs=0.1
        )
        assert drawn.attrib["fill"] == timelines.colour(item.layer)
    assert len({timelines.colour(index) for index in range(100)}) == 100


def many(count: int, length: int, name: str) -> Timeline:
    """Timeline of `count` slices on every track, with a layer for each."""
    slices = [
        Slice(f"{name}{at}", at, at, at % 3 == 1, at * length, (at + 1) * length, {}) for at in range(count)
    ]
    vectors = [(at * length, at % 500) for at in range(count)]
    layers = tuple(f"{name}{at}" for at in range(count))
    return Timeline(name, 0, count * length, layers, dict.fromkeys(TRACKS, slices), [], vectors, {})


@pytest.mark.parametrize(("count", "length"), [(1400, 10), (1200, 3), (60_000, 1), (3, 1), (1, 1)])
def test_drawings_stay_small(count: int, length: int) -> None:
    text = timelines.svg([many(count, length, 'a "long" <name> & more, ' * 20)], 512)
    assert len(text) < 2_000_000
    check_rows(text, count * length)
    shown = [float(item.attrib["width"]) for item in rectangles(text)[0]]
    assert sum(shown) == pytest.approx(1400, rel=0.05)


def call(*arguments: str) -> int:
    with pytest.raises(SystemExit) as stop:
        main.main(list(arguments))
    return int(stop.value.code or 0)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    weft.compile(digits.model(), "tiny").save("built")
    return tmp_path


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def test_command(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--latency", "20", "--bandwidth", "3"]
    assert call("trace", "built", "-o", "t.json", "--svg", "t.svg", *options) == 0
    assert names(folder) == {"built", "t.json", "t.svg"}
    (recorded,) = timelines_of(weft.load("built"), **MEMORY)
    out = capsys.readouterr().out
    assert out.startswith("the program is planned for a memory of 4 bytes a cycle, and ran behind one of 3: ")
    assert (
        out.partition("\n")[2] == f"t.json: {recorded.cycles:,} cycles\nt.svg: {recorded.cycles:,} cycles\n"
    )
    document = json.loads(Path("t.json").read_text())
    assert document["traceEvents"] == timelines.events([recorded])
    assert document["otherData"]["latency"] == 20
    assert document["otherData"]["config"] == PRESETS["tiny"].to_dict()
    assert Path("t.svg").read_text() == timelines.svg([recorded], PRESETS["tiny"].scratchpad_size)


@pytest.fixture
def simulated_cycles(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Cycles of every program that the RTL has run."""
    cycles: list[int] = []

    class Noted(TracedRtl):
        def wait(self, timeout: int | None = None) -> None:
            super().wait(timeout)
            cycles.append(self.counters()[Counter.CYCLES])

    monkeypatch.setattr("weft.run.trace.TracedRtl", Noted)
    return cycles


def test_rtl_equals_the_cycle_model(simulated_cycles: list[int]) -> None:
    """Slices, bandwidth, occupancy and counters agree in a network without softmax."""
    program = weft.compile(digits.model(), "tiny")
    recorded = timelines_of(program, on="rtl", **MEMORY)
    assert recorded == timelines_of(program, **MEMORY)
    assert simulated_cycles == [recorded[0].cycles]


def test_rtl_slices_last_as_long_as_units_are_busy(simulated_cycles: list[int]) -> None:
    """The network has a softmax, whose speed depends on the data."""
    lines = timelines_of(weft.compile(attention.model(), "tiny"), on="rtl")
    assert simulated_cycles == [timeline.cycles for timeline in lines]
    for timeline in lines:
        for queue in Queue:
            busy = [item for item in timeline.tracks[queue.name] if not item.waits]
            assert (
                sum(item.end - item.start for item in busy)
                == timeline.counters[Counter[f"{queue.name}_BUSY"]]
            )
            assert all(before.end <= after.start for before, after in pairwise(timeline.tracks[queue.name]))


def test_command_on_rtl(folder: Path, simulated_cycles: list[int]) -> None:
    for on in ("timing", "rtl"):
        assert simulated_cycles == []
        assert call("trace", "built", "-o", f"{on}.json", "--on", on) == 0
    assert len(simulated_cycles) == 1
    assert names(folder) == {"built", "timing.json", "rtl.json"}
    timing, rtl = (json.loads(Path(f"{on}.json").read_text()) for on in ("timing", "rtl"))
    assert (timing["otherData"].pop("on"), rtl["otherData"].pop("on")) == ("timing", "rtl")
    assert timing == rtl


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["built"], "--output is missing: name --output FILE.json, --svg FILE.svg, or both"),
        (["built", "-o", "x", "--svg", "./x"], "--output and --svg both name x: they are two files"),
        (["none", "-o", "x"], "none is not a folder that `weft compile` wrote"),
        (["built", "-o", "built"], "cannot use built: Is a directory"),
        (["built", "--svg", "built/program.json/x.svg"], "cannot use built/program.json: File exists"),
    ],
)
def test_errors_print_one_sentence(
    folder: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    assert call("trace", *arguments) == 2
    errors = [line for line in capsys.readouterr().err.splitlines() if not line.endswith("...")]
    assert errors == [f"error: {message}"]
    assert names(folder) == {"built"}


def test_host_only_model_is_refused(program: Program) -> None:
    host = Program(dataclasses.replace(program._compiled, segments=()))
    with pytest.raises(FileError, match=r"^nothing of this program runs on the device, so there is nothing"):
        timelines_of(host)
