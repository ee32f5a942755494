"""Workers that are killed, late or Dask's, and schedulers that are missing or die."""

from __future__ import annotations

import contextlib
import gc
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import weft.extras.search.explore.workers as workers
from weft.boards.build import tools
from weft.extras.search.explore.evaluate import evaluate, evaluators, measure, read_result
from weft.extras.search.explore.explore import Exploration, explore
from weft.extras.search.explore.space import Space
from weft.extras.search.explore.workers import DIED, THREAD_VARIABLES, Workers, WorkersError
from weft.extras.search.tests.support.ended import die
from weft.extras.search.tests.support.explored import VALUES, draw_points, entries, job, numbers, task
from weft.hdl.isa.config import PRESETS

SPACE = Space(VALUES | {"n": (2, 4), "kernel": (0,), "depthwise_taps": (0,)})


def children(process: int) -> list[int]:
    text = Path(f"/proc/{process}/task/{process}/children").read_text()
    return [int(number) for number in text.split()]


def test_each_process_takes_one_processor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From its start, when libraries read it; this process's environment stays unchanged."""
    first, second = THREAD_VARIABLES
    monkeypatch.setenv(first, "7")
    monkeypatch.delenv(second, raising=False)
    search, pool = task(tmp_path, space=SPACE), evaluators(1)
    pool.add("one", job(search, PRESETS["tiny"], search.places[0], tmp_path / "results"))
    (process,) = pool.processes
    actual = Path(f"/proc/{process}/environ").read_bytes().decode().split("\0")
    assert {f"{name}=1" for name in THREAD_VARIABLES} <= set(actual)
    assert os.environ[first] == "7"
    assert second not in os.environ
    pool.close()
    assert not evaluators(1).processes


def test_processes_that_are_killed(tmp_path: Path) -> None:
    """Another process does each job, with the same result."""
    search = task(tmp_path, space=SPACE)
    pool = evaluators(2)
    configs = [PRESETS["tiny"].replace(queue_depth=1 << count) for count in range(5)]
    for config in configs:
        pool.add(config, job(search, config, search.places[0], tmp_path / "results"))
    actual, killed = {}, 0
    while pool.running:
        for name, timing in pool.collect(0.2):
            actual[name] = timing
        if killed < 2 and (started := [child for child in children(os.getpid()) if _wait_for_process(child)]):
            os.kill(started[0], signal.SIGKILL)
            killed += 1
    pool.close()
    assert killed == 2
    for config in configs:
        assert actual[config] == measure(job(search, config, search.places[0], tmp_path)), config
    assert len(entries(tmp_path)) == len(configs)


def _wait_for_process(process: int) -> bool:
    with contextlib.suppress(OSError):
        return b"spawn_main" in Path(f"/proc/{process}/cmdline").read_bytes()
    return False


def test_a_job_that_kills_its_workers() -> None:
    """It is abandoned with a message."""
    pool = Workers(1, die, DIED)
    pool.add("deadly", "job")
    actual: list[tuple[str, str]] = []
    while pool.running:
        actual += pool.collect(0.2)
    pool.close()
    assert actual == [("deadly", DIED)]


def _start_a_tool(folder: str) -> str:
    """Start a tool that outlives any test, and write its process id to a file."""
    count = len(list(Path(folder).iterdir()))
    tool = f"import os, pathlib, time; pathlib.Path('{folder}/{count}').write_text(str(os.getpid())); time.sleep(900)"
    tools.run("tool", [sys.executable, "-c", tool], Path(folder).parent)
    return "done"


def test_tools_end_with_their_workers(tmp_path: Path) -> None:
    """No other job is started."""
    folder = tmp_path / "numbers"
    folder.mkdir()
    with contextlib.closing(Workers(1, _start_a_tool, DIED)) as pool:
        for name in range(3):
            pool.add(name, str(folder))
        _wait_for(lambda: any(path.read_text() for path in folder.iterdir()))
        (process,) = pool.processes
        (path,) = folder.iterdir()
        tool = int(path.read_text())
        assert Path(f"/proc/{tool}").exists()
    _wait_for(lambda: not any(_alive(number) for number in (tool, process)))
    assert list(folder.iterdir()) == [path]


def _alive(process: int) -> bool:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False


def _wait_for(condition: Callable[[], bool]) -> None:
    """Wait until `condition()`; fail after five minutes, which suffices on a busy machine."""
    end = time.monotonic() + 300
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.05)


def test_two_searches_share_the_work(tmp_path: Path) -> None:
    """Two searches in one folder use each other's results and compute none twice."""
    search, actual = task(tmp_path, space=SPACE), list[Exploration]()
    both = [
        threading.Thread(
            target=lambda seed=seed: actual.append(explore(search, tmp_path, trials=6, seed=seed))
        )
        for seed in (1, 2)
    ]
    for item in both:
        item.start()
    for item in both:
        item.join()
    assert len(actual) == 2
    last = explore(search, tmp_path, trials=1, seed=3)
    assert set(numbers(actual[0].measured)) | set(numbers(actual[1].measured)) <= set(numbers(last.measured))


@contextlib.contextmanager
def scheduler(port: int) -> Iterator[subprocess.Popen[bytes]]:
    """Start Dask's scheduler in its own process."""
    command = [sys.executable, "-m", "distributed.cli.dask_scheduler", "--port", str(port), "--no-dashboard"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        _is_reachable(port)
        yield process
    finally:
        process.kill()
        process.wait()


def _is_reachable(port: int) -> None:
    for _ in range(200):
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
            return
        time.sleep(0.1)
    raise AssertionError("the scheduler does not start")


@contextlib.contextmanager
def worker(port: int, folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Start a Dask worker."""
    command = [
        sys.executable, "-m", "distributed.cli.dask_worker", f"tcp://127.0.0.1:{port}", "--nthreads", "1",
        "--no-dashboard", "--no-nanny", "--local-directory", str(folder),
    ]  # fmt: skip
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def free_port() -> int:
    with socket.socket() as result:
        result.bind(("127.0.0.1", 0))
        return int(result.getsockname()[1])


def test_dask(tmp_path: Path) -> None:
    """A worker is killed and another comes late; the search completes."""
    search, port = task(tmp_path, space=SPACE), free_port()
    with scheduler(port), worker(port, tmp_path / "1") as first, contextlib.ExitStack() as late:
        killed = []

        def report_and_act(exploration: Exploration, asked: int) -> None:
            if exploration.measured and not killed:
                first.kill()
                killed.append(first.pid)
                late.enter_context(worker(port, tmp_path / "2"))

        exploration = explore(
            search, tmp_path, trials=4, scheduler=f"tcp://127.0.0.1:{port}", report=report_and_act
        )
    assert killed
    assert sum(item.origin == "search" for item in exploration.measured) >= 4
    for item in exploration.measured:
        assert item.timing == measure(job(search, item.point.config, item.point.place, tmp_path)), (
            item.point.config
        )


def test_no_scheduler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "ANSWER_SECONDS", 0.5)
    with pytest.raises(WorkersError, match=r"no Dask scheduler answers at tcp://127.0.0.1:\d+"):
        explore(task(tmp_path, space=SPACE), tmp_path, scheduler=f"tcp://127.0.0.1:{free_port()}")
    with pytest.raises(WorkersError, match="no Dask scheduler answers at nonsense"):
        explore(task(tmp_path, space=SPACE), tmp_path, scheduler="nonsense")


def test_a_failed_client_is_deleted_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Later deletion by the garbage collector could deadlock another client."""
    distributed = pytest.importorskip("distributed")
    monkeypatch.setattr(workers, "ANSWER_SECONDS", 0.2)
    deleted = []
    monkeypatch.setattr(distributed.Client, "__del__", lambda client: deleted.append(client.status))
    gc.disable()
    try:
        with pytest.raises(WorkersError):
            Workers(1, die, DIED, f"tcp://127.0.0.1:{free_port()}")
        assert len(deleted) == 1
    finally:
        gc.enable()


def test_a_scheduler_that_dies(tmp_path: Path) -> None:
    """Results are kept, and the search resumes without a scheduler."""
    search, port = task(tmp_path, space=SPACE), free_port()
    with scheduler(port) as process, worker(port, tmp_path / "1"):

        def report_and_act(exploration: Exploration, asked: int) -> None:
            if len(exploration.measured) > 2:
                process.kill()

        exploration = explore(
            search, tmp_path, trials=50, scheduler=f"tcp://127.0.0.1:{port}", report=report_and_act
        )
        assert "no longer answers: results are kept" in exploration.workers_error
        assert len(exploration.measured) > 2
    before = entries(tmp_path)
    assert len(before) > 2
    exploration = explore(search, tmp_path, trials=2)
    assert {name: when for name, when in entries(tmp_path).items() if name in before} == before
    assert len(exploration.measured) > 4


def test_damaged_results_are_computed_again(tmp_path: Path) -> None:
    search = task(tmp_path, space=SPACE)
    work = job(search, PRESETS["tiny"], search.places[0], tmp_path / "results")
    first = evaluate(work)
    path = tmp_path / "results" / f"point-{work.key}" / "timing.json"
    for damage in (b"{", b"", b'{"cycles": "x"}'):
        path.write_bytes(damage)
        assert read_result(work) is None
        assert evaluate(work) == first


def test_cache_keys_cover_all_inputs(tmp_path: Path) -> None:
    """Of models, configurations, memories; not of where results are."""
    import dataclasses

    import numpy as np

    search = task(tmp_path)
    (place,) = search.places
    work = job(search, PRESETS["tiny"], place, tmp_path)
    others = [
        dataclasses.replace(work, config=draw_points(np.random.default_rng(1), search.space)),
        dataclasses.replace(work, place=dataclasses.replace(place, latency=31)),
        dataclasses.replace(work, place=dataclasses.replace(place, bandwidth=1.5)),
        dataclasses.replace(work, models=dataclasses.replace(work.models, digests=("0",))),
        dataclasses.replace(work, models=dataclasses.replace(work.models, shapes=(("n", 2),))),
        *(job(search, PRESETS["tiny"], actual, tmp_path) for actual in task(tmp_path, boards=[
            "ulx3s-12f", "icebreaker", "tang-nano-9k", "tang-primer-20k"]).places),
    ]  # fmt: skip
    assert len({item.key for item in (work, *others)}) == len(others) + 1
    assert dataclasses.replace(work, folder="elsewhere").key == work.key
