"""Trace Event JSON of timelines, for ui.perfetto.dev."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

from weft.run.trace import TRACKS, Slice, Timeline

Event = dict[str, Any]

BANDWIDTH = "DRAM bytes per cycle"
OCCUPANCY = "scratchpad vectors in use"


def events(timelines: Sequence[Timeline]) -> list[Event]:
    """Return Trace Events: a process per timeline, a thread per track; time stamps are in cycles and rise."""
    names = [event for pid, timeline in enumerate(timelines, 1) for event in _names(pid, timeline)]
    timed = [event for pid, timeline in enumerate(timelines, 1) for event in _timed_events(pid, timeline)]
    # Perfetto needs time stamps in order; names come first.
    return names + sorted(timed, key=lambda event: event["ts"])


def trace_json(timelines: Sequence[Timeline], metadata: dict[str, Any]) -> str:
    """Return the trace as JSON, one event per line."""
    head = {"time": "1 us of the trace is 1 clock cycle"} | metadata
    lines = ",\n".join(json.dumps(event, separators=(",", ":")) for event in events(timelines))
    return f'{{"displayTimeUnit":"ns","otherData":{json.dumps(head)},"traceEvents":[\n{lines}\n]}}\n'


def _names(pid: int, timeline: Timeline) -> Iterator[Event]:
    yield _meta(pid, 0, "process_name", name=timeline.name)
    yield _meta(pid, 0, "process_sort_index", sort_index=pid)
    for tid, track in enumerate(TRACKS, 1):
        yield _meta(pid, tid, "thread_name", name=track)
        yield _meta(pid, tid, "thread_sort_index", sort_index=tid)


def _meta(pid: int, tid: int, what: str, **args: Any) -> Event:
    return {"ph": "M", "pid": pid, "tid": tid, "name": what, "args": args}


def _timed_events(pid: int, timeline: Timeline) -> Iterator[Event]:
    for tid, track in enumerate(TRACKS, 1):
        for item in timeline.tracks[track]:
            yield _slice(pid, tid, timeline, item)
    for window in timeline.windows:
        # Counters hold from their time stamp on, so a rate is an average over the window that it begins.
        length = window.end - window.start
        rates = {"read": window.read / length, "written": window.written / length}
        yield _counter(pid, timeline, BANDWIDTH, window.start, rates)
    # Otherwise the last rate would seem to continue.
    yield _counter(pid, timeline, BANDWIDTH, timeline.cycles, {"read": 0, "written": 0})
    for cycle, vectors in timeline.vectors:
        yield _counter(pid, timeline, OCCUPANCY, cycle, {"vectors": vectors})


def _slice(pid: int, tid: int, timeline: Timeline, item: Slice) -> Event:
    event = {
        "ph": "X", "pid": pid, "tid": tid, "ts": timeline.origin + item.start, "dur": item.end - item.start,
        "name": item.name, "cat": "waits" if item.waits else "runs",
        "args": {"layer": timeline.layers[item.layer]} | item.details,
    }  # fmt: skip
    return event | {"cname": "grey"} if item.waits else event


def _counter(pid: int, timeline: Timeline, name: str, cycle: int, values: dict[str, float]) -> Event:
    rounded = {key: round(value, 4) for key, value in values.items()}
    return {"ph": "C", "pid": pid, "tid": 0, "ts": timeline.origin + cycle, "name": name, "args": rounded}
