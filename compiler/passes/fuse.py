"""Operator fusion: epilogues, look-up tables, padding and pooling become part of the operator next to them."""

from __future__ import annotations

import dataclasses
from collections import Counter

import numpy as np

from weft.compiler.ir.graph import Add, Conv, DeviceOp, DeviceSegment, Multiply, Pad, Pool, Rescale, readers
from weft.compiler.ir.views import View
from weft.compiler.ir.windows import Axis, Window
from weft.compiler.machine.target import is_far
from weft.compiler.operators.record import operator_of
from weft.compiler.passes.split_pool import fits
from weft.compiler.planner import Planner


def keeps_fitting(op: DeviceOp, changed: DeviceOp, planner: Planner) -> bool:
    """Return whether an operator with additional work fits on chip, or did not fit before either."""
    return fits(changed, planner) or not fits(op, planner)


def fused_or_apart(
    fused: DeviceOp, first: DeviceOp, second: DeviceOp, planner: Planner, *, traffic: bool
) -> tuple[DeviceOp, ...]:
    """Return `fused` if it is at most as slow as `first` and `second`, by estimate, or if these have no plan; else
    these two.

    A later pass may split an operator that does not fit. With `traffic` the fused operator must not move more data
    either: a second operand on chip may displace weights.
    """
    one, *apart = (planner.cost(op) for op in (fused, first, second))
    before, after = apart
    if one is None:
        return first, second
    if before is None or after is None:
        return (fused,)
    if one.cycles > before.cycles + after.cycles:
        return first, second
    return (first, second) if traffic and one.traffic > before.traffic + after.traffic else (fused,)


def fuse_epilogue(segment: DeviceSegment, planner: Planner) -> DeviceSegment:
    """Fuse additions, products and requantisations into the preceding convolution as its epilogue.

    That happens where it is no slower and moves no more data, or where memory is short. The convolution's result must
    have no other reader; of two convolutions the later one takes the epilogue. Unfused operators follow their
    convolution directly.
    """
    reads = readers(segment.ops)
    writers = Counter(op.dst.buffer.name for op in segment.ops)
    convs = {op.dst.buffer.name: (index, op) for index, op in enumerate(segment.ops) if isinstance(op, Conv)}
    replacements: list[tuple[DeviceOp, ...]] = [(op,) for op in segment.ops]
    for index, op in enumerate(segment.ops):
        if not isinstance(op, Add | Multiply | Rescale):
            continue
        names = [view.buffer.name for view in op.sources]
        producers = [convs[name] for name in names if name in convs and reads[name] == writers[name] == 1]
        fusible = [(at, conv) for at, conv in producers if _can_fuse(conv, op)]
        if fusible:
            at, conv = max(fusible, key=lambda item: item[0])
            replacements[at], replacements[index] = (), _fuse(conv, op, planner)
            continue
        for view in op.sources:
            if reads[view.buffer.name] > 1:
                continue
            parts = {at: segment.ops[at] for at in segment.index.writers.get(view.buffer.name, ())}
            joined = _in_parts([*parts.values()], view, op, planner)
            if joined and all(replacements[at] == (item,) for at, item in parts.items()):
                for at in parts:
                    replacements[at] = ()
                replacements[index] = joined
                break
    return dataclasses.replace(segment, ops=tuple(op for part in replacements for op in part))


_Epilogue = Add | Multiply | Rescale


def _fuse(conv: Conv, op: _Epilogue, planner: Planner) -> tuple[DeviceOp, ...]:
    """Return convolution and epilogue as one operator or as two; the convolution's result is the epilogue's first
    operand."""
    op = _own_first(op, conv.dst.buffer.name)
    fused = dataclasses.replace(conv, name=f"{conv.name}+{op.name}", dst=op.dst, epilogue=op)
    if planner.tight and planner.plan(fused) is not None:
        return (fused,)  # the convolution's own result then needs no memory
    return fused_or_apart(fused, conv, op, planner, traffic=True)


def _own_first(op: _Epilogue, name: str) -> _Epilogue:
    """Return the operator with buffer `name` as its first operand."""
    if isinstance(op, Rescale) or op.a.buffer.name == name:
        return op
    # Multiplication is commutative; an addition also swaps its scales.
    scales = {"a_scale": op.b_scale, "b_scale": op.a_scale} if isinstance(op, Add) else {}
    return op.replace(a=op.b, b=op.a, a_zero=op.b_zero, b_zero=op.a_zero, **scales)


def _in_parts(convs: list[DeviceOp], own: View, op: _Epilogue, planner: Planner) -> tuple[DeviceOp, ...]:
    """Fuse parts of an operator into the convolutions that write parts of its operand `own`, as in ConvTranspose.

    Returns no operators if fusion is not possible or slower.
    """
    views = {*op.sources, op.dst}
    alike = own.contiguous and len({(view.shape, view.buffer.shape, view.step) for view in views}) == 1
    if (
        not alike
        or len(convs) < 2
        or not all(isinstance(conv, Conv) and _can_fuse_part(conv, op) for conv in convs)
    ):
        return ()
    if isinstance(op, Add) and op.b_scale < 0 and op.a != own:
        return ()
    op, parts = _own_first(op, own.buffer.name), list[DeviceOp]()
    for index, conv in enumerate(convs):
        box = conv.dst
        place = View(
            dataclasses.replace(own.buffer, name=f"{own.buffer.name}/{index}", shape=box.shape), box.shape
        )
        part = op.map_views(
            lambda view, box=box, place=place: (  # type: ignore[misc]
                # The buffer's writers may use another shape of it than its readers.
                place
                if view == own
                else dataclasses.replace(box, buffer=dataclasses.replace(view.buffer, shape=box.buffer.shape))
            )
        ).replace(name=f"{op.name}.{index}")
        parts.append(conv.replace(name=f"{conv.name}+{op.name}", dst=part.dst, epilogue=part))
    joined, apart = ([planner.cost(item) for item in items] for items in (parts, [*convs, op]))
    if None in joined or None in apart:
        return ()
    slower = any(
        sum(cost[at] for cost in joined if cost) > sum(cost[at] for cost in apart if cost) for at in range(2)
    )
    return () if slower else tuple(parts)


def _can_fuse_part(conv: Conv, op: _Epilogue) -> bool:
    apart = op.dst.buffer.name not in {view.buffer.name for view in (conv.src, *op.sources)}
    return conv.epilogue is None and conv.dst.buffer.kind == "temp" and apart


def _can_fuse(conv: Conv, op: _Epilogue) -> bool:
    reads_all = conv.dst.contiguous and View(conv.dst.buffer, conv.dst.shape) in op.sources
    # A convolution must not write into a buffer that it reads; other operators may.
    apart = op.dst.buffer.name not in {view.buffer.name for view in (conv.src, *op.sources)}
    if len({view.shape for view in op.sources}) > 1:
        return False  # an operand that broadcasts
    if isinstance(op, Add) and op.b_scale < 0 and op.a.buffer.name != conv.dst.buffer.name:
        return False  # only the second operand can be subtracted
    return conv.epilogue is None and conv.dst.buffer.kind == "temp" and reads_all and apart


BYTES = np.arange(-128, 128, dtype=np.int8)
"""Inputs of a look-up table's entries, in order."""


def compose_tables(first: np.ndarray | None, second: np.ndarray | None) -> np.ndarray | None:
    """Return one look-up table for `first`, then `second`."""
    if first is None or second is None:
        return second if first is None else first
    return second[first.astype(np.int64) + 128]


def is_monotonic(lookup: np.ndarray) -> bool:
    """Return whether a table is monotonic, so that it commutes with the maximum."""
    return bool((lookup[1:] >= lookup[:-1]).all())


def table_of(op: Rescale, bits: int) -> np.ndarray:
    """Return a requantisation as a table of all bytes, int8 (256,), for mantissas of `bits` bits."""
    return operator_of(op).evaluate(_on_bytes(op), (BYTES.reshape(1, 1, 1, -1),), bits).reshape(-1)


def fuse_lookup(segment: DeviceSegment, planner: Planner) -> DeviceSegment:
    """Fuse requantisations and functions of single values into the preceding operators, as look-up tables.

    That happens where it is no slower and the preceding results have no other reader.
    """
    if not planner.config.lookup_tables:
        return segment
    reads = readers(segment.ops)
    ops: list[DeviceOp] = []
    written: dict[str, list[int]] = {}
    for op in segment.ops:
        writers = written.get(op.sources[0].buffer.name, [])
        joined: list[DeviceOp | None] = [None]
        if isinstance(op, Rescale) and all(
            _can_fuse_table(ops[at], op, reads[op.src.buffer.name]) for at in writers
        ):
            joined = [_fuse_table(ops[at], op, planner, alone=len(writers) == 1) for at in writers] or [None]
        name = op.dst.buffer.name
        if None in joined:
            written.setdefault(name, []).append(len(ops))
            ops.append(op)
            continue
        for at, fused in zip(writers, joined, strict=True):
            assert fused is not None
            ops[at] = fused
        # The writers now write the requantised buffer.
        del written[op.sources[0].buffer.name]
        written[name] = sorted((*written.get(name, ()), *writers))
    return dataclasses.replace(segment, ops=tuple(ops))


def _fuse_table(before: DeviceOp, op: Rescale, planner: Planner, *, alone: bool) -> DeviceOp | None:
    """Return both as one operator, or None if they are better apart.

    Several writers of parts of a buffer each get the table: that is never slower than reading the buffer again.
    """
    name, dst = f"{before.name}+{op.name}", dataclasses.replace(before.dst, buffer=op.dst.buffer)
    if before.lookup is None and op.lookup is None and op.keeps_values:
        # A requantisation that keeps values is only a clamp.
        low, high = max(before.low, op.low), min(before.high, op.high)
        if low <= high:  # nothing but a clamp
            return before.replace(name=name, dst=dst, low=low, high=high)
    table = table_of(op, planner.config.mantissa_bits)
    fused = before.replace(name=name, dst=dst, lookup=compose_tables(before.lookup, table))
    if not alone:
        return fused if planner.plan(fused) is not None else None
    return fused if fused_or_apart(fused, before, op, planner, traffic=False) == (fused,) else None


def _on_bytes(op: Rescale) -> Rescale:
    """Return the operator on an image of all bytes."""
    view = dataclasses.replace(op.src, shape=(1, 1, 1, BYTES.size))
    return op.replace(src=view, dst=view)


def _can_fuse_table(before: DeviceOp, op: Rescale, reads: int) -> bool:
    if op.is_identity:
        return False  # a copy, which `write_views` or `read_views` removes
    same = op.src.buffer == before.dst.buffer and op.dst.contiguous and op.dst.shape == op.src.shape
    reads_all = op.src.contiguous and same and before.dst.buffer.kind == "temp"
    apart = op.dst.buffer.name not in {view.buffer.name for view in before.sources}
    alone = getattr(before, "epilogue", None) is None
    return operator_of(before).allows_lookup and reads_all and apart and alone and reads == 1


def fuse_pad(segment: DeviceSegment, planner: Planner) -> DeviceSegment:
    """Fuse padding into the convolutions and pools that read it, if all readers can take it."""
    ops: dict[int, DeviceOp] = dict(enumerate(segment.ops))
    readers = {name: {at for at, _ in reads} for name, reads in segment.index.reads.items()}
    for at, pad in enumerate(segment.ops):
        if not isinstance(pad, Pad) or not _copies_unchanged(pad):
            continue
        padded = {place: _with_padding(pad, ops[place]) for place in readers.get(pad.dst.buffer.name, ())}
        joined = {
            place: op
            for place, op in padded.items()
            if op is not None and keeps_fitting(ops[place], op, planner)
        }
        if padded and len(joined) == len(padded):
            ops |= joined
            readers.setdefault(pad.src.buffer.name, set()).update(joined)
            readers[pad.src.buffer.name].discard(at)
            del ops[at]
    return dataclasses.replace(segment, ops=tuple(ops.values()))


def _copies_unchanged(pad: Pad) -> bool:
    """Return whether padding copies its input unchanged, into a temporary of its own."""
    return pad.is_identity and pad.dst.contiguous and pad.dst.buffer.kind == "temp"


def _with_padding(pad: Pad, op: DeviceOp) -> DeviceOp | None:
    """Return the reader of padding with the padding as its own; None if that changes results."""
    if not isinstance(op, Conv | Pool) or op.src != pad.dst or len(op.sources) > 1:
        return None
    (a, b, c, d), (e, f, g, h) = op.window.pad, pad.window.pad
    window = dataclasses.replace(op.window, pad=(a + e, b + f, c + g, d + h))
    if isinstance(op, Conv):
        return op.replace(src=pad.src, window=window) if pad.fill == op.x_zero else None
    if op.kind == "max":
        # Padding with the least byte never changes a maximum.
        return (
            op.replace(src=pad.src, window=window)
            if pad.fill == -128 and _windows_touch_input(pad, window)
            else None
        )
    # The fused average counts padding, so the pool's own padding must be counted as well, or absent.
    counted = op.include_pad or not any(op.window.pad)
    return (
        op.replace(src=pad.src, window=window, include_pad=True)
        if counted and pad.fill == op.x_zero
        else None
    )


def _windows_touch_input(pad: Pad, window: Window) -> bool:
    """Return whether every window covers an element of the input."""
    _, h, w, _ = pad.src.shape
    return all(
        Axis(
            size,
            count,
            window.kernel[axis],
            window.stride[axis],
            window.dilation[axis],
            window.pad[axis],
            window.pad[axis + 2],
        )
        .count_inside()
        .all()
        for axis, (size, count) in enumerate(zip((h, w), window.output(h, w), strict=True))
    )


def fuse_pool(segment: DeviceSegment, planner: Planner) -> DeviceSegment:
    """Fuse max pooling into the preceding convolution, where that is no slower.

    The convolution's result must have no other reader. An unfused pool follows its convolution directly.
    """
    reads = readers(segment.ops)
    writers = {op.dst.buffer.name: op for op in segment.ops}
    replacements: dict[int, tuple[DeviceOp, ...]] = {}
    for op in segment.ops:
        conv = writers.get(op.src.buffer.name) if isinstance(op, Pool) else None
        if isinstance(conv, Conv) and isinstance(op, Pool) and _can_fuse_pool(conv, op, reads):
            replacements |= {id(conv): _fuse_conv_pool(conv, op, planner), id(op): ()}
    return dataclasses.replace(
        segment, ops=tuple(part for op in segment.ops for part in replacements.get(id(op), (op,)))
    )


def _fuse_conv_pool(conv: Conv, pool: Pool, planner: Planner) -> tuple[DeviceOp, ...]:
    """Return both as one operator, or as two with a buffer between them and the combined clamp."""
    name, low, high = f"{conv.name}+{pool.name}", max(conv.low, pool.low), min(conv.high, pool.high)
    between = View(dataclasses.replace(conv.dst.buffer, name=f"{name}/unpooled"), conv.dst.shape)
    alone = dataclasses.replace(conv, name=name, dst=between, low=low, high=high)
    fused = dataclasses.replace(
        alone, dst=pool.dst, pool=pool.window, lookup=compose_tables(conv.lookup, pool.lookup)
    )
    after = dataclasses.replace(pool, name=f"{name}/pool", src=between, low=low, high=high)
    return fused_or_apart(fused, alone, after, planner, traffic=False)


def _can_fuse_pool(conv: Conv, pool: Pool, reads: Counter[str]) -> bool:
    if conv.pool is not None or conv.epilogue is not None:
        return False
    if pool.kind != "max" or pool.scale != 1.0 or pool.x_zero != pool.y_zero:
        return False
    if max(conv.low, pool.low) > min(conv.high, pool.high):
        return False
    if conv.lookup is not None and ((pool.low, pool.high) != (-128, 127) or not is_monotonic(conv.lookup)):
        return False
    if is_far(pool.window, 0) or is_far(pool.window, 1):
        return False
    name = conv.dst.buffer.name
    reads_all = conv.dst.contiguous and pool.src == View(conv.dst.buffer, conv.dst.shape)
    return conv.dst.buffer.kind == "temp" and reads[name] == 1 and reads_all
