"""The vector unit, which executes the instructions of the VEC queue, and its operand and write stages."""

from __future__ import annotations

from amaranth.hdl import Cat, Module, Mux, Signal, Value, signed
from amaranth.lib import data, wiring
from amaranth.lib.wiring import In, Out

from weft.hdl.isa import PARAMETER_VECTORS, SEMAPHORES, Kernel, Microcode, Reduce, Softmax, Source, Vec
from weft.hdl.isa.config import BIAS, MANTISSA, SHIFT, Config
from weft.hdl.isa.kernel import INT32_MIN
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
    bytewise_kinds,
    index_range,
    instruction_layout,
    is_one_of,
    kinds_without_parameters,
    operands_layout,
    results_layout,
    tag_layout,
)

_PARTS = {"bias": BIAS, "mantissa": MANTISSA, "shift": SHIFT}


class VecOperands(wiring.Component):
    """Operand stage: stores the parameter block and the second operand, and selects each element's lane group.

    Parameters
    ----------
    config : Config

    Members
    -------
    current : In(instruction_layout(config))
    arrival : In(arrival_layout(config))
        Describes the data at `scratchpad` and `accumulator` in this cycle.
    group : In(index_range(config))
        Lane group of the arrival.
    scratchpad, accumulator : In(vector), In(row)
    vectors, rows : Out(8 * lanes), Out(32 * lanes)
        The selected lane group of both, one cycle later.
    clear : In(1)
        Set all parameters to 0. Only with softmax.
    normalising : In(1)
        Bytes of the scratchpad are probabilities. Only with softmax.
    scale : In(column_layout)
        Parameters that replace the stored parameters, which then are 0; otherwise 0. Only with softmax.
    operands : Out(operands_layout(config))
        Two cycles after the arrival.
    row : Out(1)
        The first element of a row enters requantisation in the next cycle; a register. Only with softmax.
    byte : Out(8)
        The element's lane of `operands`. Only with tables of any kind.
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
                **({"byte": Out(8)} if bytewise_kinds(config) else {}),
            }
        )

    def elaborate(self, platform: object) -> Module:
        m = Module()
        arrival, element, operands = self.arrival, self.arrival.element, self.operands
        width = self.config.widths.vector
        planes = Signal(data.ArrayLayout(width, PARAMETER_VECTORS), reset_less=True)
        second = Signal(width, reset_less=True)
        with m.If(arrival.parameter):
            # The vectors of a parameter block arrive in order, and shift in from the top.
            m.d.sync += planes.as_value().eq(Cat(planes.as_value()[width:], self.scratchpad))
        with m.If(arrival.second):
            m.d.sync += second.eq(self.scratchpad)

        # One cycle to select lanes, one to select the source.
        nearer = Signal(element.shape())
        chosen = Signal(element.shape())
        nearer_second = Signal(8 * self.config.lanes, reset_less=True)
        chosen_second = Signal.like(nearer_second, reset_less=True)
        near = Signal()
        valid = Signal()
        second_lanes = self._lanes(m, second, element.tag.index, "second")
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
        if bytewise_kinds(self.config):
            m.d.comb += self.byte.eq(operands.elements[chosen.lane][:8])
        return m

    def _elements(self, m: Module, in_range: Value, second: Value) -> None:
        """Drive the elements with the lane group of the arrival, two cycles later.

        `second` is the lane group of the second operand.
        """
        current, arriving = self.current, self.arrival.element.in_range
        rows, vectors = (
            Signal.like(value, name=name, reset_less=True)
            for value, name in ((self.rows, "row_lanes"), (self.vectors, "vector_lanes"))
        )
        lanes = self._lanes(m, self.scratchpad, self.group, "scratchpad")
        m.d.sync += [rows.eq(self._lanes(m, self.accumulator, self.group, "accumulator")), vectors.eq(lanes)]
        m.d.comb += [self.rows.eq(rows), self.vectors.eq(vectors)]
        pad = Signal(signed(32))
        m.d.comb += pad.eq(Mux(current.settings.reduce == Reduce.MAX, INT32_MIN, current.pad))
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
        """Return an element of the arrival times an element of the second operand, two cycles later.

        The first cycle subtracts zero points, so that the second contains only the multiplier and its register.
        """
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
        """Drive the columns with the parameters of lane group `index`, or with `scale`."""
        parts = [self._lanes(m, plane, index, f"plane{number}") for number, plane in enumerate(planes)]
        for lane in range(self.config.lanes):
            word = Signal(8 * PARAMETER_VECTORS, name=f"word_{lane}")
            m.d.comb += word.eq(Cat(part.word_select(lane, 8) for part in parts))
            for name, part in _PARTS.items():
                # Either `word` or `scale` is 0.
                scale = self.scale[name] if self.config.softmax else 0
                m.d.comb += self.operands.columns[lane][name].eq(word[part.bits] | scale)

    def _probability(self, vector: Value) -> Value:
        """Return a byte of the scratchpad as an element.

        For Normalise it is a probability; one of 8 bits is stored minus 128.
        """
        if self.config.probability_bits != 8:
            return vector
        return Cat(vector[:7], vector[7] ^ self.normalising, (vector[7] & ~self.normalising)).as_signed()

    def _lanes(self, m: Module, value: Value, index: Value, name: str) -> Value:
        """Return the part of `value` (N equal fields) that belongs to lane group `index`."""
        width = len(value) // self.config.groups
        if self.config.groups == 1:
            return value
        part = Signal(width, name=f"{name}_lanes")
        with m.Switch(index):
            for group in range(self.config.groups):
                with m.Case(group):
                    m.d.comb += part.eq(value.word_select(group, width))
        return part


class VecWriter(wiring.Component):
    """Write stage: assembles lane groups to a vector, writes it, and signals after an instruction's last vector.

    Parameters
    ----------
    config : Config

    Members
    -------
    results : In(results_layout(config))
    mask : In(SEMAPHORES)
        Signal mask of the instruction, valid with its last results.
    write : Out(ports.scratchpad_write(config))
        Must be granted in every cycle: ``ready`` is ignored.
    signal : Out(SEMAPHORES)
        `mask`, for one cycle, when everything that was written can be read.
    busy : Out(1)
        High between an instruction's last results and its `signal`.
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
        results = self.results
        vector = Signal(self.config.widths.vector, reset_less=True)
        ended = Signal()
        signalled = Signal()
        ended_mask = Signal.like(self.mask)
        with m.Switch(results.index):
            for index in range(self.config.groups):
                with m.Case(index):
                    m.d.sync += vector.word_select(index, 8 * self.config.lanes).eq(results.bytes)
        m.d.sync += [
            # The write is one cycle after the results, the signal two: then reads return what was written.
            self.write.valid.eq(results.write),
            self.write.address.eq(results.dst),
            ended.eq(results.end),
            signalled.eq(ended),
            ended_mask.eq(Mux(results.end, self.mask, 0)),
            self.signal.eq(ended_mask),
        ]
        m.d.comb += [self.write.data.eq(vector), self.busy.eq(ended | signalled)]
        return m


class VecUnit(wiring.Component):
    """Vector unit: executes the instructions of the VEC queue, which requantise, add, pool and compute softmax.

    It is a pipeline whose stages never wait once a read is granted::

        reader -> operands -> requantise -> (look-up tables) -> (softmax) -> writer

    An instruction first reads its parameter block. Then it reads one source row or vector a cycle: all elements of an
    output's reduction for the first `lanes` columns, again for the next `lanes` columns, and so on. With ``add``, the
    second operand is read first, once for each output or when its address changes.

    An instruction starts to read when the previous instruction has written its last output, so it may read this output.
    Exception: a `Vec` that reads the accumulator without ``add`` starts after the last read of a previous `Vec`. Its
    parameter block must not be written by that `Vec`.

    Softmax and Normalise use the same sequence of reads and the same arithmetic. Normalise has no parameter block: its
    factors come from a divider, which works a row ahead. Scores bypass the look-up tables. Table and Lookup read every
    vector once for each of its bytes, and take one byte each time.

    Kernel and Microcode go to the kernel engine, which then has exclusive use of the ports and the writer.

    Parameters
    ----------
    config : Config
    multipliers : Multipliers
        See `weft.hdl.vector.requantise.requantiser`.

    Members
    -------
    instruction, signal, busy
        See `ports.unit`. The payload is a `Vec`; its opcode distinguishes the other kinds.
    accumulator : Out(ports.accumulator_read(config))
    scratchpad : Out(ports.scratchpad_read(config))
        Parameters, second operand, and source vectors.
    write : Out(ports.scratchpad_write(config))
        Must be granted in every cycle: ``ready`` is ignored.
    stall_port : Out(1)
        A read waits for its grant.
    alignment_read : Out(ports.alignment_read(config)), alignment_write : Out(ports.alignment_write(config))
        Always granted: ``ready`` is ignored. Only with softmax.
    bases or values
        See `weft.hdl.lib.pipeline.register_port`. Only with softmax.
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
        m.submodules.vec_operands = operands = VecOperands(config)
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
        """Pass each instruction to the reader or to the kernel engine, one at a time, and connect its ports.

        Returns the results that the reader's stages are to drive.
        """
        # `kernel_last`: the last accepted instruction went to the kernel engine.
        to_kernel = Signal()
        kernel_last = Signal()
        results = Signal(results_layout(self.config))
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
                # Only one of both has an instruction, so at most one asks.
                port.valid.eq(ours.valid | others.valid),
                port.address.eq(Mux(kernel.active, ours.address, others.address)),
            ]
            for inner in (ours, others):
                m.d.comb += [inner.ready.eq(port.ready), inner.data.eq(port.data)]
        return results

    def _results(
        self, m: Module, requantise: Requantise, reader: VecReader, operands: VecOperands, results: data.View
    ) -> VecLookup | None:
        """Add the stages between requantisation and `results`, which go to the writer.

        Returns the stage of look-up tables, if there is any.
        """
        # Stages are added from the writer backwards: `results` is the input of the stage added last.
        tag, valid = requantise.result_tag, requantise.result_valid
        lookup = None
        last = Signal()
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
                    reader.sequence.load
                    & is_one_of(kinds_without_parameters(self.config), reader.sequence.payload)
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
