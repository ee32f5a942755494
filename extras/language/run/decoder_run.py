"""Execution of a decoder's program on a device: memory layout, and steps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from weft.compiler.machine.emit import ceil_div
from weft.errors import InputError
from weft.extras.language.compiler.decoder import Decoder
from weft.extras.language.compiler.ordered_code import DESCRIPTOR_WORDS, HEADER_BYTES, descriptors
from weft.sim.device import Device

_ALIGNMENT = 4096
"""Alignment of each part of memory, in bytes."""
_ADDRESS_SPACE = 1 << 32
"""Bytes that a device can address."""


@dataclass(frozen=True)
class Row:
    """Token of a step.

    Attributes
    ----------
    token : int
    position : int
        Index of the token in its text.
    pages : sequence of int
        Pages of the text in order, at least up to the token's own page.
    """

    token: int
    position: int
    pages: Sequence[int]


@dataclass(frozen=True)
class Program:
    """Program of a decoder in memory, and the frame that holds its arguments.

    Attributes
    ----------
    decoder : Decoder
    entry : int
        Address of the code.
    frame : int
        Address of the frame; page tables follow it.
    """

    decoder: Decoder
    entry: int
    frame: int

    @staticmethod
    def frame_bytes(decoder: Decoder) -> int:
        """Return the size of the frame with its page tables, in bytes."""
        return _tables_offset(decoder) + 4 * _max_pages_of_text(decoder) * _max_texts(decoder)

    def encode_frame(self, rows: Sequence[Row]) -> bytes:
        """Return the frame's contents for a step with these tokens."""
        places, contents = self.decoder.places, self.decoder.contents
        header_words, max_rows = HEADER_BYTES // 4, places.rows
        texts = rows[:: places.tokens_per_text]
        tables_word, max_pages = _tables_offset(self.decoder) // 4, _max_pages_of_text(self.decoder)
        words = np.zeros(tables_word + max_pages * len(texts), "<u4")
        words[0] = len(rows)
        words[header_words : header_words + max_rows] = contents.embedding
        words[header_words + max_rows : header_words + 2 * max_rows] = contents.positions
        for index, row in enumerate(rows):
            words[header_words + index] += row.token * contents.embedding_bytes
            words[header_words + max_rows + index] += row.position * contents.position_bytes
        for index, row in enumerate(texts):
            count, slot = row.position // places.page + 1, row.position % places.page
            table = tables_word + max_pages * index
            words[table : table + count] = np.array(row.pages[:count], np.int64) * places.page_bytes
            # Offset of the token's own key slot from the register of pages.
            own = int(words[table + count - 1]) + slot * places.sizes.key_length
            at = descriptors(places.rows) // 4 + DESCRIPTOR_WORDS * index
            words[at : at + 4] = self.frame + 4 * table, row.position + 1, count, own
        return words.tobytes()


def _max_texts(decoder: Decoder) -> int:
    return decoder.places.rows // decoder.places.tokens_per_text


def _max_pages_of_text(decoder: Decoder) -> int:
    return ceil_div(decoder.places.sizes.context, decoder.places.page)


def _tables_offset(decoder: Decoder) -> int:
    """Return the offset of the page tables in the frame, in bytes."""
    return descriptors(decoder.places.rows) + 4 * DESCRIPTOR_WORDS * _max_texts(decoder)


class DecoderMemory:
    """Memory layout of a decoder on a device.

    Parameters
    ----------
    decoder : Decoder
    pages : int
        Number of pages of keys and values for all texts together.

    Attributes
    ----------
    program : Program
    prompts : Program or None
        Program for prompt tokens, if the decoder has one.
    columns : int
        Logits of a row, including the padding of the last tile.
    records, cache, logits : int
        Addresses of the blocks' records, of pages, and of logits.
    bases : tuple of int
        Values of the base registers.
    writable_range : (int, int)
        Address and size in bytes of the part that programs and host write to.
    memory_bytes : int
        Size of all parts.

    Raises
    ------
    InputError
        If the parts exceed the device's address space.
    """

    def __init__(self, decoder: Decoder, pages: int) -> None:
        self.decoder, self.pages = decoder, pages
        places, contents, prompts = decoder.places, decoder.contents, decoder.prompts
        self.columns = contents.logit_tiles * decoder.config.n
        frames = [Program.frame_bytes(each) for each in (decoder, prompts) if each is not None]
        # In order: constants, code, records, frame, pages, temporaries, logits, code of the prompt program.
        at, parts = 0, []
        for size in (
            len(contents.constants), len(decoder.code), len(contents.records), max(frames), places.page_bytes * pages,
            places.token_bytes * places.rows, 2 * self.columns * places.rows, len(prompts.code) if prompts else 0,
        ):  # fmt: skip
            parts.append(at)
            at = ceil_div(at + size, _ALIGNMENT) * _ALIGNMENT
        constants, entry, self.records, frame, self.cache, between, self.logits, other = parts
        self.program = Program(decoder, entry, frame)
        self.prompts = Program(prompts, other, frame) if prompts else None
        self.bases = (constants, self.records, frame, self.cache, between, self.logits)
        self.writable_range = (frame, other - frame)
        self.memory_bytes = at
        if at > _ADDRESS_SPACE:
            raise InputError(
                f"the model takes {at:,} bytes of memory, {places.page_bytes * pages:,} of them for {pages:,} pages of "
                f"keys and values; a device has {_ADDRESS_SPACE:,} at most: choose fewer pages, or a shorter context"
            )


class DecoderRun:
    """Decoder on a device.

    Parameters
    ----------
    memory : DecoderMemory
    device : Device
        Device with the decoder's configuration and at least ``memory.memory_bytes``.
    """

    def __init__(self, memory: DecoderMemory, device: Device) -> None:
        self.memory, self.device = memory, device
        contents = memory.decoder.contents
        device.unload(*memory.writable_range)
        device.load(memory.bases[0], bytes(contents.constants), "the constants")
        device.load(memory.records, bytes(contents.records), "the weights")
        for program in (memory.program, memory.prompts):
            if program is not None:
                device.load(program.entry, program.decoder.code, "the code")

    def step(self, rows: Sequence[Row]) -> None:
        """Compute the logits after each token, and write keys and values to pages.

        Parameters
        ----------
        rows : sequence of Row
            From one row up to the decoder's rows. Tokens of one text are in the order of the text: each attends to the
            preceding ones.
        """
        self._start(self.memory.program, rows)

    def prompt(self, rows: Sequence[Row]) -> None:
        """Write keys and values of prompt tokens to pages, without logits.

        Parameters
        ----------
        rows : sequence of Row
            From one row up to the rows of the decoder's `prompts`, with consecutive tokens of one text. The first
            position is a multiple of those rows. The page after the last token is overwritten up to the next multiple.
        """
        assert self.memory.prompts is not None
        self._start(self.memory.prompts, rows)

    def _start(self, program: Program, rows: Sequence[Row]) -> None:
        self.device.write(program.frame, program.encode_frame(rows))
        for register, value in enumerate(self.memory.bases):
            self.device.set_base(register, value)
        self.device.start(program.entry)
        self.device.wait()

    def logit_bytes(self, row: int) -> bytes:
        """Return the logits of a row of the last step, as the device stores them."""
        size = 2 * self.memory.columns
        return self.device.read(self.memory.logits + size * row, size)

    def logits(self, row: int) -> np.ndarray:
        """Return the logits of a row of the last step: float64 (vocabulary,)."""
        decoder = self.memory.decoder
        # For each tile, N upper digits come before N lower ones.
        digits = (
            np.frombuffer(self.logit_bytes(row), np.int8).reshape(-1, 2, decoder.config.n).astype(np.int64)
        )
        numbers = (digits[:, 0] * 256 + digits[:, 1]).reshape(-1)
        logits: np.ndarray = numbers[: decoder.places.sizes.vocabulary] * decoder.numbers.logit_unit
        return logits

    def copy(self, page: int, to: int) -> None:
        """Copy the contents of page `page` to page `to`."""
        size = self.memory.decoder.places.page_bytes
        content = self.device.read(self.memory.cache + page * size, size)
        self.device.write(self.memory.cache + to * size, content)
