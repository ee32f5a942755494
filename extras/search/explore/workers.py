"""Who does the jobs: processes of this machine, or workers of a Dask scheduler."""

from __future__ import annotations

import contextlib
import logging
import multiprocessing
import os
import signal
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError, Executor, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from typing import Any, Generic, TypeVar

from weft.errors import FileError
from weft.hdl.errors import WeftError

LIVES = 4
"""Workers that may die on a job before it is given up."""
SECONDS = 10.0
"""Within which a scheduler has to answer."""
THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS")
"""Variables that tell libraries how many threads to start."""
DIED = f"{LIVES} workers died of it"
Job = TypeVar("Job")
Result = TypeVar("Result")


class WorkersError(WeftError, ValueError):
    """The workers are lost; the sentence says which, and that results are kept."""


class Workers(Generic[Job, Result]):
    """Jobs under way. A job whose worker dies is given to another one.

    Parameters
    ----------
    count : int
        Processes of this machine, if there is no scheduler.
    work : callable
        Does a job, and returns its result: a function of a module, as processes find it by name.
    died : object
        The result of a job of which `LIVES` workers died.
    scheduler : str, optional
        The address of Dask's, for example ``tcp://127.0.0.1:8786``. Its workers must see the folder of results under
        the same name. They may come and go.

    Raises
    ------
    FileError
        If Dask is needed and not installed.
    WorkersError
        If the scheduler does not answer.
    """

    def __init__(
        self, count: int, work: Callable[[Job], Result], died: Result, scheduler: str | None = None
    ) -> None:
        self._count, self._work, self._died, self._scheduler = count, work, died, scheduler
        self._client = None if scheduler is None else _client(scheduler)
        self._pool: Executor | None = None
        self._running: dict[Future[Result], tuple[Any, Job, int]] = {}

    @property
    def room(self) -> int:
        """How many jobs may be added: twice as many as workers, so that none waits for its next."""
        if self._client is None:
            return 2 * self._count - len(self._running)
        threads = sum(self._client.nthreads().values())
        return 2 * max(1, threads) - len(self._running)

    @property
    def running(self) -> int:
        return len(self._running)

    @property
    def processes(self) -> list[int]:
        """Numbers of the processes of this machine that are there."""
        return list(self._pool._processes or {}) if isinstance(self._pool, ProcessPoolExecutor) else []

    def add(self, name: Any, job: Job, lives: int = LIVES) -> None:
        """Start a job under a name."""
        while True:
            with contextlib.suppress(BrokenProcessPool):
                with _one_thread():
                    self._running[self._executor().submit(_do, self._work, job)] = name, job, lives
                return
            self._pool = None

    def done(self, seconds: float) -> Iterator[tuple[Any, Result]]:
        """Names and results of jobs that have ended, after so many seconds at most.

        Raises `WorkersError` if the scheduler is gone, and whatever a job raises that is not about its configuration.
        """
        finished, _ = wait(self._running, seconds, return_when="FIRST_COMPLETED")
        broken = []
        for future in finished:
            name, job, lives = self._running.pop(future)
            try:
                yield name, future.result()
            except BrokenProcessPool:
                self._pool = None
                broken.append((name, job, lives - 1))
            except CancelledError:
                raise WorkersError(self._lost()) from None
            except Exception as error:
                if type(error).__name__ != "KilledWorker":
                    raise
                yield name, self._died
        for name, job, lives in broken:
            if lives:
                self.add(name, job, lives)
            else:
                yield name, self._died
        if self._client is not None and self._client.status != "running":
            raise WorkersError(self._lost())

    def close(self) -> None:
        """Give up what is under way."""
        for future in self._running:
            future.cancel()
        if isinstance(self._pool, ProcessPoolExecutor):
            for process in list((self._pool._processes or {}).values()):
                process.terminate()
            self._pool.shutdown(wait=False, cancel_futures=True)
        if self._client is not None:
            self._client.close(timeout=SECONDS)

    def _lost(self) -> str:
        return (
            f"the scheduler at {self._scheduler} does not answer any more: what was found is kept, and the same "
            "command goes on once there is one"
        )

    def _executor(self) -> Executor:
        if self._pool is None:
            if self._client is not None:
                self._pool = self._client.get_executor(pure=False, retries=0)
            else:
                context = multiprocessing.get_context("spawn")
                self._pool = ProcessPoolExecutor(self._count, context, initializer=_quietly)
        return self._pool


def _quietly() -> None:
    """Interrupts are for the process that waits for this one, which ends it: then what it has started ends, too."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(1))


def _do(work: Callable[[Job], Result], job: Job) -> Result:
    """Do a job. If the process is ended meanwhile, tools that the job has started are ended on the way to here, and no
    other job is begun."""
    try:
        return work(job)
    except SystemExit:
        os._exit(1)


@contextlib.contextmanager
def _one_thread() -> Iterator[None]:
    """Processes that are started meanwhile take one processor each. Libraries look that up when they are loaded, which
    is before any code of ours runs there."""
    before = {name: os.environ.get(name) for name in THREADS}
    os.environ.update(dict.fromkeys(THREADS, "1"))
    try:
        yield
    finally:
        for name, value in before.items():
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
        return Client(scheduler, timeout=SECONDS, set_as_default=False)
    except (OSError, TimeoutError, ValueError) as error:
        raise WorkersError(
            f"no scheduler of Dask answers at {scheduler}: {str(error) or 'no time left'}"
        ) from None
