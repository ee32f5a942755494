"""The transposer: groups of N vectors on their way from the unpacker to the scratchpad, rows to columns."""

from __future__ import annotations

from amaranth.hdl import Array, Cat, Module, Mux, Signal, Value, signed
from amaranth.lib import data, stream, wiring
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out

from weft.hdl.isa import SEMAPHORES
from weft.hdl.isa.config import Config
from weft.hdl.isa.encoding import FACTOR_FRACTION_BITS, GROUP_WORDS
from weft.hdl.lib.ports import scratchpad_write
from weft.hdl.lib.queues import BLOCK_RAM
from weft.hdl.load.unpack import vector_layout


class Transposer(wiring.Component):
    """Writes vectors to the scratchpad, those to be transposed by way of two buffers of N pixels.

    A pixel is up to `Config.transposed_vectors` vectors, so that what LOAD reads of a row lies together in memory. A
    buffer has N bytes per lane for each of them. Byte j of a vector of pixel i is at word i of lane (i + j) mod N, so
    that neither a vector nor a column has two bytes in the same lane: vectors are rotated on their way in, columns on
    their way out. One buffer fills while the other one empties, a vector a cycle each. A vector that is not transposed
    takes one cycle, after waiting for the buffers to be empty: vectors leave in order of instructions.

    Parameters
    ----------
    config : Config
        With softmax.

    Members
    -------
    vector : In(stream of vector_layout(config))
    scratchpad : Out(scratchpad_write(config))
    signal : Out(16)
        For one cycle after an instruction's last vector was written, its signal mask.
    busy : Out(1)
        Vectors that were accepted, or a signal, are on their way.
    """

    def __init__(self, config: Config) -> None:
        self.config = config
        address = config.widths.scratchpad_address
        self._panel = range(
            config.transposed_vectors
        )  # of the vectors of a group, those at one place in their pixels
        self._group = data.StructLayout(
            {
                "address": address,
                "step": address,
                "jump": address,
                "panels": self._panel,
                "signal": SEMAPHORES,
            }
        )
        self._column = data.StructLayout({"turn": range(config.n), "address": address, "signal": SEMAPHORES})
        super().__init__(
            {
                "vector": In(stream.Signature(vector_layout(config))),
                "scratchpad": Out(scratchpad_write(config)),
                "signal": Out(SEMAPHORES),
                "busy": Out(1),
            }
        )

    def elaborate(self, platform: object) -> Module:
        m = Module()
        depth = 2 * len(self._panel) * self.config.n
        # As distributed memory, lanes take twice the LUTs of all else here, and their wires are long.
        lanes = [Memory(shape=8, depth=depth, init=[], attrs=BLOCK_RAM) for _ in range(self.config.n)]
        for index, lane in enumerate(lanes):
            m.submodules[f"lane{index}"] = lane
        vector, port = self.vector.payload, self.scratchpad
        advance = Signal()  # everything on the way out
        full = Signal(2)
        groups = Array(Signal(self._group, name=f"group{buffer}") for buffer in range(2))
        filled, padding = self._fill(m, lanes, full, groups)
        emptied, leaving, valid, column, turned = self._empty(m, lanes, full, groups, advance)
        m.d.sync += full.eq((full | filled) & ~emptied)

        underway, plain, signal = Signal(), Signal(), Signal(SEMAPHORES)
        m.d.comb += [
            advance.eq(~port.valid | port.ready),
            underway.eq(full.any() | padding | leaving),
            plain.eq(self.vector.valid & ~vector.transpose & ~underway),
            self.busy.eq(underway | port.valid | self.signal.any()),
        ]
        with m.If(~vector.transpose):
            m.d.comb += self.vector.ready.eq(advance & ~underway)
        with m.If(advance):
            m.d.sync += [
                port.valid.eq(valid | plain),
                port.address.eq(Mux(valid, column.address, vector.address)),
                port.data.eq(Mux(valid, turned, vector.data)),
                signal.eq(Mux(valid, column.signal, vector.signal)),
            ]
        m.d.sync += self.signal.eq(Mux(port.valid & port.ready, signal, 0))
        return m

    def _fill(self, m: Module, lanes: list[Memory], full: Signal, groups: Array) -> tuple[Value, Signal]:
        """Take vectors that are to be transposed, and fill up their last group. Returns which buffer gets its last
        vector in this cycle, as a mask, and whether vectors of fill are being written."""
        n, vector = self.config.n, self.vector.payload
        target, index = Signal(), Signal(range(n))
        panel, panels = Signal(self._panel), Signal(self._panel)  # of the pixel, and its last one
        take, write, end, last = Signal(), Signal(), Signal(), Signal()
        padding, fill = Signal(), Signal(8)
        fresh, following = Signal(init=1), Signal(self.config.widths.scratchpad_address)
        address = Signal.like(following)
        m.d.comb += [
            take.eq(self.vector.valid & vector.transpose & ~full.bit_select(target, 1) & ~padding),
            write.eq(take | padding),
            end.eq(Mux(padding, panel == panels, vector.pixel_end)),
            last.eq(write & end & (index == n - 1)),
            address.eq(Mux(fresh, vector.address, following)),
        ]
        with m.If(vector.transpose):
            m.d.comb += self.vector.ready.eq(take)
        m.d.sync += target.eq(target ^ last)
        with m.If(write):
            m.d.sync += [index.eq(index + end), panel.eq(Mux(end, 0, panel + 1))]
        with m.If(take):
            m.d.sync += [
                fresh.eq(vector.last),
                fill.eq(vector.fill),
                padding.eq(vector.last & ~last),
                panels.eq(panel),
                groups[target].panels.eq(panel),
                groups[target].signal.eq(vector.signal),
            ]
            with m.If((index == 0) & (panel == 0)):
                m.d.sync += [
                    following.eq(address + vector.dst_group),
                    groups[target].address.eq(address),
                    groups[target].step.eq(vector.dst_vector),
                    groups[target].jump.eq(vector.dst_pixel),
                ]
        with m.Elif(last):
            m.d.sync += padding.eq(0)
        rotated = self._rotate(m, Mux(padding, fill.replicate(n), vector.data), index, "in")
        for lane, memory in enumerate(lanes):
            store = memory.write_port()
            m.d.comb += [
                store.en.eq(write),
                store.addr.eq(Cat(index, panel, target)),
                store.data.eq(rotated.word_select(lane, 8)),
            ]
        return Cat(last & ~target, last & target), padding

    def _empty(
        self, m: Module, lanes: list[Memory], full: Signal, groups: Array, advance: Signal
    ) -> tuple[Value, Value, Signal, data.View, Value]:
        """Read the columns of full buffers. Returns which buffer is read for the last time, as a mask; whether a
        column is on its way; and valid, description and bytes of the one that has come."""
        n, bits = self.config.n, (self.config.n - 1).bit_length()
        source, index, panel = Signal(), Signal(range(n)), Signal(self._panel)
        read, end, last = Signal(), Signal(), Signal()
        following, start = (
            Signal(self.config.widths.scratchpad_address, name=name) for name in ("following", "start")
        )
        group, column = Signal(self._group, name="group"), Signal(self._column, name="column")
        m.d.comb += [
            read.eq(full.bit_select(source, 1) & advance),
            end.eq(index == n - 1),
            last.eq(read & end & (panel == group.panels)),
            group.eq(groups[source]),
            column.turn.eq(index),
            column.address.eq(Mux((index == 0) & (panel == 0), group.address, following)),
            column.signal.eq(Mux(last, group.signal, 0)),
        ]
        m.d.sync += [index.eq(index + read), source.eq(source ^ last)]
        with m.If(read):
            m.d.sync += following.eq(Mux(end, start, column.address + group.step))
            with m.If(index == 0):
                m.d.sync += start.eq(column.address + group.jump)
            with m.If(end):
                m.d.sync += panel.eq(Mux(panel == group.panels, 0, panel + 1))
        fetched = []
        for lane, memory in enumerate(lanes):
            fetch = memory.read_port()
            m.d.comb += [fetch.en.eq(advance), fetch.addr.eq(Cat((lane - index)[:bits], panel, source))]
            fetched.append(fetch.data)
        # Behind the memory's own register another one, as that of a block memory is not fast enough to rotate from.
        held = Signal(self.config.widths.vector, reset_less=True)
        valids = Signal(2)
        columns = [Signal(self._column, name=f"column{stage}", reset_less=True) for stage in range(2)]
        with m.If(advance):
            m.d.sync += [
                held.eq(Cat(*fetched)),
                valids.eq(Cat(read, valids)),
                columns[0].eq(column),
                columns[1].eq(columns[0]),
            ]
        turned = self._rotate(m, held, columns[1].turn, "out", left=False)
        return Cat(last & ~source, last & source), valids.any(), valids[1], columns[1], turned

    @staticmethod
    def _rotate(m: Module, value: Value, lanes: Value, name: str, *, left: bool = True) -> Value:
        """`value`, its bytes rotated by `lanes`, up (`left`) or down."""
        for bit in range(len(lanes)):
            stage = Signal(len(value), name=f"{name}{bit}")
            distance = 8 << bit
            moved = value.rotate_left(distance) if left else value.rotate_right(distance)
            m.d.comb += stage.eq(Mux(lanes[bit], moved, value))
            value = stage
        return value


class Widener(wiring.Component):
    """Passes bus words on as they are, or each as two words: those of the values in its lower and in its upper half.

    The low nibble of a byte is the first of its two values, which are signed. Words pass in the cycle they come in.
    `narrow` may change only between words, behind both parts of the one before.

    With `blocks`, words are in groups. The first word of a group has factors and does not pass; it takes a cycle. Each
    of the `GROUP_WORDS` words that come of the others is multiplied by the next one of the factors, which are used in
    turn.

    Parameters
    ----------
    config : Config

    Members
    -------
    narrow : In(1)
        The word at the input holds values of 4 bits.
    blocks : In(1)
        It belongs to a group, too, or is the first one of a group. Only where LOAD has blocks.
    wanted : In(1)
        With `blocks`: words of the run are still to come, so that the next group's factors may be taken.
    beat : In(stream of bus words)
    wide : Out(stream of bus words)
    """

    def __init__(self, config: Config) -> None:
        self.config = config
        word = stream.Signature(config.widths.bus)
        super().__init__(
            {"narrow": In(1), "beat": In(word), "wide": Out(word)}
            | ({"blocks": In(1), "wanted": In(1)} if config.blocks else {})
        )

    def elaborate(self, platform: object) -> Module:
        m = Module()
        upper = Signal()  # half of the word: the lower one has been taken
        word, half = self.beat.payload, self.config.widths.bus // 2
        chosen = Mux(upper, word[half:], word[:half])
        halved = self.narrow & self.wide.valid & self.wide.ready
        factors, widened = (
            self._groups(m, halved, chosen) if self.config.blocks else (0, self._widened(chosen))
        )
        whole = self.wide.ready & (upper | ~self.narrow)
        m.d.comb += [
            self.wide.valid.eq(self.beat.valid & ~factors),
            self.wide.payload.eq(Mux(self.narrow, widened, word)),
            self.beat.ready.eq(Mux(factors, self.wanted, whole) if self.config.blocks else whole),
        ]
        with m.If(halved):
            m.d.sync += upper.eq(~upper)
        return m

    def _groups(self, m: Module, halved: Value, chosen: Value) -> tuple[Value, Value]:
        """Keep factors and use them in turn. Returns whether the word at the input has some, and the values in half a
        word as bytes."""
        left = Signal(range(GROUP_WORDS + 1))  # words of the group that are still to come
        begin = Signal(init=1)  # there are none; in a register, as all of LOAD waits for it
        kept = Signal(self.config.widths.bus)
        first = Signal()
        m.d.comb += first.eq(self.blocks & begin)
        with m.If(first & self.wanted & self.beat.valid):
            m.d.sync += [left.eq(GROUP_WORDS), begin.eq(0), kept.eq(self.beat.payload)]
        with m.Elif(halved & self.blocks):
            m.d.sync += [left.eq(left - 1), begin.eq(left == 1), kept.eq(kept.rotate_right(8))]
        nibbles = [chosen[at : at + 4].as_signed() for at in range(0, len(chosen), 4)]
        products = Cat(*(self._multiplied(m, nibble, kept[:8].as_signed()) for nibble in nibbles))
        return first, Mux(self.blocks, products, self._widened(chosen))

    @staticmethod
    def _multiplied(m: Module, value: Value, factor: Value) -> Value:
        """A value of 4 bits times a factor, rounded and saturated to a byte.

        It is the sum of two adders' results, one for each half of the value. A multiplier block would be far from the
        bus on the chip, and without a register in it it would take most of the cycle.
        """
        low, high = Signal(signed(11)), Signal(signed(12))
        half = 1 << FACTOR_FRACTION_BITS - 1
        m.d.comb += [
            low.eq(Mux(value[0], factor, 0) + (Mux(value[1], factor, 0) << 1)),
            high.eq(Mux(value[2], factor, 0) - (Mux(value[3], factor, 0) << 1)),
        ]
        rounded = Signal(signed(12 - FACTOR_FRACTION_BITS + 1))
        m.d.comb += rounded.eq((low + (high << 2) + half) >> FACTOR_FRACTION_BITS)
        within = rounded[7:].all() | ~rounded[7:].any()
        return Mux(within, rounded[:8], Cat((~rounded[-1]).replicate(7), rounded[-1]))

    @staticmethod
    def _widened(values: Value) -> Value:
        """Signed values of 4 bits as bytes."""
        nibbles = [values[at : at + 4] for at in range(0, len(values), 4)]
        return Cat(*(Cat(nibble, nibble[-1].replicate(4)) for nibble in nibbles))
