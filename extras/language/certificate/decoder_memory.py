"""Where a decoder's program and its keys and values lie in memory, and what the host tells it ahead of a step."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from weft.extras.proof.programs.symbols import Rows


@dataclass(frozen=True)
class Token:
    """A token of a step: which text it belongs to, and its place there, from 0."""

    text: int
    place: int


@dataclass(frozen=True)
class Cache:
    """Where keys and values are in memory: of a page, so many `keys` of a text that follow each other.

    Attributes
    ----------
    address, pages, page_bytes, keys : int
    layer, head, kind, slot : int
        Bytes from a layer to the next one, from a head, from keys to values, and from a key to the next one.
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
class Reads:
    """How much of a decoder the host reads; a proof that is of less is none.

    Attributes
    ----------
    context : int
        Places of a text.
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
class Steps:
    """A decoder's program in memory, and what the host tells it.

    Attributes
    ----------
    bases, entry, memory_bytes, contents
        As `weft.extras.proof.programs.proof.Placement` has them. Contents are never written.
    rows : int
        Tokens of a step at most.
    together : bool
        They follow each other in one text, the first one at a multiple of `rows`. Keys and values of those that are
        not there may be anything.
    frame : int
        Address of what the host writes ahead of a step.
    frame_of : callable
        Makes that of the tokens of a step, their numbers, and the pages of each one's text.
    turn : int, optional
        The register that counts tokens of a step down, if they are worked on one after the other.
    free : sequence of (int, int)
        Where in the frame is what may be anything, and its size.
    tokens, places : int
        Where in the frame the offset of the first token's row is, and that of its place; those of others follow.
    token_rows, place_rows : Rows
        What these may be.
    cache : Cache
    logits : (int, int), optional
        Address, and bytes of a row: for each N logits their upper digits and then their lower ones. None if the program
        makes none.
    scratch : sequence of (int, int)
        Addresses and sizes of what the program may leave anything in.
    reads : Reads
    """

    bases: Mapping[int, int]
    entry: int
    memory_bytes: int
    contents: Sequence[tuple[int, bytes]]
    rows: int
    together: bool
    frame: int
    frame_of: Callable[[Sequence[Token], Sequence[int], Sequence[Sequence[int]]], bytes]
    turn: int | None
    free: Sequence[tuple[int, int]]
    tokens: int
    places: int
    token_rows: Rows
    place_rows: Rows
    cache: Cache
    logits: tuple[int, int] | None
    scratch: Sequence[tuple[int, int]]
    reads: Reads
