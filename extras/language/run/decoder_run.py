"""A decoder's program on a device: where it lies in memory, and one step of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from weft.compiler.machine.emit import ceil_div
from weft.errors import InputError
from weft.extras.language.compiler.decoder import Decoder
from weft.extras.language.compiler.registers import DESCRIPTOR_WORDS, HEADER_BYTES, descriptors
from weft.sim.device import Device

_ALIGNMENT = 4096
"""Of each part of memory, in bytes."""
_ADDRESSES = 1 << 32
"""Bytes that addresses of a device reach."""


@dataclass(frozen=True)
class Row:
    """A token of a step.

    Attributes
    ----------
    token, position : int
        The token, and its place in its text; 0 is the first.
    pages : sequence of int
        Pages of its text, the first ones first: at least those up to the token's own place.
    """

    token: int
    position: int
    pages: Sequence[int]


@dataclass(frozen=True)
class Program:
    """A decoder's program in memory, and the frame that tells it about tokens.

    Attributes
    ----------
    decoder : Decoder
    entry : int
        The address of its code.
    frame : int
        That of the frame, behind which page tables are.
    """

    decoder: Decoder
    entry: int
    frame: int

    @staticmethod
    def frame_bytes(decoder: Decoder) -> int:
        """Bytes of the frame, with page tables."""
        return _tables(decoder) + 4 * _table_words(decoder) * _texts(decoder)

    def frame_of(self, rows: Sequence[Row]) -> bytes:
        """What the program reads of a step's tokens."""
        places, contents = self.decoder.places, self.decoder.contents
        first, most = HEADER_BYTES // 4, places.rows
        texts = rows[:: places.together]
        tables, table_words = _tables(self.decoder) // 4, _table_words(self.decoder)
        words = np.zeros(tables + table_words * len(texts), "<u4")
        words[0] = len(rows)
        words[first : first + most] = contents.embedding
        words[first + most : first + 2 * most] = contents.positions
        for index, row in enumerate(rows):
            words[first + index] += row.token * contents.embedding_bytes
            words[first + most + index] += row.position * contents.position_bytes
        for index, row in enumerate(texts):
            count, slot = row.position // places.page + 1, row.position % places.page
            table = tables + table_words * index
            words[table : table + count] = np.array(row.pages[:count], np.int64) * places.page_bytes
            own = int(words[table + count - 1]) + slot * places.sizes.key_length
            at = descriptors(places.rows) // 4 + DESCRIPTOR_WORDS * index
            words[at : at + 4] = self.frame + 4 * table, row.position + 1, count, own
        return words.tobytes()


def _texts(decoder: Decoder) -> int:
    """Texts of a step at most."""
    return decoder.places.rows // decoder.places.together


def _table_words(decoder: Decoder) -> int:
    """Pages of a text at most."""
    return ceil_div(decoder.places.sizes.context, decoder.places.page)


def _tables(decoder: Decoder) -> int:
    """Where page tables begin in the frame, in bytes."""
    return descriptors(decoder.places.rows) + 4 * DESCRIPTOR_WORDS * _texts(decoder)


class DecoderMemory:
    """Where the parts of a decoder lie in a device's memory.

    Parameters
    ----------
    decoder : Decoder
    pages : int
        Pages of keys and values that there are for all texts together.

    Attributes
    ----------
    program : Program
    prompts : Program or None
        That for tokens of a prompt, if the decoder has one.
    columns : int
        Logits of a row, with those that fill up its tiles.
    records, cache, logits : int
        Addresses of the blocks' records, of pages, and of logits.
    bases : tuple of int
        The values of base registers.
    written : tuple of int
        Address and bytes of what programs and hosts write to.
    memory_bytes : int
        Of all.

    Raises
    ------
    InputError
        If all of this is more than addresses reach.
    """

    def __init__(self, decoder: Decoder, pages: int) -> None:
        self.decoder, self.pages = decoder, pages
        places, contents, prompts = decoder.places, decoder.contents, decoder.prompts
        self.columns = contents.logit_tiles * decoder.config.n
        frames = [Program.frame_bytes(each) for each in (decoder, prompts) if each is not None]
        at, found = 0, []
        for size in (
            len(contents.constants), len(decoder.code), len(contents.records), max(frames), places.page_bytes * pages,
            places.one_bytes * places.rows, 2 * self.columns * places.rows, len(prompts.code) if prompts else 0,
        ):  # fmt: skip
            found.append(at)
            at = ceil_div(at + size, _ALIGNMENT) * _ALIGNMENT
        constants, entry, self.records, frame, self.cache, between, self.logits, other = found
        self.program = Program(decoder, entry, frame)
        self.prompts = Program(prompts, other, frame) if prompts else None
        self.bases = (constants, self.records, frame, self.cache, between, self.logits)
        self.written = (frame, other - frame)
        self.memory_bytes = at
        if at > _ADDRESSES:
            raise InputError(
                f"the model takes {at:,} bytes of memory, {places.page_bytes * pages:,} of them for {pages:,} pages of "
                f"keys and values; a device has {_ADDRESSES:,} at most: choose fewer pages, or a shorter context"
            )


class DecoderRun:
    """A decoder on a device.

    Parameters
    ----------
    memory : DecoderMemory
    device : Device
        For the decoder's configuration, with at least ``memory.memory_bytes``.
    """

    def __init__(self, memory: DecoderMemory, device: Device) -> None:
        self.memory, self.device = memory, device
        contents = memory.decoder.contents
        device.unload(*memory.written)
        device.load(memory.bases[0], bytes(contents.constants), "the constants")
        device.load(memory.records, bytes(contents.records), "the weights")
        for program in (memory.program, memory.prompts):
            if program is not None:
                device.load(program.entry, program.decoder.code, "the code")

    def step(self, rows: Sequence[Row]) -> None:
        """Compute the logits behind tokens, and put their keys and values into pages.

        Parameters
        ----------
        rows : sequence of Row
            One at least, and as many as the decoder has rows at most. Tokens of one text are in the order of the text:
            each sees the ones in front of it.
        """
        self._start(self.memory.program, rows)

    def prompt(self, rows: Sequence[Row]) -> None:
        """Put keys and values of tokens into pages, without logits.

        Parameters
        ----------
        rows : sequence of Row
            One at least, and as many as the decoder's `prompts` has rows at most. They follow each other in one text,
            and the first one's position is a multiple of these rows. What the last one's page has behind it is
            overwritten, up to the next such multiple.
        """
        assert self.memory.prompts is not None
        self._start(self.memory.prompts, rows)

    def _start(self, program: Program, rows: Sequence[Row]) -> None:
        self.device.write(program.frame, program.frame_of(rows))
        for register, value in enumerate(self.memory.bases):
            self.device.set_base(register, value)
        self.device.start(program.entry)
        self.device.wait()

    def raw(self, row: int) -> bytes:
        """The bytes of the logits behind a row of the last step."""
        size = 2 * self.memory.columns
        return self.device.read(self.memory.logits + size * row, size)

    def logits(self, row: int) -> np.ndarray:
        """The logits behind a row of the last step: float64 (vocabulary,)."""
        decoder = self.memory.decoder
        digits = np.frombuffer(self.raw(row), np.int8).reshape(-1, 2, decoder.config.n).astype(np.int64)
        numbers = (digits[:, 0] * 256 + digits[:, 1]).reshape(-1)
        found: np.ndarray = numbers[: decoder.places.sizes.vocabulary] * decoder.numbers.logit_unit
        return found

    def copy(self, page: int, to: int) -> None:
        """Make a page equal to another one."""
        size = self.memory.decoder.places.page_bytes
        content = self.device.read(self.memory.cache + page * size, size)
        self.device.write(self.memory.cache + to * size, content)
