"""`weft serve` under load: well-behaved clients get their texts, and no resources leak."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import os
import re
import signal
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from weft.extras.language.tests.support.load import CHATS, COMPLETIONS, KINDS, Case, Load
from weft.extras.language.tests.support.served import write_served

READING, IDLE = 2.0, 1.0
LINE = re.compile(
    r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3} "
    r"([\d.:]* - \"[^\"]*\" (\d{3}|client disconnected)|Invalid HTTP request received\.)"
)
MEGABYTE = 1 << 20


@dataclasses.dataclass
class ServerProcess:
    """A server in its own process."""

    process: subprocess.Popen[str]
    port: int
    log: Path

    def memory(self) -> float:
        """Return the server's memory in MB, without the template process."""
        return int(self._status("VmRSS").split()[0]) / 1024

    def _status(self, name: str) -> str:
        text = Path(f"/proc/{self.process.pid}/status").read_text()
        return text.split(f"{name}:")[1].split("\n")[0]

    def files(self) -> int:
        return len(os.listdir(f"/proc/{self.process.pid}/fd"))

    def threads(self) -> int:
        return int(self._status("Threads"))

    def texts(self) -> int:
        result = httpx.get(f"http://127.0.0.1:{self.port}/health", trust_env=False, timeout=60).json()
        return int(result["texts"])


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ServerProcess]:
    path = write_served(tmp_path)
    options = ["--config", "small", "--port", "0", "--rows", "8", "--connections", "400"]
    limits = ["--read-timeout", str(READING), "--idle-timeout", str(IDLE)]
    log = tmp_path / "log.txt"
    with log.open("w") as errors:
        process = subprocess.Popen(
            [sys.executable, "-m", "weft", "serve", str(path), *options, *limits],
            stdout=subprocess.PIPE, stderr=errors, text=True,
        )  # fmt: skip
    with process:
        assert process.stdout is not None
        line = process.stdout.readline()
        yield ServerProcess(process, int(line.split("/v1")[0].rpartition(":")[2]), log)
        process.send_signal(signal.SIGINT)
        process.wait(30)


def cases() -> list[Case]:
    """Return prompts and chats with seeds and lengths, as wholes and as streams."""
    results = []
    for number, words in enumerate(
        ["the quick", "the quick fox", "over", "the lazy dogs", "a", "jumps over the dogs"]
    ):
        options = {
            "max_tokens": 3 + 2 * number,
            "temperature": number % 3,
            "seed": number,
            "stream": number % 2 == 0,
        }
        results.append(Case(COMPLETIONS, {"prompt": words, **options}))
        results.append(Case(CHATS, {"messages": [{"role": "user", "content": words}], **options}))
    return results


def run(server: ServerProcess, clients: int, seconds: float, seed: int) -> tuple[Load, list[float]]:
    """Run a load and sample the server's memory ten times."""
    load = Load(server.port, [], READING)

    async def ask_alone() -> list[Case]:
        answers = [await load.ask(case) for case in cases()]
        assert {status for status, _ in answers} == {200}
        return [
            dataclasses.replace(case, text=text) for case, (_, text) in zip(cases(), answers, strict=True)
        ]

    load.cases = asyncio.run(ask_alone())
    assert len({case.text for case in load.cases}) > 6
    memory: list[float] = []
    over = threading.Event()

    def watch() -> None:
        while not over.wait(seconds / 60):
            memory.append(server.memory())

    thread = threading.Thread(target=watch)
    thread.start()
    asyncio.run(load.run(clients, seconds, seed))
    over.set()
    thread.join()
    return load, memory


def check(server: ServerProcess, load: Load, before: tuple[int, int]) -> None:
    """Check that answers were right and that no text, file or thread is left."""
    assert not load.wrong, f"{len(load.wrong)} wrong, first {load.wrong[:5]}"
    kinds = {name.split()[0] for name in load.done if not name.startswith("503: ")}
    assert kinds == {"good", *(kind.__name__.strip("_") for kind in KINDS)}
    assert load.done["good cut off"] == 0
    end = time.monotonic() + 60
    while server.texts() or server.files() > before[0] + 3:
        assert time.monotonic() < end, (server.texts(), server.files(), before)
        time.sleep(0.5)
    assert server.threads() <= before[1] + 6  # those that encode and render
    lines = server.log.read_text().splitlines()
    strange = [line for line in lines if not LINE.fullmatch(line)]
    assert len(strange) == 2, strange[:5]  # before there were clients
    answered = sum(often for name, often in load.done.items() if name.split()[-1].isdecimal())
    assert len(lines) >= answered


def report(server: ServerProcess, load: Load, memory: list[float]) -> str:
    tenths = [f"{statistics.median(memory[at : at + 6]):.1f}" for at in range(0, len(memory), 6)]
    return json.dumps({"done": dict(sorted(load.done.items())), "MB": tenths, "end": server.memory()})


def test_a_few_clients_of_all_kinds(server: ServerProcess) -> None:
    before = server.files(), server.threads()
    load, memory = run(server, clients=24, seconds=5, seed=0)
    print(report(server, load, memory))
    check(server, load, before)
    assert load.done["good 200"] > 10


@pytest.mark.long
def test_300_clients_for_ten_minutes(server: ServerProcess) -> None:
    """The last third of the time may use no more memory than the second."""
    before = server.files(), server.threads()
    load, memory = run(server, clients=300, seconds=600, seed=1)
    print(report(server, load, memory))
    check(server, load, before)
    third = len(memory) // 3
    second, last = memory[third : 2 * third], memory[2 * third :]
    assert statistics.median(last) < statistics.median(second) + 8
