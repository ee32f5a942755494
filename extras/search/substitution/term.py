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

The semantics of terms give elements of an image from elements of the variables, as integers or as symbolic forms. One
implementation serves both, on numpy arrays of int64 or of objects that add and multiply. The domain provides maxima and
functions.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import numpy as np

from weft.compiler.ir.windows import ONE, Window
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
        # Searches look up the same terms many times.
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
    term, remainder = _parse(text.replace(" ", ""), text)
    if remainder:
        raise TermError(f"{text!r} continues after its end with {remainder!r}")
    return term


def _parse(remainder: str, text: str) -> tuple[Term, str]:
    name_length = next((at for at, char in enumerate(remainder) if not char.isalpha()), len(remainder))
    name, remainder = remainder[:name_length], remainder[name_length:]
    if name in (*IMAGES, *WEIGHTS):
        return Term(name), remainder
    if name not in SLOTS:
        raise TermError(f"{text!r} has {name or remainder[:1]!r} where an operator or a variable is expected")
    parameters: list[str] = []
    if remainder.startswith("["):
        inside, _, remainder = remainder[1:].partition("]")
        parameters = inside.split(",")
    if len(parameters) != len(SLOTS[name]) or not remainder.startswith("("):
        raise TermError(
            f"{text!r} has {name} with {len(parameters)} of {len(SLOTS[name])} parameters, or without operands"
        )
    operands = []
    while remainder[:1] in ("(", ","):
        operand, remainder = _parse(remainder[1:], text)
        operands.append(operand)
    if not remainder.startswith(")") or len(operands) != ARITY[name]:
        raise TermError(f"{text!r} has {name} with {len(operands)} operands, or without an end")
    slots = dict(zip(SLOTS[name], parameters, strict=True))
    term = Term(name, slots.get("a", ""), slots.get("f", ""), tuple(operands))
    _check(term, text)
    return term, remainder[1:]


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


HALF = Window((1, 1), (2, 2))
"""Window that selects every second row and column."""


class InvalidOperands(WeftError, ValueError):
    """A term's operands do not fit."""


class Domain(Protocol):
    """Kind of elements."""

    def function(self, name: str, values: np.ndarray) -> np.ndarray:
        """Apply a function, by its name, to each element."""

    def maximum(self, values: Sequence[np.ndarray]) -> np.ndarray:
        """Return the maximum of arrays, element by element; None elements do not count."""

    def factors(self, name: str) -> tuple[object, object]:
        """Return the factors of the operands of an addition with a function."""

    def outside(self, values: np.ndarray) -> np.ndarray:
        """Return an array of the same shape with elements that never are a maximum."""


def compose_windows(first: Window, second: Window) -> Window:
    """Return two successive windows as one, for maxima of maxima."""
    kernel, stride, pad = [], [], []
    for axis in range(2):
        if first.dilation[axis] != 1 or second.dilation[axis] != 1:
            raise InvalidOperands("windows with dilation")
        # Neighbours in the second window are a stride of the first one apart.
        kernel.append(first.kernel[axis] + (second.kernel[axis] - 1) * first.stride[axis])
        stride.append(first.stride[axis] * second.stride[axis])
    # Pads are top, left, bottom and right.
    pad = [outer + inner * first.stride[side % 2]
           for side, (outer, inner) in enumerate(zip(first.pad, second.pad, strict=True))]  # fmt: skip
    return Window((kernel[0], kernel[1]), (stride[0], stride[1]), (1, 1), (pad[0], pad[1], pad[2], pad[3]))


@dataclass
class Setting:
    """Variables and windows by name: images (..., h, w, c), weights (o, h, w, i)."""

    values: dict[str, np.ndarray]
    windows: Mapping[str, Window]

    def window(self, name: str) -> Window:
        """Return a window by its name, or a product of windows."""
        parts = [self.windows[part] for part in name.split("*")]
        composed = parts[0]
        for part in parts[1:]:
            composed = compose_windows(composed, part)
        return composed


def evaluate_term(term: Term, setting: Setting, domain: Domain) -> np.ndarray:
    """Return the elements of a term: (..., h, w, c) of an image, (o, h, w, i) of weights.

    Raises
    ------
    InvalidOperands
        If operands do not fit.
    """
    values: dict[Term, np.ndarray] = {}
    for part in term.parts:
        if part not in values:
            operands = [values[operand] for operand in part.operands]
            values[part] = (
                apply_operator(part, operands, setting, domain) if operands else setting.values[part.operator]
            )
    return values[term]


def apply_operator(
    term: Term, operands: Sequence[np.ndarray], setting: Setting, domain: Domain
) -> np.ndarray:
    """Return the elements of an operator's result, given its operands.

    Raises
    ------
    InvalidOperands
        If the operands do not fit.
    """
    if term.operator in _REARRANGEMENTS:
        return _REARRANGEMENTS[term.operator](*operands)
    if term.operator == "max":
        return domain.maximum(list(_windows(domain.outside, operands[0], setting.window(term.window))))
    return _function(term.function, _sums(term, operands, setting, domain), domain)


def _sums(term: Term, operands: Sequence[np.ndarray], setting: Setting, domain: Domain) -> np.ndarray:
    """Return an operator's result before its function."""
    first = operands[0]
    if term.operator == "func":
        return first
    if term.operator in ("add", "mul"):
        second = operands[1]
        if first.shape[-3:] != second.shape[-3:]:
            raise InvalidOperands("shapes differ")
        if term.operator == "mul":
            return first * second
        a, b = domain.factors(term.function.lstrip("~"))
        return first * b + second * a if term.function.startswith("~") else first * a + second * b
    window = setting.window(term.window)
    parts = _windows(np.zeros_like, first, window)
    if term.operator == "mean":
        if any(window.pad):
            raise InvalidOperands("a mean with padding")
        return sum(parts, start=next(parts))
    weight = operands[1]
    # Depthwise weights have an output for each channel of the image.
    if (
        weight.shape[1:3] != window.kernel
        or weight.shape[3 if term.operator == "conv" else 0] != first.shape[-1]
    ):
        raise InvalidOperands("weights do not fit")
    taps = [weight[:, y, x] for y in range(window.kernel[0]) for x in range(window.kernel[1])]
    if term.operator == "conv":
        products = [part @ tap.T for part, tap in zip(parts, taps, strict=True)]
    else:
        if weight.shape[3] != 1:
            raise InvalidOperands("weights of more than one channel each")
        products = [part * tap[:, 0] for part, tap in zip(parts, taps, strict=True)]
    return sum(products[1:], start=products[0])


def _windows(
    outside: Callable[[np.ndarray], np.ndarray], values: np.ndarray, window: Window
) -> Iterator[np.ndarray]:
    """Yield the input of each element of a window, in order: (..., oh, ow, c)."""
    top, left, bottom, right = window.pad
    h, w = values.shape[-3:-1]
    oh, ow = window.output(h, w)
    if min(oh, ow) < 1:
        raise InvalidOperands("no window fits")
    if any(window.pad):
        shape = (*values.shape[:-3], h + top + bottom, w + left + right, values.shape[-1])
        padded = outside(np.empty(shape, values.dtype))
        padded[..., top : top + h, left : left + w, :] = values
        values = padded
    for y in range(window.kernel[0]):
        for x in range(window.kernel[1]):
            sy, sx = window.stride
            yield values[..., y : y + (oh - 1) * sy + 1 : sy, x : x + (ow - 1) * sx + 1 : sx, :]


def _function(name: str, values: np.ndarray, domain: Domain) -> np.ndarray:
    name = name.lstrip("~")
    if "|" in name:
        one, other = name.split("|")
        first, second = _halves(values, -1)
        return np.concatenate([_function(one, first, domain), _function(other, second, domain)], axis=-1)
    for part in reversed(name.split(".")):
        values = values if part == "e" else domain.function(part, values)
    return values


def _halves(values: np.ndarray, axis: int) -> tuple[np.ndarray, np.ndarray]:
    size = values.shape[axis]
    if size % 2:
        raise InvalidOperands("halves of an odd number")
    first, second = np.split(values, 2, axis=axis)
    return first, second


def _concatenator(axis: int) -> Callable[..., np.ndarray]:
    def join(one: np.ndarray, other: np.ndarray) -> np.ndarray:
        ones, others = list(one.shape[-3:]), list(other.shape[-3:])
        del ones[axis], others[axis]
        if ones != others:
            raise InvalidOperands("shapes differ")
        batch = np.broadcast_shapes(one.shape[:-3], other.shape[:-3])
        return np.concatenate(
            [np.broadcast_to(item, (*batch, *item.shape[-3:])) for item in (one, other)], axis=axis
        )

    return join


def _weights_concatenator(axis: int) -> Callable[..., np.ndarray]:
    def join(one: np.ndarray, other: np.ndarray) -> np.ndarray:
        other_sizes = [size for at, size in enumerate(one.shape) if at != axis]
        if other_sizes != [size for at, size in enumerate(other.shape) if at != axis]:
            raise InvalidOperands("shapes differ")
        return np.concatenate([one, other], axis=axis)

    return join


def _diagonal(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    if one.shape[1:3] != other.shape[1:3]:
        raise InvalidOperands("kernels differ")
    shape = (len(one) + len(other), *one.shape[1:3], one.shape[3] + other.shape[3])
    result = np.zeros_like(np.empty(shape, one.dtype))
    result[: len(one), ..., : one.shape[3]] = one
    result[len(one) :, ..., one.shape[3] :] = other
    return result


def _grow(weight: np.ndarray) -> np.ndarray:
    if weight.shape[1:3] != (1, 1):
        raise InvalidOperands("a kernel of more than one element")
    result = np.zeros_like(np.empty((len(weight), 3, 3, weight.shape[3]), weight.dtype))
    result[:, 1:2, 1:2] = weight
    return result


def _make_dense(weight: np.ndarray) -> np.ndarray:
    if weight.shape[3] != 1:
        raise InvalidOperands("weights of more than one channel each")
    result = np.zeros_like(np.empty((*weight.shape[:3], len(weight)), weight.dtype))
    for channel in range(len(weight)):
        result[channel, ..., channel] = weight[channel, ..., 0]
    return result


def _add_weights(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    if one.shape != other.shape:
        raise InvalidOperands("shapes differ")
    return one + other


_REARRANGEMENTS: dict[str, Callable[..., np.ndarray]] = {
    "cat": _concatenator(-1),
    "rows": _concatenator(-3),
    "first": lambda values: _halves(values, -1)[0],
    "second": lambda values: _halves(values, -1)[1],
    "top": lambda values: _halves(values, -3)[0],
    "bottom": lambda values: _halves(values, -3)[1],
    "turn": lambda values: np.swapaxes(values, -3, -2),
    "outs": _weights_concatenator(0),
    "ins": _weights_concatenator(3),
    "plus": _add_weights,
    "diag": _diagonal,
    "grow": _grow,
    "dense": _make_dense,
    "spun": lambda weight: np.swapaxes(weight, 1, 2),
}
__all__ = [
    "HALF",
    "ONE",
    "Domain",
    "InvalidOperands",
    "Setting",
    "apply_operator",
    "compose_windows",
    "evaluate_term",
]
