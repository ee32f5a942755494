"""Definitions of a network's operators on values, independent of the compiler's."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import msgspec
import numpy as np

from weft.extras.proof.programs import attention
from weft.extras.proof.programs.form import SATURATE
from weft.extras.proof.programs.formula import evaluate, vectors_of
from weft.extras.proof.programs.graph import Formula, Graph, GraphError, Operator, View, Window, check_view
from weft.extras.proof.programs.requantise import quantise_scale, requantise
from weft.extras.proof.programs.sums import INT32, Integers, Sums, concatenate
from weft.extras.proof.programs.symbols import OFFSET_BYTES, Rows, Symbols, join_bytes
from weft.extras.proof.programs.values import Values
from weft.hdl.errors import WeftError
from weft.hdl.isa.config import Config

NOTHING = -1
"""Content of a buffer where no operator has written."""
_CHUNK = 1 << 21
"""Elements of a convolution per step, to bound memory."""


class Unknown(WeftError, RuntimeError):
    """An operator without a definition."""


class Network:
    """Contents of a network's buffers, as values.

    Parameters
    ----------
    values : Values
    config : Config
        Configuration of the device. Results depend on the width of mantissas, and softmax on the size of groups.
    """

    def __init__(self, values: Values, config: Config) -> None:
        self.values, self.config, self.bits = values, config, config.mantissa_bits
        self.symbols = Symbols(values)
        self.buffers: dict[str, np.ndarray] = {}
        """Values (bytes,) by name; `NOTHING` where no operator has written."""

    def run(self, graph: Graph, progress: Callable[[str], None] = lambda text: None) -> None:
        """Compute all buffers of `graph` from its inputs, which have to be in `buffers`.

        `progress` is called with the name of each operator. Raises `Unknown` and `GraphError`.
        """
        kinds = {
            "Conv": self._conv,
            "Pool": self._pool,
            "Add": self._add,
            "Multiply": self._multiply,
            "Rescale": self._rescale,
            "Pad": self._pad,
            "GroupNorm": self._group_norm,
            "Embedding": self._embedding,
        }
        others = {
            "Product": attention.product,
            "Softmax": attention.softmax,
            "Attention": attention.attention,
        }
        for op in graph.operators:
            progress(op.name)
            with _invalid_as_unknown(op):
                if op.kind in kinds:
                    self._write(op.dst, kinds[op.kind](op))
                elif op.kind in others:
                    sources = [self._read(view) for view in op.sources]
                    self._write(op.dst, others[op.kind](self.symbols, self.config, op, sources))
                elif op.formula is not None:
                    self._write_planes(op, op.formula)
                else:
                    raise Unknown(f"operator {op.name!r} is {op.kind}, which proofs do not support")

    def _embedding(self, op: Operator) -> np.ndarray:
        """Read rows of a constant table by 32-bit offsets, which are inputs, and requantise the rows."""
        values, scale = (op.arrays[name].numpy for name in ("values", "scale"))
        low, high = op.numbers["low"], op.numbers["high"]
        content = np.clip(np.rint(values * scale) + op.numbers["y_zero"], low, high).astype(np.int8)
        offsets = join_bytes(self.symbols, self._read(op.sources[0]).reshape(-1, OFFSET_BYTES))
        rows = self.symbols.table_row(offsets, content, content.shape[1])
        return self.values.apply_forms(rows.singletons, [SATURATE] * content.shape[1]).reshape(op.dst.shape)

    def offsets(self, graph: Graph) -> dict[tuple[int, ...], Rows]:
        """Return the tables of row offsets that are inputs, by the values of an offset's bytes.

        Raises `Unknown` if an offset is used for different tables.
        """
        tables: dict[tuple[int, ...], Rows] = {}
        for op in graph.operators:
            if op.kind != "Embedding":
                continue
            with _invalid_as_unknown(op):
                if op.sources[0].buffer not in graph.inputs:
                    continue
                rows = Rows(*op.arrays["values"].shape)
                for offset in self._read(op.sources[0]).reshape(-1, OFFSET_BYTES).tolist():
                    if tables.setdefault(tuple(offset), rows) != rows:
                        raise Unknown(f"operator {op.name!r} reads offsets of rows of another table")
        return tables

    def _write_planes(self, op: Operator, formula: Formula) -> None:
        """Write the results of a formula, one plane for each byte of an element."""
        sources = [self._read(view) for view in op.sources]
        compute = self._wide_conv if op.kind == "WideConv" else self._rows
        for plane, contents in enumerate(compute(op, formula, sources)):
            self._write(_plane(op.dst, plane), contents)

    @staticmethod
    def _positions(view: View) -> np.ndarray:
        """Return the positions (n, h, w, c) of a view's elements in its buffer. Raises `GraphError`."""
        check_view(view)
        n, h, w, c = view.shape
        _, height, width, channels = view.buffer_shape
        image, y, x, channel = view.start
        rows = y + np.arange(h) * view.step[0]
        columns = x + np.arange(w) * view.step[1]
        at = (image + np.arange(n))[:, None, None, None] * height + rows[:, None, None]
        return (at * width + columns[:, None]) * channels + channel + np.arange(c)

    def _read(self, view: View) -> np.ndarray:
        positions = self._positions(view)
        if view.buffer not in self.buffers:
            raise GraphError(f"it reads {view.buffer!r}, which no operator has written")
        contents = self._buffer(view)[positions]
        if (contents == NOTHING).any():
            raise GraphError(f"it reads bytes of {view.buffer!r} that no operator has written")
        return contents

    def _write(self, view: View, contents: np.ndarray) -> None:
        positions = self._positions(view).ravel()
        if view.buffer not in self.buffers:
            self.buffers[view.buffer] = np.full(math.prod(view.buffer_shape), NOTHING)
        buffer = self._buffer(view)
        if min(view.step) < 1 or (buffer[positions] != NOTHING).any():
            raise GraphError(f"it writes bytes of {view.buffer!r} that are already written")
        if contents.size != positions.size:
            raise GraphError(
                f"it computes {contents.size:,} elements for {positions.size:,} of {view.buffer!r}"
            )
        buffer[positions] = contents.ravel()

    def _buffer(self, view: View) -> np.ndarray:
        buffer = self.buffers[view.buffer]
        if len(buffer) != math.prod(view.buffer_shape):
            raise GraphError(
                f"it has {view.buffer!r} with shape {view.buffer_shape}, but that buffer has {len(buffer):,} bytes"
            )
        return buffer

    def _requantise(
        self,
        op: Operator,
        sums: Sums,
        mantissa: Integers,
        shift: Integers,
        second: Sums | None = None,
        source: tuple[np.ndarray, np.ndarray] | None = None,
    ) -> np.ndarray:
        """Requantise integers (rows, columns, set) to the operator's output."""
        clamp = (int(op.numbers["y_zero"]), int(op.numbers["low"]), int(op.numbers["high"]))
        table = op.arrays["lookup"].data if "lookup" in op.arrays else b""
        return requantise(self.values, sums, mantissa, shift, clamp, table, second, source)

    def _rescale_values(self, op: Operator, values: np.ndarray, zero: int, scale: float) -> np.ndarray:
        flat = values.reshape(-1, values.shape[-1])
        sums = self.values.integers_of(flat)
        source = flat, np.full(flat.shape[1], -zero)
        sums = (sums.plus_constant(-zero) if zero else sums).singletons
        pair = quantise_scale(scale, self.bits)
        return self._requantise(op, sums, *pair, source=source).reshape(values.shape)

    def _conv(self, op: Operator) -> np.ndarray:
        bias, scales = op.arrays["bias"].numpy, op.arrays["scale"].numpy
        zero = int(op.numbers["x_zero"])
        pairs = [quantise_scale(float(scale), self.bits) for scale in scales]
        mantissa, shift = (np.array(part) for part in zip(*pairs, strict=True))
        results = []
        for sums in self._convolution_sums(op, self._read(op.sources[0]), zero, zero):
            sums = sums.plus_constant(bias.astype(np.int64))
            results.append(self._requantise(op, sums.singletons, mantissa, shift))
        return np.concatenate(results).reshape(op.dst.shape)

    def _convolution_sums(self, op: Operator, x: np.ndarray, zero: int, fill: int) -> Iterator[Sums]:
        """Yield sums (outputs, channels) of products of x less `zero`, in chunks of outputs; padding is `fill`."""
        window, groups, weight = op.windows["window"], int(op.numbers["groups"]), op.arrays["weight"].numpy
        inner = weight.shape[3]
        address, valid = _windows(window, x.shape[:3], output_size(window, x.shape[1:3]))
        pixels = x.reshape(-1, x.shape[3])
        right = weight.astype(np.int64).reshape(groups, len(weight) // groups, -1)
        rows = max(1, _CHUNK // max(address.shape[1] * x.shape[3], 1))
        for low in range(0, len(address), rows):
            part = slice(low, low + rows)
            read = np.where(valid[part, :, None], pixels[address[part]], fill & 0xFF)
            sums = []
            for group in range(groups):
                left = read[:, :, group * inner : (group + 1) * inner].reshape(len(read), -1)
                sums.append(self.values.dot(left, zero, right[group].T))
            yield concatenate(sums, 1)

    def _rows(self, op: Operator, formula: Formula, sources: list[np.ndarray]) -> list[np.ndarray]:
        """Evaluate a formula on the channels of each pixel; return (n, h, w, c) for each result. Sources broadcast."""
        pixels = op.dst.shape[:3]
        tensors = [
            np.broadcast_to(source, (*pixels, source.shape[3])).reshape(-1, source.shape[3], 1)
            for source in sources
        ]
        results = evaluate(self.symbols, formula, [*tensors, *vectors_of(formula)])
        return [part.reshape(op.dst.shape) for part in results]

    def _group_norm(self, op: Operator) -> np.ndarray:
        """Evaluate a formula on each group of channels, over all pixels of an image."""
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
        results = evaluate(self.symbols, op.formula, tensors)[0].reshape(n, c // size, h * w, size)
        return results.swapaxes(1, 2).reshape(op.dst.shape)

    def _wide_conv(self, op: Operator, formula: Formula, sources: list[np.ndarray]) -> list[np.ndarray]:
        """Evaluate a formula on the sums of products of upper and of lower bytes."""
        zero, wide = int(op.numbers["x_zero"]), len(sources) > 1
        # Elements of 16 bits are two planes: signed upper bytes, and lower bytes less 128.
        fills = (zero >> 8, (zero & 0xFF) - 128) if wide else (zero,)
        sums = [
            concatenate(list(self._convolution_sums(op, source, 0, fill)), 0).singletons
            for source, fill in zip(sources, fills, strict=True)
        ]
        results = evaluate(self.symbols, formula, [concatenate(sums, 2), *vectors_of(formula)])
        return [part.reshape(op.dst.shape) for part in results]

    def _pool(self, op: Operator) -> np.ndarray:
        window, zero, scale = op.windows["window"], int(op.numbers["x_zero"]), op.numbers["scale"]
        x = self._read(op.sources[0])
        n, oh, ow, c = len(x), *output_size(window, x.shape[1:3]), x.shape[3]
        address, valid = _windows(window, x.shape[:3], (oh, ow))
        read = x.reshape(-1, c)[address]
        if op.texts["kind"] == "max":
            return self._maximum(op, read, valid).reshape(n, oh, ow, c)
        counts = valid.sum(axis=1)  # an average excludes padding, unless the operator includes it
        if op.numbers["include_pad"]:
            counts = _windows(window, x.shape[:3], (oh, ow), padded=True)[1].sum(axis=1)
        sums = (
            self.values.integers_of(np.where(valid[..., None], read, zero & 0xFF)).plus_constant(-zero).sum(1)
        )
        results = np.empty(sums.low.shape, np.int64)
        for count in np.unique(counts):
            some = counts == count
            pair = quantise_scale(scale / max(int(count), 1), self.bits)
            results[some] = self._requantise(op, sums[some].singletons, *pair)
        return results.reshape(n, oh, ow, c)

    def _maximum(self, op: Operator, read: np.ndarray, valid: np.ndarray) -> np.ndarray:
        """Requantise the maxima of windows (outputs, elements, channels); of an empty window, the least int32."""
        zero, scale, nonempty = int(op.numbers["x_zero"]), op.numbers["scale"], valid.any(axis=1)
        results = np.empty((len(read), read.shape[2]), np.int64)
        most = self.values.maximum(read[nonempty].swapaxes(1, 2), valid[nonempty][:, None])
        results[nonempty] = self._rescale_values(op, most, zero, scale)
        if not nonempty.all():
            least = self.values.integers(np.full((int((~nonempty).sum()), read.shape[2], 1), -INT32 - zero))
            results[~nonempty] = self._requantise(op, least, *quantise_scale(scale, self.bits))
        return results

    def _two_operands(self, op: Operator) -> tuple[tuple[int, ...], Sums, Sums]:
        """Return the shape of both operands, and the operands (pixels, channels) less their zero points."""
        a = self._read(op.sources[0])
        b = np.broadcast_to(self._read(op.sources[1]), a.shape)
        first, second = (
            self.values.integers_of(item.reshape(-1, a.shape[3])).plus_constant(-int(op.numbers[zero]))
            for item, zero in ((a, "a_zero"), (b, "b_zero"))
        )
        return a.shape, first, second

    def _add(self, op: Operator) -> np.ndarray:
        shape, first, second = self._two_operands(op)
        scales = op.numbers["a_scale"], op.numbers["b_scale"]
        # Both mantissas share the shift of the larger scale.
        _, shift = quantise_scale(max(scales[0], abs(scales[1])), self.bits)
        mantissas = [round(math.ldexp(abs(scale), shift)) for scale in scales]
        second = second.times_constant(-mantissas[1] if scales[1] < 0 else mantissas[1])
        return self._requantise(op, first.singletons, mantissas[0], shift, second).reshape(shape)

    def _multiply(self, op: Operator) -> np.ndarray:
        shape, first, second = self._two_operands(op)
        pair = quantise_scale(op.numbers["scale"], self.bits)
        return self._requantise(op, first.times(second).singletons, *pair).reshape(shape)

    def _rescale(self, op: Operator) -> np.ndarray:
        x = self._read(op.sources[0])
        return self._rescale_values(op, x, int(op.numbers["x_zero"]), op.numbers["scale"])

    def _pad(self, op: Operator) -> np.ndarray:
        window, x = op.windows["window"], self._read(op.sources[0])
        n, oh, ow, c = len(x), *output_size(window, x.shape[1:3]), x.shape[3]
        address, valid = _windows(window, x.shape[:3], (oh, ow))
        read = np.where(valid[..., None], x.reshape(-1, c)[address], int(op.numbers["fill"]) & 0xFF)
        padded = read[:, 0].reshape(n, oh, ow, c)
        return self._rescale_values(op, padded, int(op.numbers["x_zero"]), op.numbers["scale"])


@contextmanager
def _invalid_as_unknown(op: Operator) -> Iterator[None]:
    """Convert errors of an invalid operator, which an edited file may have, to `Unknown`."""
    try:
        yield
    except (ArithmeticError, LookupError, TypeError, ValueError) as error:
        raise Unknown(f"operator {op.name!r} ({op.kind}) is invalid: {error}") from None


def _plane(view: View, plane: int) -> View:
    """Return a view's plane of upper bytes, 0, or of lower bytes, 1, which follows as further images."""
    image, *others = view.start
    return msgspec.structs.replace(view, start=(image + plane * view.shape[0], *others))


def output_size(window: Window, image: tuple[int, int]) -> tuple[int, int]:
    """Return the number of windows, vertically and horizontally, that fit an image with its padding."""
    counts = []
    for axis, size in enumerate(image):
        span = (window.kernel[axis] - 1) * window.dilation[axis] + 1
        room = size + window.pad[axis] + window.pad[axis + 2]
        counts.append((room - span) // window.stride[axis] + 1)
    return counts[0], counts[1]


def _windows(
    window: Window, shape: tuple[int, ...], out: tuple[int, int], *, padded: bool = False
) -> tuple[np.ndarray, np.ndarray]:
    """Return the pixels that each output reads, (outputs, elements), and a mask of those inside the image.

    With `padded`, the mask includes the padding.
    """
    n, *image = shape
    axes, inside = [], []
    for axis, size in enumerate(image):
        first = np.arange(out[axis])[:, None] * window.stride[axis] - window.pad[axis]
        at = first + np.arange(window.kernel[axis]) * window.dilation[axis]
        before, after = (window.pad[axis], window.pad[axis + 2]) if padded else (0, 0)
        inside.append((at >= -before) & (at < size + after))
        axes.append(np.clip(at, 0, size - 1))
    rows, columns = axes[0][:, None, :, None], axes[1][None, :, None, :]
    pixel = (np.arange(n)[:, None, None, None, None] * image[0] + rows) * image[1] + columns
    valid = np.broadcast_to(inside[0][:, None, :, None] & inside[1][None, :, None, :], pixel.shape)
    elements = math.prod(window.kernel)
    return pixel.reshape(-1, elements), valid.reshape(-1, elements)
