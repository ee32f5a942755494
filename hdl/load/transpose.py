"""The transposer and the widener of the load unit.

The transposer turns rows of groups of N vectors into columns, on their way from unpacker to scratchpad. The widener
expands values of 4 bits.
"""

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
    """Writer of vectors to the scratchpad that can transpose groups of N pixels, in two buffers.

    A pixel has up to `Config.transposed_vectors` vectors, so that LOAD reads contiguous bytes of a row. A buffer has N
    bytes a lane for each of these vectors. Byte j of a vector of pixel i is at word i of lane (i + j) mod N, so that
    neither a vector nor a column has two bytes in the same lane: vectors are rotated when they are written, columns
    when they are read. One buffer fills while the other drains, at a vector a cycle each. A vector that is not
    transposed takes one cycle, after both buffers are empty: vectors leave in the order of instructions.

    Parameters
    ----------
    config : Config
        With softmax.

    Members
    -------
    vector : In(stream of vector_layout(config))
    scratchpad : Out(scratchpad_write(config))
    signal : Out(16)
        Signal mask of an instruction, for the cycle after its last vector was written.
    busy : Out(1)
        Accepted vectors, or a signal, are on the way.
    """

    def __init__(self, config: Config) -> None:
        self.config = config
        address = config.widths.scratchpad_address
        # A panel is all vectors of a group that have the same index in their pixels.
        self._panel = range(config.transposed_vectors)
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
        # Block RAM: in distributed memory the lanes would take twice the LUTs of all the rest, with long wires.
        lanes = [Memory(shape=8, depth=depth, init=[], attrs=BLOCK_RAM) for _ in range(self.config.n)]
        for index, lane in enumerate(lanes):
            m.submodules[f"lane{index}"] = lane
        vector, port = self.vector.payload, self.scratchpad
        advance = Signal()  # the read pipeline advances
        full = Signal(2)
        groups = Array(Signal(self._group, name=f"group{buffer}") for buffer in range(2))
        filled, padding = self._fill(m, lanes, full, groups)
        emptied, leaving, valid, column, turned = self._empty(m, lanes, full, groups, advance)
        m.d.sync += full.eq((full | filled) & ~emptied)

        # Vectors that are not transposed bypass the buffers, but only when these are empty.
        underway = Signal()
        plain = Signal()
        port_signal = Signal(SEMAPHORES)
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
                port_signal.eq(Mux(valid, column.signal, vector.signal)),
            ]
        m.d.sync += self.signal.eq(Mux(port.valid & port.ready, port_signal, 0))
        return m

    def _fill(self, m: Module, lanes: list[Memory], full: Signal, groups: Array) -> tuple[Value, Signal]:
        """Write vectors to be transposed into a buffer, and pad the last group with fill.

        Returns a mask of the buffer that gets its last vector in this cycle, and a flag: fill is being written.
        """
        n, vector = self.config.n, self.vector.payload
        # The buffer that fills, the pixel in it (which wraps at N, a power of two), and the vector of the pixel.
        target = Signal()
        index = Signal(range(n))
        fill_panel = Signal(self._panel)
        panels = Signal(self._panel)  # the last panel of a pixel
        take = Signal()
        write = Signal()
        pixel_end = Signal()
        fill_last = Signal()
        padding = Signal()
        fill = Signal(8)
        # The next vector is the first of its instruction, whose address is given; all others are computed.
        fresh = Signal(init=1)
        fill_following = Signal(self.config.widths.scratchpad_address)
        address = Signal.like(fill_following)
        m.d.comb += [
            take.eq(self.vector.valid & vector.transpose & ~full.bit_select(target, 1) & ~padding),
            write.eq(take | padding),
            pixel_end.eq(Mux(padding, fill_panel == panels, vector.pixel_end)),
            fill_last.eq(write & pixel_end & (index == n - 1)),
            address.eq(Mux(fresh, vector.address, fill_following)),
        ]
        with m.If(vector.transpose):
            m.d.comb += self.vector.ready.eq(take)
        m.d.sync += target.eq(target ^ fill_last)
        with m.If(write):
            m.d.sync += [index.eq(index + pixel_end), fill_panel.eq(Mux(pixel_end, 0, fill_panel + 1))]
        with m.If(take):
            m.d.sync += [
                fresh.eq(vector.last),
                fill.eq(vector.fill),
                padding.eq(vector.last & ~fill_last),
                panels.eq(fill_panel),
                groups[target].panels.eq(fill_panel),
                groups[target].signal.eq(vector.signal),
            ]
            with m.If((index == 0) & (fill_panel == 0)):
                m.d.sync += [
                    fill_following.eq(address + vector.dst_group),
                    groups[target].address.eq(address),
                    groups[target].step.eq(vector.dst_vector),
                    groups[target].jump.eq(vector.dst_pixel),
                ]
        with m.Elif(fill_last):
            m.d.sync += padding.eq(0)
        rotated = self._rotate(m, Mux(padding, fill.replicate(n), vector.data), index, "in")
        for lane, memory in enumerate(lanes):
            store = memory.write_port()
            m.d.comb += [
                store.en.eq(write),
                store.addr.eq(Cat(index, fill_panel, target)),
                store.data.eq(rotated.word_select(lane, 8)),
            ]
        return Cat(fill_last & ~target, fill_last & target), padding

    def _empty(
        self, m: Module, lanes: list[Memory], full: Signal, groups: Array, advance: Signal
    ) -> tuple[Value, Value, Signal, data.View, Value]:
        """Read the columns of full buffers.

        Returns a mask of the buffer that is read for the last time in this cycle; a flag: a column is on the way; and
        valid, description and bytes of the column that has been read.
        """
        n, bits = self.config.n, (self.config.n - 1).bit_length()
        source = Signal()
        column_index = Signal(range(n))
        panel = Signal(self._panel)
        read = Signal()
        column_end = Signal()
        empty_last = Signal()
        column_following = Signal(self.config.widths.scratchpad_address)
        start = Signal(self.config.widths.scratchpad_address)
        group = Signal(self._group, name="group")
        column = Signal(self._column, name="column")
        m.d.comb += [
            read.eq(full.bit_select(source, 1) & advance),
            column_end.eq(column_index == n - 1),
            empty_last.eq(read & column_end & (panel == group.panels)),
            group.eq(groups[source]),
            column.turn.eq(column_index),
            column.address.eq(Mux((column_index == 0) & (panel == 0), group.address, column_following)),
            column.signal.eq(Mux(empty_last, group.signal, 0)),
        ]
        m.d.sync += [column_index.eq(column_index + read), source.eq(source ^ empty_last)]
        with m.If(read):
            m.d.sync += column_following.eq(Mux(column_end, start, column.address + group.step))
            with m.If(column_index == 0):
                m.d.sync += start.eq(column.address + group.jump)
            with m.If(column_end):
                m.d.sync += panel.eq(Mux(panel == group.panels, 0, panel + 1))
        # Byte `column_index` of pixel i is in lane (i + column_index) mod N, at word i.
        fetched = []
        for lane, memory in enumerate(lanes):
            fetch = memory.read_port()
            m.d.comb += [
                fetch.en.eq(advance),
                fetch.addr.eq(Cat((lane - column_index)[:bits], panel, source)),
            ]
            fetched.append(fetch.data)
        # A second register behind the memory's own, whose clock-to-output time leaves too little for the rotation.
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
        return Cat(empty_last & ~source, empty_last & source), valids.any(), valids[1], columns[1], turned

    @staticmethod
    def _rotate(m: Module, value: Value, lanes: Value, name: str, *, left: bool = True) -> Value:
        """Rotate the bytes of `value` by `lanes`, up if `left`, else down."""
        for bit in range(len(lanes)):
            stage = Signal(len(value), name=f"{name}{bit}")
            distance = 8 << bit
            moved = value.rotate_left(distance) if left else value.rotate_right(distance)
            m.d.comb += stage.eq(Mux(lanes[bit], moved, value))
            value = stage
        return value


class Widener(wiring.Component):
    """Converter of bus words of 4-bit values into words of bytes; other words pass unchanged.

    A word of 4-bit values becomes two words: first the values of its lower half, then those of its upper half. The low
    nibble of a byte is the first of two signed values. Words pass combinationally. `narrow` may change only between
    words, after both halves of a word have passed.

    With `blocks`, words come in groups. The first word of a group holds factors: it does not pass, and takes one
    cycle. The words that follow become `GROUP_WORDS` words, each of which is multiplied by the next of the factors, in
    rotation.

    Parameters
    ----------
    config : Config

    Members
    -------
    narrow : In(1)
        The word at the input holds values of 4 bits.
    blocks : In(1)
        The word belongs to a group, or holds the factors of a group. Only if LOAD has blocks.
    wanted : In(1)
        With `blocks`: more words of the run follow, so that the factors of the next group may be taken.
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
        upper = Signal()  # the lower half has passed, the upper half is next
        word, half = self.beat.payload, self.config.widths.bus // 2
        chosen = Mux(upper, word[half:], word[:half])
        halved = self.narrow & self.wide.valid & self.wide.ready
        factors, widened = self._groups(m, halved, chosen) if self.config.blocks else (0, self._widen(chosen))
        used_up = self.wide.ready & (upper | ~self.narrow)
        m.d.comb += [
            self.wide.valid.eq(self.beat.valid & ~factors),
            self.wide.payload.eq(Mux(self.narrow, widened, word)),
            self.beat.ready.eq(Mux(factors, self.wanted, used_up) if self.config.blocks else used_up),
        ]
        with m.If(halved):
            m.d.sync += upper.eq(~upper)
        return m

    def _groups(self, m: Module, halved: Value, chosen: Value) -> tuple[Value, Value]:
        """Store factors and use them in rotation.

        Returns a flag: the word at the input holds factors; and the values of half a word as bytes.
        """
        left = Signal(range(GROUP_WORDS + 1))  # remaining words of the group
        begin = Signal(init=1)  # left == 0; a register, because the whole unit waits for it
        kept = Signal(self.config.widths.bus)
        first = Signal()
        m.d.comb += first.eq(self.blocks & begin)
        with m.If(first & self.wanted & self.beat.valid):
            m.d.sync += [left.eq(GROUP_WORDS), begin.eq(0), kept.eq(self.beat.payload)]
        with m.Elif(halved & self.blocks):
            m.d.sync += [left.eq(left - 1), begin.eq(left == 1), kept.eq(kept.rotate_right(8))]
        nibbles = [chosen[at : at + 4].as_signed() for at in range(0, len(chosen), 4)]
        products = Cat(*(self._multiply(m, nibble, kept[:8].as_signed()) for nibble in nibbles))
        return first, Mux(self.blocks, products, self._widen(chosen))

    @staticmethod
    def _multiply(m: Module, value: Value, factor: Value) -> Value:
        """Return a 4-bit value times a factor, rounded and saturated to a byte.

        Three adders: one for each half of the value, and their sum. A multiplier block would be far from the bus on
        the chip, and without an internal register it would take most of the cycle.
        """
        low = Signal(signed(11))
        high = Signal(signed(12))
        half = 1 << FACTOR_FRACTION_BITS - 1
        m.d.comb += [
            low.eq(Mux(value[0], factor, 0) + (Mux(value[1], factor, 0) << 1)),
            # The highest bit of the value has negative weight.
            high.eq(Mux(value[2], factor, 0) - (Mux(value[3], factor, 0) << 1)),
        ]
        rounded = Signal(signed(12 - FACTOR_FRACTION_BITS + 1))
        m.d.comb += rounded.eq((low + (high << 2) + half) >> FACTOR_FRACTION_BITS)
        within = rounded[7:].all() | ~rounded[7:].any()
        return Mux(within, rounded[:8], Cat((~rounded[-1]).replicate(7), rounded[-1]))

    @staticmethod
    def _widen(values: Value) -> Value:
        """Sign-extend values of 4 bits to bytes."""
        nibbles = [values[at : at + 4] for at in range(0, len(values), 4)]
        return Cat(*(Cat(nibble, nibble[-1].replicate(4)) for nibble in nibbles))
