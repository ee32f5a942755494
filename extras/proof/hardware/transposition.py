"""Properties of `weft.hdl.load.transpose`: LOAD with transposition, and the order of other vectors."""

from __future__ import annotations

from amaranth.hdl import Cat, Module, Mux, Signal, Value

from weft.extras.proof.hardware.pipelines import ago, flag, implies, latch, was, wire
from weft.extras.proof.hardware.property import Bench, Induction, proves
from weft.extras.proof.hardware.streams import Channel, assume_stable, stable, transfer
from weft.hdl.isa.config import Config
from weft.hdl.load.transpose import Transposer


class _Small(Config):
    """A scratchpad of 4 vectors of 2 bytes, and at most 2 vectors of a pixel."""

    def __post_init__(self) -> None:
        return

    @property
    def transposed_vectors(self) -> int:
        return 2


_SIZES = {"n": 2, "lanes": 2, "scratchpad_banks": 2, "scratchpad_depth": 2, "probability_bits": 7}


@proves("load/transpose", "columns of 2", Induction(4), _Small(**_SIZES), cover=40)
class TransposeBench(Bench, unit=Transposer):
    """Vectors that LOAD transposes become columns, byte by byte, of all pixels of a group, of up to two vectors each,
    with the fill byte for missing pixels of the last group. Each goes to its address once, in order with vectors that
    are not transposed. The signal comes after the last one.

    Unpacker and scratchpad are unconstrained. Assumed, as the unpacker guarantees: vectors stay until they are taken;
    all pixels of an instruction that transposes have equally many vectors, at most as many as the configuration has
    room for; the last vector of the last pixel carries ``last`` and the signal mask, and before it no vectors of
    another instruction come; fill and strides are equal for all of them.

    One group of N pixels and one byte of it, each of which may be any, are watched. By definition, byte j of vector p
    of pixel i is byte i of column ``p * N + j`` of its group, which is written to ``base + p * dst_pixel + j *
    dst_vector``. The base of the first group is the instruction's address, and each later base is ``dst_group`` higher.
    Missing pixels of the last group are the fill byte.
    """

    def watch(self, m: Module) -> None:
        dut, port = self.dut, self.dut.scratchpad
        assume_stable(m, self, dut.vector, "vector")
        stable(m, self, Channel(port.valid, port.ready, Cat(port.address, port.data)), "write")
        self.takes, self.leaves = transfer(dut.vector), transfer(port)
        self._model_place(m)
        self._claim_count(m)
        self._claim_plain(m)
        self._follow_group(m)

    def _model_place(self, m: Module) -> None:
        """Model the position of the next vector: its panel, its pixel in the group, the base of the group, and the
        first of an instruction.
        """
        vector, n, panels = self.dut.vector.payload, self.config.n, self.config.transposed_vectors
        moves = self.takes & vector.transpose
        self.panel, self.pixel = Signal(range(panels + 1), name="panel"), Signal(range(n), name="pixel")
        self.fresh, self.base = Signal(init=1, name="fresh"), Signal(len(vector.address), name="base")
        self.following = Signal(len(vector.address), name="base_next")
        most = Signal(range(panels + 1))
        fields = Cat(vector.fill, vector.dst_group, vector.dst_pixel, vector.dst_vector)
        before = Signal(len(fields), name="fields_before", reset_less=True)
        starts = (self.panel == 0) & (self.pixel == 0)
        base = Mux(self.fresh, vector.address, Mux(starts, self.following, self.base))
        self.base_here = Signal(len(vector.address), name="base_here")
        m.d.comb += self.base_here.eq(base)
        with m.If(moves):
            m.d.sync += [self.fresh.eq(vector.last), before.eq(fields), self.base.eq(base)]
            with m.If(starts):
                m.d.sync += self.following.eq(base + vector.dst_group)
            m.d.sync += self.panel.eq(Mux(vector.pixel_end, 0, self.panel + 1))
            m.d.sync += self.pixel.eq(Mux(vector.last, 0, self.pixel + vector.pixel_end))
            with m.If(self.fresh & vector.pixel_end | (self.pixel == 0) & vector.pixel_end):
                m.d.sync += most.eq(self.panel)
        offered = self.dut.vector.valid
        self.assume(~offered | self.fresh | vector.transpose)
        self.assume(~(offered & ~self.fresh) | (fields == before))
        self.assume(~(offered & vector.transpose & vector.last) | vector.pixel_end)
        self.assume(~(offered & vector.transpose & ~vector.last) | (vector.signal == 0))
        self.assume(~(offered & vector.transpose & (self.panel == panels - 1)) | vector.pixel_end)
        first = Signal(init=1, name="first_pixel")
        with m.If(moves & vector.pixel_end):
            m.d.sync += first.eq(vector.last)
        self.claim("after the first pixel", implies(self.pixel != 0, ~first))
        self.claim("ahead of it", implies(self.fresh, first & (self.pixel == 0) & (self.panel == 0)))
        later = offered & vector.transpose & ~first
        self.assume(~later | (vector.pixel_end == (self.panel == most)))
        self.kept_most = most
        self.moves, self.starts, self.most = moves, starts, Mux(vector.pixel_end, self.panel, most)
        self.group_ends = moves & vector.pixel_end & ((self.pixel == n - 1) | vector.last)

    def _claim_count(self, m: Module) -> None:
        """Count the writes that are due, and claim that there are no others."""
        n, panels = self.config.n, self.config.transposed_vectors
        self.due = Signal(range(3 * n * panels + 4), name="due")
        columns = Mux(self.group_ends, (self.most + 1) * n, 0)
        plain = self.takes & ~self.dut.vector.payload.transpose
        m.d.sync += self.due.eq(self.due + columns + plain - self.leaves)
        self.claim("nothing is written that is not due", ~self.dut.scratchpad.valid | (self.due != 0))
        self.claim("no more is due than there is room for", self.due <= 2 * n * panels + 3)
        self.claim("busy", implies(self.due != 0, self.dut.busy))

    def _claim_plain(self, m: Module) -> None:
        """Claim that a vector that is not transposed is written next, after all vectors before it."""
        port, vector = self.dut.scratchpad, self.dut.vector.payload
        plain = self.takes & ~vector.transpose
        self.claim("it waits for all before it", implies(plain, self.due == self.leaves))
        there = flag(m, plain, self.leaves, "plain")
        word = latch(m, plain, Cat(vector.address, vector.data), name="plain_word")
        mask = latch(m, plain, vector.signal, name="mask_of_plain")
        with self.during(there):
            as_it_is = port.valid & (Cat(port.address, port.data) == word)
            self.claim("it is written as it is", as_it_is)
            self.claim("its signal is kept", self.peek("port_signal") == mask)
        written, due = was(m, there & self.leaves, "written"), was(m, mask, "plain_mask")
        self.claim("its signal", implies(written, self.dut.signal == due))
        self.cover("one that is not transposed, with a signal", written & (due != 0))

    def _follow_group(self, m: Module) -> None:
        """Follow one group, with one byte and the last column."""
        n, vector = self.config.n, self.dut.vector.payload
        panels, address = self.config.transposed_vectors, len(vector.address)
        self.p, self.i, self.j = (
            self.constant(m, range(most), name) for name, most in (("p", panels), ("i", n), ("j", n))
        )
        self.on, self.filling = Signal(name="on"), Signal(name="filling")
        self.ahead = Signal(len(self.due))
        self.column = Signal(range(n * panels + 1))
        self.byte, self.first = Signal(8, name="watched_byte"), Signal(address, name="watched_base")
        self.jump, self.step = Signal(address, name="jump"), Signal(address, name="step")
        self.last, self.mask = Signal(name="last"), Signal(len(vector.signal), name="mask")
        self.filled_up = Signal(name="filled_up")
        self.pixels_have = Signal(range(panels), name="pixels_have")
        begins = self.free(1, "mark") & self.moves & self.starts & ~self.on
        ours = self.on & (self.ahead == 0) & self.leaves
        with m.If(begins):
            m.d.sync += [self.on.eq(1), self.filling.eq(~self.group_ends), self.column.eq(0)]
            m.d.sync += self.filled_up.eq(0)
            m.d.sync += [self.ahead.eq(self.due - self.leaves), self.first.eq(self.base_here)]
            m.d.sync += [self.jump.eq(vector.dst_pixel), self.step.eq(vector.dst_vector)]
        with m.If((begins | self.filling) & self.moves):
            with m.If(self.group_ends):
                m.d.sync += [self.filling.eq(0), self.last.eq(vector.last), self.mask.eq(vector.signal)]
                m.d.sync += self.pixels_have.eq(self.most)
            with m.If((self.panel == self.p) & (self.pixel == self.i)):
                m.d.sync += self.byte.eq(vector.data.word_select(self.j, 8))
            with m.If(vector.last & (self.pixel < self.i)):
                m.d.sync += [self.byte.eq(vector.fill), self.filled_up.eq(1)]
        self.total = Signal(range(n * panels + 1), name="columns_of_it")
        m.d.comb += self.total.eq((self.pixels_have + 1) * n)
        done = ours & (self.column + 1 == self.total)
        with m.If(self.on & self.leaves):
            with m.If(self.ahead != 0):
                m.d.sync += self.ahead.eq(self.ahead - 1)
            with m.Else():
                m.d.sync += self.column.eq(self.column + 1)
        with m.If(done):
            m.d.sync += self.on.eq(0)
        self._claim_column(m, ours, done)
        self._claim_registers(m, begins)

    def _claim_column(self, m: Module, ours: Value, done: Value) -> None:
        port = self.dut.scratchpad
        self.claim("a column only of a whole group", implies(ours, ~self.filling))
        self.number, self.there = Signal(len(self.column), name="number"), Signal(name="there")
        m.d.comb += self.number.eq(self.p * self.config.n + self.j)
        m.d.comb += self.there.eq(self.on & ~self.filling & (self.p <= self.pixels_have))
        here = ours & self.there & (self.column == self.number)
        self.claim("the byte", implies(here, port.data.word_select(self.i, 8) == self.byte))
        self.claim("its place", implies(here, port.address == self._column_address(self.p, self.j)))
        self.signal = Signal(len(self.mask), name="signal_of_column")
        m.d.comb += self.signal.eq(Mux(self.number + 1 == self.total, self.mask, 0))
        due, before = ago(m, self.signal, 1, "signal_due", reset=True), ago(m, here, 1, "here", reset=True)
        self.claim("the signal after the last one", implies(before, self.dut.signal == due))
        self.cover("a byte", here & (self.byte == 0x5A) & (self.p == 1) & (self.i == 1) & (self.j == 0))
        self.cover("the last one", done & self.last & (self.mask != 0))
        self.cover("a group that is filled up", done & self.last & self.filled_up & (self.byte == 0xA5))

    def _column_address(self, panel: Value, byte: Value) -> Value:
        return (self.first + Mux(panel == 0, 0, self.jump) + Mux(byte == 0, 0, self.step))[: len(self.first)]

    def _claim_registers(self, m: Module, begins: Value) -> None:
        """Claim the unit's registers, from which induction starts."""
        dut, layout = self.dut, self.dut._group
        self.target, self.padding, self.source = (self.peek(name) for name in ("target", "padding", "source"))
        self.w_panel, self.w_index = self.peek("fill_panel"), self.peek("index")
        self.r_panel, self.r_index = self.peek("panel"), self.peek("column_index")
        self.full, self.valids, self.advance = (self.peek(name) for name in ("full", "valids", "advance"))
        self.groups = [layout(self.peek(f"group{k}")) for k in range(2)]
        self.buffer = latch(m, begins, self.target, name="buffer")
        read = self.r_panel * self.config.n + self.r_index
        self.read = wire(m, read, len(self.column), "columns_read")  # of the buffer that is read
        self.under_way = wire(m, self.valids[0] + self.valids[1] + dut.scratchpad.valid)
        self._claim_control()
        end = self._claim_stage(m, begins, self.total - 1, "end")
        unread = self.on & (end == 0)
        self._claim_group(unread)
        self.stage = stage = self._claim_stage(m, begins, self.number, "watched")
        self.claim("the last one is read last", implies(self.there & (end != 0), stage != 0))
        self._claim_memory(m, begins, unread)
        self._claim_stages(stage)

    def _claim_control(self) -> None:
        n, full, groups = self.config.n, self.full, self.groups
        alike = full[0] == full[1]
        self.claim("which is read", implies(alike, self.source == self.target))
        self.claim("which is full", implies(~alike, (self.source == full[1]) & (self.target == full[0])))
        full_source = full.bit_select(self.source, 1)
        self.claim("only full ones are read", implies(self.read != 0, full_source))
        last, target = (
            Mux(which, groups[1].panels, groups[0].panels) for which in (self.source, self.target)
        )
        self.claim("columns that there are", implies(full_source, self.r_panel <= last))
        at = (self.w_index == self.pixel) & (self.w_panel == self.panel)
        begun, panels = (self.w_index | self.w_panel) != 0, self.peek("panels")
        padded = (self.pixel == 0) & (self.panel == 0) & (self.w_index != 0) & (self.w_panel <= panels)
        following = self.peek("fill_following") == self.following
        self.claim("where it is written", implies(~self.padding, at))
        self.claim("what fills up", implies(self.padding, padded & self.fresh & (target == panels)))
        self.claim("it is not full", implies(begun | self.padding, ~full.bit_select(self.target, 1)))
        self.claim("fresh", self.peek("fresh") == self.fresh)
        self.claim("the next group", implies(~self.fresh, following))
        self.claim("in an instruction", implies(begun & ~self.padding, ~self.fresh))
        columns = [Mux(full[k], (groups[k].panels + 1) * n, 0) for k in range(2)]
        padding = Mux(self.padding, (panels + 1) * n, 0)
        self.claim("due", self.due + self.read == columns[0] + columns[1] + padding + self.under_way)

    def _claim_stage(self, m: Module, begins: Value, number: Value, name: str) -> Signal:
        """Return the stage of column `number`: 0 before it is read, 1 to 3 on its way, 4 after it is written."""
        stage, advance = (Signal(3, name=f"{name}_stage"), self.advance)
        whole = self.on & ~self.filling
        ours = self.full.bit_select(self.buffer, 1) & (self.source == self.buffer)
        with m.If(begins):
            m.d.sync += stage.eq(0)
        with m.Elif(whole & (stage == 0) & ours & advance & (self.read == number)):
            m.d.sync += stage.eq(1)
        with m.Elif(whole & (stage != 0) & (stage != 4) & advance):
            m.d.sync += stage.eq(stage + 1)
        port, due = self.dut.scratchpad.valid, self.ahead + number - self.column
        on = whole & (number < self.total)
        place = Mux(stage == 1, self.valids[1] + port, Mux(stage == 2, port, 0))
        moving = on & (stage != 0) & (stage != 4)
        self.claim(f"{name}: what is ahead of it", implies(moving, due == place))
        self.claim(f"{name}: it is there", ~moving | Cat(self.valids, port).bit_select((stage - 1)[:2], 1))
        self.claim(f"{name}: it is written", implies(on & (stage == 4), self.column > number))
        self.claim(f"{name}: it is not read", implies(on & (stage == 0) & ours, self.read <= number))
        self.claim(f"{name}: stages", stage <= 4)
        self.claim(f"{name}: not yet", implies(self.on & self.filling, stage == 0))
        return stage

    def _claim_group(self, unread: Value) -> None:
        """Claim the watched group before all of it is read."""
        n, buffer = self.config.n, self.buffer
        whole, full = ~self.filling, self.full.bit_select(buffer, 1)
        group = self.groups[0].shape()(Mux(buffer, self.groups[1].as_value(), self.groups[0].as_value()))
        other = Mux(buffer, self.groups[0].panels, self.groups[1].panels)
        with self.during(self.on & self.filling):
            self.claim("it is filled", (self.target == buffer) & ~full & ~self.padding)
            self.claim("it has begun", (self.pixel != 0) | (self.panel != 0))
            self.claim("its base", self.base == self.first)
        fields = (group.address == self.first) & (group.step == self.step) & (group.jump == self.jump)
        self.claim("its fields", implies(unread, fields))
        ends = (group.panels == self.pixels_have) & (group.signal == self.mask)
        with self.during(unread & whole):
            self.claim("it is filled up", full | self.padding & (self.target == buffer))
            self.claim("its end", ends)
        ours = full & (self.source == buffer)
        before = Mux(self.full.bit_select(~buffer, 1), (other + 1) * n - self.read, 0)
        waits = (self.ahead == self.under_way + before) & (self.column == 0)
        address = len(self.first)
        self.claim("what is ahead", implies(unread & ~ours, waits))
        self.claim("none is written before its turn", implies(self.on & (self.ahead != 0), self.column == 0))
        self.claim("it ends with the last one", implies(self.on & whole, self.column < self.total))
        with self.during(unread & ours):
            self.claim("what is read", self.ahead + self.read == self.under_way + self.column)
            place = self._column_address(self.r_panel, self.r_index)
            following, second = (
                self.peek("column_following") == place,
                (self.r_index != 0) & (self.r_panel == 0),
            )
            start = self.peek("start") == (self.first + self.jump)[:address]
            self.claim("the next column", (self.read == 0) | following)
            self.claim("the next vector of columns", ~second | start)

    def _claim_memory(self, m: Module, begins: Value, unread: Value) -> None:
        """Claim the watched byte from its write to its read."""
        stored = Signal(name="stored")
        fills = unread & self.padding & (self.target == self.buffer)
        written = self.peek("lane0.store__en") & (self.w_index == self.i) & (self.w_panel == self.p)
        with m.If(begins):
            m.d.sync += stored.eq(written)
        with m.Elif(written & (self.on & self.filling | fills)):
            m.d.sync += stored.eq(1)
        has = self.p <= Mux(self.filling, self.kept_most, self.pixels_have)
        has |= self.filling & (self.pixel == 0)
        passed = (self.w_index > self.i) | (self.w_index == self.i) & (self.w_panel > self.p)
        self.claim("stored", implies((self.on & self.filling | fills) & has, stored == passed))
        whole = unread & self.there & self.full.bit_select(self.buffer, 1)
        self.claim("all are stored", implies(whole, stored))
        fill = self.peek("fill")
        self.claim("it is filled up with", implies(fills & has & ~stored, self.byte == fill))
        place, lane = Cat(self.i, self.p, self.buffer), (self.i + self.j)[0]
        lanes = [self.peek_word(f"lane{k}", place, 1 << len(place)) for k in range(self.config.n)]
        waits = unread & has & stored & (self.stage == 0)
        self.claim("memory", implies(waits, Mux(lane, *reversed(lanes)) == self.byte))

    def _claim_stages(self, stage: Value) -> None:
        layout = self.dut._column
        lane, place = (self.i + self.j)[0], self._column_address(self.p, self.j)
        for number in range(2):
            column = layout(self.peek(f"column{number}"))
            there = self.there & (stage == number + 1)
            described = (column.turn == self.j) & (column.address == place) & (column.signal == self.signal)
            self.claim(f"column in stage {number}", implies(there, described))
            if number:
                byte = self.peek("held").word_select(lane, 8)
            else:
                fetched = [self.peek(f"lane{k}.fetch__data") for k in range(2)]
                byte = Mux(lane, *reversed(fetched))
            self.claim(f"byte in stage {number}", implies(there, byte == self.byte))
        there, port = self.there & (stage == 3), self.dut.scratchpad
        word = (port.address == place) & (port.data.word_select(self.i, 8) == self.byte)
        self.claim("at the port", implies(there, word & (self.peeks["port_signal"] == self.signal)))


_SIZES = {"n": 2, "lanes": 2, "scratchpad_banks": 2, "scratchpad_depth": 2, "probability_bits": 7}
