"""The shapes of `peers.py`, and how SCALE-Sim's topology files say them."""

from __future__ import annotations

from shapes import RESNET18, Shape, gemm


def product(m: int, n: int, k: int, name: str = "", count: int = 1) -> Shape:
    """m rows of k elements times k x n."""
    return Shape(name or f"GEMM {m}x{n}x{k}", 1, m, k, n, count=count)


GEMMS = (
    gemm(16),
    gemm(32),
    gemm(64),
    gemm(128),
    gemm(256),
    gemm(512),
    product(100, 100, 100),
    product(256, 128, 256),
    product(128, 64, 128),
    product(128, 512, 512),
)
"""m x n x k; the last three are from SCALE-Sim's GEMM examples (test_mnk_input, transformer_partial)."""

_HEADS, _BLOCKS = 6, 12
VIT_SMALL = (
    product(197, 1152, 384, "qkv 384->1152", _BLOCKS),
    product(197, 197, 64, "scores of a head", _BLOCKS * _HEADS),
    product(197, 64, 197, "values of a head", _BLOCKS * _HEADS),
    product(197, 384, 384, "projection 384->384", _BLOCKS),
    product(197, 1536, 384, "mlp1 384->1536", _BLOCKS),
    product(197, 384, 1536, "mlp2 1536->384", _BLOCKS),
)
"""Products in the twelve blocks of ViT-Small/16: 197 tokens of 384, six heads of 64."""

GROUPS: dict[str, tuple[Shape, ...]] = {
    "GEMM": GEMMS,
    "ResNet-18, 224 x 224": RESNET18,
    "ViT-Small/16, 197 tokens": VIT_SMALL,
}


def mnk(shape: Shape) -> tuple[int, int, int]:
    """The matrix product that a shape is: output pixels, output channels, elements of a window."""
    oh, ow = shape.window.output(shape.h, shape.w)
    return oh * ow, shape.cout, shape.kernel**2 * shape.cin


def topology(shape: Shape) -> str:
    """A file for SCALE-Sim's convolutions with this shape alone.

    A matrix product is what SCALE-Sim's own reader of such makes of it: windows of 1 x k on an image of m x k.
    SCALE-Sim knows no padding and rounds outputs up: the image is as large as what the windows cover, edges included.
    """
    m, n, k = mnk(shape)
    if shape.h == shape.kernel == 1:
        numbers = (m, k, 1, k, 1, n, 1)
    else:
        height, width = (
            (side - 1) * shape.stride + shape.kernel for side in shape.window.output(shape.h, shape.w)
        )
        numbers = (height, width, shape.kernel, shape.kernel, shape.cin, n, shape.stride)
    header = "Layer,IFMAP Height,IFMAP Width,Filter Height,Filter Width,Channels,Num Filter,Strides,"
    return f"{header}\nlayer,{','.join(map(str, numbers))},\n"
