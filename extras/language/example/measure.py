"""Measure a language model on texts that training has not seen: ``python -m weft.extras.language.example.measure``."""

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
"""Of the problems that models are measured with."""
WINDOW = 256
"""Tokens that are seen at once."""
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
    """What was measured, the result, and of how many: tokens of a text, or problems."""

    what: str
    value: float
    count: int

    def __str__(self) -> str:
        return f"{self.what:<48} {self.value:9.4f}  of {self.count:,}"


def texts() -> dict[str, list[str]]:
    """Texts that are held out, by what they are."""
    mixed = Problems(SEED, held=True)
    return {
        f"prose of Python {platform.python_version()}": prose(held=True),
        "prose of weft": example.held_out(),
        "problems": [mixed.any().text for _ in range(COUNT)],
    }


def problems(kind: str, count: int = COUNT) -> list[Problem]:
    """Problems of a kind that are held out."""
    made = Problems(SEED, held=True)
    return [KINDS[kind](made) for _ in range(count)]


def joined(tokenizer: Tokenizer, some: Iterable[str]) -> list[int]:
    """The tokens of texts behind each other, each with the token for the begin in front."""
    return [token for text in some for token in tokenizer.encode(text)]


def unigram(seen: Sequence[int], wanted: Sequence[int], size: int) -> float:
    """The perplexity of tokens that are guessed by how often each was seen, and by nothing else."""
    counts = np.bincount(seen, minlength=size) + 1.0
    return math.exp(-np.log(counts / counts.sum())[np.asarray(wanted)].mean())


def right(logits: Callable[[Sequence[int]], np.ndarray], tokenizer: Tokenizer, problem: Problem) -> bool:
    """Whether the most probable tokens behind a question are its answer."""
    given, whole = tokenizer.encode(problem.question), tokenizer.encode(problem.text)
    if whole[: len(given)] != given:
        raise ValueError(f"the tokens of {problem.question!r} change with what follows it")
    best = logits(whole[:-1]).argmax(axis=-1)[len(given) - 1 :]
    return best.tolist() == whole[len(given) :]


def measured(model: LanguageModel) -> Iterator[Line]:
    """Perplexities of the texts, and shares of problems that are solved, in float32."""
    logits, tokenizer = Reference(model).logits, Tokenizer(model.vocabulary)
    for what, some in texts().items():
        found = perplexity(logits, joined(tokenizer, some), window=WINDOW)
        yield Line(f"perplexity, {what}", found.value, found.tokens)
    for kind in KINDS:
        solved = [right(logits, tokenizer, problem) for problem in problems(kind)]
        yield Line(f"solved, {kind}", float(np.mean(solved)), len(solved))


def chance(model: LanguageModel) -> Iterator[Line]:
    """The perplexities that one has who only knows how frequent tokens are in the prose that was trained on."""
    tokenizer, size = Tokenizer(model.vocabulary), model.sizes.vocabulary
    seen = joined(tokenizer, prose(held=False))
    yield Line("perplexity, chance", size, size)
    for what, some in texts().items():
        wanted = joined(tokenizer, some)[1:]
        yield Line(f"perplexity by frequency, {what}", unigram(seen, wanted, size), len(wanted))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", nargs="?", type=Path, help="a GGUF file; the example's if not given")
    path = parser.parse_args().model
    model = read(example.model() if path is None else path)
    for line in (*chance(model), *measured(model)):
        print(line, flush=True)


if __name__ == "__main__":
    main()
