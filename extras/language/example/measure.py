"""Measure a language model on held-out texts: ``python -m weft.extras.language.example.measure``."""

from __future__ import annotations

import argparse
import math
import platform
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from weft.extras.language import example
from weft.extras.language.compiler.model import LanguageModel
from weft.extras.language.compiler.reference import Reference, perplexity
from weft.extras.language.compiler.tokenizer import Tokenizer
from weft.extras.language.example.corpus import Problem, Problems, prose
from weft.extras.language.gguf.reader import read

SEED = 2
"""Seed of the problems that measure models."""
WINDOW = 256
"""Tokens of a window of perplexities."""
COUNT = 200
"""Problems of each kind."""
KINDS: dict[str, Callable[[Problems], Problem]] = {
    "sums": Problems.sum,
    "stories": Problems.story,
    "letters": Problems.letters,
}
"""Kinds of problems by name."""


@dataclass(frozen=True)
class Line:
    """A measure, its value, and the number of tokens or problems that it is a mean of."""

    title: str
    value: float
    count: int

    def __str__(self) -> str:
        return f"{self.title:<48} {self.value:9.4f}  of {self.count:,}"


def texts() -> dict[str, list[str]]:
    """Return held-out texts by name."""
    mixed = Problems(SEED, held=True)
    return {
        f"prose of Python {platform.python_version()}": prose(held=True),
        "prose of weft": example.held_out(),
        "problems": [mixed.any().text for _ in range(COUNT)],
    }


def problems(kind: str, count: int = COUNT) -> list[Problem]:
    """Return held-out problems of a kind."""
    drawn = Problems(SEED, held=True)
    return [KINDS[kind](drawn) for _ in range(count)]


def encode_all(tokenizer: Tokenizer, samples: Iterable[str]) -> list[int]:
    """Return the tokens of all texts in one list; each text starts with the begin token."""
    return [token for text in samples for token in tokenizer.encode(text)]


def unigram(seen: Sequence[int], wanted: Sequence[int], size: int) -> float:
    """Return the perplexity of tokens `wanted` if predicted only by their frequencies in `seen`."""
    counts = np.bincount(seen, minlength=size) + 1.0
    return math.exp(-np.log(counts / counts.sum())[np.asarray(wanted)].mean())


def solves(logits: Callable[[Sequence[int]], np.ndarray], tokenizer: Tokenizer, problem: Problem) -> bool:
    """Return whether the most probable tokens after a question are its answer."""
    question, text = tokenizer.encode(problem.question), tokenizer.encode(problem.text)
    if text[: len(question)] != question:
        raise ValueError(f"the tokens of {problem.question!r} change with what follows it")
    best = logits(text[:-1]).argmax(axis=-1)[len(question) - 1 :]
    return best.tolist() == text[len(question) :]


def measure_model(model: LanguageModel) -> Iterator[Line]:
    """Yield perplexities of the texts and shares of solved problems, in float32."""
    logits, tokenizer = Reference(model).logits, Tokenizer(model.vocabulary)
    for name, samples in texts().items():
        result = perplexity(logits, encode_all(tokenizer, samples), window=WINDOW)
        yield Line(f"perplexity, {name}", result.value, result.tokens)
    for kind in KINDS:
        solved = [solves(logits, tokenizer, problem) for problem in problems(kind)]
        yield Line(f"solved, {kind}", float(np.mean(solved)), len(solved))


def measure_baselines(model: LanguageModel) -> Iterator[Line]:
    """Yield the perplexities of equally probable tokens, and of tokens as frequent as in the training prose."""
    tokenizer, size = Tokenizer(model.vocabulary), model.sizes.vocabulary
    seen = encode_all(tokenizer, prose(held=False))
    yield Line("perplexity, chance", size, size)
    for name, samples in texts().items():
        wanted = encode_all(tokenizer, samples)[1:]
        yield Line(f"perplexity by frequency, {name}", unigram(seen, wanted, size), len(wanted))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", nargs="?", type=Path, help="a GGUF file; the example's if not given")
    path = parser.parse_args().model
    model = read(example.model() if path is None else path)
    for line in (*measure_baselines(model), *measure_model(model)):
        print(line, flush=True)


if __name__ == "__main__":
    main()
