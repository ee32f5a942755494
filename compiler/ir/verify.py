"""Rules that every graph keeps: shapes that agree, buffers that are written before they are read."""

from __future__ import annotations

from weft.compiler.ir.graph import (
    Add,
    Attention,
    Buffer,
    Conv,
    DeviceOp,
    DeviceSegment,
    Graph,
    IrError,
    Pool,
    sources,
)


def verify(graph: Graph) -> None:
    """Raise `IrError` if a graph breaks a rule: shapes that disagree, buffers read before they are written."""
    written = {transfer.buffer.name for transfer in graph.to_device}
    buffers: dict[str, Buffer] = {}
    on_chip: set[str] = set()
    for transfer in (*graph.to_device, *graph.from_device):
        _verify_alias(transfer.buffer, buffers, f"value {transfer.value!r}")
    for segment in graph.segments:
        if isinstance(segment, DeviceSegment):
            for op in segment.ops:
                verify_op(op)
                if isinstance(op, Conv) and op.then is not None:
                    on_chip.add(sources(op.then)[0].buffer.name)
                for view in sources(op):
                    _verify_alias(view.buffer, buffers, op.name)
                    if view.buffer.name not in written:
                        raise IrError(f"{op.name}: reads buffer {view.buffer.name!r} before it is written")
                _verify_alias(op.dst.buffer, buffers, op.name)
                written.add(op.dst.buffer.name)
        for name in on_chip & set(buffers):
            raise IrError(f"buffer {name!r} stays on chip in one operator and is used by another")
    for transfer in graph.from_device:
        if transfer.buffer.name not in written:
            raise IrError(f"output {transfer.value!r}: buffer {transfer.buffer.name!r} is never written")


def _verify_alias(buffer: Buffer, buffers: dict[str, Buffer], where: str) -> None:
    """Buffers of one name must agree in size and kind."""
    first = buffers.setdefault(buffer.name, buffer)
    if (first.size, first.kind) != (buffer.size, buffer.kind):
        raise IrError(
            f"{where}: buffer {buffer.name!r} is {buffer.shape} {buffer.kind}, not {first.shape} {first.kind}"
        )


def verify_op(op: DeviceOp) -> None:
    """Raise `IrError` if shapes, ranges or dtypes of one operator disagree."""
    for view in (*sources(op), op.dst):
        n, h, w, c = view.buffer.shape
        if (
            view.shape[0] != n
            or view.y + view.shape[1] > h
            or view.x + view.shape[2] > w
            or view.c + view.shape[3] > c
        ):
            raise IrError(
                f"{op.name}: view {view.shape} leaves buffer {view.buffer.name!r} {view.buffer.shape}"
            )
        if min(view.shape) < 1:
            raise IrError(f"{op.name}: empty view {view.shape}")
    if not -128 <= op.low <= op.high <= 127:
        raise IrError(f"{op.name}: clamp {op.low} to {op.high}")
    expected = expected_shape(op)
    if op.dst.shape != expected:
        raise IrError(f"{op.name}: output is {op.dst.shape}, not {expected}")


def expected_shape(op: DeviceOp) -> tuple[int, int, int, int]:
    """Shape of an operator's output from its inputs."""
    if isinstance(op, Conv):
        n, h, w, c = op.src.shape
        out, kh, kw, cin = op.weight.shape
        if cin * op.groups != c or out % op.groups or (kh, kw) != op.window.kernel:
            raise IrError(
                f"{op.name}: weight {op.weight.shape} with {op.groups} groups on input {op.src.shape}"
            )
        if op.bias.shape != (out,) or op.scale.shape != (out,):
            raise IrError(f"{op.name}: bias {op.bias.shape} and scale {op.scale.shape} for {out} outputs")
        oh, ow = op.window.output(h, w)
        if op.pool is not None:
            oh, ow = op.pool.output(oh, ow)
        shape = (n, oh, ow, out)
        if op.then is not None:
            _verify_then(op, shape)
        return shape
    if isinstance(op, Pool):
        n, h, w, c = op.src.shape
        return (n, *op.window.output(h, w), c)
    if isinstance(op, Add):
        if op.a.shape != op.b.shape:
            raise IrError(f"{op.name}: operands {op.a.shape} and {op.b.shape}")
        return op.a.shape
    if isinstance(op, Attention):
        return _attention_shape(op)
    return op.src.shape


def _verify_then(op: Conv, shape: tuple[int, int, int, int]) -> None:
    """What comes then takes a result of `shape`, which has no buffer, and makes the output."""
    assert op.then is not None
    verify_op(op.then)
    own = sources(op.then)[0]
    if own.shape != shape or op.then.dst != op.dst:
        raise IrError(
            f"{op.name}: {op.then.name} makes {op.then.dst.buffer.name!r} of {own.shape}, not {op.dst.buffer.name!r}"
            f" of {shape}"
        )
    if not own.contiguous or own.buffer.kind != "temp":
        raise IrError(f"{op.name}: what stays on chip is no temporary of its own, but {own.buffer.name!r}")


def _attention_shape(op: Attention) -> tuple[int, int, int, int]:
    if op.heads % op.kv_heads or len(op.lengths) != op.images or (op.page and op.images != 1):
        raise IrError(
            f"{op.name}: {op.heads} heads on {op.kv_heads}, {len(op.lengths)} lengths of {op.images} images"
        )
    for view, heads, size in ((op.q, op.heads, op.head_size), (op.k, op.kv_heads, op.head_size),
                              (op.v, op.kv_heads, op.v_size)):  # fmt: skip
        images, rows = (
            (view.shape[0], op.page) if op.page and view is not op.q else (op.images, view.shape[2])
        )
        if view.shape not in ((images, 1, rows, heads * size), (images * heads, 1, rows, size)):
            raise IrError(
                f"{op.name}: operand {view.shape} is not {heads} heads of {size} in {images} images"
            )
    if op.k.shape[2] != op.v.shape[2] or not all(0 <= length <= op.keys for length in op.lengths):
        raise IrError(f"{op.name}: {op.k.shape[2]} keys, {op.v.shape[2]} values, lengths {op.lengths}")
    rows = op.q.shape[2]
    if op.dst.shape[0] == op.images and op.dst.shape[3] == op.heads * op.v_size:
        return op.images, 1, rows, op.heads * op.v_size
    return op.images * op.heads, 1, rows, op.v_size
