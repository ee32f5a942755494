"""Runs a compiled decoder on a device for tests, with tokens as tuples."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from weft.extras.language.compiler.decoder import Decoder
from weft.extras.language.run import decoder_run
from weft.hdl.isa.config import Config
from weft.sim.device import Device


class DecoderRun:
    """A decoder on its own device, with `pages` pages for all texts together."""

    def __init__(self, decoder: Decoder, device: Callable[[Config, int], Device], pages: int) -> None:
        memory = decoder_run.DecoderMemory(decoder, pages)
        self.device = device(decoder.config, memory.memory_bytes)
        self.bases = memory.bases
        self._run = decoder_run.DecoderRun(memory, self.device)

    def step(self, tokens: Sequence[tuple[int, int, Sequence[int]]]) -> np.ndarray:
        """Return logits after each (token, position, pages of its text): float64 (tokens, vocabulary)."""
        self._run.step([decoder_run.Row(*token) for token in tokens])
        return np.stack([self._run.logits(row) for row in range(len(tokens))])

    def prompt(self, tokens: Sequence[tuple[int, int, Sequence[int]]]) -> None:
        """Store keys and values of tokens in pages with the decoder's prompt program."""
        self._run.prompt([decoder_run.Row(*token) for token in tokens])
