"""Train and store the language model: ``pip install -e '.[lm,train]'``, then run this file.

It writes ``model.gguf`` next to itself: a Llama of 1.8 million parameters, its matrices of type ``Q8_0``.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from sentencepiece import SentencePieceProcessor
from torch import nn

from weft.extras.language.compiler.model import Vocabulary
from weft.extras.language.compiler.reference import Reference
from weft.extras.language.compiler.tokenizer import Tokenizer
from weft.extras.language.example import measure, pieces
from weft.extras.language.example.corpus import Problems, prose
from weft.extras.language.example.network import SIZES, Network, language_model, parameters
from weft.extras.language.gguf.writer import write

SEED = 7
STEPS = 2000
BATCH = 8
TOKENS = 128
"""Of each row of a batch; what a block does at a position is the same for later ones, as queries and keys turn."""
PROBLEMS = 0.6
"""The share of rows with problems; all others are prose."""
RATE = 6e-3
WARM_UP = 60
EVERY = 100
"""Steps from one line of progress to the next."""
LEAST_SOLVED = 0.8
"""Of the sums."""
VOCABULARY_PROBLEMS = 3000
"""Problems among the texts that the vocabulary is made of."""


class Rows:
    """Rows of tokens to train on: problems that never repeat, or prose from a random place on."""

    def __init__(self, processor: SentencePieceProcessor, texts: list[str]) -> None:
        self._random = np.random.default_rng(SEED)
        self._processor = processor
        self._problems, self._waiting = Problems(SEED, held=False), np.zeros(0, np.int64)
        self._prose = self._joined([texts[at] for at in self._random.permutation(len(texts))])

    def _joined(self, texts: list[str]) -> np.ndarray:
        encoded = self._processor.encode(texts, add_bos=True)
        return np.concatenate([np.array(item, np.int64) for item in encoded])

    def _row(self) -> np.ndarray:
        if self._random.random() >= PROBLEMS:
            start = self._random.integers(len(self._prose) - TOKENS)
            return self._prose[start : start + TOKENS + 1]
        while len(self._waiting) <= TOKENS:
            made = self._joined([self._problems.any().text for _ in range(1000)])
            self._waiting = np.concatenate([self._waiting, made])
        row, self._waiting = np.split(self._waiting, [TOKENS + 1])
        return row

    def __iter__(self) -> Iterator[torch.Tensor]:
        """Batches (batch, tokens + 1), each token but the first to be foretold."""
        while True:
            yield torch.from_numpy(np.stack([self._row() for _ in range(BATCH)]))


def vocabulary(texts: list[str]) -> tuple[Vocabulary, SentencePieceProcessor]:
    """The vocabulary, with which weft makes the same tokens of all texts as SentencePiece does."""
    made = Problems(SEED, held=False)
    texts = [*texts, *(made.any().text for _ in range(VOCABULARY_PROBLEMS))]
    known, processor = pieces.train(texts, SIZES.vocabulary)
    tokenizer = Tokenizer(known)
    for text, expected in zip(texts, processor.encode(texts, add_bos=True), strict=True):
        if tokenizer.encode(text) != expected:
            raise SystemExit(f"weft's tokens of {text!r} are not SentencePiece's")
    return known, processor


def optimisers(network: Network) -> list[torch.optim.Optimizer]:
    """Muon for the matrices of blocks, which learns more from as many tokens than AdamW, and AdamW for the rest."""
    matrices = [item for item in network.blocks.parameters() if item.ndim == 2]
    norms = [item for item in network.parameters() if item.ndim == 1]
    return [
        torch.optim.Muon(matrices, momentum=0.95, weight_decay=0.1, adjust_lr_fn="match_rms_adamw"),
        torch.optim.AdamW([network.embedding.weight, *norms], betas=(0.9, 0.95), weight_decay=0.0),
    ]


def train(rows: Rows, tokenizer: Tokenizer, steps: int) -> Network:
    torch.manual_seed(SEED)
    network = Network()
    print(f"{parameters(network):,} parameters, {steps * BATCH * TOKENS:,} tokens", flush=True)
    chosen, begin = optimisers(network), time.monotonic()
    sums, losses = measure.problems("sums", 50), []
    for step, batch in zip(range(steps), rows, strict=False):
        rate = RATE * min(1, (step + 1) / WARM_UP) * (1 - step / steps)
        for group in (group for optimiser in chosen for group in optimiser.param_groups):
            group["lr"] = rate
        loss = network.loss(batch)
        loss.backward()
        nn.utils.clip_grad_norm_(network.parameters(), 1.0)
        for optimiser in chosen:
            optimiser.step()
            optimiser.zero_grad()
        losses.append(loss.item())
        if step % EVERY == EVERY - 1:
            mean, seconds = np.mean(losses[-EVERY:]), time.monotonic() - begin
            solved = np.mean([measure.right(network.logits, tokenizer, item) for item in sums])
            print(f"step {step + 1}, {seconds:.0f} s, loss {mean:.3f}, sums {solved:.0%}", flush=True)
    return network.eval()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, default=Path(__file__).parent, help="folder to write to")
    parser.add_argument("--steps", type=int, default=STEPS, help=f"steps of training; {STEPS} by default")
    parser.add_argument("--threads", type=int, help="of PyTorch; as many as there are cores by default")
    options = parser.parse_args()
    if options.threads is not None:
        torch.set_num_threads(options.threads)
    texts = prose(held=False)
    known, processor = vocabulary(texts)
    network = train(Rows(processor, texts), Tokenizer(known), options.steps)

    made = language_model(network, "weft example", known)
    some = list(range(TOKENS))
    difference = np.abs(Reference(made).logits(some) - network.logits(some)).max()
    print(f"float32, weft's reference; PyTorch's logits differ by {difference:.1e} at most", flush=True)
    print(*measure.chance(made), *measure.measured(made), sep="\n", flush=True)
    target = options.output / "model.gguf"
    lines = list(measure.measured(write(made, target, "Q8_0")))
    print(f"Q8_0, {target.stat().st_size:,} bytes", *lines, sep="\n")
    solved = next(line.value for line in lines if line.what == "solved, sums")
    if solved < LEAST_SOLVED:
        raise SystemExit(f"the stored model solves {solved:.0%} of the sums, less than {LEAST_SOLVED:.0%}")


if __name__ == "__main__":
    main()
