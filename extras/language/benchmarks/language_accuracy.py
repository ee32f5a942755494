"""Accuracy cost of a decoder's integer arithmetic, on the example's language model and held-out texts.

    python extras/language/benchmarks/language_accuracy.py [TABLE ...] [--tokens 4096] [--problems 100] [--write PAGE]

Tables are `budget` (perplexities in float32 and on the device, for types of weights), `errors` (of logits and products,
also for products in blocks as processors compute them), `causes` (each rounding alone, and all others without it) and
`keys` (the device's steps of keys and values, and others). Windows of 256 tokens do not overlap. The device is the
golden interpreter with `default`; ranges are those of texts that the model generates. ``--write`` puts each table
between its two comments in a page, extras/language/README.md.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import platform
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

import weft.extras.language.run.lm
from weft.extras.language import example
from weft.extras.language.benchmarks.language_blocks import BlockArithmetic, product
from weft.extras.language.benchmarks.language_measures import (
    QUANTILES,
    Difference,
    Logits,
    Text,
    answers,
    difference,
)
from weft.extras.language.benchmarks.language_roundings import (
    DEVICE,
    Rounded,
    Roundings,
    device_product,
    magnitudes,
)
from weft.extras.language.compiler.integers import BYTE_MARGIN, Integers
from weft.extras.language.compiler.model import BlockTensor, LanguageModel, Linear, dense
from weft.extras.language.compiler.reference import Reference
from weft.extras.language.compiler.tokenizer import Tokenizer
from weft.extras.language.example import measure
from weft.extras.language.gguf.reader import read
from weft.extras.language.gguf.writer import write
from weft.extras.language.run.lm_ranges import generate_texts
from weft.hdl.isa.config import Config

sys.path.append(str(Path(__file__).resolve().parents[3] / "benchmarks"))

from pages import rewrite

PRESET = "default"
ROWS = 16
"""Tokens of a window that the device computes in a batch."""
BEGIN, END = "<!-- accuracy: {} -->\n", "<!-- end -->\n"
FILES: dict[str, dict[str, str] | None] = {
    "Q8_0": None,
    "Q4_0": {},
    "Q4_0, embeddings Q8_0": {"token_embd.weight": "Q8_0"},
}
"""Types of matrices: None keeps those of the example's file; else Q4_0 except for these tensors."""
BLOCK = 2
"""Index of the block whose products are compared."""
PRODUCTS = ("query", "key", "value", "attention_output", "gate", "up", "down")
CAUSES: dict[str, dict[str, object]] = {
    "weights: int8, a scale for each row, but one for all of queries and of keys": {"weights": "device"},
    "weights: int8, a scale for each row of all matrices": {"weights": "row"},
    "inputs of products: int8 by a power of two for each token": {"normal": True, "gated": True},
    "inputs of products after norms": {"normal": True},
    "inputs of products after gates": {"gated": True},
    "queries: int8, fixed steps": {"query": "device"},
    "keys: int8, fixed steps": {"key": "device"},
    "values: int8, fixed steps": {"value": "device"},
    "attention's results: int8, fixed steps": {"mixed": "device"},
    "probabilities: 8 bits, exponents for 16 keys": {"probabilities": 8},
    "probabilities: 7 bits": {"probabilities": 7},
    "residual stream: 24 bits, fixed steps": {"residual": 24},
    "residual stream: 16 bits, fixed steps": {"residual": 16},
    "after the gate: 16 bits, fixed steps": {"inner": True},
    "sigmoid: a table, interpolated": {"table": True},
    "logits: 16 bits, fixed steps": {"logits": True},
}
"""Roundings, each alone."""
SCHEMES: dict[str, tuple[str, Sequence[float]]] = {
    "of the device, for each block": ("device", (1.0, 1.25, 1.5)),
    "fixed for each block, by rotated keys": ("block", (1.0, 1.25, 1.5)),
    "fixed for each head": ("head", (1.0, 1.25, 1.5)),
    "a power of two for each head of a token": ("power", (BYTE_MARGIN,)),
    "any number for each head of a token": ("free", (BYTE_MARGIN,)),
    "not rounded": ("", (BYTE_MARGIN,)),
}
"""Steps of keys and values, with their margins over the range of a text."""


@dataclass(frozen=True)
class Measured:
    """Measurements of logits: differences from float32 of one file, and solved problems."""

    texts: list[Difference]
    solved: Mapping[str, list[bool]]

    @property
    def divergence(self) -> float:
        """Return the mean over all texts."""
        return float(np.mean([item.divergence for item in self.texts]))

    @property
    def error(self) -> float:
        return float(np.sqrt(np.mean([item.error**2 for item in self.texts])))

    @property
    def all_solved(self) -> list[bool]:
        return [one for some in self.solved.values() for one in some]


class Case:
    """A file of the example's model, with held-out texts and problems.

    Parameters
    ----------
    kinds : dict of str to str, or None
        None keeps the example's file; else its matrices become Q4_0, except for these tensors.
    texts : dict of str to list of int
        Tokens by name.
    problems : int
        Number of problems of each kind.
    """

    def __init__(
        self, kinds: dict[str, str] | None, texts: Mapping[str, Sequence[int]], problems: int
    ) -> None:
        self._content, self.model = _convert(kinds)
        self.reference, self._problems = Reference(self.model), problems
        self.tokenizer = Tokenizer(self.model.vocabulary)
        self.texts = [Text.of(name, tokens, self.reference.logits) for name, tokens in texts.items()]

    def device(self) -> weft.extras.language.run.lm.Model:
        return weft.extras.language.run.lm.load(self._content, PRESET, rows=ROWS)

    def measure(self, logits: Logits, *, solve: bool = True) -> Measured:
        solved = answers(logits, self.tokenizer, self._problems) if solve else {}
        return Measured([difference(text, logits) for text in self.texts], solved)

    @functools.cached_property
    def texts_on_device(self) -> Measured:
        with self.device() as device:
            return self.measure(device.logits, solve=False)

    @functools.cached_property
    def on_device(self) -> Measured:
        with self.device() as device:
            return replace(
                self.texts_on_device, solved=answers(device.logits, self.tokenizer, self._problems)
            )

    @functools.cached_property
    def exact(self) -> Measured:
        return self.measure(self.reference.logits)

    @functools.cached_property
    def block_arithmetic(self) -> Measured:
        return self.measure(BlockArithmetic(self.model).logits)

    @functools.cached_property
    def numbers(self) -> tuple[Integers, Config]:
        with self.device() as device:
            return device.decoder.numbers, device.decoder.config

    @functools.cached_property
    def magnitudes(self) -> dict[str, np.ndarray]:
        return magnitudes(*self.numbers, generate_texts(self.reference))

    def apply(self, roundings: Roundings, *, solve: bool = False) -> Measured:
        return self.measure(Rounded(*self.numbers, roundings, self.magnitudes).logits, solve=solve)


def _convert(kinds: dict[str, str] | None) -> tuple[bytes, LanguageModel]:
    content = example.model()
    if kinds is None:
        return content, read(content)
    with tempfile.TemporaryDirectory(prefix="weft-") as folder:
        path = Path(folder) / "model.gguf"
        model = write(read(content), path, "Q4_0", kinds)
        return path.read_bytes(), model


class Bench:
    """Cache of cases.

    Parameters
    ----------
    tokens : int
        Maximum number of tokens of each text.
    problems : int
        Number of problems of each kind.
    """

    def __init__(self, tokens: int, problems: int) -> None:
        self._problems, tokenizer = problems, Tokenizer(read(example.model()).vocabulary)
        self.texts = {
            name.removesuffix(f" {platform.python_version()}"): measure.encode_all(tokenizer, some)[:tokens]
            for name, some in measure.texts().items()
        }
        self._cases: dict[str, Case] = {}

    def case(self, name: str) -> Case:
        if name not in self._cases:
            self._cases[name] = Case(FILES[name], self.texts, self._problems)
        return self._cases[name]


def table(header: Sequence[str], rows: Iterator[Sequence[str]]) -> str:
    """Return a table's rows, printing each as it is computed."""
    lines = []
    for cells in itertools.chain([header, ["---"] * len(header)], rows):
        lines.append(f"| {' | '.join(cells)} |\n")
        print(lines[-1], end="", flush=True)
    return "".join(lines)


def budget(bench: Bench) -> str:
    """Measure perplexities of each file in float32, with block products, and on the device."""
    stored = bench.case("Q8_0").exact.texts
    names = [f"{text.name} ({text.tokens:,})" for text in bench.case("Q8_0").texts]

    def row(name: str, arithmetic: str, result: Measured) -> list[str]:
        cells = []
        for item, before in zip(result.texts, stored, strict=True):
            parts = (
                [] if item.perplexity == before.perplexity else [_percent(item.perplexity / before.exact - 1)]
            )
            if arithmetic != "float32":
                parts.append(f"{_percent(item.change)} ± {100 * item.deviation:.2f}")
            cells.append(f"{item.perplexity:.3f}" + (f" ({'; '.join(parts)})" if parts else ""))
        return [name, arithmetic, *cells, *(str(sum(some)) for some in result.solved.values())]

    def rows() -> Iterator[list[str]]:
        for name in FILES:
            case = bench.case(name)
            yield row(name, "float32", case.exact)
            yield row(name, "in blocks", case.block_arithmetic)
            yield row(name, "device", case.on_device)

    return table(["weights", "arithmetic", *names, *measure.KINDS], rows())


def _percent(part: float) -> str:
    return f"{100 * part:+.2f} %"


def errors(bench: Bench) -> str:
    """Measure errors of logits by quantile, and of a block's products, relative to the standard deviation."""

    def logits() -> Iterator[list[str]]:
        for name in FILES:
            case = bench.case(name)
            for arithmetic, result in (("in blocks", case.block_arithmetic), ("device", case.on_device)):
                every = np.abs(np.concatenate([item.errors for item in result.texts]))
                parts = [f"{part:.4f}" for part in (result.error, *np.quantile(every, QUANTILES))]
                yield [name, arithmetic, *parts]

    def products() -> Iterator[list[str]]:
        results = [product_errors(bench.case(name)) for name in FILES if "," not in name]
        for name in PRODUCTS:
            yield [name.replace("_", " "), *(f"{part:.4f}" for result in results for part in result[name])]

    head = ["logits of", "arithmetic", "RMS", *(f"{100 * part:g} %" for part in QUANTILES)]
    arithmetics = [f"{name} {how}" for name in FILES if "," not in name for how in ("in blocks", "device")]
    first = table(head, logits())
    print()
    return f"{first}\n{table([f'products of block {BLOCK}', *arithmetics], products())}"


class _Inputs(Reference):
    """Records the inputs of products."""

    def __init__(self, model: LanguageModel) -> None:
        super().__init__(model)
        self.recorded: dict[int, list[np.ndarray]] = {}

    def _linear(self, linear: Linear, x: np.ndarray) -> np.ndarray:
        self.recorded.setdefault(id(linear), []).append(x)
        return super()._linear(linear, x)


def product_errors(case: Case) -> dict[str, tuple[float, float]]:
    """Return RMS errors of a block's products for equal inputs, in blocks and on the device."""
    inputs = _Inputs(case.model)
    for text in case.texts:
        inputs.logits(text.windows[0])
    result = {}
    for name in PRODUCTS:
        linear = getattr(case.model.blocks[BLOCK], name)
        x = np.concatenate(inputs.recorded[id(linear)])
        assert isinstance(linear.weight, BlockTensor)
        exact = x @ dense(linear.weight).T
        results = product(linear.weight, x), device_product(case.numbers[0], BLOCK, name, x)
        first, second = (float(np.sqrt(np.mean((item - exact) ** 2)) / exact.std()) for item in results)
        result[name] = first, second
    return result


def causes(bench: Bench) -> str:
    """Measure the cost of each rounding alone, and of all others without it."""
    case = bench.case("Q8_0")
    none = Roundings()

    def row(rounding: str, alone: Measured | None, without: Measured | None) -> list[str]:
        cells = ["-"] * 2 + ["-"] * len(case.texts)
        if alone is not None:
            changes = [f"{_percent(item.change)} ± {100 * item.deviation:.2f}" for item in alone.texts]
            cells = [f"{alone.error:.4f}", f"{1e3 * alone.divergence:.2f}", *changes]
        return [rounding, *cells, "-" if without is None else f"{1e3 * without.divergence:.2f}"]

    def rows() -> Iterator[list[str]]:
        yield row("the device itself", case.texts_on_device, None)
        yield row("all of these in float32", case.apply(DEVICE), None)
        for rounding, change in CAUSES.items():
            # Alternatives replace the device's own rounding.
            own = all(getattr(DEVICE, name) == value for name, value in change.items())
            other = {name: getattr(none, name) for name in change} if own else change
            yield row(rounding, case.apply(replace(none, **change)), case.apply(replace(DEVICE, **other)))  # type: ignore[arg-type]

    names = [text.name for text in case.texts]
    return table(["rounding", "error", "divergence", *names, "all but this"], rows())


def keys(bench: Bench) -> str:
    """Measure step sizes of keys and values, alone and with all other roundings of the device."""
    case = bench.case("Q8_0")
    exact = case.exact.all_solved

    def rows() -> Iterator[list[str]]:
        for scheme, (how, rooms) in SCHEMES.items():
            for room in rooms:
                alone = case.apply(Roundings(key=how, value=how, room=room))
                result = case.apply(replace(DEVICE, key=how, value=how, room=room), solve=True)
                changes = [f"{_percent(item.change)} ± {100 * item.deviation:.2f}" for item in result.texts]
                changed = sum(a != b for a, b in zip(result.all_solved, exact, strict=True))
                yield [
                    scheme, f"{room:g}" if len(rooms) > 1 else "", f"{1e3 * alone.divergence:.2f}",
                    f"{1e3 * result.divergence:.2f}", *changes, f"{sum(result.all_solved)}", f"{changed}",
                ]  # fmt: skip

    names = [text.name for text in case.texts]
    solved = f"solved ({sum(exact)} of {len(exact)})"
    return table(
        ["steps of keys and values", "room", "alone", "divergence", *names, solved, "changed"], rows()
    )


TABLES: dict[str, Callable[[Bench], str]] = {
    "budget": budget,
    "errors": errors,
    "causes": causes,
    "keys": keys,
}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("tables", nargs="*", metavar="TABLE", help=f"{', '.join(TABLES)}; all by default")
    parser.add_argument("--tokens", type=int, default=4096, help="maximum number of tokens of each text")
    parser.add_argument("--problems", type=int, default=100, help="number of problems of each kind")
    parser.add_argument("--write", type=Path, help="also put the tables into this file")
    arguments = parser.parse_args()
    if unknown := set(arguments.tables) - set(TABLES):
        parser.error(f"there is no table {min(unknown)!r}; there are {', '.join(TABLES)}")
    bench = Bench(arguments.tokens, arguments.problems)
    for name in arguments.tables or TABLES:
        print(f"\n{name}\n", flush=True)
        text = TABLES[name](bench)
        if arguments.write:
            rewrite(arguments.write, BEGIN.format(name), END, text)


if __name__ == "__main__":
    main()
