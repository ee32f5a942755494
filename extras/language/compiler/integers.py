"""Decoder in integers: weights, exponents and quantisation steps.

Weights are int8 with a scale for each row. The weight of a norm is folded into the matrix that follows, and its bias
into the bias that follows. The input rows of products have their own steps, powers of two, for each row
(`weft.extras.language.compiler.kernels`). The following steps are fixed for all tokens, by the ranges of values on a
calibration text:

- the residual stream, 24 bits, and the biases that are added to it;
- queries, keys and values, int8, with a step for each block, for which the scores' multiplier compensates. Biases are
  added before rounding to these steps. Queries and keys that are rotated as sums have one scale for all rows;
- attention's results, int8;
- the input of the last product of a feed-forward network, 16 bits, and logits, 16 bits.

Matrices in blocks of 4 bits may stay so (`weft.hdl.isa.encoding`). LOAD then expands them to int8 with a scale for each
row, by factors of 8 bits. In that case norms multiply by their weights, which cannot be folded into such matrices.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from weft.compiler.errors import CompileError
from weft.compiler.ir.scales import CALIBRATION_HEADROOM, SCORE_CLAMP, SCORE_REACH
from weft.compiler.kernel.expressions import DIGITS
from weft.extras.language.compiler.kernels import (
    ANGLE_PLACES,
    ENTRY_PLACES,
    GAIN_PLACES,
    GATE_PLACES,
    RESIDUAL_BITS,
    normal_unit,
)
from weft.extras.language.compiler.layout import PRODUCTS, Form, form_of, matrices
from weft.extras.language.compiler.model import LanguageModel, Matrix, Rotary, Sizes, dense
from weft.extras.language.compiler.reference import Ranges
from weft.extras.language.compiler.weights import (
    BIAS_PLACES,
    BYTE_BITS,
    MAX_ROW_BITS,
    Biases,
    Scaled,
    Weights,
    bias_after_norm,
    power_of_two,
    scale_blocks,
)
from weft.extras.language.gguf import metadata

RESIDUAL_MARGIN = 4.0
"""Extra factor of headroom of the residual stream."""
MARGIN = 4.0
"""Factor of headroom of 16-bit values over the range on the calibration text."""
BYTE_MARGIN = 1.25
"""Factor of headroom of 8-bit values."""
_FACTOR_BITS = 17
"""Bits of the factor that multiplies a gate."""
_RESIDUAL_PRODUCTS = ("output", "down")
"""Matrices whose products are added to the residual stream, which has three digits."""


@dataclass(frozen=True, eq=False)
class Layer:
    """Matrices of a block, by the names of `weft.extras.language.compiler.layout.PRODUCTS`; `octaves` is the step of
    its scores in octaves.
    """

    matrices: Mapping[str, Weights]
    octaves: float


@dataclass(frozen=True, eq=False)
class Integers:
    """Decoder in integers.

    Attributes
    ----------
    form : Form
    unit : float
        Step of the residual stream.
    step_ratio : float
        Step of values divided by the step of attention's results.
    inner_unit, logit_unit : float
        Steps of the input of a feed-forward network's last product, and of logits.
    turn : tuple of (int, int), two
        Mantissa and shift of queries and of keys if their sums are rotated, else empty.
    scaled : dict of str to list of Scaled
        Scaling of all other matrices by name, for each block, with one shift for all blocks.
    biases : dict of str to Biases
        Biases of matrices of biased products, and of "head".
    head : Weights
    head_scaled : Scaled
    gate_places : int
        Fractional bits of the input of SiLU or GELU.
    inner_places : int
        Bits that a feed-forward network's result loses; see `weft.extras.language.compiler.kernels.gate_and_multiply`.
    gains : list of numpy.ndarray
        Weights of each norm in order, the one before the head last: int64 (width,). Empty if they are folded into
        matrices.
    """

    model: LanguageModel
    form: Form
    layers: tuple[Layer, ...]
    unit: float
    step_ratio: float
    inner_unit: float
    logit_unit: float
    turn: tuple[tuple[int, int], ...]
    scaled: dict[str, list[Scaled]]
    biases: dict[str, Biases]
    head: Weights
    head_scaled: Scaled
    gate_places: int
    inner_places: int
    gains: list[np.ndarray]


def _fit_rotation(
    matrices: list[Weights], ranges: list[float], normal: float
) -> tuple[tuple[int, int], list[float]]:
    """Return mantissa and shift that bring the queries, or keys, of all blocks into int8, and each block's step."""
    scales = [float(matrix.scales[0]) for matrix in matrices]
    # Factor from a sum to a step, for rows whose largest element has `BYTE_BITS`.
    factor = min(
        127 * scale * normal / (BYTE_MARGIN * largest) for scale, largest in zip(scales, ranges, strict=True)
    )
    fraction, exponent = math.frexp(factor)
    mantissa, shift = round(math.ldexp(fraction, 16)), 16 - exponent - (MAX_ROW_BITS - BYTE_BITS)
    if shift < 0:
        mantissa, shift = mantissa >> -shift, 0
    exact = math.ldexp(mantissa, -shift - (MAX_ROW_BITS - BYTE_BITS))
    return (mantissa, shift), [scale * normal / exact for scale in scales]


def _quantise_gains(model: LanguageModel) -> tuple[list[np.ndarray], float]:
    """Return the norms' weights in steps, and the factor by which their results' step grows."""
    norms = [norm for block in model.blocks for norm in (block.attention_norm, block.feed_forward_norm)]
    weights = np.stack([norm.weight.astype(float) for norm in (*norms, model.output_norm)])
    step = float(np.abs(weights).max()) / DIGITS
    return list(np.rint(weights / step).astype(np.int64)), math.ldexp(step, GAIN_PLACES)


def _quantise_matrices(model: LanguageModel, form: Form) -> dict[str, list[Weights]]:
    """Return the quantised matrices of all blocks, by name."""
    matrices_by_name: dict[str, list[Weights]] = {}
    for block in model.blocks:
        for product in PRODUCTS:
            for name, linear, norm in matrices(block, product):
                one_scale = form.rotates_sums and name in ("query", "key")
                weights = Weights.after_norm(linear, norm, shared_scale=one_scale, gains=form.gains)
                matrices_by_name.setdefault(name, []).append(weights)
    return matrices_by_name


def _collect_biases(model: LanguageModel, form: Form) -> dict[str, list[np.ndarray]]:
    """Return the biases of biased products of all blocks, and of the head, by name: float64."""
    collected: dict[str, list[np.ndarray]] = {}
    for block in model.blocks:
        for product in PRODUCTS:
            for name, linear, norm in matrices(block, product) if product in form.biased else ():
                collected.setdefault(name, []).append(bias_after_norm(linear, norm))
    if "head" in form.biased:
        collected["head"] = [bias_after_norm(model.output, model.output_norm)]
    return collected


def _largest(biases: Sequence[np.ndarray]) -> float:
    return max((float(np.abs(bias).max()) for bias in biases), default=0.0)


@dataclass(frozen=True)
class _Units:
    """Fixed steps of a decoder; `heads` holds those of queries, keys and values of each block."""

    residual: float
    heads: dict[str, list[float]]
    step_ratio: float
    gate_places: int
    up: float
    inner: float
    logits: float

    @classmethod
    def of(cls, form: Form, ranges: Ranges, biases: Mapping[str, Sequence[np.ndarray]]) -> _Units:
        # The range of three digits must include the biases.
        most = max(ranges.residual, *(_largest(biases.get(name, ())) for name in _RESIDUAL_PRODUCTS))
        heads = {"query": ranges.query, "key": ranges.key, "value": ranges.value}
        # Attention's results are means of values, so that their range, and their step, can be smaller.
        step_ratio = min(a / max(b, 1e-12) for a, b in zip(ranges.value, ranges.mixed, strict=True))
        gate_places, up = _choose_inner_steps(form, ranges)
        return cls(
            residual=power_of_two(MARGIN * RESIDUAL_MARGIN * most / (1 << RESIDUAL_BITS)),
            heads={name: [BYTE_MARGIN * largest / 127 for largest in each] for name, each in heads.items()},
            step_ratio=max(1.0, step_ratio), gate_places=gate_places, up=up,
            inner=max(power_of_two(MARGIN * ranges.inner / DIGITS), up),
            logits=power_of_two(2 * ranges.logits / DIGITS),
        )  # fmt: skip

    def input_steps(self, blocks: int) -> dict[str, list[float]]:
        """Return the input steps of products without a norm before them, for rows with `BYTE_BITS`."""
        return {
            "output": [step / self.step_ratio for step in self.heads["value"]],
            "down": [self.inner] * blocks,
        }

    def output_steps(self, form: Form, blocks: int) -> dict[str, list[float]]:
        """Return the output steps of products before biases are added, of each block and of the head."""
        places = BIAS_PLACES if "qkv" in form.biased else 0
        steps = {name: [math.ldexp(step, -places) for step in each] for name, each in self.heads.items()}
        others = {
            "output": self.residual,
            "gate": 2.0**-self.gate_places,
            "up": self.up,
            "down": self.residual,
        }
        return steps | {name: [unit] * blocks for name, unit in others.items()} | {"head": [self.logits]}


def _choose_inner_steps(form: Form, ranges: Ranges) -> tuple[int, float]:
    """Return the fractional bits of the input of SiLU or GELU, and the step of the other factor."""
    if not form.gated:
        return GATE_PLACES, 2.0**-GATE_PLACES
    if form.gates_sums:
        return GATE_PLACES, power_of_two(MARGIN * ranges.up / ((1 << _FACTOR_BITS) - 1))
    # Gate and factor are 16-bit values.
    places = -math.log2(power_of_two(MARGIN * ranges.gate / DIGITS))
    return int(min(max(places, ENTRY_PLACES + 1), GATE_PLACES)), power_of_two(MARGIN * ranges.up / DIGITS)


def to_integers(model: LanguageModel, ranges: Ranges, *, blocks: bool = False) -> Integers:
    """Quantise a model; with `blocks`, matrices in blocks of 4 bits stay so.

    Raises
    ------
    CompileError
        If the device cannot run the model.
    """
    form = form_of(model, gains=blocks)
    gains, largest = _quantise_gains(model) if blocks else ([], 1.0)
    normal = largest * normal_unit(model.sizes.width)
    quantised, biases = _quantise_matrices(model, form), _collect_biases(model, form)
    units = _Units.of(form, ranges, biases)
    rotations: dict[str, tuple[int, int]] = {}
    for name in ("query", "key") if form.rotates_sums else ():
        rotations[name], units.heads[name] = _fit_rotation(quantised[name], getattr(ranges, name), normal)
    _check_scores(model, ranges)
    # Softmax uses powers of two, so that scores are in octaves: log2(e) octaves per unit.
    root = model.sizes.key_length**-0.5 * math.log2(math.e)
    layers = tuple(
        Layer({name: weights[index] for name, weights in quantised.items()}, octaves=root * a * b)
        for index, (a, b) in enumerate(zip(units.heads["query"], units.heads["key"], strict=True))
    )
    input_steps, output_steps = units.input_steps(len(layers)), units.output_steps(form, len(layers))
    scaled = {}
    for name, weights in quantised.items():
        if name not in rotations:
            steps = zip(input_steps.get(name, [normal] * len(layers)), output_steps[name], strict=True)
            scaled[name] = scale_blocks(weights, [before / after for before, after in steps])
    head = Weights.after_norm(model.output, model.output_norm, gains=blocks)
    return Integers(
        model=model, form=form, layers=layers, unit=units.residual, step_ratio=units.step_ratio, inner_unit=units.inner,
        logit_unit=units.logits, turn=tuple(rotations.values()), scaled=scaled,
        biases={name: _quantise_biases(name, bias, output_steps[name]) for name, bias in biases.items()}, head=head,
        head_scaled=Scaled.of(head.scales * normal / units.logits, head.sums), gate_places=units.gate_places,
        inner_places=round(math.log2(units.inner / units.up)), gains=gains,
    )  # fmt: skip


def _check_scores(model: LanguageModel, ranges: Ranges) -> None:
    """Raise `CompileError` if the device could clamp scores."""
    limit = SCORE_CLAMP - SCORE_REACH
    for index, largest_score in enumerate(ranges.scores):
        if CALIBRATION_HEADROOM * largest_score > limit:
            tensors = dict.fromkeys(repr(_tensor_name(model, index, field)) for field in ("query", "key"))
            raise CompileError(
                f"the scores of block {index} reach {largest_score:.4g} with {' and '.join(tensors)}: "
                f"{CALIBRATION_HEADROOM} times that must be at most {limit:.0f}, because the device clamps "
                "larger scores"
            )


def describe_outlier(model: LanguageModel) -> str:
    """Return a clause that names the matrix whose largest magnitude differs most from the median."""
    fields = [field for product in PRODUCTS.values() for field in product.values()]
    magnitudes = {
        _tensor_name(model, index, field): float(np.abs(dense(linear.weight)).max())
        for index, block in enumerate(model.blocks)
        for field in fields
        if (linear := getattr(block, field)) is not None
    }
    median = float(np.median(list(magnitudes.values())))
    # 1e-45 is below the smallest float32 number, so that matrices of zeros have a logarithm.
    distances = {
        name: abs(math.log((most or 1e-45) / (median or 1e-45))) for name, most in magnitudes.items()
    }
    name = max(distances, key=distances.__getitem__)
    return f"tensor {name!r} has values up to {magnitudes[name]:.4g}, while the median over matrices is {median:.4g}"


def _tensor_name(model: LanguageModel, block: int, field: str) -> str:
    """Return the name of a block's matrix in GGUF files."""
    fused = model.architecture == "gpt2" and field in PRODUCTS["qkv"].values()
    return f"{metadata.block(block, metadata.FUSED if fused else metadata.LINEARS[field])}.weight"


def _quantise_biases(name: str, biases: Sequence[np.ndarray], units: Sequence[float]) -> Biases:
    digits = 3 if name in _RESIDUAL_PRODUCTS else 2
    return Biases.of([bias / unit for bias, unit in zip(biases, units, strict=True)], digits)


def quantise_embedding(matrix: Matrix) -> tuple[np.ndarray, float]:
    """Quantise embeddings to two digits, int64 (rows, width); also return their step."""
    embedding = dense(matrix).astype(np.float64)
    unit = max(float(np.abs(embedding).max()), 1e-12) / DIGITS
    return np.rint(embedding / unit).astype(np.int64), unit


def rotation_table(rotary: Rotary, sizes: Sizes) -> np.ndarray:
    """Return the cosines and then the sines of each position's angles, in `ANGLE_PLACES` fractional bits.

    The sines of even elements are negated. The result is int64 (context, 2 * length).
    """
    angles = rotary.angles(np.arange(sizes.context)).repeat(2, axis=1)
    padded = np.zeros((sizes.context, sizes.key_length))
    padded[:, : angles.shape[1]] = angles
    sine = np.sin(padded)
    sine[:, ::2] *= -1
    return np.rint((1 << ANGLE_PLACES) * np.concatenate([np.cos(padded), sine], axis=1)).astype(np.int64)
