"""Runs a compiled decoder on a device: where its memory lies, and a frame for each step."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from weft.compiler.language.decoder import Decoder
from weft.compiler.language.registers import DESCRIPTOR_WORDS, HEADER_BYTES, descriptors
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
    pages : int
        Pages that there are for all texts together.
    """

    def __init__(self, decoder: Decoder, device: Callable[[Config, int], Device], pages: int) -> None:
        self.decoder = decoder
        places, contents = decoder.places, decoder.contents
        self.blocks = -(-places.sizes.context // places.page)
        self.columns = contents.logit_tiles * decoder.config.n
        self.descriptors = descriptors(places.rows)
        at, found = 0, []
        for size in (
            len(contents.constants), len(decoder.code), len(contents.records),
            self.descriptors + 4 * DESCRIPTOR_WORDS * places.rows, 4 * self.blocks * places.rows,
            places.page_bytes * pages, places.one_bytes * places.rows, 2 * self.columns * places.rows,
        ):  # fmt: skip
            found.append(at)
            at = -(-(at + size) // _PAGE) * _PAGE
        _, self.entry, records, self.frame, self.tables, cache, between, self.logits = found
        self.device = device(decoder.config, at)
        for place, content in (
            (0, contents.constants),
            (self.entry, decoder.code),
            (records, contents.records),
        ):
            self.device.write(place, bytes(content))
        self.bases = (0, records, self.frame, cache, between, self.logits)

    def step(self, tokens: Sequence[tuple[int, int, Sequence[int]]]) -> np.ndarray:
        """The logits behind (token, position, pages of its text), float64 (tokens, vocabulary)."""
        decoder, places, contents = self.decoder, self.decoder.places, self.decoder.contents
        rows = places.rows
        frame = np.zeros(self.descriptors // 4 + DESCRIPTOR_WORDS * rows, "<u4")
        first = HEADER_BYTES // 4
        frame[0] = len(tokens)
        frame[first : first + rows] = contents.embedding
        frame[first + rows : first + 2 * rows] = contents.angles
        for row, (token, position, pages) in enumerate(tokens):
            frame[first + row] += token * contents.embedding_bytes
            frame[first + rows + row] += position * contents.angle_bytes
            count, slot = position // places.page + 1, position % places.page
            table = self.tables + 4 * self.blocks * row
            offsets = np.array(pages[:count], "<u4") * places.page_bytes
            self.device.write(table, offsets.astype("<u4").tobytes())
            at = self.descriptors // 4 + DESCRIPTOR_WORDS * row
            own = int(offsets[-1]) + slot * places.sizes.key_length
            frame[at : at + 4] = table, position + 1, count, own
        self.device.write(self.frame, frame.tobytes())
        for register, value in enumerate(self.bases):
            self.device.set_base(register, value)
        self.device.start(self.entry)
        self.device.wait()
        raw = self.device.read(self.logits, 2 * self.columns * rows)
        digits = np.frombuffer(raw, np.int8).reshape(rows, -1, 2, decoder.config.n).astype(int)
        numbers = (digits[:, :, 0] * 256 + digits[:, :, 1]).reshape(rows, -1)
        vocabulary = decoder.numbers.model.sizes.vocabulary
        return numbers[: len(tokens), :vocabulary] * decoder.numbers.logit_unit
