"""Paged attention: attention over a paged cache of keys and values, with one program for every state of the cache."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Unpack

import numpy as np

from weft.arguments import flag, integer, positive
from weft.compiler.backend import DeviceProgram, compile_segment
from weft.compiler.errors import CompileError
from weft.compiler.ir.graph import Attention, DeviceSegment
from weft.compiler.ir.scales import CALIBRATION_HEADROOM, SCALE_LIMIT, SCORE_CLAMP, ScoreRange
from weft.compiler.ir.views import Buffer, View
from weft.compiler.machine.areas import LENGTH
from weft.compiler.onnx.attention import CALIBRATED_NOTE, MAX_HEAD_SIZE, MAX_KEYS, MAX_ROW
from weft.configurations import configuration, sequential_boards
from weft.errors import InputError
from weft.hdl.checker.order import check_sequence
from weft.hdl.checker.program import check as check_program
from weft.hdl.isa.config import Config
from weft.run.options import RunKeywords, RunOptions
from weft.run.program import Result
from weft.run.runtime import Execution

if TYPE_CHECKING:
    from weft.sim.device import Device


@dataclass(frozen=True)
class Quantisation:
    """Scales and zero points of int8 Q, K, V and output Y; real value = scale * (integer - zero)."""

    q_scale: float = 1.0
    k_scale: float = 1.0
    v_scale: float = 1.0
    y_scale: float = 1.0
    q_zero: int = 0
    k_zero: int = 0
    v_zero: int = 0
    y_zero: int = 0

    def check(self) -> Quantisation:
        """Return a copy with Python numbers. Raises `InputError` for an invalid scale or zero point."""
        values = {}
        for name in ("q", "k", "v", "y"):
            values[f"{name}_scale"] = positive(f"{name}_scale", getattr(self, f"{name}_scale"))
            values[f"{name}_zero"] = integer(f"{name}_zero", getattr(self, f"{name}_zero"), -128, 127)
        return Quantisation(**values)  # type: ignore[arg-type]


def _count(name: str, value: int) -> int:
    return integer(name, value, 1)


class PagedAttention:
    """softmax(Q K^T * scale) V for `rows` queries, with keys and values in pages that a page table lists.

    The program reads the page table and the number of keys when it runs, so appending keys or pages, or reordering
    pages, needs no new program. It always processes all `capacity` pages of the table, so its time does not depend on
    the number of keys. To save time on short sequences, compile programs for several capacities.

    Parameters
    ----------
    config : str or Config
        Configuration of the accelerator.
    heads, kv_heads : int
        Number of query heads, and of heads of keys and values (a divisor of `heads`; None: `heads`).
    head_size : int
        Elements of a query, key and value.
    rows : int
        Queries per head: 1 for a decode step, more for prefill.
    page : int
        Keys in a page, a multiple of the array's side.
    pages : int
        Pages in the pool, for all sequences together.
    capacity : int
        Most pages of one sequence.
    causal : bool
        Query i, of the last `rows` positions, sees the keys up to its own position.
    quantisation : Quantisation
    scale : float
        Multiplier of the real scores; ``1 / sqrt(head_size)`` if None.
    largest : float
        Largest magnitude of a row's maximum score, from a calibration. Required if queries and keys at the ends of
        their ranges give scores that the device clamps; scores up to 1.25 times `largest` are not clamped.

    Raises
    ------
    InputError
        If a parameter has a wrong type or is out of range.
    CompileError
        If parameters are inconsistent, the configuration is too small, or scores may be clamped.
    """

    def __init__(
        self,
        config: str | Config = "default",
        *,
        heads: int,
        head_size: int,
        page: int,
        pages: int,
        capacity: int,
        rows: int = 1,
        kv_heads: int | None = None,
        causal: bool = True,
        quantisation: Quantisation | None = None,
        scale: float | None = None,
        largest: float | None = None,
    ) -> None:
        self.config = configuration(config)
        self.heads, self.head_size = _count("heads", heads), _count("head_size", head_size)
        self.kv_heads = self.heads if kv_heads is None else _count("kv_heads", kv_heads)
        self.rows, self.page = _count("rows", rows), _count("page", page)
        self.pages, self.capacity = _count("pages", pages), _count("capacity", capacity)
        self._check_parameters()
        quant = (quantisation or Quantisation()).check()
        multiplier = 1 / math.sqrt(self.head_size) if scale is None else positive("scale", scale)
        op = self._operator(quant, flag("causal", causal), multiplier)
        in_turn = bool(sequential_boards(self.config))  # the sequential core needs a different order
        self.warnings = self._warnings(op, None if largest is None else positive("largest", largest))
        """A warning if the device clamps scores far above the calibrated maximum, else empty."""
        segment = DeviceSegment("attention", (op,))
        self.program: DeviceProgram = compile_segment(segment, self.config, sequential=in_turn)
        check_program(self.program.instructions, self.config, extents=self.program.areas.extents)
        if in_turn:
            check_sequence(self.program.instructions)

    def _check_parameters(self) -> None:
        if self.heads % self.kv_heads:
            raise CompileError(
                f"{self.heads} query heads do not divide into {self.kv_heads} groups of 'kv_heads'"
            )
        if self.head_size > MAX_HEAD_SIZE or self.heads * self.head_size > MAX_ROW:
            raise CompileError(
                f"'head_size' {self.head_size} must be at most {MAX_HEAD_SIZE}, and 'heads' times that at most "
                f"{MAX_ROW}"
            )
        if self.page % self.config.n:
            raise CompileError(
                f"'page' must be a multiple of the array's side {self.config.n}, not {self.page}"
            )
        if self.page * self.capacity > MAX_KEYS:
            raise CompileError(
                f"'capacity' {self.capacity} pages of {self.page} keys are more than the {MAX_KEYS} keys"
                " that masks can count"
            )

    def _warnings(self, op: Attention, largest: float | None) -> tuple[str, ...]:
        known = ScoreRange.of(op.q_zero, op.k_zero, self.head_size, op.score_scale)
        if known.certain:
            return ()
        if largest is None:
            raise CompileError(
                f"queries and keys at the ends of their ranges make scores of {known.most:.4g}, and beyond "
                f"{SCORE_CLAMP:.0f} they are clamped: give the largest that a calibration finds as 'largest', or "
                "smaller scales"
            )
        if not known.holds(largest):
            raise CompileError(
                f"{CALIBRATION_HEADROOM} times 'largest', {largest:.4g}, must be at most {known.reach:.0f}: "
                "larger scores are clamped"
            )
        return (CALIBRATED_NOTE.format(reach=known.reach, found=largest),)

    def _operator(self, quant: Quantisation, causal: bool, scale: float) -> Attention:
        step, ratio = quant.q_scale * quant.k_scale * scale, quant.v_scale / quant.y_scale
        if step >= SCORE_CLAMP:
            raise CompileError(
                f"a step of scores, {step:.4g}, must be below {SCORE_CLAMP:.0f}, where they are clamped"
            )
        if ratio >= SCALE_LIMIT:
            raise CompileError(
                f"'v_scale' must be less than {SCALE_LIMIT:.0f} times 'y_scale', not {ratio:.5g} times"
            )
        width, kv_width = self.heads * self.head_size, self.kv_heads * self.head_size
        q, y = (
            Buffer(name, (1, 1, self.rows, width), kind) for name, kind in (("q", "input"), ("y", "output"))
        )
        k, v = (Buffer(name, (self.pages, 1, self.page, kv_width), "pages") for name in ("k", "v"))
        table = Buffer("table", (1, 1, self.capacity, 4), "table")
        return Attention(
            "attention",
            View(q, q.shape),
            View(k, k.shape),
            View(v, v.shape),
            View(y, y.shape),
            images=1,
            heads=self.heads,
            kv_heads=self.kv_heads,
            score_scale=step,
            lengths=(self.page * self.capacity,),
            scale=ratio,
            causal=causal,
            offset=-self.rows,  # the queries are the last `rows` positions
            q_zero=quant.q_zero,
            k_zero=quant.k_zero,
            v_zero=quant.v_zero,
            y_zero=quant.y_zero,
            page=self.page,
            table=View(table, table.shape),
        )

    def run(
        self,
        q: np.ndarray,
        k: np.ndarray,
        v: np.ndarray,
        table: Sequence[int],
        length: int,
        on: str | Device | RunOptions = "golden",
        **options: Unpack[RunKeywords],
    ) -> Result:
        """Attend to the first `length` keys of the pages in `table`.

        Parameters
        ----------
        q : int8 of shape (rows, heads, head_size)
        k, v : int8 of shape (pages, page, kv_heads, head_size)
        table : sequence of int
            Numbers of the sequence's pages, in order; at most `capacity`.
        length : int
            Keys in these pages, including the current positions.
        on, options
            See `Program.run`.

        Returns
        -------
        Result
            ``outputs["y"]`` is int8 of shape (rows, heads, head_size); absent from a device that computes no results.

        Raises
        ------
        InputError
            If an array has another dtype or shape, a page does not exist, or the table does not hold `length` keys.
        """
        execution = Execution(RunOptions.of(on, **options), self.config, warnings=self.warnings)
        pool = (self.pages, self.page, self.kv_heads, self.head_size)
        shapes = {"q": (self.rows, self.heads, self.head_size), "k": pool, "v": pool}
        for (name, shape), value in zip(shapes.items(), (q, k, v), strict=True):
            if not isinstance(value, np.ndarray):
                raise InputError(f"{name!r} is {type(value).__name__}, not an array: int8 of shape {shape}")
            if value.dtype != np.int8 or value.shape != shape:
                raise InputError(
                    f"{name!r} is {value.dtype} of shape {value.shape}, not int8 of shape {shape}"
                )
        contents = {"q": q, "k": k, "v": v, "table": self.entries(table, length)}
        read = execution.run(self.program, contents, ["y"], {LENGTH: length})
        outputs = {name: value.reshape(shapes["q"]) for name, value in read.items()}
        return Result(outputs, execution.report, execution.memory)

    def entries(self, table: Sequence[int], length: int) -> np.ndarray:
        """Return the page table as bytes (int8): a 32-bit offset per page. Entries after the last page are masked out.

        Raises
        ------
        InputError
            If a page does not exist, or the table does not hold `length` keys.
        """
        if not isinstance(table, Sequence | np.ndarray):
            raise InputError(f"the table is a sequence of pages, not {type(table).__name__}")
        for position, page in enumerate(table):
            if not 0 <= integer(f"table[{position}]", page) < self.pages:
                raise InputError(
                    f"page {page} at position {position} of the table does not exist; there are {self.pages}"
                )
        if len(table) > self.capacity:
            raise InputError(f"the table has {len(table)} pages, the program is for {self.capacity} at most")
        if not 0 <= integer("length", length) <= len(table) * self.page:
            raise InputError(
                f"length {length} is outside the table: its {len(table)} pages hold 0 to {len(table) * self.page} keys"
            )
        # An entry is the byte offset of a page in K and V, little-endian.
        offsets = np.zeros(self.capacity, "<u4")
        offsets[: len(table)] = np.array(table, np.int64) * self.page * self.kv_heads * self.head_size
        return offsets.view(np.int8)
