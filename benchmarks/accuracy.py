"""Accuracy of softmax and fused attention against float64, on random values of the sizes that attention has.

    python benchmarks/accuracy.py [--config default] [--rows 2000] [--seed 1] [--skip-fused]

Three ways to make probabilities: *block*, the unit's own (`weft.sim.golden.vector`, groups of N columns); *plain*, 8
bits relative to the maximum of the row; *i-exp*, the integer polynomial of I-BERT (Kim et al. 2021, arXiv:2101.01321),
its input in steps of 1/1024 nat, its sums and quotients not rounded. Scores are Gaussian int8, sigma 32 steps, of a
sigma in nats that is given; `--rows` counts rows of each length, shared among the sigmas. Errors of probabilities are
in 1/255; *largest* and *row sum* are the worst of all rows, *above 3* counts rows with an error beyond 3. *output* is
the 8-bit result of the stand-alone operator with a scale of 1/255, against float64 before rounding, which alone is up
to 0.29 RMS.

Fused attention has Gaussian int8 q, k and v (sigma 40) and 64 elements a head; errors are in steps of the output, which
is as fine as V (*1*) or spans the range of the results (*full*). With a *sink*, the first key has a score 10 nats above
and values of 0.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from weft.boards.registry import BOARDS
from weft.hdl.isa.config import Config
from weft.sim.golden import vector as numerics
from weft.sim.golden.memories import rsh, wrap

LENGTHS = (64, 512, 4096)
SIGMAS = (0.5, 1.0, 2.0, 4.0)
METHODS = ("block", "plain", "i-exp")
STEPS = 32
"""Standard deviation of int8 scores, in steps."""
CHUNK = 1 << 19
"""Elements at a time."""
DEEP = 64
"""Elements of a head."""


def configuration(name: str) -> Config:
    """Return a board's own configuration, a preset, or the configuration in a file."""
    return BOARDS[name].config if name in BOARDS else Config.load(name)


def score_multiplier(nats: float, bits: int = 24) -> tuple[np.ndarray, np.ndarray]:
    """Mantissa of less than `bits` bits and shift, as columns' parameters, for scores in steps of `nats`."""
    value = nats * math.log2(math.e) * numerics.OCTAVE
    shift = bits - 1 - math.frexp(value)[1]
    return np.array([round(value * 2.0**shift)]), np.array([shift])


def output_multiplier(multiplier: float) -> tuple[int, int]:
    """Return scale and exponent of `weft.hdl.isa.Normalise`."""
    exponent = 7 - math.frexp(multiplier)[1]
    return min(round(multiplier * 2.0 ** (exponent + 9)), 65535), exponent


class Block:
    """Rows of block floating point probabilities, as the unit makes them from scores (rows, columns).

    `group` is how many columns share an exponent, instead of N.
    """

    def __init__(self, scores: np.ndarray, nats: float, config: Config, group: int = 0) -> None:
        mantissa, shift = score_multiplier(nats, config.mantissa_bits)
        none = np.zeros(1, np.int64)
        if scores.dtype == np.int8:
            levels = numerics.octave_logits(np.arange(-128, 128)[:, None], none, mantissa, shift)
            y = levels.ravel().astype(np.int32)[scores.astype(np.intp) + 128]
        else:
            y = numerics.octave_logits(scores[..., None], none, mantissa, shift)[..., 0].astype(np.int32)
        self.n = group or config.n
        self.width, padding = scores.shape[1], -scores.shape[1] % self.n
        y = np.pad(y, ((0, 0), (0, padding))).reshape(len(scores), -1, self.n)
        table = np.frombuffer(config.exp2_table, np.uint8)
        valid = (np.arange(self.width + padding) < self.width).reshape(-1, self.n)
        e = numerics.group_exponents(y, valid)
        self.p = numerics.probabilities(y, valid, e, table)
        totals = self.p.sum(axis=-1, dtype=np.int64)
        self.m, self.sums = np.full(len(scores), numerics.LOWEST, np.int64), np.zeros(len(scores), np.int64)
        self.alignments = np.empty(e.shape, np.int64)
        for group in range(e.shape[1]):
            self.m, self.sums, self.alignments[:, group] = numerics.update(
                self.m, self.sums, e[:, group].astype(np.int64), totals[:, group]
            )
        self.final = numerics.final_alignment(self.m[:, None], e)

    def probabilities(self) -> np.ndarray:
        """float64: ``p * 2**-(m - e) * 256 / l``, not rounded any further."""
        factor = 256 * 2.0**-self.final / self.sums[:, None]
        return (self.p * factor[..., None]).reshape(len(self.p), -1)[:, : self.width]

    def output(self) -> np.ndarray:
        """Return the stand-alone operator's result, 0 to 255: `weft.sim.golden.vector.normalise` of products that
        float64 can hold."""
        scale, exponent = output_multiplier(255.0)
        bits, r = numerics.reciprocal(self.sums, scale)
        shift = np.clip(bits[:, None] + exponent + self.final, 0, 63)
        result = np.minimum(np.rint(self.p * (r[:, None] * 2.0**-shift)[..., None]), 255)
        return result.reshape(len(self.p), -1)[:, : self.width]

    def attend(self, v: np.ndarray, multiplier: float) -> np.ndarray:
        """Return fused attention's int8 result (rows, elements)."""
        total = np.zeros((len(self.p), v.shape[1]), np.int64)
        v = np.pad(v.astype(np.float64), ((0, -len(v) % self.n), (0, 0)))  # sums of N products are exact
        for group in range(self.p.shape[1]):
            shift = self.alignments[:, group, None]
            products = (self.p[:, group] @ v[group * self.n : (group + 1) * self.n]).astype(np.int64)
            total = wrap(rsh(total, np.maximum(shift, 0)) + rsh(products, np.maximum(-shift, 0)))
        scale, exponent = output_multiplier(multiplier)
        result = numerics.normalise_row(
            total[:, None], self.sums, scale=scale, exponent=exponent, v_zero=0, alignment=0
        )
        return np.clip(result[:, 0], -128, 127)


def plain(below: np.ndarray) -> np.ndarray:
    """Return 8-bit powers of scores `below` nats under their maximum."""
    return np.rint(255 * np.exp(-below))


def i_exp(below: np.ndarray) -> np.ndarray:
    """Return powers by algorithms 1 and 2 of the paper with its coefficients; integers, in an arbitrary unit."""
    scale, ln2 = 1 / 1024, math.log(2)
    a, b, c = 0.3585, 1.353, 0.344
    q = -np.rint(below / scale).astype(np.int64)
    z = -q // math.floor(ln2 / scale)
    q = q + z * math.floor(ln2 / scale)
    polynomial = (q + math.floor(b / scale)) ** 2 + math.floor(c / (a * scale * scale))
    return (polynomial >> np.minimum(z, 62)).astype(np.float64)


POWERS: dict[str, Callable[[np.ndarray], np.ndarray]] = {"plain": plain, "i-exp": i_exp}


def from_powers(scores: np.ndarray, nats: float, power: Callable[[np.ndarray], np.ndarray]) -> np.ndarray:
    """Return probabilities of int8 scores (rows, columns) from a function of the distance below the maximum."""
    below = scores.max(axis=1, keepdims=True).astype(np.intp) - scores
    values = power(np.arange(256) * nats)[below]
    return values / values.sum(axis=1, keepdims=True)


@dataclass
class Errors:
    """Errors of probabilities and of the 8-bit output, over all added rows."""

    largest: float = 0
    above: int = 0
    row_sum: float = 0
    variation: float = 0
    output: float = 0
    squares: float = 0
    elements: int = 0

    def add(self, approximated: np.ndarray, exact: np.ndarray, output: np.ndarray) -> None:
        difference = np.abs(approximated - exact)
        worst = 255 * difference.max(axis=1)
        self.largest = max(self.largest, float(worst.max()))
        self.above += int((worst > 3).sum())
        self.row_sum = max(self.row_sum, float(np.abs(approximated.sum(axis=1) - 1).max()))
        self.variation = max(self.variation, float(difference.sum(axis=1).max()) / 2)
        error = output - 255 * exact
        self.output = max(self.output, float(np.abs(error).max()))
        self.squares += float(np.vdot(error, error))
        self.elements += error.size

    @property
    def rms(self) -> float:
        return math.sqrt(self.squares / self.elements)


def probabilities(
    length: int,
    sigma: float,
    rows: int,
    config: Config,
    rng: np.random.Generator,
    methods: tuple[str, ...] = METHODS,
) -> dict[str, Errors]:
    """Return the errors of each method over `rows` rows of `length` Gaussian scores."""
    nats = sigma / STEPS
    errors = {method: Errors() for method in methods}
    for low in range(0, rows, max(1, CHUNK // length)):
        count = min(rows - low, max(1, CHUNK // length))
        normal = rng.standard_normal((count, length), np.float32) * STEPS
        scores = np.clip(np.rint(normal), -128, 127).astype(np.int8)
        exact = from_powers(scores, nats, lambda below: np.exp(-below))
        for method, error in errors.items():
            if method == "block":
                unit = Block(scores, nats, config)
                error.add(unit.probabilities(), exact, unit.output())
            else:
                approximated = from_powers(scores, nats, POWERS[method])
                error.add(approximated, exact, np.rint(255 * approximated))
    return errors


@dataclass
class Head:
    """Random int8 operands, and float64 attention of them."""

    q: np.ndarray
    k: np.ndarray
    v: np.ndarray
    nats: float

    @classmethod
    def random(cls, keys: int, sigma: float, sink: bool, rng: np.random.Generator, rows: int = 64) -> Head:
        q, k, v = (
            np.clip(np.rint(rng.normal(0, 40, (count, DEEP))), -128, 127).astype(np.int8)
            for count in (rows, keys, keys)
        )
        nats = sigma / (40 * 40 * math.sqrt(DEEP))
        if sink:
            along = math.ceil(10 / nats / (100 * 127))  # elements that make a sink of 10 nats
            q[:, :along], k[:, :along], k[0] = 100, 0, 0
            k[0, :along] = round(10 / nats / (100 * along))
            v[0] = 0
        return cls(q, k, v, nats)

    @property
    def scores(self) -> np.ndarray:
        return (self.q.astype(np.float64) @ self.k.T.astype(np.float64)).astype(np.int64)

    def attend(self, power: Callable[[np.ndarray], np.ndarray]) -> np.ndarray:
        """Return float64 attention from a function of the distance below the maximum, in nats."""
        scores = self.scores
        values = power((scores.max(axis=1, keepdims=True) - scores) * self.nats)
        return values @ self.v.astype(np.float64) / values.sum(axis=1, keepdims=True)


def fused_errors(head: Head, config: Config, *, full: bool) -> dict[str, float]:
    """Return RMS errors of attention's int8 results by each method, in steps of the output."""
    exact = head.attend(lambda below: np.exp(-below))
    multiplier = 127 / float(np.abs(exact).max()) if full else 1.0
    results = {"block": Block(head.scores, head.nats, config).attend(head.v, multiplier).astype(np.float64)}
    for method, power in POWERS.items():
        results[method] = np.clip(np.rint(multiplier * head.attend(power)), -128, 127)
    return {
        method: math.sqrt(float(np.mean((value - multiplier * exact) ** 2)))
        for method, value in results.items()
    }


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--config", default="default", help="a preset, a board or a file")
    parser.add_argument("--rows", type=int, default=2000, help="rows of each length")
    parser.add_argument("--methods", default=",".join(METHODS), help="probabilities to measure")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--skip-fused", action="store_true")
    options = parser.parse_args()
    config, rng = configuration(options.config), np.random.default_rng(options.seed)
    print_probabilities(config, rng, options.rows, tuple(options.methods.split(",")))
    if not options.skip_fused:
        print_fused(config, rng)
    return 0


def print_probabilities(
    config: Config, rng: np.random.Generator, rows: int, methods: tuple[str, ...]
) -> None:
    print(f"{rows} rows of each length, N = {config.n}, {config.probability_bits}-bit probabilities:\n")
    columns = (
        "length, sigma, method, largest error, above 3, row sum less 1, total variation, output: largest, RMS"
    )
    print("| " + columns.replace(", ", " | ") + " |\n" + "|---" * 9 + "|")
    for length in LENGTHS:
        for sigma in SIGMAS:
            share = -(-rows // len(SIGMAS))
            for method, error in probabilities(length, sigma, share, config, rng, methods).items():
                print(
                    f"| {length} | {sigma} | {method} | {error.largest:.3f} | {error.above} | {error.row_sum:.4f}"
                    f" | {error.variation:.4f} | {error.output:.2f} | {error.rms:.3f} |",
                    flush=True,
                )


def print_fused(config: Config, rng: np.random.Generator) -> None:
    print("\nFused attention, RMS error in steps of the output:\n")
    print("| keys | sigma | case | output | block | plain | i-exp |\n|---|---|---|---|---|---|---|")
    for keys in (64, 256, 1024, 4096):
        for sigma, sink in ((0.5, False), (1.0, False), (2.0, False), (4.0, False), (1.0, True), (2.0, True)):
            head = Head.random(keys, sigma, sink, rng)
            for full in (False, True):
                result = fused_errors(head, config, full=full)
                print(
                    f"| {keys} | {sigma} | {'sink' if sink else 'alike'} | {'full' if full else '1'} |"
                    f" {' | '.join(f'{result[method]:.2f}' for method in METHODS)} |",
                    flush=True,
                )


if __name__ == "__main__":
    sys.exit(main())
