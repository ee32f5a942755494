"""Attention written out, with the mask of keys as an input."""

from __future__ import annotations

import dataclasses

import numpy as np
import onnx
from onnx import TensorProto, helper

from support import attention_models as models
from support import qdq_models
from support.attention_models import Exploded, Sizes

SCALE = 10000 / 255


@dataclasses.dataclass(frozen=True)
class Case:
    """A model with the input `mask`, and its values: whether each key of each image takes part."""

    model: onnx.ModelProto
    feeds: dict[str, np.ndarray]
    allowed: np.ndarray


def masked_attention(
    rng: np.random.Generator,
    sizes: Sizes,
    *,
    layout: str = "ishd",
    images: int | None = None,
    causal: bool = False,
    factor: float | None = None,
    unsigned: bool = False,
    scale: float = SCALE,
    zero: int = 127,
    swapped: bool = False,
    join: bool = True,
    rounded: bool = False,
    behind: bool = False,
) -> Case:
    """Draw attention written out, whose mask is a quantised input of (images, 1, 1, keys).

    After the mask, scores are `rounded`, or multiplied by 0.5 if `behind`.
    """
    made = Exploded(rng, sizes, rounded=False)
    builder, images = made.builder, sizes.batch if images is None else images
    q, _ = made.heads(sizes.heads, sizes.queries, sizes.size, layout=layout)
    k, k_source = made.heads(sizes.heads, sizes.keys, sizes.size, layout=layout)
    v, v_source = made.heads(sizes.heads, sizes.keys, sizes.v_size, layout=layout)
    factor = sizes.size**-0.5 if factor is None else factor
    scores = made.scale_by(made.product(q, made.keys_transposed(k, k_source)), factor)
    if causal:
        diagonal = np.tril(np.ones((sizes.queries, sizes.keys), bool), sizes.keys - sizes.queries)
        scores = made.add_mask(scores, models.additive(diagonal))
    builder.inputs.append(
        helper.make_tensor_value_info("mask", TensorProto.FLOAT, (images, 1, 1, sizes.keys))
    )
    mask = builder.quantise("mask", (images, 1, 1, sizes.keys), scale, zero + 128 * unsigned, unsigned)
    given = [scores, builder.dequantise(mask)]
    scores = builder.node("Add", given[::-1] if swapped else given)
    scores = made.scale_by(scores, 0.5) if behind else scores
    made.rounded = rounded
    weights = made.weights(scores, 100.0)
    made.rounded = False
    value = made.product(weights, v)
    model = models.quantise_result(builder, made.join_heads(value, v_source) if join else value, v_source)
    feeds = qdq_models.feeds(model, rng)
    allowed = rng.integers(0, 2, (images, sizes.keys)).astype(bool)
    allowed[:, 0] = True  # for every query of a causal mask, too
    feeds["mask"] = models.additive(allowed).reshape(images, 1, 1, sizes.keys)
    models.calibrate_scores(model, feeds)
    return Case(model, feeds, np.broadcast_to(allowed, (sizes.batch, sizes.keys)))
