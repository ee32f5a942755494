"""Workers (processes on this machine, or of a Dask scheduler), and the results that they share in files.

The name of a result's file is a hash of everything that the result depends on.
"""

from __future__ import annotations

import contextlib
import gc
import hashlib
import json
import logging
import multiprocessing
import os
import signal
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError, Executor, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from functools import cache
from pathlib import Path
from typing import Any, Generic, TypeVar

import msgspec

from weft.errors import FileError
from weft.extras.search.tune import sources_digest
from weft.hdl import schema
from weft.hdl.cache import entry
from weft.hdl.errors import WeftError

ATTEMPTS = 4
"""Number of workers that may die on a job before it is abandoned."""
ANSWER_SECONDS = 10.0
"""Time limit for an answer of the scheduler."""
THREAD_VARIABLES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS")
"""Environment variables that set libraries' numbers of threads."""
DIED = f"{ATTEMPTS} workers died running it"
Job = TypeVar("Job")
Result = TypeVar("Result")


class WorkersError(WeftError, ValueError):
    """The workers are lost; the message names them, and says that results are kept."""


class Workers(Generic[Job, Result]):
    """Running jobs. A job whose worker dies goes to another one.

    Parameters
    ----------
    count : int
        Number of processes on this machine, if there is no scheduler.
    work : callable
        Runs a job and returns its result. It must be a module's function, because processes find it by name.
    abandoned_result : object
        Result of a job on which `ATTEMPTS` workers died.
    scheduler : str, optional
        Address of a Dask scheduler, for example ``tcp://127.0.0.1:8786``. Its workers must see the folder of results
        under the same name. They may join and leave.

    Raises
    ------
    FileError
        If Dask is needed and not installed.
    WorkersError
        If the scheduler does not answer.
    """

    def __init__(
        self,
        count: int,
        work: Callable[[Job], Result],
        abandoned_result: Result,
        scheduler: str | None = None,
    ) -> None:
        self._count, self._work, self._abandoned_result, self._scheduler = (
            count,
            work,
            abandoned_result,
            scheduler,
        )
        self._client = None if scheduler is None else _client(scheduler)
        self._pool: Executor | None = None
        self._running: dict[Future[Result], tuple[Any, Job, int]] = {}

    @property
    def room(self) -> int:
        """Number of jobs that may be added: twice the number of workers, so that none has to wait for its next job."""
        if self._client is None:
            return 2 * self._count - len(self._running)
        threads = sum(self._client.nthreads().values())
        return 2 * max(1, threads) - len(self._running)

    @property
    def running(self) -> int:
        return len(self._running)

    @property
    def processes(self) -> list[int]:
        """IDs of the running processes on this machine."""
        return list(self._pool._processes or {}) if isinstance(self._pool, ProcessPoolExecutor) else []

    def add(self, name: Any, job: Job, attempts: int = ATTEMPTS) -> None:
        """Start a job under a name."""
        while True:
            # The pool may have broken since the last job: try again with a new one.
            with contextlib.suppress(BrokenProcessPool):
                with _single_threaded():
                    self._running[self._executor().submit(_run_job, self._work, job)] = name, job, attempts
                return
            self._pool = None

    def collect(self, seconds: float) -> Iterator[tuple[Any, Result]]:
        """Yield names and results of finished jobs, after at most `seconds`.

        Raise `WorkersError` if the scheduler is lost. Exceptions of a job are passed on.
        """
        finished, _ = wait(self._running, seconds, return_when="FIRST_COMPLETED")
        broken_jobs = []
        for future in finished:
            name, job, attempts = self._running.pop(future)
            try:
                yield name, future.result()
            # One dead process breaks the whole pool; `add` creates a new one.
            except BrokenProcessPool:
                self._pool = None
                broken_jobs.append((name, job, attempts - 1))
            except CancelledError:
                raise WorkersError(self._lost_message()) from None
            except Exception as error:
                # Compared by name, because Dask may be missing.
                if type(error).__name__ != "KilledWorker":
                    raise
                yield name, self._abandoned_result
        for name, job, attempts in broken_jobs:
            if attempts:
                self.add(name, job, attempts)
            else:
                yield name, self._abandoned_result
        if self._client is not None and self._client.status != "running":
            raise WorkersError(self._lost_message())

    def close(self) -> None:
        """Cancel all running jobs."""
        for future in self._running:
            future.cancel()
        if isinstance(self._pool, ProcessPoolExecutor):
            # The executor has no public way to end running jobs.
            for process in list((self._pool._processes or {}).values()):
                process.terminate()
            self._pool.shutdown(wait=False, cancel_futures=True)
        if self._client is not None:
            self._client.close(timeout=ANSWER_SECONDS)

    def _lost_message(self) -> str:
        return (
            f"the scheduler at {self._scheduler} no longer answers: results are kept, and the same "
            "command resumes the search when a scheduler is available"
        )

    def _executor(self) -> Executor:
        if self._pool is None:
            if self._client is not None:
                self._pool = self._client.get_executor(pure=False, retries=0)
            else:
                # A forked process would keep libraries that have read the thread variables already.
                context = multiprocessing.get_context("spawn")
                self._pool = ProcessPoolExecutor(self._count, context, initializer=_handle_signals)
        return self._pool


def _handle_signals() -> None:
    """Ignore interrupts, which are for the parent process; exit on its SIGTERM, so that started tools end too."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(1))


def _run_job(work: Callable[[Job], Result], job: Job) -> Result:
    """Run a job. If the process is terminated, the job's tools are ended on the way here, and no other job starts."""
    try:
        return work(job)
    except SystemExit:
        os._exit(1)


@contextlib.contextmanager
def _single_threaded() -> Iterator[None]:
    """Make processes that start in this context single-threaded.

    Libraries read the variables when they are loaded, before any of our code runs in the process.
    """
    saved = {name: os.environ.get(name) for name in THREAD_VARIABLES}
    os.environ.update(dict.fromkeys(THREAD_VARIABLES, "1"))
    try:
        yield
    finally:
        for name, value in saved.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def _client(scheduler: str) -> Any:
    try:
        from distributed import Client
    except ImportError:
        raise FileError("--scheduler needs Dask: pip install 'weft[explore]'") from None
    logging.getLogger("distributed").setLevel(logging.CRITICAL)
    try:
        return Client(scheduler, timeout=ANSWER_SECONDS, set_as_default=False)
    except (OSError, TimeoutError, ValueError) as error:
        cause = str(error) or "no time left"
    # A garbage collection deletes the failed client, which takes a lock that other clients hold while they start.
    # Deleted here, it cannot deadlock them.
    gc.collect()
    raise WorkersError(f"no Dask scheduler answers at {scheduler}: {cause}")


Stored = TypeVar("Stored", bound=msgspec.Struct)


def result_key(source: str, *key_parts: object) -> str:
    """Return a hash of a result's parameters and of all sources that it depends on.

    These are the sources of compiler, hardware and models, and the file `source`, which computes the result.
    """
    return hashlib.sha256(json.dumps((_sources(source), *key_parts), default=str).encode()).hexdigest()[:32]


@cache
def _sources(source: str) -> str:
    own = hashlib.sha256(Path(source).read_bytes()).hexdigest()
    return f"{sources_digest()} {own[:16]}"


def run_once(path: Path, kind: type[Stored], work: Callable[[], Stored]) -> Stored:
    """Return the result in the file `path`, the only one in its folder.

    If it is missing, compute it by `work`, unless another worker is doing so.
    """

    def make(folder: Path) -> None:
        (folder / path.name).write_bytes(msgspec.json.encode(work()))

    return read_result(entry(path.parent.name, make, path.parent.parent) / path.name, kind)


def read_result(path: Path, kind: type[Stored]) -> Stored:
    """Read a result; raise `OSError` or `weft.hdl.errors.SchemaError` if there is none."""
    return schema.decode(schema.read_bytes(path), kind)
