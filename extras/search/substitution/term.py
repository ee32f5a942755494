"""Terms: small graphs of operators on images, weights and parameters, in which rules of substitution are written.

Images have rows, columns and channels, (h, w, c), and bytes relative to their zero point. The operators are those of
the device, including rounding, and some that only rearrange values:

==================== =================================================================================================
``conv[a,f](x, w)``  convolution over window `a`, and requantisation `f` of its sums
``depth[a,f](x, w)`` depthwise convolution over window `a`, and requantisation `f` of its sums
``func[f](x)``       requantisation or table `f` of each element
``add[f](x, y)``     `f` of the sum of both, each times its own constant; ``add[~f]`` exchanges the constants
``mul[f](x, y)``     `f` of the product
``max[a](x)``        maximum over window `a`, ignoring padding
``mean[a,f](x)``     `f` of the sum over window `a`, which has no padding
``cat(x, y)``        channels of both; ``first(x)`` and ``second(x)`` are the halves
``rows(x, y)``       rows of both; ``top(x)`` and ``bottom(x)`` are the halves
``turn(x)``          transposition of rows and columns
==================== =================================================================================================

Operators on weights (o, h, w, i) are ``outs(w, v)`` and ``ins(w, v)``, concatenation along outputs or inputs, ``plus(w,
v)``, the sum, ``diag(w, v)``, block-diagonal weights, ``grow(w)``, a kernel of one element surrounded by zeros,
``dense(w)``, depthwise weights as dense ones, and ``spun(w)``, transposition of rows and columns.

A window is a name, or a product: ``a*b`` is window `a` followed by window `b`, as one window. A function is a name, or
a composition: ``g.f`` is `f` followed by `g`; ``f|g`` is `f` on the first half of the channels and `g` on the second;
``e`` is the identity, so that a convolution with it does not round.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from weft.hdl.errors import WeftError

IMAGES = ("x", "y", "z", "u")
POINTS, KERNELS = ("w", "v"), ("k", "l")
"""Names of dense weights: of one element, and of window `a`."""
POINT_CHANNELS, KERNEL_CHANNELS = ("d", "c"), ("p", "q")
"""Names of depthwise weights: of one element, and of window `a`."""
WEIGHTS = (*POINTS, *KERNELS, *POINT_CHANNELS, *KERNEL_CHANNELS)
SLOTS = {
    "conv": "af", "depth": "af", "func": "f", "add": "f", "mul": "f", "max": "a", "mean": "af", "cat": "", "first": "",
    "second": "", "rows": "", "top": "", "bottom": "", "turn": "", "outs": "", "ins": "", "plus": "", "diag": "",
    "grow": "", "dense": "", "spun": "",
}  # fmt: skip
"""Parameters of each operator beside its operands: a window `a`, a function `f`."""
ARITY = {name: 2 if name in ("conv", "depth", "add", "mul", "cat", "rows", "outs", "ins", "plus", "diag") else 1
         for name in SLOTS}  # fmt: skip


_WINDOW, _FUNCTION = re.compile(r"[ab1s](\*[ab1s])*"), re.compile(r"~?[efgh]|[efgh][.|][efgh]")
IMAGES_FIRST = ("conv", "depth")
"""Operators on an image and weights."""
ON_WEIGHTS = ("outs", "ins", "plus", "diag", "grow", "dense", "spun")
"""Operators from weights to weights."""


class TermError(WeftError, ValueError):
    """A text is not a valid term."""


@dataclass(frozen=True)
class Term:
    """Operator on terms, or a variable if it has no operands; `operator` is then its name."""

    operator: str
    window: str = ""
    function: str = ""
    operands: tuple[Term, ...] = ()

    @cached_property
    def size(self) -> int:
        """Number of distinct operators with operands."""
        return len({part for part in self.parts if part.operands})

    @property
    def parts(self) -> Iterator[Term]:
        """The term and all terms in it, operands first."""
        for operand in self.operands:
            yield from operand.parts
        yield self

    @cached_property
    def text(self) -> str:
        """Notation of the term in rules."""
        if not self.operands:
            return self.operator
        parameters = ",".join(item for item in (self.window, self.function) if item)
        brackets = f"[{parameters}]" if parameters else ""
        return f"{self.operator}{brackets}({', '.join(item.text for item in self.operands)})"

    def __hash__(self) -> int:
        return self._hash

    @cached_property
    def _hash(self) -> int:
        return hash((self.operator, self.window, self.function, self.operands))

    def substitute(self, replacements: dict[Term, Term]) -> Term:
        """Return the term with other terms in place of some."""
        if self in replacements:
            return replacements[self]
        if not self.operands:
            return self
        return Term(
            self.operator,
            self.window,
            self.function,
            tuple(item.substitute(replacements) for item in self.operands),
        )


def parse(text: str) -> Term:
    """Parse a term.

    Raises
    ------
    TermError
        If the text is not a term.
    """
    term, rest = _parse(text.replace(" ", ""), text)
    if rest:
        raise TermError(f"{text!r} continues after its end with {rest!r}")
    return term


def _parse(rest: str, text: str) -> tuple[Term, str]:
    name_length = next((at for at, char in enumerate(rest) if not char.isalpha()), len(rest))
    name, rest = rest[:name_length], rest[name_length:]
    if name in (*IMAGES, *WEIGHTS):
        return Term(name), rest
    if name not in SLOTS:
        raise TermError(f"{text!r} has {name or rest[:1]!r} where an operator or a variable is expected")
    parameters: list[str] = []
    if rest.startswith("["):
        inside, _, rest = rest[1:].partition("]")
        parameters = inside.split(",")
    if len(parameters) != len(SLOTS[name]) or not rest.startswith("("):
        raise TermError(
            f"{text!r} has {name} with {len(parameters)} of {len(SLOTS[name])} parameters, or without operands"
        )
    operands = []
    while rest[:1] in ("(", ","):
        operand, rest = _parse(rest[1:], text)
        operands.append(operand)
    if not rest.startswith(")") or len(operands) != ARITY[name]:
        raise TermError(f"{text!r} has {name} with {len(operands)} operands, or without an end")
    slots = dict(zip(SLOTS[name], parameters, strict=True))
    term = Term(name, slots.get("a", ""), slots.get("f", ""), tuple(operands))
    _check(term, text)
    return term, rest[1:]


def _check(term: Term, text: str) -> None:
    """Raise `TermError` for malformed windows or functions, and for weights in place of an image or the reverse."""
    if term.window and not _WINDOW.fullmatch(term.window):
        raise TermError(
            f"{text!r} has the window {term.window!r}; windows are a, b, s and 1, and products of them"
        )
    if "f" in SLOTS[term.operator] and not _FUNCTION.fullmatch(term.function):
        raise TermError(
            f"{text!r} has the function {term.function!r}; functions are e, f, g and h, ~f, g.f and f|g"
        )
    for index, operand in enumerate(term.operands):
        needs_weights = term.operator in ON_WEIGHTS or (term.operator in IMAGES_FIRST and index == 1)
        if is_weights(operand) != needs_weights:
            raise TermError(
                f"{text!r} has {operand.text} where {'weights are' if needs_weights else 'an image is'} expected"
            )


def is_weights(term: Term) -> bool:
    """Return True if a term is weights, not an image."""
    return term.operator in (*WEIGHTS, *ON_WEIGHTS)
