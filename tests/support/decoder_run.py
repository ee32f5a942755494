"""Runs a compiled decoder on a device: where its memory lies, and a frame for each step."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from weft.compiler.language.decoder import DESCRIPTOR_WORDS, HEADER_BYTES, Decoder
from weft.hdl.isa.config import Config
from weft.sim.device import Device

_PAGE = 4096


class DecoderRun:
    """A decoder on a device, with a page table for each token of a step.

    Parameters
    ----------
    decoder : Decoder
    device : callable
        Makes one of a configuration and the bytes of its memory.
    """

    def __init__(self, decoder: Decoder, device: Callable[[Config, int], Device]) -> None:
        self.decoder = decoder
        sizes = decoder.numbers.model.sizes
        self.blocks = -(-sizes.context // decoder.page)
        self.columns = -(-sizes.vocabulary // decoder.config.n) * decoder.config.n
        at, places = 0, []
        for size in (
            len(decoder.constants), len(decoder.code), len(decoder.records),
            decoder.descriptors + 4 * DESCRIPTOR_WORDS * decoder.rows, 4 * self.blocks * decoder.rows,
            decoder.page_bytes * decoder.pages, decoder.one_bytes * decoder.rows, 2 * self.columns * decoder.rows,
        ):  # fmt: skip
            places.append(at)
            at = -(-(at + size) // _PAGE) * _PAGE
        _, self.entry, records, self.frame, self.tables, pages, between, self.logits = places
        self.device = device(decoder.config, at)
        for place, content in (
            (0, decoder.constants),
            (self.entry, decoder.code),
            (records, decoder.records),
        ):
            self.device.write(place, bytes(content))
        self.bases = (0, records, self.frame, pages, between, self.logits)

    def step(self, tokens: Sequence[tuple[int, int, Sequence[int]]]) -> np.ndarray:
        """The logits behind (token, position, pages of its text), float64 (tokens, vocabulary)."""
        decoder = self.decoder
        frame = np.zeros(decoder.descriptors // 4 + DESCRIPTOR_WORDS * decoder.rows, "<u4")
        first = HEADER_BYTES // 4
        frame[0] = len(tokens)
        frame[first : first + decoder.rows] = decoder.embedding
        frame[first + decoder.rows : first + 2 * decoder.rows] = decoder.angles
        for row, (token, position, pages) in enumerate(tokens):
            frame[first + row] += token * decoder.embedding_bytes
            frame[first + decoder.rows + row] += position * decoder.angle_bytes
            count, slot = position // decoder.page + 1, position % decoder.page
            table = self.tables + 4 * self.blocks * row
            offsets = np.array(pages[:count], "<u4") * decoder.page_bytes
            self.device.write(table, offsets.astype("<u4").tobytes())
            at = decoder.descriptors // 4 + DESCRIPTOR_WORDS * row
            place = int(offsets[-1]) + slot * decoder.key * decoder.config.n
            frame[at : at + 4] = table, position + 1, count, place
        self.device.write(self.frame, frame.tobytes())
        for register, value in enumerate(self.bases):
            self.device.set_base(register, value)
        self.device.start(self.entry)
        self.device.wait()
        raw = self.device.read(self.logits, 2 * self.columns * decoder.rows)
        digits = np.frombuffer(raw, np.int8).reshape(decoder.rows, -1, 2, decoder.config.n).astype(int)
        numbers = (digits[:, :, 0] * 256 + digits[:, :, 1]).reshape(decoder.rows, -1)
        vocabulary = decoder.numbers.model.sizes.vocabulary
        return numbers[: len(tokens), :vocabulary] * decoder.numbers.logit_unit
