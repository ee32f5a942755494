"""Properties of SOFTMAX and NORMALISE after their reads: the path of results, and factors of NORMALISE."""

from __future__ import annotations

from typing import Any

from amaranth.hdl import Module, Mux, Signal, Value, signed

from weft.extras.proof.hardware.pipelines import ago, connect_all, implies, latch, watch_cycle
from weft.extras.proof.hardware.property import Bench, Induction, proves
from weft.extras.proof.hardware.smallest import SMALLEST
from weft.hdl.isa import Normalise, Opcode, Softmax
from weft.hdl.isa.operands import READ_LATENCY
from weft.hdl.lib.arithmetic import RESULT
from weft.hdl.vector.requantise import LATENCY, column_layout
from weft.hdl.vector.softmax import vector_layout
from weft.hdl.vector.vec import VecUnit
from weft.hdl.vector.vec_reader import _request_layout
from weft.hdl.vector.vec_softmax import CHOSEN, settings_layout
from weft.hdl.vector.vec_streams import arrival_layout, instruction_layout, results_layout, view

_PLAIN = SMALLEST.replace(lanes=1, lookup_tables=0, probability_bits=8, table_depth=256, mantissa_bits=16)
_OPERANDS = "vec_operands"
_PROVEN = (
    *("reader", "vec_operands", "requantise", "writer"),
    *(f"softmax.{name}" for name in ("pipe", "rows", "divider", "mask")),
)
_RESULT_CYCLES = CHOSEN + LATENCY
"""Cycles from a read to its result."""
_SETTINGS = {
    Softmax: ("first", "final", "causal", "relative", "register", "length", "diagonal"),
    Normalise: ("scaled", "scale", "exponent", "v_zero"),
}


class UnitBench(Bench, unit=VecUnit):
    """The whole vector unit with free inputs; nothing is assumed.

    One cycle, which may be any, is watched, with its grant: `age` counts from there.
    """

    def watch(self, m: Module) -> None:
        config = self.config
        connect_all(m, self.dut)
        self.granted = self._view(arrival_layout(config), "reader.granted")
        self.request = self._view(_request_layout(config), "reader.request")
        self.softmax, self.normalise = self.peek("softmax.softmax"), self.peek("softmax.normalise")
        granted = (self.granted, self.granted.shape(), "seen")
        request = (self.request, self.request.shape(), "asked")
        self.age, (self.seen, self.asked) = watch_cycle(m, self, _RESULT_CYCLES + 1, granted, request)
        self._claim_stages()
        self._watch(m)

    def _claim_stages(self) -> None:
        """Claim the place of the granted element on its way: induction needs it."""
        age, seen, tag = self.age, self.seen, self.seen.element.tag
        for stage in range(READ_LATENCY):
            there = self.peek(f"reader.arrival_{stage}")
            self.claim(f"arrival {stage}", implies(age == 1 + stage, there == seen.as_value()))
        near, nearer = self.peek("vec_operands.near"), self._element("nearer")
        nearby = (near == seen.valid) & (nearer == seen.element.as_value())
        self.claim("near", implies(age == READ_LATENCY + 1, nearby))
        valid, last = self.peek("requantise.valid"), self.peek("requantise.last")
        entering = (valid == seen.valid) & (self._element("chosen") == seen.element.as_value())
        self.claim("chosen", implies(age == CHOSEN, entering & (last == seen.element.last)))
        for stage in range(LATENCY):
            there = self.peek(f"requantise.valid_{stage}") == (seen.valid & seen.element.last)
            there &= self.peek(f"requantise.tag_{stage}") == tag.as_value()
            self.claim(f"requantised {stage}", implies(age == CHOSEN + 1 + stage, there))

    def _element(self, name: str) -> Signal:
        return self.peek(f"vec_operands.{name}")

    def _watch(self, m: Module) -> None:
        raise NotImplementedError

    def _view(self, layout: Any, path: str) -> Any:
        return layout(self.peek(path))

    def _pipe(self, name: str, width: int = 1) -> Signal:
        return self.peek(f"softmax.pipe.{name}")


@proves("vector/vec", "the way of scores", Induction(2), _PLAIN, cover=56, part=True, proven=_PROVEN)
class ScoresBench(UnitBench):
    """For each element of SOFTMAX that was read, its score comes to the pipeline after a fixed number of cycles, with
    the data of its vector. The writer gets the pipeline's probabilities, and for other instructions a result for each
    output.

    The pipeline's property starts where this one ends: its assumptions are claimed here.
    """

    def _watch(self, m: Module) -> None:
        config, age, element = self.config, self.age, self.seen.element
        tag = element.tag
        there, score = self.seen.valid & self.softmax, self.seen.valid & element.last
        noted, comes = age == 1, age == _RESULT_CYCLES
        first, last = tag.index == 0, tag.last
        push = self._pipe("push")
        self.claim("a vector begins", implies(noted, self._pipe("begin") == (there & first)))
        self.claim("a vector is complete", implies(noted, push == (there & last)))
        vector, note = self._view(vector_layout(config), "softmax.pipe.vector"), self.asked.note
        vector_fields = {
            "state": note.state,
            "fresh": note.fresh,
            "dst": tag.dst,
            "alignment": self.asked.second[: len(vector.alignment)],
            "end": tag.end,
        }
        for name, value in vector_fields.items():
            self.claim(f"{name} of a vector", implies(noted & there, vector[name] == value))
        least = Mux(note.by_length < note.by_diagonal, note.by_length, note.by_diagonal)
        limit = self._pipe("limit", len(least))
        self.claim("its valid columns", implies(noted & there, limit == least))
        index, bits = self._pipe("index"), len(tag.index)
        self.claim("a score for each element", implies(comes, self._pipe("valid") == (self.softmax & score)))
        self.claim("the last ones of a vector", implies(comes & score, self._pipe("last") == last))
        self.claim("which group they are", implies(comes & score, index[:bits] == tag.index))
        self.cover("scores", comes & self._pipe("valid") & tag.last & push)
        self._claim_results(m, comes, score)

    def _claim_results(self, m: Module, comes: Value, score: Value) -> None:
        """Claim that the writer gets probabilities for SOFTMAX, and requantised results for other instructions."""
        config, tag = self.config, self.seen.element.tag
        results = self._view(results_layout(config), "writer.results")
        groups, place = config.groups, len(tag.index)
        p_valid, p_index = self._pipe("p_valid"), self._pipe("p_index", place)
        with_softmax = {
            "write": p_valid & (p_index == groups - 1),
            "end": self._pipe("ended"),
            "index": p_index,
            "dst": self._pipe("dst", len(tag.dst)),
        }
        for name, value in with_softmax.items():
            self.claim(f"{name} of probabilities", implies(self.softmax, results[name] == value))
        other = comes & ~self.softmax
        self.claim(
            "a result for each other",
            implies(other, results.write == (score & tag.last & ~self._fills_table())),
        )
        self.claim("the last one of others", implies(other, results.end == (score & tag.end)))
        for name in ("index", "dst"):
            self.claim(f"{name} of others", implies(other & score, results[name] == tag[name]))
        self.cover("probabilities", self.softmax & results.write & (results.dst == 3))
        self.cover("results of others", comes & self.normalise & results.write & (results.dst == 5))

    def _fills_table(self) -> Value:
        """Return whether the instruction fills a table and writes no vectors."""
        return self._view(instruction_layout(self.config), "reader.current").bytewise


@proves("vector/vec", "the way of divisions", Induction(2), _PLAIN, cover=40, part=True, proven=_PROVEN)
class DivisionBench(UnitBench):
    """Each row of NORMALISE takes a result of the divider with its first element. All its elements are multiplied and
    shifted by that result, with their alignments, until the next row.
    """

    def _watch(self, m: Module) -> None:
        dut, config, age = self.dut, self.config, self.age
        element, normal = self.seen.element, self.normalise
        there = self.seen.valid & normal
        load = self.peek("reader.nest.load")
        settings = self._claim_settings(m, load)
        reads = dut.alignment_read
        self.claim("an alignment is read for each", implies(age == 1, reads.valid == there))
        wanted = self.asked.second[: len(reads.address)]
        self.claim("where it is", implies((age == 1) & there, reads.address == wanted))
        take = self.peek("softmax.divider.take")
        begins = age == CHOSEN - 1
        self.claim("a division is taken for each row", implies(begins, take == (there & element.row)))
        result = self.peek("softmax.divider.result")
        row = Signal(RESULT, name="row_of")
        with m.If(load):
            m.d.sync += row.eq(0)
        with m.Elif(take):
            m.d.sync += row.eq(RESULT(result))
        self.claim("the result of the row", self.peek("softmax.row_result") == row.as_value())
        # Parameters are 0 from the start of an instruction without any, until some are read.
        parameters = self._view(arrival_layout(config), "reader.arrival").parameter
        none = Signal(name="no_parameters")
        opcode = dut.instruction.payload.opcode
        without = (opcode == Opcode.NORMALISE) | (opcode == Opcode.TABLE)
        m.d.sync += none.eq(Mux(load & without, 1, none & ~parameters))
        planes = self.peek("vec_operands.planes")
        self.claim("no parameters", implies(none, planes == 0))
        shift = ago(m, dut.alignment_read.data, CHOSEN - 1 - READ_LATENCY, "shift").as_signed()
        self._claim_columns(m, none, settings, row, shift)

    def _claim_settings(self, m: Module, load: Value) -> Any:
        layout = settings_layout(self.config)
        settings = self._view(layout, "softmax.settings")
        payload = self.dut.instruction.payload
        known = latch(m, load, 1, 1, "known")
        for kind, names in _SETTINGS.items():
            fields = view(kind, payload)
            for name in names:
                field = latch(m, load, fields[name], fields[name].shape(), f"field_{name}")
                self.claim(f"field {name}", implies(known, settings[name] == field))
        kinds = {"softmax": (self.softmax, Opcode.SOFTMAX), "normalise": (self.normalise, Opcode.NORMALISE)}
        for name, (flag, opcode) in kinds.items():
            is_kind = latch(m, load, payload.opcode == opcode, 1, f"is_{name}")
            self.claim(f"it is {name}", flag == is_kind)
        return settings

    def _claim_columns(self, m: Module, none: Value, settings: Any, row: Any, alignment: Value) -> None:
        """Claim bias, mantissa and shift when an element enters requantisation."""
        config = self.config
        # Data that was read survives a reset.
        scaled = ago(m, settings.scaled, CHOSEN - 1 - READ_LATENCY, "scaled")
        total = Signal(signed(10), name="shift_total")
        m.d.comb += total.eq(row.shift + Mux(scaled, alignment, 0))
        shift = Mux(total < 0, 0, Mux(total > 63, 63, total))
        layout = column_layout(config)
        columns = self.peek("requantise.columns")
        here = (self.age == CHOSEN) & none & self.normalise
        for lane in range(config.lanes):
            column = layout(columns.word_select(lane, layout.size))
            self.claim(f"bias {lane}", implies(here, column.bias == row.bias))
            self.claim(f"mantissa {lane}", implies(here, column.mantissa == row.mantissa))
            self.claim(f"shift {lane}", implies(here, column.shift == shift))
            self.cover(
                f"a shift {lane}", here & self.seen.valid & self.seen.element.row & (column.shift == 2)
            )


@proves("vector/vec", "softmax's connections", Induction(1), _PLAIN, cover=56, part=True, proven=_PROVEN)
class ConnectedBench(UnitBench):
    """The pipeline of softmax gets the scores of requantisation. Its alignments are written unchanged, and its
    probabilities less 128.
    """

    def _watch(self, m: Module) -> None:
        dut, config = self.dut, self.config
        scores = self.peek("requantise.scores")
        self.claim("scores", self._pipe("scores", len(scores)) == scores)
        for name in ("valid", "address", "data"):
            value = Value.cast(getattr(dut.alignment_write, name)).as_unsigned()
            self.claim(f"alignment {name}", value == self._pipe(f"alignment_write__{name}", len(value)))
        written = self._view(results_layout(config), "writer.results")
        for lane in range(config.lanes):
            p = self._pipe(f"probabilities.p_{lane}", 8)
            self.claim(f"probability {lane}", implies(self.softmax, written.bytes[lane] == (p - 128)[:8]))
        self.cover("a write", self.softmax & (written.index == 1))
