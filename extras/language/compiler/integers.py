"""A decoder in integers: what its products, exponents and steps are.

Weights are int8 with a scale for each row; what a norm multiplies by is part of the weights behind it, and what it adds
is part of the bias behind it. Steps of rows in front of products are powers of two of each row
(`weft.extras.language.compiler.kernels`). These are fixed, for all tokens, by the ranges that values had on a text:

- the residual stream, 24 bits, and the biases that are added to it;
- queries, keys and values, int8: for each block its own, for which the multiplier of the scores makes up. Biases are
  added before they are rounded to these steps. Queries and keys whose sums are turned have one scale for all rows;
- attention's results, int8;
- what goes into the last product of a feed-forward network, 16 bits, and logits, 16 bits.

A model whose file has matrices in blocks of 4 bits may keep them (`weft.hdl.isa.encoding`): LOAD then makes int8 of
them, with a scale for each row, by factors of 8 bits. Norms multiply what they make then, as their numbers cannot be
part of such weights.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from weft.compiler.ir.graph import CompileError
from weft.compiler.ir.scales import CLAMP, HEADROOM, REACH
from weft.compiler.kernel.expressions import DIGITS
from weft.extras.language.compiler.form import PRODUCTS, Form, form_of, matrices
from weft.extras.language.compiler.kernels import (
    ANGLE_PLACES,
    ENTRY_PLACES,
    GAIN_PLACES,
    GATE_PLACES,
    RESIDUAL_BITS,
    normal_unit,
)
from weft.extras.language.compiler.model import LanguageModel, Matrix, Rotary, Sizes, dense
from weft.extras.language.compiler.ranges import Ranges
from weft.extras.language.compiler.scaled import (
    BIAS_PLACES,
    BYTE_BITS,
    MOST_BITS,
    Biases,
    Scaled,
    power_of_two,
    together,
)
from weft.extras.language.compiler.weights import Weights, bias_behind
from weft.extras.language.gguf import names

RESIDUAL_ROOM = 4.0
"""How many times more the residual stream has."""
ROOM = 4.0
"""How many times the range of a text values of 16 bits have."""
BYTE_ROOM = 1.25
"""The same of values of 8 bits."""
_UP_BITS = 17
"""Bits of the second factor behind a gate."""
_ADDED = ("output", "down")
"""The matrices whose products are added to the residual stream, which has three digits."""


@dataclass(frozen=True, eq=False)
class Layer:
    """The matrices of a block, by the names of `weft.extras.language.compiler.form.PRODUCTS`, and the octaves of a
    step of its scores."""

    matrices: Mapping[str, Weights]
    octaves: float


@dataclass(frozen=True, eq=False)
class Integers:
    """See the module.

    Attributes
    ----------
    form : Form
    unit : float
        Step of the residual stream; `inner_unit` and `logit_unit` likewise, of what the last product of a feed-forward
        network takes, and of logits.
    smaller : float
        How many times smaller steps of attention's results are than those of values.
    turn : tuple of (int, int), two
        Mantissa and shift of queries and of keys, if their sums are turned; else empty.
    scaled : dict of str to list of Scaled
        For all other matrices, by name: of each block, with one shift for all.
    biases : dict of str to Biases
        For the matrices of products that have biases, and "head".
    head : Weights, head_scaled : Scaled
    gate_places : int
        Places of what goes through SiLU or GELU.
    inner_places : int
        Places that what a feed-forward network makes loses: see `weft.extras.language.compiler.kernels.gated`.
    gains : list of numpy.ndarray
        What each norm multiplies by, in order, the last one in front of the head: int64 (width,). Empty if that is part
        of the weights.
    """

    model: LanguageModel
    form: Form
    layers: tuple[Layer, ...]
    unit: float
    smaller: float
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


def _turn(matrices: list[Weights], ranges: list[float], normal: float) -> tuple[tuple[int, int], list[float]]:
    """Mantissa and shift that bring all blocks' queries, or keys, into int8, and the step that each has then."""
    scales = [float(matrix.scales[0]) for matrix in matrices]
    # A sum times so much is a step, where rows have `BYTE_BITS`.
    factor = min(
        127 * scale * normal / (BYTE_ROOM * largest) for scale, largest in zip(scales, ranges, strict=True)
    )
    fraction, exponent = math.frexp(factor)
    mantissa, shift = round(math.ldexp(fraction, 16)), 16 - exponent - (MOST_BITS - BYTE_BITS)
    if shift < 0:
        mantissa, shift = mantissa >> -shift, 0
    exact = math.ldexp(mantissa, -shift - (MOST_BITS - BYTE_BITS))
    return (mantissa, shift), [scale * normal / exact for scale in scales]


def _gains(model: LanguageModel) -> tuple[list[np.ndarray], float]:
    """What each norm multiplies by in steps, and how much more than without that a step of its results is."""
    norms = [norm for block in model.blocks for norm in (block.attention_norm, block.feed_forward_norm)]
    every = np.stack([norm.weight.astype(float) for norm in (*norms, model.output_norm)])
    step = float(np.abs(every).max()) / DIGITS
    return list(np.rint(every / step).astype(np.int64)), math.ldexp(step, GAIN_PLACES)


def _quantised(model: LanguageModel, form: Form) -> dict[str, list[Weights]]:
    """The matrices of all blocks."""
    found: dict[str, list[Weights]] = {}
    for block in model.blocks:
        for product in PRODUCTS:
            for name, linear, norm in matrices(block, product):
                one_scale = form.turned_sums and name in ("query", "key")
                made = Weights.behind(linear, norm, together=one_scale, gains=form.gains)
                found.setdefault(name, []).append(made)
    return found


def _biases(model: LanguageModel, form: Form) -> dict[str, list[np.ndarray]]:
    """The biases of products that have any, of all blocks, and of the head: float64."""
    found: dict[str, list[np.ndarray]] = {}
    for block in model.blocks:
        for product in PRODUCTS:
            for name, linear, norm in matrices(block, product) if product in form.biased else ():
                found.setdefault(name, []).append(bias_behind(linear, norm))
    if "head" in form.biased:
        found["head"] = [bias_behind(model.output, model.output_norm)]
    return found


def _most(biases: Sequence[np.ndarray]) -> float:
    return max((float(np.abs(bias).max()) for bias in biases), default=0.0)


@dataclass(frozen=True)
class _Units:
    """The steps of what has fixed ones: `heads` of queries, keys and values, of each block."""

    residual: float
    heads: dict[str, list[float]]
    smaller: float
    gate_places: int
    up: float
    inner: float
    logits: float

    @classmethod
    def of(cls, form: Form, ranges: Ranges, biases: Mapping[str, Sequence[np.ndarray]]) -> _Units:
        # Three digits have room for biases, too.
        most = max(ranges.residual, *(_most(biases.get(name, ())) for name in _ADDED))
        heads = {"query": ranges.query, "key": ranges.key, "value": ranges.value}
        # Attention's results are means, and smaller than values: by how much their steps are, in all blocks.
        smaller = min(a / max(b, 1e-12) for a, b in zip(ranges.value, ranges.mixed, strict=True))
        gate_places, up = _inner_steps(form, ranges)
        return cls(
            residual=power_of_two(ROOM * RESIDUAL_ROOM * most / (1 << RESIDUAL_BITS)),
            heads={name: [BYTE_ROOM * largest / 127 for largest in each] for name, each in heads.items()},
            smaller=max(1.0, smaller), gate_places=gate_places, up=up,
            inner=max(power_of_two(ROOM * ranges.inner / DIGITS), up),
            logits=power_of_two(2 * ranges.logits / DIGITS),
        )  # fmt: skip

    def entering(self, blocks: int) -> dict[str, list[float]]:
        """The steps of what goes into products, for a row with `BYTE_BITS`, of those without a norm in front."""
        return {
            "output": [step / self.smaller for step in self.heads["value"]],
            "down": [self.inner] * blocks,
        }

    def leaving(self, form: Form, blocks: int) -> dict[str, list[float]]:
        """The steps of what comes out of products, while biases are added, of each block; and of the head."""
        places = BIAS_PLACES if "qkv" in form.biased else 0
        found = {name: [math.ldexp(step, -places) for step in each] for name, each in self.heads.items()}
        others = {
            "output": self.residual,
            "gate": 2.0**-self.gate_places,
            "up": self.up,
            "down": self.residual,
        }
        return found | {name: [unit] * blocks for name, unit in others.items()} | {"head": [self.logits]}


def _inner_steps(form: Form, ranges: Ranges) -> tuple[int, float]:
    """Places of what goes through SiLU or GELU, and the step of what SiLU is multiplied with, or GELU takes."""
    if not form.gated:
        return GATE_PLACES, 2.0**-GATE_PLACES
    if form.gated_sums:
        return GATE_PLACES, power_of_two(ROOM * ranges.up / ((1 << _UP_BITS) - 1))
    # Both are two digits.
    places = -math.log2(power_of_two(ROOM * ranges.gate / DIGITS))
    return int(min(max(places, ENTRY_PLACES + 1), GATE_PLACES)), power_of_two(ROOM * ranges.up / DIGITS)


def integers(model: LanguageModel, ranges: Ranges, *, blocks: bool = False) -> Integers:
    """The integers of a model. With `blocks`, matrices in blocks of 4 bits stay in them. Raises `CompileError` for a
    model that does not run on the device."""
    form = form_of(model, gains=blocks)
    gains, largest = _gains(model) if blocks else ([], 1.0)
    normal = largest * normal_unit(model.sizes.width)
    every, biases = _quantised(model, form), _biases(model, form)
    units = _Units.of(form, ranges, biases)
    turned: dict[str, tuple[int, int]] = {}
    for name in ("query", "key") if form.turned_sums else ():
        turned[name], units.heads[name] = _turn(every[name], getattr(ranges, name), normal)
    _check_scores(model, ranges)
    root = model.sizes.key_length**-0.5 * math.log2(math.e)
    layers = tuple(
        Layer({name: found[index] for name, found in every.items()}, octaves=root * a * b)
        for index, (a, b) in enumerate(zip(units.heads["query"], units.heads["key"], strict=True))
    )
    entering, leaving = units.entering(len(layers)), units.leaving(form, len(layers))
    scaled = {}
    for name, found in every.items():
        if name not in turned:
            steps = zip(entering.get(name, [normal] * len(layers)), leaving[name], strict=True)
            scaled[name] = together(found, [before / behind for before, behind in steps])
    head = Weights.behind(model.output, model.output_norm, gains=blocks)
    return Integers(
        model=model, form=form, layers=layers, unit=units.residual, smaller=units.smaller, inner_unit=units.inner,
        logit_unit=units.logits, turn=tuple(turned.values()), scaled=scaled,
        biases={name: _in_steps(name, found, leaving[name]) for name, found in biases.items()}, head=head,
        head_scaled=Scaled.of(head.scales * normal / units.logits, head.sums), gate_places=units.gate_places,
        inner_places=round(math.log2(units.inner / units.up)), gains=gains,
    )  # fmt: skip


def _check_scores(model: LanguageModel, ranges: Ranges) -> None:
    """Raise `CompileError` for scores that the device may clamp."""
    limit = CLAMP - REACH
    for index, found in enumerate(ranges.scores):
        if HEADROOM * found > limit:
            tensors = dict.fromkeys(repr(_tensor(model, index, field)) for field in ("query", "key"))
            raise CompileError(
                f"the scores of block {index} reach {found:.4g} with {' and '.join(tensors)}: "
                f"{HEADROOM} times that must be at most {limit:.0f}, as the device clamps larger ones"
            )


def outlier(model: LanguageModel) -> str:
    """The matrix of a block whose largest magnitude is farthest from the usual one, as a clause that names it."""
    fields = [field for product in PRODUCTS.values() for field in product.values()]
    found = {
        _tensor(model, index, field): float(np.abs(dense(linear.weight)).max())
        for index, block in enumerate(model.blocks)
        for field in fields
        if (linear := getattr(block, field)) is not None
    }
    usual = float(np.median(list(found.values())))
    apart = {name: abs(math.log((most or 1e-45) / (usual or 1e-45))) for name, most in found.items()}
    name = max(apart, key=apart.__getitem__)
    return f"tensor {name!r} has values up to {found[name]:.4g}, where {usual:.4g} is usual in this model"


def _tensor(model: LanguageModel, block: int, field: str) -> str:
    """The name of a block's matrix in GGUF files."""
    fused = model.architecture == "gpt2" and field in PRODUCTS["qkv"].values()
    return f"{names.block(block, names.FUSED if fused else names.LINEARS[field])}.weight"


def _in_steps(name: str, biases: Sequence[np.ndarray], units: Sequence[float]) -> Biases:
    digits = 3 if name in _ADDED else 2
    return Biases.of([bias / unit for bias, unit in zip(biases, units, strict=True)], digits)


def embedding_in_steps(matrix: Matrix) -> tuple[np.ndarray, float]:
    """Embeddings as numbers of two digits, int64 (rows, width), and their step."""
    embedding = dense(matrix).astype(np.float64)
    unit = max(float(np.abs(embedding).max()), 1e-12) / DIGITS
    return np.rint(embedding / unit).astype(np.int64), unit


def turns(rotary: Rotary, sizes: Sizes) -> np.ndarray:
    """For each position the cosines and then the sines of a head, those of its even elements negative, with
    `ANGLE_PLACES`: int64 (context, 2 * length)."""
    angles = rotary.angles(np.arange(sizes.context)).repeat(2, axis=1)
    whole = np.zeros((sizes.context, sizes.key_length))
    whole[:, : angles.shape[1]] = angles
    sine = np.sin(whole)
    sine[:, ::2] *= -1
    return np.rint((1 << ANGLE_PLACES) * np.concatenate([np.cos(whole), sine], axis=1)).astype(np.int64)
