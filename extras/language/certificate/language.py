"""Language model as a proof reads it: a decoder in integers from the front end, before any plan or code.

Weights and embeddings are integers. Computations between two products are formulas, like those of kernels
(`weft.extras.proof.programs.graph.Formula`), which `weft.extras.language.certificate.decoder` combines. *Digits* are
bytes from -128 to 127 in base 256, highest first. Tensors of formulas, and their results, in order:

==================  =================================================================  ==============================
formula             tensors                                                            results
==================  =================================================================  ==============================
``begin``           embedding of a token, and of its position if it has one            row of the residual stream
``normalise``       upper digits of such a row, its lowest digit, any gains            int8, shift of the row
``query``, ``key``  *rotated sums*: sums, cosines, sines, shift; otherwise like        int8; with ``turn`` two digits
                    ``value``, with any biases
``turn``            two digits, cosines, sines                                         int8
``value``           sums, mantissas, shift, any biases                                 int8
``output, down``    sums, mantissas, upper digits of a row, its lowest digit and       row of the residual stream
                    shift
``offset``          upper digits, lowest digit, upper digits of biases, their lowest   row of the residual stream
``gate``, ``up``    sums, mantissas, shift, biases                                     two digits
``inner``           with ``gate``: two digits of each; otherwise sums (of the gate, if  two digits
                    there is one, and the other product), mantissas of each, shift,
                    any biases
``quantise``        two digits                                                         int8, shift of the row
``head``            sums, mantissas, shift, any biases                                 two digits
==================  =================================================================  ==============================

A row of the residual stream has two upper digits and a lowest one. Numbers have two digits, except for biases that are
added to the residual stream, which have three.

The memory layout of a decoder's program and cache gives the arguments of a step.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import msgspec

from weft.extras.proof.programs.graph import Array, Formula
from weft.extras.proof.programs.symbols import Rows
from weft.hdl.errors import WeftError


class Product(msgspec.Struct, frozen=True):
    """Product with weights, int8 (outputs, inputs), and integer mantissas and biases (outputs,) or None."""

    weights: Array
    mantissas: Array | None = None
    biases: Array | None = None


class Layer(msgspec.Struct, frozen=True):
    """Layer with products ``query``, ``key``, ``value``, ``output``, ``up``, ``down`` and optionally ``gate``.

    `octaves` is the step of its scores in octaves. `gains` are the weights of its two norms, int (width,), unless they
    are folded into matrices.
    """

    products: dict[str, Product]
    octaves: float
    gains: tuple[Array, ...] = ()


class Language(msgspec.Struct, frozen=True):
    """Decoder in integers.

    Attributes
    ----------
    heads, key_value_heads : int
        Heads of queries, and of keys and values; each of the latter serves adjacent heads of queries.
    embedding : Array
        Of tokens: integers (tokens, width).
    positions : Array
        Of positions: integers (context, width). If `rotary`, (context, 2 * length of a head): the cosines of all
        elements and then the sines, those of even elements negated.
    formulas : dict of str to Formula
        By the names in this module's docstring.
    step_ratio : float
        Factor for values, whose step is that of attention's results times this ratio.
    even : int
        Shift of rows of attention's results.
    head : Product
    gains : tuple of Array
        Weights of the last norm, unless they are folded into the head.
    """

    heads: int
    key_value_heads: int
    embedding: Array
    positions: Array
    rotary: bool
    formulas: dict[str, Formula]
    layers: tuple[Layer, ...]
    step_ratio: float
    even: int
    head: Product
    gains: tuple[Array, ...] = ()


class LanguageError(WeftError, ValueError):
    """The description of a model is invalid or incomplete."""


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
