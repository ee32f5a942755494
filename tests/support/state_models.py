"""TFLite files that keep state between runs."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from support.tflite_models import Model

_REACH = 60_000
"""Sum of the magnitudes of an SVDF's time weights: LiteRT's sums with states then fit 32 bits."""


@dataclass(frozen=True)
class Svdf:
    """An integer SVDF. `changes` replaces inputs by position, -1 to omit one; `told` is the rank in the file, and
    `spread` multiplies its output's scale. Time weights have 8 bits if `narrow`, and lower bytes of 0 if `coarse`. With
    RELU the output's zero point lies `above` the least value."""

    seed: int
    batch: int = 1
    inputs: int = 8
    units: int = 6
    rank: int = 2
    memory: int = 5
    relu: bool = True
    bias: bool = True
    narrow: bool = False
    coarse: bool = False
    above: int = 0
    spread: float = 1.0
    told: int | None = None
    activation: int | None = None
    state_zero: int = 0
    changes: tuple[tuple[int, int], ...] = ()

    @property
    def filters(self) -> int:
        return self.units * self.rank

    def build(self) -> bytes:
        """Return the file, with tensors "x", "state" and "y"."""
        rng, m = np.random.default_rng(self.seed), Model()
        scales = float(rng.uniform(0.005, 0.05)), float(rng.uniform(0.002, 0.02))
        x = m.tensor((self.batch, self.inputs), scale=scales[0], zero=int(rng.integers(-128, 128)), name="x")
        features = rng.integers(-127, 128, (self.filters, self.inputs)).astype(np.int8)
        first = m.tensor(features.shape, scale=scales[1], data=features)
        kept = scales[0] * scales[1] * 127 * 127 * self.inputs**0.5 * float(rng.uniform(0.7, 3)) / 2**15
        time = self._weights(rng)
        scale = 10.0 ** float(rng.uniform(-7, -1))
        second = m.tensor(time.shape, time.dtype.name, scale=scale, data=time)
        biases = rng.integers(-(1 << 27) >> 8 * self.narrow, 1 << 27 >> 8 * self.narrow, self.units)
        third = m.tensor((self.units,), "int32", scale=kept * scale, data=biases.astype(np.int32))
        shape = (self.batch, self.filters * self.memory)
        state = m.tensor(shape, "int16", scale=kept, zero=self.state_zero, name="state", IsVariable=True)
        spread = np.sqrt((time.astype(float) ** 2).reshape(self.units, -1).sum(axis=1).max()) * 8000 / 50
        zero = self.above - 128 if self.relu else int(rng.integers(-128, 128))
        y = m.tensor((self.batch, self.units), scale=kept * scale * spread * self.spread, zero=zero, name="y")
        given = [x, first, second, third if self.bias else -1, state]
        for at, index in self.changes:
            given[at : at + 1] = [given[index] if index >= 0 else -1]
        activation = int(self.relu) if self.activation is None else self.activation
        rank = self.rank if self.told is None else self.told
        m.operator("SVDF", given, [y], "SVDF", Rank=rank, FusedActivationFunction=activation)
        return m.write([x], [y])

    def for_litert(self) -> bytes:
        """Return a file for LiteRT, which accepts RELU only, but does not compute it."""
        return replace(self, activation=1).build()

    def _weights(self, rng: np.random.Generator) -> np.ndarray:
        drawn = rng.normal(size=(self.units, self.rank * self.memory)) ** 3
        drawn *= _REACH / np.abs(drawn).sum(axis=1, keepdims=True) / (256 if self.narrow else 1)
        most = 127 if self.narrow else 32767
        whole = np.clip(np.rint(drawn), -most, most).astype(np.int16)
        return (whole & -256 if self.coarse and not self.narrow else whole).reshape(self.filters, self.memory)

    def feeds(self, count: int) -> list[np.ndarray]:
        """Draw inputs of `count` runs."""
        rng = np.random.default_rng((self.seed, 1))
        shape = (count, self.batch, self.inputs)
        return list(rng.integers(-128, 128, shape).astype(np.int8))


@dataclass(frozen=True)
class Ring:
    """A resource variable with the last `taps` rows of inputs, and a product with all of them.

    `start` is the variable's initial value: "constant", "computed", or "" for none; with `late` it follows the first
    use. The assigned value has shape `assigned`, if given, or is missing if that is (). With `twice` it is read and
    assigned again, and with `shown` it is an output.
    """

    seed: int = 0
    taps: int = 4
    channels: int = 6
    outputs: int = 5
    dtype: str = "int8"
    start: str = "constant"
    late: bool = False
    twice: bool = False
    shown: bool = False
    assigned: tuple[int, ...] | None = None

    def build(self) -> bytes:
        """Return the file, with tensors "x" and "y", and a variable "ring"."""
        rng, m = np.random.default_rng(self.seed), Model()
        zero = 3 if self.dtype == "int8" else 0
        stored: dict[str, Any] = {"scale": 0.05 if zero else 0.01, "zero": zero}
        x = m.tensor((1, 1, self.channels), self.dtype, name="x", **stored)
        handle = m.tensor((), "resource", name="handle")
        calls: list[tuple[str, list[int], list[int], str, dict[str, Any]]]
        calls = [("CALL_ONCE", [], [], "CallOnce", {"InitSubgraphIndex": 1})] if self.start else []
        whole = (1, self.taps, self.channels)
        old, new = (m.tensor(whole, self.dtype, **stored) for _ in range(2))
        kept = m.tensor((1, self.taps - 1, self.channels), self.dtype, **stored)
        flat = m.tensor((1, self.taps * self.channels), self.dtype, **stored)
        weights = rng.integers(-127, 128, (self.outputs, self.taps * self.channels)).astype(np.int8)
        w = m.tensor(weights.shape, scale=0.01, data=weights)
        y = m.tensor((1, self.outputs), self.dtype, 0.1 if zero else 0.02, -7 if zero else 0, name="y")
        ends = [m.constant(values) for values in ([0, 1, 0], whole, [1, 1, 1])]
        shape = m.constant([1, self.taps * self.channels])
        use: list[tuple[str, list[int], list[int], str, dict[str, Any]]] = [
            ("VAR_HANDLE", [], [handle], "VarHandle", {"Container": "", "SharedName": "ring"}),
            ("READ_VARIABLE", [handle], [old], "ReadVariable", {}),
            ("STRIDED_SLICE", [old, *ends], [kept], "StridedSlice", {}),
            ("CONCATENATION", [kept, x], [new], "Concatenation", {"Axis": 1}),
        ]
        value = new
        if self.assigned:
            value = m.tensor(self.assigned, self.dtype, **stored)
            use.append(("RESHAPE", [new, m.constant(self.assigned)], [value], "Reshape", {}))
        if self.assigned is None or self.assigned:
            use.append(("ASSIGN_VARIABLE", [handle, value], [], "AssignVariable", {}))
        if self.twice:  # what was assigned is read, and assigned again
            again = m.tensor(whole, self.dtype, **stored)
            use += [
                ("READ_VARIABLE", [handle], [again], "ReadVariable", {}),
                ("ASSIGN_VARIABLE", [handle, old], [], "AssignVariable", {}),
                ("ASSIGN_VARIABLE", [handle, again], [], "AssignVariable", {}),
            ]
        use += [
            ("RESHAPE", [new, shape], [flat], "Reshape", {}),
            ("FULLY_CONNECTED", [flat, w, -1], [y], "FullyConnected", {}),
        ]
        for name, given, made, kind, options in (*use, *calls) if self.late else (*calls, *use):
            m.operator(name, given, made, kind, **options)
        outputs = [y, new] if self.shown else [y]
        return m.write([x], outputs, others=[self._first(rng, stored)] if self.start else [])

    def _first(self, rng: np.random.Generator, stored: dict[str, Any]) -> Model:
        m, shape = Model(), (1, self.taps, self.channels)
        handle = m.tensor((), "resource", name="handle")
        m.operator("VAR_HANDLE", [], [handle], "VarHandle", Container="", SharedName="ring")
        if self.start == "constant":
            value = m.tensor(
                shape, self.dtype, data=rng.integers(-20, 20, shape).astype(self.dtype), **stored
            )
        else:
            given = m.tensor(shape, "float32", data=rng.normal(size=shape).astype(np.float32))
            value = m.tensor(shape, self.dtype, **stored)
            m.operator("QUANTIZE", [given], [value], "Quantize")
        m.operator("ASSIGN_VARIABLE", [handle, value], [], "AssignVariable")
        return m

    def feeds(self, count: int) -> list[np.ndarray]:
        """Draw inputs of `count` runs."""
        info = np.iinfo(self.dtype)
        shape = (count, 1, 1, self.channels)
        drawn = np.random.default_rng((self.seed, 1)).integers(info.min, info.max, shape, endpoint=True)
        return list(drawn.astype(self.dtype))
