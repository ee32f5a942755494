"""Limits on the size of a model, checked before all other work.

Devices have 32-bit addresses, so no value of 2**32 bytes fits. Elements on the host have up to 8 bytes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from weft.compiler.errors import CompileError
from weft.compiler.ir.network import Network

ELEMENTS = 1 << 30
"""Largest number of elements of one value."""
NODES = 200_000
"""Largest number of nodes of a model, with its local functions inlined."""
WINDOW = (1 << 16) - 1
"""Largest kernel, stride, dilation and pad. Coordinates have 16 bits."""
MEMORY = 1 << 32
"""Largest number of bytes of one device program with its constants and buffers."""
_WINDOWS = ("kernel_shape", "strides", "dilations", "pads", "output_padding")


def check_values(shapes: Mapping[str, tuple[int, ...]]) -> None:
    """Raise `CompileError` for a value of more than `ELEMENTS` elements, or of a negative size."""
    for name, shape in shapes.items():
        text = f"shape {'x'.join(map(str, shape))}"
        if min(shape, default=1) < 0:
            raise CompileError(
                f"value {name!r} would have {text}: its operator asks for more elements than its input has"
            )
        if math.prod(shape) > ELEMENTS:
            size = f"{text}, {math.prod(shape):,} elements"
            raise CompileError(f"value {name!r} has {size}; weft takes values of up to {ELEMENTS:,}")


def check_windows(network: Network) -> None:
    """Raise `CompileError` for a kernel, stride, dilation or pad above `WINDOW`."""
    for node in network.nodes:
        for name in _WINDOWS:
            sizes = node.attributes.get(name)
            if isinstance(sizes, tuple) and max(sizes, default=0) > WINDOW:
                raise CompileError(f"{node.label} has {name} {list(sizes)}; each must be at most {WINDOW:,}")
        for graph in node.bodies:
            check_windows(graph)


def check_memory(name: str, total: int) -> None:
    """Raise `CompileError` for a device program of `total` bytes if 32-bit addresses do not reach all of them."""
    if total > MEMORY:
        raise CompileError(
            f"{name} needs {total:,} bytes of the device's memory for constants, instructions and buffers; "
            f"addresses reach {MEMORY:,}: split the model, or take fewer images at once"
        )
