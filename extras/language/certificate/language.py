"""Language models as a proof reads them: a decoder in integers, as the front end gives it, ahead of any plan or code.

Weights and embeddings are integers; what a token's row goes through between two products are formulas, as those of
kernels (`weft.extras.proof.programs.graph.Formula`), of which `weft.extras.language.certificate.decoder` says how
they go together. *Digits* are bytes from -128 to 127, of 256 each, the highest one first. The tensors of formulas,
and their results in order:

==================  =================================================================  ==============================
formula             tensors                                                            results
==================  =================================================================  ==============================
``begin``           embedding of a token, and of its position if it has one            row of the residual stream
``normalise``       upper digits of such a row, its lowest one, gains if there are     int8, shift of the row
``query``, ``key``  *turned sums*: sums, cosines, sines, shift; else as ``value``,     int8; with ``turn`` two digits
                    with biases if there are any
``turn``            two digits, cosines, sines                                         int8
``value``           sums, mantissas, shift, biases if there are any                    int8
``output, down``    sums, mantissas, upper digits of a row, its lowest one and shift   row of the residual stream
``offset``          upper digits, lowest one, upper digits of biases, their lowest     row of the residual stream
``gate``, ``up``    sums, mantissas, shift, biases                                     two digits
``inner``           with ``gate``: two digits of each; else sums (of the gate, if      two digits
                    there is one, and the other product), mantissas of each, shift,
                    biases if there are any
``quantise``        two digits                                                         int8, shift of the row
``head``            sums, mantissas, shift, biases if there are any                    two digits
==================  =================================================================  ==============================

A row of the residual stream has two upper digits and a lowest one. Numbers have two digits, but biases that are added
to the residual stream, which have three.
"""

from __future__ import annotations

import msgspec

from weft.extras.proof.programs.graph import Array, Formula
from weft.hdl.errors import WeftError


class Product(msgspec.Struct, frozen=True):
    """A product with weights, int8 (outputs, inputs), and the mantissas and biases of its outputs, integers (outputs,);
    None if it has none."""

    weights: Array
    mantissas: Array | None = None
    biases: Array | None = None


class Layer(msgspec.Struct, frozen=True):
    """A block: its products, which are ``query``, ``key``, ``value``, ``output``, ``up``, ``down`` and perhaps
    ``gate``; the octaves of a step of its scores; and what its two norms multiply by, int (width,), if that is no part
    of weights."""

    products: dict[str, Product]
    octaves: float
    gains: tuple[Array, ...] = ()


class Language(msgspec.Struct, frozen=True):
    """A decoder.

    Attributes
    ----------
    heads, key_value_heads : int
        Heads of queries, and of keys and values, each of which is read by neighbouring heads of queries.
    embedding : Array
        Of tokens: integers (tokens, width).
    positions : Array
        Of positions: integers (context, width); or, if it is `rotary`, (context, 2 * length of a head), the cosines of
        all elements and then the sines, those of even elements negative.
    formulas : dict of str to Formula
        See the module.
    smaller : float
        What values are multiplied by, as steps of attention's results are smaller by so much.
    even : int
        The shift of rows of attention's results.
    head : Product
    gains : tuple of Array
        What the last norm multiplies by, likewise.
    """

    heads: int
    key_value_heads: int
    embedding: Array
    positions: Array
    rotary: bool
    formulas: dict[str, Formula]
    layers: tuple[Layer, ...]
    smaller: float
    even: int
    head: Product
    gains: tuple[Array, ...] = ()


class LanguageError(WeftError, ValueError):
    """A description that says nothing, or not all."""
