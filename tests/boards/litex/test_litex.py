"""LiteX systems with an accelerator, simulated: whole programs, through LiteX's buses and LiteDRAM to memory."""

from __future__ import annotations

import re
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support import qdq_models
from support.litex_model import CONTROL, HELD, MEMORY, RESET, SIZE_BYTES, LitexModel
from support.small_models import small

pytest.importorskip("litex")
from support.litex_soc import MAIN_RAM, Memory, SimulatedSoc, system, without_accelerator

import weft
from weft.boards.errors import BoardError
from weft.boards.litex.host import LitexDevice
from weft.boards.litex.litex import ORIGIN, add_weft
from weft.hdl.isa import End, Load
from weft.hdl.isa.config import PRESETS, Config
from weft.hdl.isa.memmap import Counter
from weft.sim.device import DeviceError

NONE: dict[str, int] = {
    "probability_bits": 0,
    "lookup_tables": 0,
    "multiply": 0,
    "kernel": 0,
    "depthwise_taps": 0,
}
DIGITS = Path(__file__).parents[3] / "examples" / "digits" / "digits.onnx"
LEAST = PRESETS["tiny"].replace(**NONE)
"""A configuration that is built in seconds."""


def registers(soc: SimulatedSoc) -> dict[str, int]:
    """Addresses of the CSRs, from the file for hosts."""
    rows = [line.split(",") for line in soc.csr_csv.splitlines() if line.startswith("csr_register")]
    return {name: int(address, 16) for _, name, address, *_ in rows}


@contextmanager
def device_of(config: Config, memory: Memory, **options: Any) -> Iterator[tuple[LitexDevice, SimulatedSoc]]:
    soc = SimulatedSoc(config, memory, **options)
    csr = registers(soc)
    with LitexDevice(
        soc, config, control=ORIGIN, reset=csr["weft_reset"], held=csr["weft_held"],
        memory=MAIN_RAM, memory_bytes=memory.size,
    ) as device:  # fmt: skip
        yield device, soc


def check_equal(program: weft.Program, device: LitexDevice, seed: int) -> None:
    """All of the memory after a run is the golden interpreter's."""
    rng = np.random.default_rng(seed)
    values = {name: rng.normal(size=shape).astype(kind) for name, (kind, shape) in program.inputs.items()}
    expected = program.run(values)
    device.write(0, bytes(len(expected.memory)))  # which runs before have used
    found = program.run(values, on=device)
    for name, array in expected.outputs.items():
        assert np.array_equal(found.outputs[name], array)
    assert found.memory == expected.memory
    assert device.counters()[Counter.READ_BEATS] > 0


@pytest.fixture(scope="module")
def least() -> Iterator[tuple[LitexDevice, SimulatedSoc]]:
    with device_of(LEAST, Memory("ddr3", 16)) as made:
        yield made


def test_a_program_runs_from_ddr3(least: tuple[LitexDevice, SimulatedSoc]) -> None:
    """LiteDRAM's words are four of the core's; a write may begin and end at any of them."""
    device, _ = least
    for seed in (1, 2):
        check_equal(weft.compile(small(seed), config=LEAST), device, seed)


def test_memory_takes_any_bytes(least: tuple[LitexDevice, SimulatedSoc]) -> None:
    device, _ = least
    rng = np.random.default_rng(3)
    expected = bytearray(rng.bytes(3000))
    device.write(100, bytes(expected))
    for at, size in ((0, 1), (1, 2), (3, 4), (5, 1), (7, 600), (2999, 1), (9, 0)):
        payload = rng.bytes(size)
        device.write(100 + at, payload)
        expected[at : at + size] = payload
    assert device.read(100, 3000) == bytes(expected)
    assert device.read(107, 5) == bytes(expected[7:12])
    last = device.memory_bytes - 1
    device.write(last, b"\x5a")
    assert device.read(last, 1) == b"\x5a"
    with pytest.raises(DeviceError, match="do not lie in a memory"):
        device.read(last, 2)


def test_a_failed_program_leaves_nothing_behind(least: tuple[LitexDevice, SimulatedSoc]) -> None:
    """Endless or invalid programs in the middle of reads; the next program is right."""
    device, _ = least
    program = weft.compile(small(4), config=LEAST)
    reads = Load(base=0, run=4096, rows=64, row_pitch=4096, length=4096, pitch=4096, dst=0, dst_vector=1)
    waits = Load(base=0, wait=1, run=4, rows=1, row_pitch=4, length=4, pitch=4, dst=0, dst_vector=1)
    hang = b"".join(item.encode() for item in (waits, *[reads] * 20, End()))
    device.write(0x8000, hang)
    device.start(0x8000)
    with pytest.raises(DeviceError, match="not done after 3000 cycles: LOAD waits for semaphore"):
        device.wait(3000)
    check_equal(program, device, 5)
    device.write(0x8000, reads.encode() + b"\xff" * 64)
    device.start(0x8000)
    with pytest.raises(DeviceError, match="no instruction"):
        device.wait()
    check_equal(program, device, 6)


def test_the_interrupt_is_an_event(least: tuple[LitexDevice, SimulatedSoc]) -> None:
    device, soc = least
    csr = registers(soc)
    soc.write(csr["weft_ev_pending"], [1])
    soc.write(csr["weft_ev_enable"], [1])
    assert not soc.irq
    device.write(0x8000, End().encode())
    device.start(0x8000)
    device.wait()
    assert soc.irq
    assert soc.read(csr["weft_ev_pending"]) == [1]
    soc.write(csr["weft_ev_pending"], [1])
    assert not soc.irq


def _serve(server: Any) -> None:
    with suppress(OSError):
        server._serve_thread()


def test_through_litex_server(least: tuple[LitexDevice, SimulatedSoc], tmp_path: Path) -> None:
    """The host's side as it is on a desk, but for the cable."""
    from litex.tools.litex_server import RemoteServer

    _, soc = least
    (tmp_path / "csr.csv").write_text(soc.csr_csv)
    server = RemoteServer(soc, "127.0.0.1", 0)
    server.open()
    port = server.socket.getsockname()[1]
    thread = threading.Thread(target=_serve, args=(server,), daemon=True)
    thread.start()
    where = {"host": "127.0.0.1", "port": port, "csr_csv": str(tmp_path / "csr.csv")}
    with LitexDevice.open(LEAST, **where) as device:
        assert device.memory_bytes == 1 << 20
        check_equal(weft.compile(small(7), config=LEAST), device, 7)
    with pytest.raises(DeviceError, match=r"'weft2'.*its regions are main_ram, weft, csr"):
        LitexDevice.open(LEAST, name="weft2", **where)
    with pytest.raises(DeviceError, match="register CONFIG of the core"):
        LitexDevice.open(PRESETS["tiny"], **where)
    server.socket.shutdown(socket.SHUT_RDWR)
    server.socket.close()
    thread.join()
    with pytest.raises(DeviceError, match=r"no litex_server answers at 127\.0\.0\.1"):
        LitexDevice.open(LEAST, **where)


def test_designs_that_do_not_fit_are_refused() -> None:
    with pytest.raises(BoardError, match="no LiteDRAM core 'dram'"):
        system(LEAST, Memory("sram"), dram="dram")
    soc = system(LEAST, Memory("ddr3"))
    soc.l2_cache = None
    with pytest.raises(BoardError, match="a cache between its bus and LiteDRAM"):
        add_weft(soc, LEAST, name="second")


def test_two_accelerators_in_a_system() -> None:
    soc = system(LEAST, Memory("ddr3"))
    other = PRESETS["tiny"]
    add_weft(soc, other, name="second", origin=ORIGIN + 0x1000)
    soc.finalize()
    text = soc.platform.get_verilog(soc).main_source
    for config in (LEAST, other):
        assert len(re.findall(rf"^weft_{config.digest:08x} ", text, re.MULTILINE)) == 1
    assert {Path(path).stem for path, *_ in soc.platform.sources} == {
        f"weft_{config.digest:08x}" for config in (LEAST, other)
    }


def test_without_litex() -> None:
    text = "import sys; sys.modules['litex'] = None; import weft.boards.litex.litex"
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=False)
    assert done.returncode
    assert done.stderr.splitlines()[-1].endswith(
        "BoardError: LiteX is not installed (no module litex.gen): pip install 'weft[litex]'"
    )


def test_the_page_about_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its examples, on a system that is no target of litex-boards, and a device that is the golden interpreter."""
    page = Path(__file__).parents[3] / "docs" / "litex.md"
    first, second = re.findall(r"^```python\n(.*?)^```$", page.read_text(), re.MULTILINE | re.DOTALL)
    names: dict[str, Any] = {
        "__name__": "page",
        "BaseSoC": lambda l2_size: without_accelerator(Memory("ddr3")),
    }
    exec(compile(first, str(page), "exec"), names)
    assert names["soc"].weft.config.n == 8
    names["soc"].finalize()

    (tmp_path / "digits.onnx").write_bytes(DIGITS.read_bytes())
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(LitexDevice, "open", lambda config, csr_csv: _modelled(config))
    names |= {"config": LEAST, "inputs": {"image": np.ones((1, 1, 8, 8), np.float32)}}
    exec(compile(second, str(page), "exec"), names)
    assert names["result"].outputs["logits"].shape == (1, 10)


def _modelled(config: Config) -> LitexDevice:
    return LitexDevice(
        LitexModel(config),
        config,
        control=CONTROL,
        reset=RESET,
        held=HELD,
        memory=MEMORY,
        memory_bytes=SIZE_BYTES,
    )


SYSTEMS = [
    ("tiny", Memory("ddr3", 16)),
    ("tiny", Memory("sdr", 16)),
    ("tiny", Memory("sram", bus="axi", size=1 << 18)),
    ("small", Memory("ddr3", 8)),
    ("small", Memory("ddr3", 16)),
    ("small", Memory("sdr", 16)),
    ("small", Memory("sram", bus="axi-lite", size=1 << 18)),
    ("small", Memory("sram", width=64, size=1 << 18)),
    ("default", Memory("ddr3", 16)),
    ("default", Memory("ddr3", 8)),
    ("default", Memory("sram", size=1 << 18)),
]


@pytest.mark.long
@pytest.mark.parametrize(("name", "memory"), SYSTEMS)
@pytest.mark.parametrize("whole", [True, False])
def test_every_width(name: str, memory: Memory, whole: bool) -> None:
    """Widths of the core, of LiteDRAM and of the bus, each way round; `whole` presets, and without what takes long to
    build."""
    config = PRESETS[name] if whole else PRESETS[name].replace(**NONE)
    rng = np.random.default_rng(11)
    with device_of(config, memory) as (device, _):
        check_equal(weft.compile(DIGITS, config=config), device, 8)
        for seed in range(3):
            check_equal(weft.compile(qdq_models.random_cnn(rng), config=config), device, seed)


@pytest.mark.long
def test_the_sequential_core() -> None:
    with device_of(LEAST, Memory("ddr3", 16), sequential=True) as (device, _):
        check_equal(weft.compile(small(9), config=LEAST), device, 9)
