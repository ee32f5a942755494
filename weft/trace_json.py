"""Timelines as Trace Event JSON, which ui.perfetto.dev and chrome://tracing open.

Format: "Trace Event Format", docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU. Of its phases
it has M (names of processes and threads), X (slices) and C (counters).
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

from weft.trace import TRACKS, Slice, Timeline

Event = dict[str, Any]

BANDWIDTH = "DRAM bytes per cycle"
OCCUPANCY = "scratchpad vectors in use"


def events(timelines: Sequence[Timeline]) -> list[Event]:
    """A process for each timeline, a thread for each of its tracks; time stamps rise, in cycles."""
    names = [event for pid, timeline in enumerate(timelines, 1) for event in _names(pid, timeline)]
    timed = [event for pid, timeline in enumerate(timelines, 1) for event in _timed(pid, timeline)]
    return names + sorted(timed, key=lambda event: event["ts"])


def text(timelines: Sequence[Timeline], about: dict[str, Any]) -> str:
    """The JSON document, an event a line. `about` goes into its metadata."""
    head = {"time": "1 us of the trace is 1 clock cycle"} | about
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


def _timed(pid: int, timeline: Timeline) -> Iterator[Event]:
    for tid, track in enumerate(TRACKS, 1):
        for item in timeline.tracks[track]:
            yield _slice(pid, tid, timeline, item)
    for window in timeline.windows:
        length = window.end - window.start
        rates = {"read": window.read / length, "written": window.written / length}
        yield _counter(pid, timeline, BANDWIDTH, window.start, rates)
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
