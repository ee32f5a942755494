"""The vector unit: executes the instructions of the VEC queue. Its stages are in the files beside this one."""

from __future__ import annotations

from amaranth.hdl import Cat, Module, Mux, Signal, Value, signed
from amaranth.lib import data, wiring
from amaranth.lib.wiring import In, Out

from weft.hdl.isa import PARAMETER_VECTORS, SEMAPHORES, Kernel, Microcode, Reduce, Softmax, Source, Vec
from weft.hdl.isa.config import BIAS, MANTISSA, SHIFT, Config
from weft.hdl.lib import ports
from weft.hdl.lib.arithmetic import INFERRED, Multipliers
from weft.hdl.lib.pipeline import pass_registers, register_port
from weft.hdl.vector.kernel import KernelEngine
from weft.hdl.vector.requantise import Requantise, column_layout, requantiser
from weft.hdl.vector.vec_lookup import VecLookup
from weft.hdl.vector.vec_reader import VecReader
from weft.hdl.vector.vec_softmax import VecSoftmax
from weft.hdl.vector.vec_streams import (
    arrival_layout,
    bytewise,
    index_range,
    instruction_layout,
    is_one_of,
    operands_layout,
    results_layout,
    tag_layout,
    without_parameters,
)

_PARTS = {"bias": BIAS, "mantissa": MANTISSA, "shift": SHIFT}


class VecOperands(wiring.Component):
    """Keeps the parameter block and the second operand, and chooses the columns of each element's lane group.

    Parameters
    ----------
    config : Config

    Members
    -------
    current : In(instruction_layout(config))
    arrival : In(arrival_layout(config))
        What `scratchpad` and `accumulator` are in this cycle.
    group : In(index_range(config))
        The lane group of that.
    scratchpad, accumulator : In(vector), In(row)
    vectors, rows : Out(8 * lanes), Out(32 * lanes)
        The lane group of both, in the next cycle.
    clear : In(1)
        Parameters become 0. With softmax only.
    normalising : In(1)
        Bytes of the scratchpad are probabilities. With softmax only.
    scale : In(column_layout)
        Parameters instead of those that were read, which are 0; else 0.
    operands : Out(operands_layout(config))
        Two cycles after the arrival.
    row : Out(1)
        The first element of a row enters requantisation in the next cycle; from a register. With softmax only.
    byte : Out(8)
        The element's lane of `operands`. With tables of any kind only.
    """

    def __init__(self, config: Config) -> None:
        self.config = config
        softmax = {
            "clear": In(1),
            "normalising": In(1),
            "scale": In(column_layout(config)),
            "row": Out(1),
        }
        super().__init__(
            {
                "current": In(instruction_layout(config)),
                "arrival": In(arrival_layout(config)),
                "group": In(index_range(config)),
                "vectors": Out(8 * config.lanes),
                "rows": Out(32 * config.lanes),
                "scratchpad": In(config.widths.vector),
                "accumulator": In(config.widths.row),
                "operands": Out(operands_layout(config)),
                **(softmax if config.softmax else {}),
                **({"byte": Out(8)} if bytewise(config) else {}),
            }
        )

    def elaborate(self, platform: object) -> Module:
        m = Module()
        arrival, element, operands = self.arrival, self.arrival.element, self.operands
        width = self.config.widths.vector
        planes = Signal(data.ArrayLayout(width, PARAMETER_VECTORS), reset_less=True)
        second = Signal(width, reset_less=True)
        with m.If(arrival.parameter):
            m.d.sync += planes.as_value().eq(Cat(planes.as_value()[width:], self.scratchpad))
        with m.If(arrival.second):
            m.d.sync += second.eq(self.scratchpad)

        # A cycle to choose lanes, one to choose among sources.
        nearer, chosen = (Signal(element.shape(), name=name) for name in ("nearer", "chosen"))
        nearer_second = Signal(8 * self.config.lanes, reset_less=True)
        chosen_second = Signal.like(nearer_second, reset_less=True)
        near, valid = Signal(), Signal()
        second_lanes = self._lanes(m, second, element.tag.index)
        m.d.sync += [
            near.eq(arrival.valid),
            nearer.eq(element),
            nearer_second.eq(second_lanes),
            valid.eq(near),
            chosen.eq(nearer),
            chosen_second.eq(nearer_second),
        ]
        self._elements(m, nearer.in_range, second_lanes)
        m.d.comb += [operands.valid.eq(valid), operands.second.as_value().eq(chosen_second)]
        m.d.comb += [operands[name].eq(chosen[name]) for name in ("first", "last", "tag")]
        self._columns(m, planes, chosen.tag.index)
        if self.config.softmax:
            with m.If(self.clear):
                m.d.sync += planes.eq(0)
            m.d.sync += self.row.eq(arrival.valid & element.row)
        if bytewise(self.config):
            m.d.comb += self.byte.eq(operands.elements[chosen.lane][:8])
        return m

    def _elements(self, m: Module, in_range: Value, second: Value) -> None:
        """The lane group of what arrives, two cycles later; `second` is that of the second operand."""
        current, arriving = self.current, self.arrival.element.in_range
        rows, vectors = (
            Signal.like(value, name=name, reset_less=True)
            for value, name in ((self.rows, "row_lanes"), (self.vectors, "vector_lanes"))
        )
        lanes = self._lanes(m, self.scratchpad, self.group)
        m.d.sync += [rows.eq(self._lanes(m, self.accumulator, self.group)), vectors.eq(lanes)]
        m.d.comb += [self.rows.eq(rows), self.vectors.eq(vectors)]
        pad = Signal(signed(32))
        m.d.comb += pad.eq(Mux(current.settings.reduce == Reduce.MAX, -(1 << 31), current.pad))
        elements = Signal.like(self.operands.elements, name="elements", reset_less=True)
        for lane in range(self.config.lanes):
            vector = self._probability(vectors.word_select(lane, 8).as_signed())
            row = rows.word_select(lane, 32).as_signed()
            read = Mux(current.source == Source.SCRATCHPAD, vector, row)
            m.d.sync += elements[lane].eq(Mux(in_range, read, pad))
            element: Value = elements[lane]
            if self.config.multiply:
                element = Mux(current.multiply, self._product(m, lane, lanes, second, arriving), element)
            m.d.comb += self.operands.elements[lane].eq(element)

    def _product(self, m: Module, lane: int, vector: Value, second: Value, in_range: Value) -> Value:
        """An element of what arrives times that of the second operand, two cycles later: zero points are taken off in
        the first, and there is nothing but a register behind the multiplier."""
        factors = [
            Signal(signed(9), name=f"{name}_{lane}", reset_less=True) for name in ("factor", "second_factor")
        ]
        product = Signal(signed(18), name=f"product_{lane}", reset_less=True)
        bytes_ = (value.word_select(lane, 8).as_signed() for value in (vector, second))
        zeros = self.current.pad, self.current.settings.b_zero
        for factor, byte, zero in zip(factors, bytes_, zeros, strict=True):
            m.d.sync += factor.eq(Mux(in_range, byte - zero, 0))
        m.d.sync += product.eq(factors[0] * factors[1])
        return product

    def _columns(self, m: Module, planes: data.View, index: Value) -> None:
        """Parameters of the lane group `index`, or `scale`."""
        parts = [self._lanes(m, plane, index) for plane in planes]
        for lane in range(self.config.lanes):
            word = Signal(8 * PARAMETER_VECTORS, name=f"word_{lane}")
            m.d.comb += word.eq(Cat(part.word_select(lane, 8) for part in parts))
            for name, part in _PARTS.items():
                # One of the two is 0.
                scale = self.scale[name] if self.config.softmax else 0
                m.d.comb += self.operands.columns[lane][name].eq(word[part.bits] | scale)

    def _probability(self, vector: Value) -> Value:
        """A byte of the scratchpad as an element; for Normalise a probability, stored less 128 if it has 8 bits."""
        if self.config.probability_bits != 8:
            return vector
        return Cat(vector[:7], vector[7] ^ self.normalising, (vector[7] & ~self.normalising)).as_signed()

    def _lanes(self, m: Module, value: Value, index: Value) -> Value:
        """The part of `value` (N equal fields) that belongs to lane group `index`."""
        width = len(value) // self.config.groups
        if self.config.groups == 1:
            return value
        part = Signal(width, name="part")
        with m.Switch(index):
            for group in range(self.config.groups):
                with m.Case(group):
                    m.d.comb += part.eq(value.word_select(group, width))
        return part


class VecWriter(wiring.Component):
    """Assembles lane groups to a vector, writes it, and signals after the last one of an instruction.

    Parameters
    ----------
    config : Config

    Members
    -------
    results : In(results_layout(config))
    mask : In(SEMAPHORES)
        With the last results: what their instruction signals.
    write : Out(ports.scratchpad_write(config))
        Must be granted in every cycle, ``ready`` is not looked at.
    signal : Out(SEMAPHORES)
        `mask`, for one cycle, when everything that was written can be read.
    busy : Out(1)
        Between the last results of an instruction and its `signal`.
    """

    def __init__(self, config: Config) -> None:
        self.config = config
        super().__init__(
            {
                "results": In(results_layout(config)),
                "mask": In(SEMAPHORES),
                "write": Out(ports.scratchpad_write(config)),
                "signal": Out(SEMAPHORES),
                "busy": Out(1),
            }
        )

    def elaborate(self, platform: object) -> Module:
        m = Module()
        results, vector = self.results, Signal(self.config.widths.vector, reset_less=True)
        ended, signalled, mask = Signal(), Signal(), Signal.like(self.mask)
        with m.Switch(results.index):
            for index in range(self.config.groups):
                with m.Case(index):
                    m.d.sync += vector.word_select(index, 8 * self.config.lanes).eq(results.bytes)
        m.d.sync += [
            self.write.valid.eq(results.write),
            self.write.address.eq(results.dst),
            ended.eq(results.end),
            signalled.eq(ended),
            mask.eq(Mux(results.end, self.mask, 0)),
            self.signal.eq(mask),
        ]
        m.d.comb += [self.write.data.eq(vector), self.busy.eq(ended | signalled)]
        return m


class VecUnit(wiring.Component):
    """A reader, and stages behind it that never wait once a read is granted::

        reader -> operands -> requantise -> (look-up tables) -> (softmax) -> writer

    An instruction first reads its parameter block. Then it reads one source row or vector a cycle: all elements of an
    output's reduction for the first `lanes` columns, again for the next ones, and so on; with ``add``, the second
    operand is read ahead of them, once per output or where it moves. An instruction starts reading when the one before
    it has written its last output, so it may read what that one wrote; but a `Vec` of the accumulator without ``add``
    starts behind the last read of a `Vec` before it, and its parameter block must not be what that one writes.

    With softmax, Softmax and Normalise run through the same sequence and the same arithmetic. Normalise has no
    parameter block: what it multiplies by comes from a divider, which works a row ahead. Scores do not pass the look-up
    tables. Table and Lookup read every vector as often as it has bytes, and take another one each time.

    Kernel and Microcode go to the kernel engine, which has the ports and the writer to itself meanwhile.

    Parameters
    ----------
    config : Config
    multipliers : Multipliers
        See `weft.hdl.vector.requantise.requantiser`.

    Members
    -------
    instruction, signal, busy
        See `ports.unit`; the opcode tells the other kinds apart.
    accumulator : Out(ports.accumulator_read(config))
    scratchpad : Out(ports.scratchpad_read(config))
        Parameters, second operand, and source vectors.
    write : Out(ports.scratchpad_write(config))
        Must be granted in every cycle, ``ready`` is not looked at.
    stall_port : Out(1)
        A read waits for its grant.
    alignment_read : Out(ports.alignment_read(config)), alignment_write : Out(ports.alignment_write(config))
        Always granted, ``ready`` is not looked at. With softmax only.
    bases or values
        See `weft.hdl.lib.pipeline.register_port`. With softmax only.
    """

    def __init__(self, config: Config, multipliers: Multipliers = INFERRED) -> None:
        self.config = config
        self.multipliers = multipliers
        softmax = {
            "alignment_read": Out(ports.alignment_read(config)),
            "alignment_write": Out(ports.alignment_write(config)),
            **register_port(Softmax, config),
        }
        super().__init__(
            {
                **ports.unit(Vec),
                **(softmax if config.softmax else {}),
                "accumulator": Out(ports.accumulator_read(config)),
                "scratchpad": Out(ports.scratchpad_read(config)),
                "write": Out(ports.scratchpad_write(config)),
                "stall_port": Out(1),
            }
        )

    def elaborate(self, platform: object) -> Module:
        m = Module()
        config = self.config
        m.submodules.requantise = requantise = requantiser(config, tag_layout(config), self.multipliers)
        m.submodules.reader = reader = VecReader(config, requantise.serial)
        m.submodules.operands = operands = VecOperands(config)
        m.submodules.writer = writer = VecWriter(config)
        wiring.connect(m, writer.write, wiring.flipped(self.write))
        m.d.comb += [
            operands.current.eq(reader.current),
            operands.arrival.eq(reader.arrival),
            operands.scratchpad.eq(self.scratchpad.data),
            operands.accumulator.eq(self.accumulator.data),
            requantise.settings.eq(reader.current.settings),
            *(getattr(requantise, name).eq(operands.operands[name]) for name, _ in operands.operands.shape()),
            reader.resume.eq(requantise.result_valid),
            reader.finish.eq(writer.results.end),
            self.signal.eq(writer.signal),
        ]
        results: data.View = writer.results
        if config.kernel:
            m.submodules.kernel = kernel = KernelEngine(config)
            results = self._share(m, reader, kernel, writer)
            group = Signal.like(operands.group)
            m.d.sync += group.eq(Mux(kernel.active, kernel.group, reader.approaching))
            m.d.comb += [
                operands.group.eq(group),
                kernel.vectors.eq(operands.vectors),
                kernel.rows.eq(operands.rows),
            ]
        else:
            for name in ("instruction", "accumulator", "scratchpad"):
                wiring.connect(m, wiring.flipped(getattr(self, name)), getattr(reader, name))
            m.d.comb += [
                operands.group.eq(reader.arrival.element.tag.index),
                writer.mask.eq(reader.signal),
                self.busy.eq(reader.active | writer.busy),
                self.stall_port.eq(reader.stall_port),
            ]
        lookup = self._results(m, requantise, reader, operands, results)
        if config.kernel and lookup is not None:
            m.d.comb += [
                lookup.index.eq(kernel.index),
                lookup.table.eq(kernel.table),
                lookup.outside.eq(kernel.active),
                kernel.entries.eq(lookup.entries),
            ]
        return m

    def _share(self, m: Module, reader: VecReader, kernel: KernelEngine, writer: VecWriter) -> data.View:
        """Give each instruction to the reader or to the kernel engine, one at a time, and the ports to that one.
        Returns the results of the former."""
        to_kernel, kernel_last, results = Signal(), Signal(), Signal(results_layout(self.config))
        payload = self.instruction.payload
        m.d.comb += [
            to_kernel.eq(is_one_of((Kernel, Microcode), payload)),
            self.instruction.ready.eq(
                ~kernel.active & Mux(to_kernel, ~reader.active, reader.instruction.ready)
            ),
            self.busy.eq(reader.active | kernel.active | writer.busy),
            self.stall_port.eq(reader.stall_port | kernel.stall_port),
            kernel.finish.eq(writer.results.end),
            writer.results.eq(Mux(kernel.active, kernel.results, results)),
            writer.mask.eq(Mux(kernel_last, kernel.mask, reader.signal)),
        ]
        with m.If(self.instruction.valid & self.instruction.ready):
            m.d.sync += kernel_last.eq(to_kernel)
        for unit, takes in ((reader, ~to_kernel & ~kernel.active), (kernel, to_kernel & ~reader.active)):
            m.d.comb += [
                unit.instruction.payload.eq(payload),
                unit.instruction.valid.eq(self.instruction.valid & takes),
            ]
        for name in ("accumulator", "scratchpad"):
            port, ours, others = (getattr(unit, name) for unit in (self, kernel, reader))
            m.d.comb += [
                port.valid.eq(ours.valid | others.valid),
                port.address.eq(Mux(kernel.active, ours.address, others.address)),
            ]
            for inner in (ours, others):
                m.d.comb += [inner.ready.eq(port.ready), inner.data.eq(port.data)]
        return results

    def _results(
        self, m: Module, requantise: Requantise, reader: VecReader, operands: VecOperands, results: data.View
    ) -> VecLookup | None:
        """The stages between requantisation and `results`, which go to the writer; returns that of look-up tables."""
        tag, valid = requantise.result_tag, requantise.result_valid
        lookup, last = None, Signal()
        m.d.comb += last.eq(valid & tag.last)
        if self.config.softmax:
            m.submodules.softmax = softmax = VecSoftmax(self.config)
            wiring.connect(m, reader.sequence, softmax.sequence)
            for name in ("alignment_read", "alignment_write"):
                wiring.connect(m, getattr(softmax, name), wiring.flipped(getattr(self, name)))
            m.d.comb += [
                pass_registers(self, softmax, self.config),
                softmax.row.eq(operands.row),
                softmax.byte_valid.eq(operands.operands.valid),
                softmax.byte.eq(operands.byte),
                softmax.scores_valid.eq(valid),
                softmax.scores_last.eq(last),
                softmax.scores_index.eq(tag.index),
                softmax.scores.eq(requantise.scores),
                operands.clear.eq(
                    reader.sequence.load & is_one_of(without_parameters(self.config), reader.sequence.payload)
                ),
                operands.normalising.eq(softmax.normalise),
                operands.scale.eq(softmax.scale),
                results.eq(softmax.o),
            ]
            results = softmax.i
        if self.config.lookup_tables:
            m.submodules.lookup = lookup = VecLookup(self.config)
            m.d.comb += [
                lookup.load.eq(reader.sequence.load),
                lookup.payload.eq(reader.sequence.payload),
                lookup.looks_up.eq(reader.current.lookup),
                lookup.chosen.eq(reader.current.table),
                lookup.byte_valid.eq(operands.operands.valid),
                lookup.byte.eq(operands.byte),
                results.eq(lookup.o),
            ]
            results = lookup.i
        m.d.comb += [
            results.write.eq(last & ~reader.current.bytewise),
            results.end.eq(valid & tag.end),
            results.index.eq(tag.index),
            results.dst.eq(tag.dst),
            results.bytes.eq(requantise.results),
        ]
        return lookup
