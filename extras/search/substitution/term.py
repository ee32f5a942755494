"""Terms: small graphs of operators on images, weights and parameters, in which rules of substitution are written.

Images have rows, columns and channels, (h, w, c), and bytes relative to their zero point. The operators are those of
the device, rounding included, and those that only say where values lie:

==================== =================================================================================================
``conv[a,f](x, w)``  convolution over window `a`, and requantisation `f` of its sums
``depth[a,f](x, w)`` the same of each channel by itself
``func[f](x)``       requantisation or table `f` of each element
``add[f](x, y)``     `f` of the sum of both, each times a constant of its own; ``add[~f]`` has these exchanged
``mul[f](x, y)``     `f` of the product
``max[a](x)``        the maximum over window `a`, of what is in the image
``mean[a,f](x)``     `f` of the sum over window `a`, which has no padding
``cat(x, y)``        channels of both; ``first(x)`` and ``second(x)`` are the halves
``rows(x, y)``       rows of both; ``top(x)`` and ``bottom(x)`` are the halves
``turn(x)``          rows as columns
==================== =================================================================================================

and on weights (o, h, w, i) ``outs(w, v)`` and ``ins(w, v)``, both one behind the other along outputs or inputs,
``plus(w, v)`` the sum, ``diag(w, v)`` with zeros where the output of one meets the input of the other, ``grow(w)`` a
kernel of one element with zeros around it, ``dense(w)`` that of a convolution by channels as one of all channels,
``spun(w)`` rows as columns.

A window is a name, or a product: ``a*b`` is window `a` and then window `b` as one. A function is a name, or a
composition: ``g.f`` is `f` and then `g`; ``f|g`` is `f` of the first half of the channels and `g` of the second; ``e``
changes nothing, so that a convolution with it rounds nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from weft.hdl.errors import WeftError

IMAGES = ("x", "y", "z", "u")
"""Names of images."""
POINTS, KERNELS = ("w", "v"), ("k", "l")
"""Names of weights of one element, and of window `a`, from all channels to all channels."""
POINT_CHANNELS, KERNEL_CHANNELS = ("d", "c"), ("p", "q")
"""The same, of each channel by itself."""
WEIGHTS = (*POINTS, *KERNELS, *POINT_CHANNELS, *KERNEL_CHANNELS)
SLOTS = {
    "conv": "af", "depth": "af", "func": "f", "add": "f", "mul": "f", "max": "a", "mean": "af", "cat": "", "first": "",
    "second": "", "rows": "", "top": "", "bottom": "", "turn": "", "outs": "", "ins": "", "plus": "", "diag": "",
    "grow": "", "dense": "", "spun": "",
}  # fmt: skip
"""By operator what it is told beside its operands: a window `a`, a function `f`."""
ARITY = {name: 2 if name in ("conv", "depth", "add", "mul", "cat", "rows", "outs", "ins", "plus", "diag") else 1
         for name in SLOTS}  # fmt: skip


_WINDOW, _FUNCTION = re.compile(r"[ab1s](\*[ab1s])*"), re.compile(r"~?[efgh]|[efgh][.|][efgh]")
IMAGES_FIRST = ("conv", "depth")
"""Operators on an image and weights."""
ON_WEIGHTS = ("outs", "ins", "plus", "diag", "grow", "dense", "spun")
"""Operators on weights, which make weights."""


class TermError(WeftError, ValueError):
    """Text that is no term."""


@dataclass(frozen=True)
class Term:
    """An operator on terms, or, without operands, a variable of this name."""

    operator: str
    window: str = ""
    function: str = ""
    operands: tuple[Term, ...] = ()

    @cached_property
    def size(self) -> int:
        """Operators in it, each occurrence of equal ones once."""
        return len({part for part in self.parts if part.operands})

    @property
    def parts(self) -> Iterator[Term]:
        """It and all terms in it, operands first."""
        for operand in self.operands:
            yield from operand.parts
        yield self

    @cached_property
    def text(self) -> str:
        """As it is written in rules."""
        if not self.operands:
            return self.operator
        told = ",".join(item for item in (self.window, self.function) if item)
        return (
            f"{self.operator}{f'[{told}]' if told else ''}({', '.join(item.text for item in self.operands)})"
        )

    def __hash__(self) -> int:
        return self._hash

    @cached_property
    def _hash(self) -> int:
        return hash((self.operator, self.window, self.function, self.operands))

    def replaced(self, known: dict[Term, Term]) -> Term:
        """The same with terms in place of others."""
        if self in known:
            return known[self]
        if not self.operands:
            return self
        return Term(
            self.operator, self.window, self.function, tuple(item.replaced(known) for item in self.operands)
        )


def parsed(text: str) -> Term:
    """The term that a text is.

    Raises
    ------
    TermError
        If it is none.
    """
    term, rest = _parsed(text.replace(" ", ""), text)
    if rest:
        raise TermError(f"{text!r} goes on behind its end with {rest!r}")
    return term


def _parsed(rest: str, whole: str) -> tuple[Term, str]:
    end = next((at for at, char in enumerate(rest) if not char.isalpha()), len(rest))
    name, rest = rest[:end], rest[end:]
    if name in (*IMAGES, *WEIGHTS):
        return Term(name), rest
    if name not in SLOTS:
        raise TermError(f"{whole!r} has {name or rest[:1]!r} where an operator or a variable has to be")
    told: list[str] = []
    if rest.startswith("["):
        inside, _, rest = rest[1:].partition("]")
        told = inside.split(",")
    if len(told) != len(SLOTS[name]) or not rest.startswith("("):
        raise TermError(
            f"{whole!r} has {name} with {len(told)} of {len(SLOTS[name])} parameters, or without operands"
        )
    operands = []
    while rest[:1] in ("(", ","):
        operand, rest = _parsed(rest[1:], whole)
        operands.append(operand)
    if not rest.startswith(")") or len(operands) != ARITY[name]:
        raise TermError(f"{whole!r} has {name} with {len(operands)} operands, or without an end")
    named = dict(zip(SLOTS[name], told, strict=True))
    term = Term(name, named.get("a", ""), named.get("f", ""), tuple(operands))
    _check(term, whole)
    return term, rest[1:]


def _check(term: Term, whole: str) -> None:
    """Raise `TermError` for a window or function of no such form, and for weights where an image has to be."""
    if term.window and not _WINDOW.fullmatch(term.window):
        raise TermError(
            f"{whole!r} has the window {term.window!r}; windows are a, b, s and 1, and products of them"
        )
    if "f" in SLOTS[term.operator] and not _FUNCTION.fullmatch(term.function):
        raise TermError(
            f"{whole!r} has the function {term.function!r}; functions are e, f, g and h, ~f, g.f and f|g"
        )
    for index, operand in enumerate(term.operands):
        wanted = term.operator in ON_WEIGHTS or (term.operator in IMAGES_FIRST and index == 1)
        if is_weights(operand) != wanted:
            raise TermError(
                f"{whole!r} has {operand.text} where {'weights have' if wanted else 'an image has'} to be"
            )


def is_weights(term: Term) -> bool:
    """Whether a term is weights, not an image."""
    return term.operator in (*WEIGHTS, *ON_WEIGHTS)
