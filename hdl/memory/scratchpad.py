"""The scratchpad: banks of vector memory, each with one read and one write port, behind fixed priorities."""

from __future__ import annotations

from amaranth.hdl import Cat, Const, Module, Mux, Signal, Value
from amaranth.lib import wiring
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out

from weft.hdl.isa.config import Config
from weft.hdl.isa.latencies import READ_LATENCY
from weft.hdl.lib.parity import Coding
from weft.hdl.lib.ports import scratchpad_read, scratchpad_write


def grants(valid: list[Value], bank: list[Value]) -> list[Value]:
    """Ready of each client, highest priority first: no client before it wants the same bank."""
    return [
        ~Cat(*(valid[j] & (bank[j] == bank[i]) for j in range(i))).any() if i else Const(1)
        for i in range(len(valid))
    ]


class Scratchpad(wiring.Component):
    """Banked memory of vectors of ``n`` bytes; the high bits of an address choose the bank.

    A client is granted in the cycle it asks unless one before it asks for the same bank, so client 0 never waits.
    A read in the same cycle as a write to the same address returns the old vector or the new one.

    Parameters
    ----------
    config : Config
    readers, writers : int
        Number of read and write clients; a smaller index has priority.

    Members
    -------
    read : In(scratchpad_read(config)).array(readers)
    write : In(scratchpad_write(config)).array(writers)
    wrong : Out(1)
        With `parity` only: in the cycle before, a vector stood at an output that had changed since it was written.
    """

    def __init__(self, config: Config, *, readers: int, writers: int) -> None:
        self.config = config
        super().__init__(
            {
                "read": In(scratchpad_read(config)).array(readers),
                "write": In(scratchpad_write(config)).array(writers),
            }
            | ({"wrong": Out(1)} if config.parity else {})
        )

    def elaborate(self, platform: object) -> Module:
        m = Module()
        depth_bits = (self.config.scratchpad_depth - 1).bit_length()
        read_bank = [port.address[depth_bits:] for port in self.read]
        write_bank = [port.address[depth_bits:] for port in self.write]
        for ports, banks in ((self.read, read_bank), (self.write, write_bank)):
            for port, ready in zip(ports, grants([port.valid for port in ports], banks), strict=True):
                m.d.comb += port.ready.eq(ready)

        coding = Coding(self.config, 8)
        width = coding.width(self.config.widths.vector)
        outputs, wrong = [], []
        for bank in range(self.config.scratchpad_banks):
            memory = Memory(shape=width, depth=self.config.scratchpad_depth, init=[])
            m.submodules[f"bank{bank}"] = memory
            reading, writing = memory.read_port(), memory.write_port()
            # Registers on the way in as well, as a bank is spread over many block RAMs.
            for ports, port_banks, inner in (
                (self.read, read_bank, reading),
                (self.write, write_bank, writing),
            ):
                asks = [port.valid & (chosen == bank) for port, chosen in zip(ports, port_banks, strict=True)]
                m.d.sync += inner.en.eq(Cat(*asks).any())
                m.d.sync += inner.addr.eq(_select(asks, [port.address[:depth_bits] for port in ports]))
                if inner is writing:
                    m.d.sync += inner.data.eq(coding.encode(_select(asks, [port.data for port in ports])))
            output = Signal(width, name=f"output{bank}", reset_less=True)
            m.d.sync += output.eq(reading.data)
            vector, changed = coding.decode(output)
            outputs.append(vector)
            if coding.checked:
                wrong.append(changed & _later(m, reading.en, 2, f"valid{bank}"))
        if coding.checked:
            m.d.sync += self.wrong.eq(Cat(wrong).any())

        for index, (port, bank) in enumerate(zip(self.read, read_bank, strict=True)):
            for stage in range(READ_LATENCY):
                delayed = Signal.like(bank, name=f"bank{index}_{stage}")
                m.d.sync += delayed.eq(bank)
                bank = delayed
            with m.Switch(bank):
                for value, output in enumerate(outputs):
                    with m.Case(value):
                        m.d.comb += port.data.eq(output)
        return m


def _later(m: Module, signal: Value, cycles: int, name: str) -> Value:
    """A bit so many cycles later."""
    stages = Signal(cycles, name=name)
    m.d.sync += stages.eq(Cat(signal, stages))
    return stages[-1]


def _select(asks: list[Value], sources: list[Value]) -> Value:
    """The source of the first client that asks, else of the last."""
    chosen = sources[-1]
    for ask, source in reversed(list(zip(asks[:-1], sources[:-1], strict=True))):
        chosen = Mux(ask, source, chosen)
    return chosen
