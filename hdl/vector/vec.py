"""The vector unit: executes the instructions of the VEC queue. Its stages are in the files beside this one."""

from __future__ import annotations

from amaranth.hdl import Module, Mux, Signal
from amaranth.lib import data, wiring
from amaranth.lib.wiring import Out

from weft.hdl.isa import Kernel, Microcode, Softmax, Vec
from weft.hdl.isa.config import Config
from weft.hdl.lib import ports
from weft.hdl.lib.multipliers import INFERRED, Multipliers
from weft.hdl.lib.registers import pass_registers, register_port
from weft.hdl.vector.kernel import KernelEngine
from weft.hdl.vector.requantise import Requantise
from weft.hdl.vector.requantise_serial import requantiser
from weft.hdl.vector.vec_kinds import is_one_of, without_parameters
from weft.hdl.vector.vec_lookup import VecLookup
from weft.hdl.vector.vec_operands import VecOperands
from weft.hdl.vector.vec_reader import VecReader
from weft.hdl.vector.vec_softmax import VecSoftmax
from weft.hdl.vector.vec_streams import results_layout, tag_layout
from weft.hdl.vector.vec_writer import VecWriter


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
        See `weft.hdl.vector.requantise_serial.requantiser`.

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
        See `weft.hdl.lib.registers.register_port`. With softmax only.
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
