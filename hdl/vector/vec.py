"""The vector unit: executes the instructions of the VEC queue. Its stages are in the files beside this one."""

from __future__ import annotations

from amaranth.hdl import Module, Signal
from amaranth.lib import data, wiring
from amaranth.lib.wiring import In, Out

from weft.hdl.isa import BASES, Vec
from weft.hdl.isa.config import Config
from weft.hdl.lib import ports
from weft.hdl.lib.multipliers import INFERRED, Multipliers
from weft.hdl.vector.requantise import Requantise
from weft.hdl.vector.requantise_serial import requantiser
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
    it has written its last output, so it may read what that one wrote.

    With softmax, Softmax and Normalise run through the same sequence and the same arithmetic. Normalise has no
    parameter block: what it multiplies by comes from a divider, which works a row ahead. Scores do not pass the look-up
    tables. Table and Lookup read every vector as often as it has bytes, and take another one each time.

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
    bases : In(BASES x 32)
        Base registers. With softmax only.
    """

    def __init__(self, config: Config, multipliers: Multipliers = INFERRED) -> None:
        self.config = config
        self.multipliers = multipliers
        softmax = {
            "alignment_read": Out(ports.alignment_read(config)),
            "alignment_write": Out(ports.alignment_write(config)),
            "bases": In(data.ArrayLayout(32, BASES)),
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
        for inner, name in (
            (reader, "instruction"),
            (reader, "accumulator"),
            (reader, "scratchpad"),
            (writer, "write"),
        ):
            wiring.connect(m, wiring.flipped(getattr(self, name)), getattr(inner, name))
        m.d.comb += [
            operands.current.eq(reader.current),
            operands.arrival.eq(reader.arrival),
            operands.scratchpad.eq(self.scratchpad.data),
            operands.accumulator.eq(self.accumulator.data),
            requantise.settings.eq(reader.current.settings),
            *(getattr(requantise, name).eq(operands.operands[name]) for name, _ in operands.operands.shape()),
            reader.resume.eq(requantise.result_valid),
            writer.mask.eq(reader.current.signal),
            reader.finish.eq(writer.results.end),
            self.signal.eq(writer.signal),
            self.busy.eq(reader.active | writer.busy),
            self.stall_port.eq(reader.stall_port),
        ]
        self._results(m, requantise, reader, operands, writer)
        return m

    def _results(
        self, m: Module, requantise: Requantise, reader: VecReader, operands: VecOperands, writer: VecWriter
    ) -> None:
        """The stages between requantisation and the writer."""
        tag, valid = requantise.result_tag, requantise.result_valid
        results = data.View(results_layout(self.config), writer.results)
        last = Signal()
        m.d.comb += last.eq(valid & tag.last)
        if self.config.softmax:
            m.submodules.softmax = softmax = VecSoftmax(self.config)
            wiring.connect(m, reader.sequence, softmax.sequence)
            for name in ("alignment_read", "alignment_write"):
                wiring.connect(m, getattr(softmax, name), wiring.flipped(getattr(self, name)))
            m.d.comb += [
                softmax.bases.eq(self.bases),
                softmax.row.eq(operands.row),
                softmax.byte_valid.eq(operands.operands.valid),
                softmax.byte.eq(operands.byte),
                softmax.scores_valid.eq(valid),
                softmax.scores_last.eq(last),
                softmax.scores_index.eq(tag.index),
                softmax.scores.eq(requantise.scores),
                operands.clear.eq(reader.sequence.load),
                operands.normalising.eq(softmax.normalise),
                operands.scale.eq(softmax.scale),
                writer.results.eq(softmax.o),
            ]
            results = softmax.i
        if self.config.lookup_tables:
            m.submodules.lookup = lookup = VecLookup(self.config)
            m.d.comb += [
                lookup.load.eq(reader.sequence.load),
                lookup.payload.eq(reader.sequence.payload),
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
