"""Train and write the language model: ``pip install -e '.[lm,train]'``, then run this file.

It writes ``model.gguf`` next to itself: a Llama with 1.8 million parameters and matrices of type ``Q8_0``.
"""

from __future__ import annotations

import argparse
import io
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
import sentencepiece
import torch
from sentencepiece import SentencePieceProcessor, sentencepiece_model_pb2
from torch import nn

from weft.extras.language.compiler.model import Kind, Vocabulary
from weft.extras.language.compiler.reference import Reference
from weft.extras.language.compiler.tokenizer import Tokenizer
from weft.extras.language.example import measure
from weft.extras.language.example.corpus import Problems, prose
from weft.extras.language.example.network import SIZES, Network, language_model, parameters
from weft.extras.language.gguf.writer import write

SEED = 7
STEPS = 2000
BATCH = 8
TOKENS = 128
"""Tokens of each row of a batch. Longer texts work too: a rotary embedding encodes distances, not positions."""
PROBLEMS = 0.6
"""Share of rows with problems; all others are prose."""
RATE = 6e-3
WARM_UP = 60
EVERY = 100
"""Steps between lines of progress."""
LEAST_SOLVED = 0.8
"""Share of the sums that the written model has to solve."""
VOCABULARY_PROBLEMS = 3000
"""Problems among the texts that train the vocabulary."""


class Rows:
    """Rows of tokens to train on: the next problems, or prose from a random place."""

    def __init__(self, processor: SentencePieceProcessor, texts: list[str]) -> None:
        self._random = np.random.default_rng(SEED)
        self._processor = processor
        self._problems, self._waiting = Problems(SEED, held=False), np.zeros(0, np.int64)
        self._prose = self._encode_all([texts[at] for at in self._random.permutation(len(texts))])

    def _encode_all(self, texts: list[str]) -> np.ndarray:
        encoded = self._processor.encode(texts, add_bos=True)
        return np.concatenate([np.array(item, np.int64) for item in encoded])

    def _row(self) -> np.ndarray:
        if self._random.random() >= PROBLEMS:
            start = self._random.integers(len(self._prose) - TOKENS)
            return self._prose[start : start + TOKENS + 1]
        while len(self._waiting) <= TOKENS:
            tokens = self._encode_all([self._problems.any().text for _ in range(1000)])
            self._waiting = np.concatenate([self._waiting, tokens])
        row, self._waiting = np.split(self._waiting, [TOKENS + 1])
        return row

    def __iter__(self) -> Iterator[torch.Tensor]:
        """Yield batches (batch, tokens + 1): the model predicts each token but the first."""
        while True:
            yield torch.from_numpy(np.stack([self._row() for _ in range(BATCH)]))


def train_vocabulary(texts: list[str]) -> tuple[Vocabulary, SentencePieceProcessor]:
    """Return a vocabulary with which weft and SentencePiece encode all texts equally."""
    problems = Problems(SEED, held=False)
    texts = [*texts, *(problems.any().text for _ in range(VOCABULARY_PROBLEMS))]
    vocabulary, processor = train_pieces(texts, SIZES.vocabulary)
    tokenizer = Tokenizer(vocabulary)
    for text, expected in zip(texts, processor.encode(texts, add_bos=True), strict=True):
        if tokenizer.encode(text) != expected:
            raise SystemExit(f"weft's tokens of {text!r} are not SentencePiece's")
    return vocabulary, processor


def train_pieces(texts: Iterable[str], size: int) -> tuple[Vocabulary, SentencePieceProcessor]:
    """Return a vocabulary of SentencePiece trained on texts, and SentencePiece's own tokenizer for it.

    Digits are always single tokens, and text without a piece is written in bytes. One token both begins and ends a
    text, because a text ends where the next one begins.

    Parameters
    ----------
    texts : iterable of str
    size : int
        Number of tokens, 256 of them for bytes.
    """
    output = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(texts), model_writer=output, model_type="bpe", vocab_size=size, byte_fallback=True,
        split_digits=True, normalization_rule_name="identity", remove_extra_whitespaces=False,
        character_coverage=0.9999, max_sentence_length=1 << 16, num_threads=1, minloglevel=2,
    )  # fmt: skip
    content = output.getvalue()
    model = sentencepiece_model_pb2.ModelProto.FromString(content)
    vocabulary = Vocabulary(
        model="llama",
        pre="",
        tokens=tuple(piece.piece for piece in model.pieces),
        kinds=tuple(Kind(piece.type) for piece in model.pieces),
        scores=tuple(piece.score for piece in model.pieces),
        begin=model.trainer_spec.bos_id,
        end=model.trainer_spec.bos_id,
        unknown=model.trainer_spec.unk_id,
        ends=frozenset({model.trainer_spec.bos_id}),
        add_begin=True,
        add_space=True,
    )
    return vocabulary, SentencePieceProcessor(model_proto=content)


def optimisers(network: Network) -> list[torch.optim.Optimizer]:
    """Return Muon for the matrices of blocks, and AdamW for all other parameters."""
    matrices = [item for item in network.blocks.parameters() if item.ndim == 2]
    norms = [item for item in network.parameters() if item.ndim == 1]
    return [
        # Muon learns more than AdamW from the same number of tokens.
        torch.optim.Muon(matrices, momentum=0.95, weight_decay=0.1, adjust_lr_fn="match_rms_adamw"),
        torch.optim.AdamW([network.embedding.weight, *norms], betas=(0.9, 0.95), weight_decay=0.0),
    ]


def train(rows: Rows, tokenizer: Tokenizer, steps: int) -> Network:
    torch.manual_seed(SEED)
    network = Network()
    print(f"{parameters(network):,} parameters, {steps * BATCH * TOKENS:,} tokens", flush=True)
    both, begin = optimisers(network), time.monotonic()
    sums, losses = measure.problems("sums", 50), []
    for step, batch in zip(range(steps), rows, strict=False):
        rate = RATE * min(1, (step + 1) / WARM_UP) * (1 - step / steps)
        for group in (group for optimiser in both for group in optimiser.param_groups):
            group["lr"] = rate
        loss = network.loss(batch)
        loss.backward()
        nn.utils.clip_grad_norm_(network.parameters(), 1.0)
        for optimiser in both:
            optimiser.step()
            optimiser.zero_grad()
        losses.append(loss.item())
        if step % EVERY == EVERY - 1:
            mean, seconds = np.mean(losses[-EVERY:]), time.monotonic() - begin
            solved = np.mean([measure.solves(network.logits, tokenizer, item) for item in sums])
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
    vocabulary, processor = train_vocabulary(texts)
    network = train(Rows(processor, texts), Tokenizer(vocabulary), options.steps)

    model = language_model(network, "weft example", vocabulary)
    tokens = list(range(TOKENS))
    difference = np.abs(Reference(model).logits(tokens) - network.logits(tokens)).max()
    print(f"float32, weft's reference; PyTorch's logits differ by {difference:.1e} at most", flush=True)
    print(*measure.measure_baselines(model), *measure.measure_model(model), sep="\n", flush=True)
    target = options.output / "model.gguf"
    lines = list(measure.measure_model(write(model, target, "Q8_0")))
    print(f"Q8_0, {target.stat().st_size:,} bytes", *lines, sep="\n")
    solved = next(line.value for line in lines if line.title == "solved, sums")
    if solved < LEAST_SOLVED:
        raise SystemExit(f"the stored model solves {solved:.0%} of the sums, less than {LEAST_SOLVED:.0%}")


if __name__ == "__main__":
    main()
