"""The scratchpad and the accumulator: banked memories with one read and one write port a bank."""

from __future__ import annotations

from amaranth.hdl import Array, Cat, Const, Module, Mux, Signal, Value, signed
from amaranth.lib import data, memory, wiring
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out

from weft.hdl.isa.config import Config
from weft.hdl.isa.operands import READ_LATENCY, alignment_latency
from weft.hdl.lib import ports
from weft.hdl.lib.arithmetic import Coding
from weft.hdl.lib.ports import ALIGNMENT_BITS, scratchpad_read, scratchpad_write


def grants(valid: list[Value], bank: list[Value]) -> list[Value]:
    """Return `ready` of each client: no client of higher priority requests the same bank.

    Clients are in order of priority, highest first.
    """
    return [
        ~Cat(*(valid[j] & (bank[j] == bank[i]) for j in range(i))).any() if i else Const(1)
        for i in range(len(valid))
    ]


class Scratchpad(wiring.Component):
    """Scratchpad: banked memory of vectors of ``n`` bytes with fixed priorities between its clients.

    The high bits of an address select the bank. A request is granted in the same cycle unless a client of higher
    priority requests the same bank, so client 0 never waits. A read in the same cycle as a write to the same address
    returns the old vector or the new vector.

    Parameters
    ----------
    config : Config
    readers, writers : int
        Numbers of read and write clients. A smaller index has priority.

    Members
    -------
    read : In(scratchpad_read(config)).array(readers)
    write : In(scratchpad_write(config)).array(writers)
    wrong : Out(1)
        Only with `parity`: the vector at an output one cycle ago had changed since it was written.
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
        for sides, banks in ((self.read, read_bank), (self.write, write_bank)):
            for port, ready in zip(sides, grants([port.valid for port in sides], banks), strict=True):
                m.d.comb += port.ready.eq(ready)

        coding = Coding(self.config, 8)
        width = coding.width(self.config.widths.vector)
        outputs, wrong = [], []
        for bank in range(self.config.scratchpad_banks):
            memory = Memory(shape=width, depth=self.config.scratchpad_depth, init=[])
            m.submodules[f"bank{bank}"] = memory
            reading = memory.read_port()
            writing = memory.write_port()
            # Registers at the inputs too, because a bank is spread over many block RAMs.
            for sides, port_banks, inner in (
                (self.read, read_bank, reading),
                (self.write, write_bank, writing),
            ):
                asks = [port.valid & (chosen == bank) for port, chosen in zip(sides, port_banks, strict=True)]
                m.d.sync += inner.en.eq(Cat(*asks).any())
                m.d.sync += inner.addr.eq(_select(asks, [port.address[:depth_bits] for port in sides]))
                if inner is writing:
                    m.d.sync += inner.data.eq(coding.encode(_select(asks, [port.data for port in sides])))
            output = Signal(width, name=f"output{bank}", reset_less=True)
            m.d.sync += output.eq(reading.data)
            vector, changed = coding.decode(output)
            outputs.append(vector)
            if coding.checked:
                # The output holds the vector whose read was enabled two cycles ago.
                wrong.append(changed & _delay(m, reading.en, 2, f"valid{bank}"))
        if coding.checked:
            m.d.sync += self.wrong.eq(Cat(wrong).any())

        # Each client selects its bank's output by the bank of its request, `READ_LATENCY` cycles later.
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


def _delay(m: Module, signal: Value, cycles: int, name: str) -> Value:
    stages = Signal(cycles, name=name)
    m.d.sync += stages.eq(Cat(signal, stages))
    return stages[-1]


def _select(asks: list[Value], sources: list[Value]) -> Value:
    """Return the source of the first client that asks; the last source if none asks."""
    chosen = sources[-1]
    for ask, source in reversed(list(zip(asks[:-1], sources[:-1], strict=True))):
        chosen = Mux(ask, source, chosen)
    return chosen


def accumulator_write(config: Config) -> wiring.Signature:
    """Return the write port of the accumulator, seen from the array. It is always granted.

    In a cycle in which ``valid`` is 1, ``psums`` overwrite row ``address`` or, without ``overwrite``, are added to it
    modulo 2**32. A row must not be added to within `rmw_latency` cycles of the last write to it.

    With softmax the row has an ``alignment`` from -31 to 31. If it is positive, the old content (0 if overwritten) is
    shifted right by that many bits before the addition; if it is negative, psums are shifted right by its magnitude.
    Both shifts are arithmetic and rounded (`rsh` of `weft.hdl.isa`).
    """
    members: dict[str, wiring.Member] = {
        "valid": Out(1),
        "address": Out(config.widths.accumulator_address),
        "overwrite": Out(1),
        "psums": Out(data.ArrayLayout(signed(config.widths.psum), config.n)),
    }
    if config.softmax:
        members["alignment"] = Out(signed(ALIGNMENT_BITS))
    return wiring.Signature(members)


class Accumulator(wiring.Component):
    """Accumulator: banked memory of rows of int32 sums, which adds or writes a row of the array in every cycle.

    An address's high bits select the bank. A row that is added takes the read port of its bank in the cycle in which it
    arrives, and the write port `rmw_latency` - 1 cycles later. Other reads get the remaining cycles of a read port: a
    read of a bank to which the array is not adding is never refused.

    Parameters
    ----------
    config : Config

    Members
    -------
    write : In(accumulator_write(config))
    read : In(ports.accumulator_read(config))
        Lane j of a row is bits ``32 * j`` and up.
    wrong : Out(1)
        Only with `parity`: the row at an output one cycle ago had changed since it was written.
    """

    def __init__(self, config: Config) -> None:
        self.config = config
        super().__init__(
            {
                "write": In(accumulator_write(config)),
                "read": In(ports.accumulator_read(config)),
            }
            | ({"wrong": Out(1)} if config.parity else {})
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
        coding, wrong = Coding(config, 32), []
        for bank, output in enumerate(outputs):
            ram = memory.Memory(
                shape=coding.width(config.widths.row), depth=config.accumulator_depth, init=[]
            )
            m.submodules[f"bank{bank}"] = ram
            fetch = ram.read_port()
            store = ram.write_port()
            take = Signal(name=f"take{bank}")
            wanted = Signal(name=f"wanted{bank}")
            m.d.sync += [
                wanted.eq(take | (self.read.valid & (read_bank == bank))),
                fetch.addr.eq(Mux(take, self.write.address[:inner], self.read.address[:inner])),
            ]
            m.d.comb += [
                take.eq(adds & (write_bank == bank)),
                # The row that is being written is never read. This comparison makes it visible to synthesis, which
                # otherwise adds logic for memories that do not return the old content.
                fetch.en.eq(wanted & ~(store.en & (fetch.addr == store.addr))),
                store.en.eq(done & (address[inner:] == bank)),
                store.addr.eq(address[:inner]),
                store.data.eq(coding.encode(total)),
            ]
            # A register directly at the memory, because the memory alone takes half of a 100 MHz cycle.
            if coding.checked:
                wrong.append(self._check(m, coding, fetch, output, bank))
            else:
                m.d.sync += output.eq(fetch.data)
        if coding.checked:
            m.d.sync += self.wrong.eq(Cat(wrong).any())
        # The reader selects the output of the bank that it addressed `READ_LATENCY` cycles ago.
        read_banks = [Signal.like(read_bank, name=f"read_bank{stage}") for stage in range(READ_LATENCY)]
        m.d.sync += Cat(*read_banks).eq(Cat(read_bank, *read_banks))
        m.d.comb += self.read.data.eq(outputs[read_banks[-1]])
        return m

    @staticmethod
    def _check(m: Module, coding: Coding, fetch: memory.ReadPort, output: Signal, bank: int) -> Value:
        """Drive the output with the row that was read, and check its parity. Returns a flag: the row is wrong."""
        row = Signal(len(fetch.data), name=f"coded{bank}", reset_less=True)
        valid = Signal(2, name=f"valid{bank}")
        m.d.sync += [row.eq(fetch.data), valid.eq(Cat(fetch.en, valid))]
        word, changed = coding.decode(row)
        m.d.comb += output.eq(word)
        return changed & valid[-1]

    def _add(self, m: Module, outputs: Array) -> tuple[Signal, Signal, Signal]:
        """Delay the incoming row until its old value is at the outputs of the banks, and add.

        Returns valid, address and row of the write, all registers.
        """
        config = self.config
        inner = (config.accumulator_depth - 1).bit_length()
        valid: Value = self.write.valid
        row: Value = Cat(self.write.overwrite, self.write.address, self.write.psums.as_value())
        if config.softmax:
            alignment = self.write.alignment
            row = Cat(row, alignment[-1], Mux(alignment[-1], -alignment, alignment)[: ALIGNMENT_BITS - 1])
        for stage in range(READ_LATENCY):
            following_valid = Signal(name=f"valid{stage}")
            payload = Signal(len(row), name=f"payload{stage}", reset_less=True)
            m.d.sync += [following_valid.eq(valid), payload.eq(row)]
            valid, row = following_valid, payload
        overwrite, address = payload[0], payload[1 : 1 + len(self.write.address)]
        data_bits = payload[1 + len(self.write.address) :]  # psums and, with softmax, the alignment
        old = Signal(config.widths.row)
        with m.If(~overwrite):
            m.d.comb += old.eq(outputs[address[inner:]])
        psums = [data_bits.word_select(j, config.widths.psum).as_signed() for j in range(config.n)]
        if config.softmax:
            small, amount = data_bits[-ALIGNMENT_BITS], data_bits[1 - ALIGNMENT_BITS :]
            sums = self._align(m, old, psums, small, amount)
            for stage in range(alignment_latency(config)):
                following_valid = Signal(name=f"aligned{stage}")
                following_address = Signal.like(address, name=f"aligned_address{stage}", reset_less=True)
                m.d.sync += [following_valid.eq(valid), following_address.eq(address)]
                valid, address = following_valid, following_address
        else:
            sums = [(old.word_select(j, 32) + psum)[:32] for j, psum in enumerate(psums)]
        done = Signal()
        done_address = Signal.like(self.write.address)
        total = Signal(config.widths.row, reset_less=True)
        m.d.sync += [done.eq(valid), done_address.eq(address), total.eq(Cat(*sums))]
        return done, done_address, total

    @staticmethod
    def _align(m: Module, old: Value, psums: list[Value], small: Value, amount: Value) -> list[Value]:
        """Return the sums of the columns, two cycles later: `psums` (if `small`) or `old` is shifted right by `amount`.

        The first cycle selects the operand to shift, the second shifts it. The shift keeps one bit below the binary
        point: a 1 added at that bit rounds the sum by the adder's carry.
        """
        distance = Signal.like(amount, name="distance", reset_less=True)
        m.d.sync += distance.eq(amount)
        sums = []
        for j, psum in enumerate(psums):
            column = old.word_select(j, 32)
            moved = Signal(signed(32), name=f"moved{j}", reset_less=True)
            kept = Signal(32, name=f"kept{j}", reset_less=True)
            shifted = Signal(33, name=f"shifted{j}", reset_less=True)
            other = Signal(32, name=f"other{j}", reset_less=True)
            m.d.sync += [
                moved.eq(Mux(small, psum, column.as_signed())),
                kept.eq(Mux(small, column, psum)),
                shifted.eq(Cat(Const(0, 1), moved).as_signed() >> distance),
                other.eq(kept),
            ]
            sums.append((shifted + Cat(Const(1, 1), other))[1:33])
        return sums
