"""What operators of a network compute, on values: their definitions, once more and independent of the compiler's."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import msgspec
import numpy as np

from weft.extras.proof.programs import attention
from weft.extras.proof.programs.form import STORED
from weft.extras.proof.programs.formula import evaluate, vectors_of
from weft.extras.proof.programs.graph import Formula, Graph, GraphError, Operator, View, Window, check_view
from weft.extras.proof.programs.requantise import quantised, requantised
from weft.extras.proof.programs.sums import INT32, Sums, concatenated
from weft.extras.proof.programs.symbols import OFFSET_BYTES, Rows, Symbols, joined_bytes
from weft.extras.proof.programs.values import Values
from weft.hdl.errors import WeftError
from weft.hdl.isa.config import Config

NOTHING = -1
"""Is in a buffer where nothing has been written."""
_CHUNK = 1 << 21
"""Elements that are worked on at a time."""


class Unknown(WeftError, RuntimeError):
    """An operator whose kind has no definition here."""


class Network:
    """The contents of a network's buffers, as values.

    Parameters
    ----------
    values : Values
    config : Config
        Of the device, for what of results depends on it: the bits of mantissas of requantisation, and how many
        elements softmax takes together.
    """

    def __init__(self, values: Values, config: Config) -> None:
        self.values, self.config, self.bits = values, config, config.mantissa_bits
        self.symbols = Symbols(values)
        self.buffers: dict[str, np.ndarray] = {}
        """By name, one-dimensional; `NOTHING` where no operator has written."""

    def run(self, graph: Graph, told: Callable[[str], None] = lambda text: None) -> None:
        """Compute all buffers of `graph` from its inputs, which are there. Raises `Unknown`."""
        kinds = {"Conv": self._conv, "Pool": self._pool, "Add": self._add, "Multiply": self._multiply,
                 "Rescale": self._rescale, "Pad": self._pad, "GroupNorm": self._groups,
                 "Embedding": self._embedding}  # fmt: skip
        others = {"Product": attention.product_of, "Softmax": attention.softmax,
                  "Attention": attention.attention}  # fmt: skip
        for op in graph.operators:
            told(op.name)
            with _named(op):
                if op.kind in kinds:
                    self._write(op.dst, kinds[op.kind](op))
                elif op.kind in others:
                    sources = [self._read(view) for view in op.sources]
                    self._write(op.dst, others[op.kind](self.symbols, self.config, op, sources))
                elif op.formula is not None:
                    self._write_planes(op, op.formula)
                else:
                    raise Unknown(f"operator {op.name!r} is {op.kind}, which proofs do not know")

    def _embedding(self, op: Operator) -> np.ndarray:
        """Rows of a constant table that is quantised, by their offsets in it: 32-bit numbers of four bytes."""
        values, scale = (op.arrays[name].numpy for name in ("values", "scale"))
        low, high = op.numbers["low"], op.numbers["high"]
        content = np.clip(np.rint(values * scale) + op.numbers["y_zero"], low, high).astype(np.int8)
        offsets = joined_bytes(self.symbols, self._read(op.sources[0]).reshape(-1, OFFSET_BYTES))
        found = self.symbols.row_of(offsets, content, content.shape[1])
        made = self.values.results(found.reshape(*found.low.shape, 1), [STORED] * content.shape[1])
        return made.reshape(op.dst.shape)

    def offsets(self, graph: Graph) -> dict[tuple[int, ...], Rows]:
        """What is told of offsets of rows that are inputs, by the values of their bytes."""
        found: dict[tuple[int, ...], Rows] = {}
        for op in graph.operators:
            if op.kind != "Embedding":
                continue
            with _named(op):
                if op.sources[0].buffer not in graph.inputs:
                    continue
                rows = Rows(*op.arrays["values"].shape)
                for numbers in self._read(op.sources[0]).reshape(-1, OFFSET_BYTES).tolist():
                    if found.setdefault(tuple(numbers), rows) != rows:
                        raise Unknown(f"operator {op.name!r} reads offsets of rows of another table")
        return found

    def _write_planes(self, op: Operator, formula: Formula) -> None:
        """Write the results of a formula: one for each byte of an element."""
        sources = [self._read(view) for view in op.sources]
        of = self._wide_conv if op.kind == "WideConv" else self._rows
        for plane, contents in enumerate(of(op, formula, sources)):
            self._write(_plane(op.dst, plane), contents)

    def _places(self, view: View) -> np.ndarray:
        """Places in the buffer of the elements of a view, (n, h, w, c). Raises `GraphError` for a view that is not
        inside its buffer."""
        check_view(view)
        n, h, w, c = view.shape
        _, height, width, channels = view.buffer_shape
        image, y, x, channel = view.start
        rows = y + np.arange(h) * view.step[0]
        columns = x + np.arange(w) * view.step[1]
        at = (image + np.arange(n))[:, None, None, None] * height + rows[:, None, None]
        return (at * width + columns[:, None]) * channels + channel + np.arange(c)

    def _read(self, view: View) -> np.ndarray:
        places = self._places(view)
        if view.buffer not in self.buffers:
            raise GraphError(f"it reads {view.buffer!r}, which nothing has written")
        found = self._buffer(view)[places]
        if (found == NOTHING).any():
            raise GraphError(f"it reads bytes of {view.buffer!r} that nothing has written")
        return found

    def _write(self, view: View, contents: np.ndarray) -> None:
        places = self._places(view).ravel()
        if view.buffer not in self.buffers:
            self.buffers[view.buffer] = np.full(math.prod(view.buffer_shape), NOTHING)
        buffer = self._buffer(view)
        if min(view.step) < 1 or (buffer[places] != NOTHING).any():
            raise GraphError(f"it writes bytes of {view.buffer!r} that hold something already")
        if contents.size != places.size:
            raise GraphError(f"it makes {contents.size:,} elements for {places.size:,} of {view.buffer!r}")
        buffer[places] = contents.ravel()

    def _buffer(self, view: View) -> np.ndarray:
        found = self.buffers[view.buffer]
        if len(found) != math.prod(view.buffer_shape):
            raise GraphError(
                f"it sees {view.buffer!r} as {view.buffer_shape}, but that buffer has {len(found):,} bytes"
            )
        return found

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
        bias, scale = op.arrays["bias"].numpy, op.arrays["scale"].numpy
        zero = int(op.numbers["x_zero"])
        mantissa, shift = self._pairs(scale)
        made = []
        for sums in self._convolved(op, self._read(op.sources[0]), zero, zero):
            sums = sums.shifted(bias.astype(np.int64))
            made.append(self._finish(op, sums.reshape(*sums.low.shape, 1), mantissa, shift))
        return np.concatenate(made).reshape(op.dst.shape)

    def _convolved(self, op: Operator, x: np.ndarray, zero: int, fill: int) -> Iterator[Sums]:
        """Sums (outputs, channels) of products of x less `zero`, where padding reads `fill`, in parts."""
        window, groups, weight = op.windows["window"], int(op.numbers["groups"]), op.arrays["weight"].numpy
        inner = weight.shape[3]
        address, valid = _windows(window, x.shape[:3], sizes(window, x.shape[1:3]))
        pixels = x.reshape(-1, x.shape[3])
        right = weight.astype(np.int64).reshape(groups, len(weight) // groups, -1)
        rows = max(1, _CHUNK // max(address.shape[1] * x.shape[3], 1))
        for low in range(0, len(address), rows):
            part = slice(low, low + rows)
            read = np.where(valid[part, :, None], pixels[address[part]], fill & 0xFF)
            made = []
            for group in range(groups):
                left = read[:, :, group * inner : (group + 1) * inner].reshape(len(read), -1)
                made.append(self.values.dot(left, zero, right[group].T))
            yield concatenated(made, 1)

    def _rows(self, op: Operator, formula: Formula, sources: list[np.ndarray]) -> list[np.ndarray]:
        """What a formula makes of the channels of pixels, which a source may repeat: (n, h, w, c) for each result."""
        pixels = op.dst.shape[:3]
        tensors = [
            np.broadcast_to(source, (*pixels, source.shape[3])).reshape(-1, source.shape[3], 1)
            for source in sources
        ]
        found = evaluate(self.symbols, formula, [*tensors, *vectors_of(formula)])
        return [part.reshape(op.dst.shape) for part in found]

    def _groups(self, op: Operator) -> np.ndarray:
        """The same of groups of channels over all pixels of an image."""
        if op.formula is None:
            raise GraphError("it has no formula")
        (n, h, w, c), size = op.dst.shape, int(op.numbers["group"])

        def rows_of(tensor: np.ndarray) -> np.ndarray:
            split = np.broadcast_to(tensor, (n, h * w, c, tensor.shape[-1])).reshape(
                n, h * w, c // size, size, -1
            )
            return split.swapaxes(1, 2).reshape(n * c // size, h * w * size, -1)

        source = self._read(op.sources[0]).reshape(n, h * w, c, 1)
        tensors = [rows_of(source), *(rows_of(vector) for vector in vectors_of(op.formula))]
        found = evaluate(self.symbols, op.formula, tensors)[0].reshape(n, c // size, h * w, size)
        return found.swapaxes(1, 2).reshape(op.dst.shape)

    def _wide_conv(self, op: Operator, formula: Formula, sources: list[np.ndarray]) -> list[np.ndarray]:
        """What a formula makes of the sums of products of upper and of lower bytes."""
        zero, wide = int(op.numbers["x_zero"]), len(sources) > 1
        fills = (zero >> 8, (zero & 0xFF) - 128) if wide else (zero,)
        made = []
        for source, fill in zip(sources, fills, strict=True):
            sums = concatenated(list(self._convolved(op, source, 0, fill)), 0)
            made.append(sums.reshape(*sums.low.shape, 1))
        found = evaluate(self.symbols, formula, [concatenated(made, 2), *vectors_of(formula)])
        return [part.reshape(op.dst.shape) for part in found]

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


@contextmanager
def _named(op: Operator) -> Iterator[None]:
    """Say which operator has no meaning, as it may in a file that was edited. Raises `Unknown`."""
    try:
        yield
    except (ArithmeticError, LookupError, TypeError, ValueError) as error:
        raise Unknown(f"operator {op.name!r} ({op.kind}) means nothing: {error}") from None


def _plane(view: View, plane: int) -> View:
    """A view's plane of upper bytes, 0, or of lower ones, 1, which lies behind it."""
    image, *others = view.start
    return msgspec.structs.replace(view, start=(image + plane * view.shape[0], *others))


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
