"""The accumulator: banks of N x int32 rows that the array adds into and the vector unit reads."""

from __future__ import annotations

from amaranth.hdl import Array, Cat, Module, Mux, Signal, signed
from amaranth.lib import data, memory, wiring
from amaranth.lib.wiring import In, Out

from weft.hdl import ports
from weft.hdl.config import Config

RMW_LATENCY = 4
"""Cycles from a row at the `Accumulator.write` port until reads see it: a read granted then, or a row that adds to
it arriving then, finds the sum."""


def accumulator_write(config: Config) -> wiring.Signature:
    """The port of the array, seen from the array. Never refused.

    ``psums`` go to row ``address`` in a cycle where ``valid`` is 1, overwriting it or, without ``overwrite``, adding
    to it modulo 2**32. A row must not be added to within `RMW_LATENCY` cycles of the last write to it.
    """
    return wiring.Signature(
        {
            "valid": Out(1),
            "address": Out(config.widths.accumulator_address),
            "overwrite": Out(1),
            "psums": Out(data.ArrayLayout(signed(config.widths.psum), config.n)),
        }
    )


class Accumulator(wiring.Component):
    """Banks with one read and one write port each; the bank is the high bits of the address.

    A row from the array that adds takes its bank's read port in the cycle of its arrival, and everybody's write port
    `RMW_LATENCY` - 1 cycles later. Reads get what remains, so a reader of a bank that the array is not adding into
    is never refused.

    Parameters
    ----------
    config : Config

    Members
    -------
    write : In(accumulator_write(config))
    read : In(ports.accumulator_read(config))
        Lane j of a row is bits ``32 * j`` and up.
    """

    def __init__(self, config: Config) -> None:
        self.config = config
        super().__init__(
            {
                "write": In(accumulator_write(config)),
                "read": In(ports.accumulator_read(config)),
            }
        )

    def elaborate(self, platform: object) -> Module:
        m = Module()
        config = self.config
        inner = (config.accumulator_depth - 1).bit_length()
        write_bank, read_bank = self.write.address[inner:], self.read.address[inner:]
        adds = Signal()
        m.d.comb += [
            adds.eq(self.write.valid & ~self.write.overwrite),
            self.read.ready.eq(~(adds & (write_bank == read_bank))),
        ]
        outputs = Array(
            Signal(config.widths.row, name=f"output{bank}", reset_less=True)
            for bank in range(config.accumulator_banks)
        )
        done, address, total = self._add(m, outputs)
        for bank, output in enumerate(outputs):
            ram = memory.Memory(shape=config.widths.row, depth=config.accumulator_depth, init=[])
            m.submodules[f"bank{bank}"] = ram
            fetch, store = ram.read_port(), ram.write_port()
            take, wanted = Signal(name=f"take{bank}"), Signal(name=f"wanted{bank}")
            m.d.comb += [
                take.eq(adds & (write_bank == bank)),
                wanted.eq(take | (self.read.valid & (read_bank == bank))),
                # Nobody may read the row that is being written. Saying so spares synthesis the logic that
                # would return its old content from memories that cannot.
                fetch.en.eq(wanted & ~(store.en & (fetch.addr == store.addr))),
                fetch.addr.eq(Mux(take, self.write.address[:inner], self.read.address[:inner])),
                store.en.eq(done & (address[inner:] == bank)),
                store.addr.eq(address[:inner]),
                store.data.eq(total),
            ]
            # A register right behind the memory, as the memory alone takes half of a 100 MHz cycle.
            m.d.sync += output.eq(fetch.data)
        read_banks = [Signal.like(read_bank, name=f"read_bank{stage}") for stage in range(ports.READ_LATENCY)]
        m.d.sync += Cat(*read_banks).eq(Cat(read_bank, *read_banks))
        m.d.comb += self.read.data.eq(outputs[read_banks[-1]])
        return m

    def _add(self, m: Module, outputs: Array) -> tuple[Signal, Signal, Signal]:
        """Delay the incoming row until its old value stands at the banks' outputs, and add. Returns what to write,
        from registers: valid, address, row."""
        config = self.config
        inner = (config.accumulator_depth - 1).bit_length()
        source = (
            self.write.valid,
            Cat(self.write.overwrite, self.write.address, self.write.psums.as_value()),
        )
        for stage in range(ports.READ_LATENCY):
            valid = Signal(name=f"valid{stage}")
            payload = Signal(len(source[1]), name=f"payload{stage}", reset_less=True)
            m.d.sync += [valid.eq(source[0]), payload.eq(source[1])]
            source = (valid, payload)
        overwrite, address = payload[0], payload[1 : 1 + len(self.write.address)]
        psums = payload[1 + len(self.write.address) :]
        old = Signal(config.widths.row)
        with m.If(~overwrite):
            m.d.comb += old.eq(outputs[address[inner:]])
        done, done_address = Signal(), Signal.like(self.write.address)
        total = Signal(config.widths.row, reset_less=True)
        width = config.widths.psum
        sums = [
            (old.word_select(j, 32) + psums.word_select(j, width).as_signed())[:32] for j in range(config.n)
        ]
        m.d.sync += [done.eq(valid), done_address.eq(address), total.eq(Cat(*sums))]
        return done, done_address, total
