"""Logits of whole texts on a device, several texts side by side."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from weft.extras.language.compiler.decoder import Decoder
from weft.extras.language.compiler.integers import Integers
from weft.extras.language.compiler.reference import Perplexity, perplexity
from weft.extras.language.tests.support.decoder_run import DecoderRun
from weft.hdl.isa.config import Config
from weft.sim.compiled.device import CompiledDevice
from weft.sim.device import Device

ROWS = 4
"""Texts in a batch."""
PAGE = 32


def decoder_config(preset: str) -> Config:
    """Return a preset with the fields that a decoder requires."""
    return Config.load(preset).replace(loops=1, kernel=256, lookup_tables=4)


def device_logits(
    numbers: Integers,
    texts: Sequence[Sequence[int]],
    config: Config,
    device: Callable[[Config, int], Device] = CompiledDevice,
) -> list[np.ndarray]:
    """Return logits after each token: per text, float64 (tokens, vocabulary)."""
    pages = -(-max(map(len, texts)) // PAGE)
    run = DecoderRun(Decoder(numbers, config, rows=ROWS, page=PAGE), device, ROWS * pages)
    texts_logits = []
    for start in range(0, len(texts), ROWS):
        some = texts[start : start + ROWS]
        parts: list[list[np.ndarray]] = [[] for _ in some]
        for at in range(max(map(len, some))):
            rows = [row for row, text in enumerate(some) if at < len(text)]
            tokens = [(some[row][at], at, range(row * pages, (row + 1) * pages)) for row in rows]
            for row, logits in zip(rows, run.step(tokens), strict=True):
                parts[row].append(logits)
        texts_logits += [np.stack(part) for part in parts]
    return texts_logits


def device_perplexity(numbers: Integers, tokens: Sequence[int], window: int, config: Config) -> Perplexity:
    """Measure a text's perplexity on the device, all windows side by side."""
    windows: list[Sequence[int]] = []

    def record(seen: Sequence[int]) -> np.ndarray:
        windows.append(seen)
        return np.zeros((len(seen), numbers.model.sizes.vocabulary))

    perplexity(record, tokens, window=window)
    logits = iter(device_logits(numbers, windows, config))
    return perplexity(lambda seen: next(logits), tokens, window=window)
