"""What operators of a network compute, on values: their definitions, once more and independent of the compiler's."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from weft.hdl.errors import WeftError
from weft.sim.certify.graph import Graph, Operator, View, Window
from weft.sim.certify.requantise import requantised
from weft.sim.certify.sums import INT32, Sums, concatenated
from weft.sim.certify.values import Values

NOTHING = -1
"""Is in a buffer where nothing has been written."""
_SHIFTS = 63
"""Largest shift of a requantisation."""
_CHUNK = 1 << 21
"""Elements that are worked on at a time."""


class Unknown(WeftError, RuntimeError):
    """An operator whose kind has no definition here."""


class Network:
    """The contents of a network's buffers, as values.

    Parameters
    ----------
    values : Values
    bits : int
        Of the mantissas of requantisation.
    """

    def __init__(self, values: Values, bits: int) -> None:
        self.values, self.bits = values, bits
        self.buffers: dict[str, np.ndarray] = {}
        """By name, one-dimensional; `NOTHING` where no operator has written."""

    def run(self, graph: Graph, told: Callable[[str], None] = lambda text: None) -> None:
        """Compute all buffers of `graph` from its inputs, which are there. Raises `Unknown`."""
        kinds = {"Conv": self._conv, "Pool": self._pool, "Add": self._add, "Multiply": self._multiply,
                 "Rescale": self._rescale, "Pad": self._pad}  # fmt: skip
        for op in graph.operators:
            if op.kind not in kinds:
                raise Unknown(f"operator {op.name!r} is {op.kind}, which proofs do not know")
            told(op.name)
            self._write(op.dst, kinds[op.kind](op))

    def _places(self, view: View) -> np.ndarray:
        """Places in the buffer of the elements of a view, (n, h, w, c)."""
        n, h, w, c = view.shape
        _, height, width, channels = view.buffer_shape
        image, y, x, channel = view.start
        rows = y + np.arange(h) * view.step[0]
        columns = x + np.arange(w) * view.step[1]
        at = (image + np.arange(n))[:, None, None, None] * height + rows[:, None, None]
        return (at * width + columns[:, None]) * channels + channel + np.arange(c)

    def _read(self, view: View) -> np.ndarray:
        return self.buffers[view.buffer][self._places(view)]

    def _write(self, view: View, contents: np.ndarray) -> None:
        size = math.prod(view.buffer_shape)
        if view.buffer not in self.buffers:
            self.buffers[view.buffer] = np.full(size, NOTHING)
        self.buffers[view.buffer][self._places(view).ravel()] = contents.ravel()

    def _finish(
        self, op: Operator, sums: Sums, mantissa: np.ndarray, shift: np.ndarray,
        second: Sums | None = None, source: tuple[np.ndarray, np.ndarray] | None = None,
    ) -> np.ndarray:  # fmt: skip
        """Requantise integers (rows, columns, set)."""
        clamp = (int(op.numbers["y_zero"]), int(op.numbers["low"]), int(op.numbers["high"]))
        table = op.arrays["lookup"].data if "lookup" in op.arrays else b""
        return requantised(self.values, sums, mantissa, shift, clamp, table, second, source)

    def _scaled(self, op: Operator, values: np.ndarray, zero: int, scale: float) -> np.ndarray:
        """Requantise values less their zero point, all by one scale."""
        flat = values.reshape(-1, values.shape[-1])
        sums = self.values.terms(flat)
        source = flat, np.full(flat.shape[1], -zero)
        sums = (sums.shifted(-zero) if zero else sums).reshape(*flat.shape, 1)
        pairs = self._pairs(np.full(flat.shape[1], scale))
        return self._finish(op, sums, *pairs, source=source).reshape(values.shape)

    def _pairs(self, scales: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Mantissas and shifts of scales."""
        pairs = [quantised(float(scale), self.bits) for scale in scales]
        return np.array([pair[0] for pair in pairs]), np.array([pair[1] for pair in pairs])

    def _conv(self, op: Operator) -> np.ndarray:
        weight, bias, scale = (op.arrays[name].numpy for name in ("weight", "bias", "scale"))
        window, groups, zero = op.windows["window"], int(op.numbers["groups"]), int(op.numbers["x_zero"])
        x = self._read(op.sources[0])
        out, _, _, inner = weight.shape
        each = out // groups
        n, oh, ow = len(x), *sizes(window, x.shape[1:3])
        address, valid = _windows(window, x.shape[:3], (oh, ow))
        pixels = x.reshape(-1, x.shape[3])
        right = weight.astype(np.int64).reshape(groups, each, -1)
        mantissa, shift = self._pairs(scale)
        found = np.empty((n * oh * ow, out), np.int64)
        rows = max(1, _CHUNK // max(address.shape[1] * x.shape[3], 1))
        for low in range(0, len(address), rows):
            part = slice(low, low + rows)
            read = np.where(valid[part, :, None], pixels[address[part]], zero & 0xFF)
            made = []
            for group in range(groups):
                left = read[:, :, group * inner : (group + 1) * inner].reshape(len(read), -1)
                made.append(self.values.dot(left, zero, right[group].T))
            sums = concatenated(made, 1).shifted(bias.astype(np.int64))
            found[part] = self._finish(op, sums.reshape(*sums.low.shape, 1), mantissa, shift)
        return found.reshape(n, oh, ow, out)

    def _pool(self, op: Operator) -> np.ndarray:
        window, zero, scale = op.windows["window"], int(op.numbers["x_zero"]), op.numbers["scale"]
        x = self._read(op.sources[0])
        n, oh, ow, c = len(x), *sizes(window, x.shape[1:3]), x.shape[3]
        address, valid = _windows(window, x.shape[:3], (oh, ow))
        read = x.reshape(-1, c)[address]
        if op.texts["kind"] == "max":
            return self._maximum(op, read, valid).reshape(n, oh, ow, c)
        counts = valid.sum(axis=1)
        if op.numbers["include_pad"]:
            counts = _windows(window, x.shape[:3], (oh, ow), padded=True)[1].sum(axis=1)
        sums = self.values.terms(np.where(valid[..., None], read, zero & 0xFF)).shifted(-zero).total(1)
        found = np.empty(sums.low.shape, np.int64)
        for count in np.unique(counts):
            some = counts == count
            part = sums[some]
            pairs = self._pairs(np.full(c, scale / max(int(count), 1)))
            found[some] = self._finish(op, part.reshape(*part.low.shape, 1), *pairs)
        return found.reshape(n, oh, ow, c)

    def _maximum(self, op: Operator, read: np.ndarray, valid: np.ndarray) -> np.ndarray:
        """Of windows (outputs, elements, channels), of nothing the least int32."""
        zero, scale, there = int(op.numbers["x_zero"]), op.numbers["scale"], valid.any(axis=1)
        found = np.empty((len(read), read.shape[2]), np.int64)
        most = self.values.maximum(read[there].swapaxes(1, 2), valid[there][:, None])
        found[there] = self._scaled(op, most, zero, scale)
        if not there.all():
            least = self.values.integers(np.full((int((~there).sum()), read.shape[2], 1), -INT32 - zero))
            found[~there] = self._finish(op, least, *self._pairs(np.full(read.shape[2], scale)))
        return found

    def _pair(self, op: Operator) -> tuple[np.ndarray, Sums, Sums]:
        """The operands' values of an operator of two, and both less their zero points."""
        a = self._read(op.sources[0])
        b = np.broadcast_to(self._read(op.sources[1]), a.shape)
        both = []
        for name, item in (("a", a), ("b", b)):
            sums = self.values.terms(item.reshape(-1, a.shape[3]))
            both.append(sums.shifted(-int(op.numbers[f"{name}_zero"])))
        return a, both[0], both[1]

    def _add(self, op: Operator) -> np.ndarray:
        a, first, second = self._pair(op)
        scales = op.numbers["a_scale"], op.numbers["b_scale"]
        _, shift = quantised(max(scales[0], abs(scales[1])), self.bits)
        mantissas = [round(math.ldexp(abs(scale), shift)) for scale in scales]
        columns = np.ones(a.shape[3], np.int64)
        made = self._finish(
            op, first.reshape(*first.low.shape, 1), mantissas[0] * columns, shift * columns,
            second.scaled(-mantissas[1] if scales[1] < 0 else mantissas[1]),
        )  # fmt: skip
        return made.reshape(a.shape)

    def _multiply(self, op: Operator) -> np.ndarray:
        a, first, second = self._pair(op)
        pairs = self._pairs(np.full(a.shape[3], op.numbers["scale"]))
        product = first.times(second)
        return self._finish(op, product.reshape(*product.low.shape, 1), *pairs).reshape(a.shape)

    def _rescale(self, op: Operator) -> np.ndarray:
        return self._scaled(op, self._read(op.sources[0]), int(op.numbers["x_zero"]), op.numbers["scale"])

    def _pad(self, op: Operator) -> np.ndarray:
        window, x = op.windows["window"], self._read(op.sources[0])
        n, oh, ow, c = len(x), *sizes(window, x.shape[1:3]), x.shape[3]
        address, valid = _windows(window, x.shape[:3], (oh, ow))
        read = np.where(valid[..., None], x.reshape(-1, c)[address], int(op.numbers["fill"]) & 0xFF)
        around = read[:, 0].reshape(n, oh, ow, c)
        return self._scaled(op, around, int(op.numbers["x_zero"]), op.numbers["scale"])


def sizes(window: Window, image: tuple[int, int]) -> tuple[int, int]:
    """Height and width of what windows make of an image: as many as fit it with its padding."""
    found = []
    for axis, size in enumerate(image):
        span = (window.kernel[axis] - 1) * window.dilation[axis] + 1
        room = size + window.pad[axis] + window.pad[axis + 2]
        found.append((room - span) // window.stride[axis] + 1)
    return found[0], found[1]


def _windows(
    window: Window, shape: tuple[int, ...], out: tuple[int, int], *, padded: bool = False
) -> tuple[np.ndarray, np.ndarray]:
    """Pixels that each output reads, (outputs, elements), and whether they are there; `padded`: in the image with its
    padding."""
    n, *image = shape
    axes, there = [], []
    for axis, size in enumerate(image):
        first = np.arange(out[axis])[:, None] * window.stride[axis] - window.pad[axis]
        at = first + np.arange(window.kernel[axis]) * window.dilation[axis]
        before, after = (window.pad[axis], window.pad[axis + 2]) if padded else (0, 0)
        there.append((at >= -before) & (at < size + after))
        axes.append(np.clip(at, 0, size - 1))
    rows, columns = axes[0][:, None, :, None], axes[1][None, :, None, :]
    pixel = (np.arange(n)[:, None, None, None, None] * image[0] + rows) * image[1] + columns
    valid = np.broadcast_to(there[0][:, None, :, None] & there[1][None, :, None, :], pixel.shape)
    elements = math.prod(window.kernel)
    return pixel.reshape(-1, elements), valid.reshape(-1, elements)


def quantised(scale: float, bits: int) -> tuple[int, int]:
    """The mantissa and the shift nearest to a scale: the mantissa has `bits` bits, unless the shift were above 63."""
    if scale == 0:
        return 0, _SHIFTS
    fraction, exponent = math.frexp(scale)
    mantissa, shift = round(fraction * (1 << bits)), bits - exponent
    if mantissa == 1 << bits:
        mantissa, shift = mantissa >> 1, shift - 1
    if shift > _SHIFTS:
        return round(math.ldexp(scale, _SHIFTS)), _SHIFTS
    return mantissa, shift
