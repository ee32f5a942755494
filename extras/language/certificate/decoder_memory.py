"""Memory layout of a decoder's program and cache, and the arguments of a step."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from weft.extras.proof.programs.symbols import Rows


@dataclass(frozen=True)
class Token:
    """Token of a step: index of its text, and position there, from 0."""

    text: int
    place: int


@dataclass(frozen=True)
class Cache:
    """Layout of keys and values in pages of `keys` consecutive keys of a text.

    Attributes
    ----------
    address, pages, page_bytes, keys : int
    layer, head, kind, slot : int
        Strides in bytes: between layers, between heads, from keys to values, and between keys.
    """

    address: int
    pages: int
    page_bytes: int
    keys: int
    layer: int
    head: int
    kind: int
    slot: int


@dataclass(frozen=True)
class ReadSizes:
    """Sizes that the host reads, which a proof must cover.

    Attributes
    ----------
    context : int
        Positions of a text.
    vocabulary : int
        Logits of a row.
    layers, heads, length : int
        Of keys and values.
    """

    context: int
    vocabulary: int
    layers: int
    heads: int
    length: int


@dataclass(frozen=True)
class StepLayout:
    """Decoder's program in memory, with the layout of its arguments and results.

    Attributes
    ----------
    bases, entry, memory_bytes, contents
        See `weft.extras.proof.programs.proof.Placement`. Contents are read-only.
    rows : int
        Maximum number of tokens in a step.
    consecutive : bool
        Whether the rows are consecutive tokens of one text, the first at a multiple of `rows`. Keys and values of
        missing rows are undefined.
    frame : int
        Address of the arguments that the host writes before a step.
    encode_frame : callable
        Encodes the arguments from the step's tokens, their numbers, and the pages of each token's text.
    turn_register : int, optional
        Register that counts down the tokens of a step if they are processed one after the other.
    unspecified : sequence of (int, int)
        Offset and size of parts of the frame that may hold anything.
    tokens, places : int
        Offsets in the frame of the first token's embedding offset, and of its position's offset; those of others
        follow.
    token_rows, place_rows : Rows
        Tables that these offsets refer to.
    cache : Cache
    logits : (int, int), optional
        Address, and bytes of a row: for each N logits the upper digits, then the lower ones. None without logits.
    scratch : sequence of (int, int)
        Addresses and sizes of memory that the program may leave in any state.
    reads : ReadSizes
    """

    bases: Mapping[int, int]
    entry: int
    memory_bytes: int
    contents: Sequence[tuple[int, bytes]]
    rows: int
    consecutive: bool
    frame: int
    encode_frame: Callable[[Sequence[Token], Sequence[int], Sequence[Sequence[int]]], bytes]
    turn_register: int | None
    unspecified: Sequence[tuple[int, int]]
    tokens: int
    places: int
    token_rows: Rows
    place_rows: Rows
    cache: Cache
    logits: tuple[int, int] | None
    scratch: Sequence[tuple[int, int]]
    reads: ReadSizes
