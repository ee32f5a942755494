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
"""

from __future__ import annotations

import msgspec

from weft.extras.proof.programs.graph import Array, Formula
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
