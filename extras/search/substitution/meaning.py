"""What terms mean: every element of an image from elements of the variables, in integers or in symbols.

There is one meaning for both: arrays of numpy, of int64 or of objects that add and multiply. What is not sums and
products, maxima and functions, is asked of the domain.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from weft.compiler.ir.graph import ONE, Window
from weft.extras.search.substitution.term import Term
from weft.hdl.errors import WeftError

HALF = Window((1, 1), (2, 2))
"""Every second row and column."""


class NoMeaning(WeftError, ValueError):
    """A term whose operands do not fit."""


class Domain(Protocol):
    """What elements are."""

    def function(self, name: str, values: np.ndarray) -> np.ndarray:
        """A function, by its name, of each element."""

    def maximum(self, values: Sequence[np.ndarray]) -> np.ndarray:
        """The greatest of arrays, element by element. None is an element that does not count."""

    def factors(self, name: str) -> tuple[object, object]:
        """By what the operands of an addition with a function are multiplied."""

    def outside(self, values: np.ndarray) -> np.ndarray:
        """An array like another one of elements that no maximum is."""


def composed(first: Window, then: Window) -> Window:
    """Two windows, one behind the other, as one: that of maxima of maxima."""
    kernel, stride, pad = [], [], []
    for axis in range(2):
        if first.dilation[axis] != 1 or then.dilation[axis] != 1:
            raise NoMeaning("windows with dilation")
        kernel.append(first.kernel[axis] + (then.kernel[axis] - 1) * first.stride[axis])
        stride.append(first.stride[axis] * then.stride[axis])
    pad = [before + behind * first.stride[side % 2]
           for side, (before, behind) in enumerate(zip(first.pad, then.pad, strict=True))]  # fmt: skip
    return Window((kernel[0], kernel[1]), (stride[0], stride[1]), (1, 1), (pad[0], pad[1], pad[2], pad[3]))


@dataclass
class Setting:
    """Variables and windows by their names: images (..., h, w, c), weights (o, h, w, i)."""

    values: dict[str, np.ndarray]
    windows: Mapping[str, Window]

    def window(self, name: str) -> Window:
        """A window by its name, or a product of some."""
        parts = [self.windows[part] for part in name.split("*")]
        found = parts[0]
        for part in parts[1:]:
            found = composed(found, part)
        return found


def meaning(term: Term, setting: Setting, domain: Domain) -> np.ndarray:
    """The elements of a term: (..., h, w, c) of an image, (o, h, w, i) of weights.

    Raises
    ------
    NoMeaning
        If operands do not fit.
    """
    known: dict[Term, np.ndarray] = {}
    for part in term.parts:
        if part not in known:
            operands = [known[operand] for operand in part.operands]
            known[part] = (
                applied(part, operands, setting, domain) if operands else setting.values[part.operator]
            )
    return known[term]


def applied(term: Term, operands: Sequence[np.ndarray], setting: Setting, domain: Domain) -> np.ndarray:
    """The elements of an operator whose operands are known.

    Raises
    ------
    NoMeaning
        If they do not fit.
    """
    if term.operator in _PLACES:
        return _PLACES[term.operator](*operands)
    if term.operator == "max":
        return domain.maximum(list(_windows(domain.outside, operands[0], setting.window(term.window))))
    return _function(term.function, _sums(term, operands, setting, domain), domain)


def _sums(term: Term, operands: Sequence[np.ndarray], setting: Setting, domain: Domain) -> np.ndarray:
    """What an operator makes before its function."""
    first = operands[0]
    if term.operator == "func":
        return first
    if term.operator in ("add", "mul"):
        second = operands[1]
        if first.shape[-3:] != second.shape[-3:]:
            raise NoMeaning("shapes differ")
        if term.operator == "mul":
            return first * second
        a, b = domain.factors(term.function.lstrip("~"))
        return first * b + second * a if term.function.startswith("~") else first * a + second * b
    window = setting.window(term.window)
    parts = _windows(np.zeros_like, first, window)
    if term.operator == "mean":
        if any(window.pad):
            raise NoMeaning("a mean with padding")
        return sum(parts, start=next(parts))
    weight = operands[1]
    if (
        weight.shape[1:3] != window.kernel
        or weight.shape[3 if term.operator == "conv" else 0] != first.shape[-1]
    ):
        raise NoMeaning("weights do not fit")
    taps = [weight[:, y, x] for y in range(window.kernel[0]) for x in range(window.kernel[1])]
    if term.operator == "conv":
        made = [part @ tap.T for part, tap in zip(parts, taps, strict=True)]
    else:
        if weight.shape[3] != 1:
            raise NoMeaning("weights of more than one channel each")
        made = [part * tap[:, 0] for part, tap in zip(parts, taps, strict=True)]
    return sum(made[1:], start=made[0])


def _windows(
    outside: Callable[[np.ndarray], np.ndarray], values: np.ndarray, window: Window
) -> Iterator[np.ndarray]:
    """For each element of a window what it reads, in order: (..., oh, ow, c)."""
    top, left, bottom, right = window.pad
    h, w = values.shape[-3:-1]
    oh, ow = window.output(h, w)
    if min(oh, ow) < 1:
        raise NoMeaning("no window fits")
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
        raise NoMeaning("halves of an odd number")
    first, second = np.split(values, 2, axis=axis)
    return first, second


def _joined(axis: int) -> Callable[..., np.ndarray]:
    def join(one: np.ndarray, other: np.ndarray) -> np.ndarray:
        ones, others = list(one.shape[-3:]), list(other.shape[-3:])
        del ones[axis], others[axis]
        if ones != others:
            raise NoMeaning("shapes differ")
        batch = np.broadcast_shapes(one.shape[:-3], other.shape[:-3])
        return np.concatenate(
            [np.broadcast_to(item, (*batch, *item.shape[-3:])) for item in (one, other)], axis=axis
        )

    return join


def _joined_weights(axis: int) -> Callable[..., np.ndarray]:
    def join(one: np.ndarray, other: np.ndarray) -> np.ndarray:
        rest = [size for at, size in enumerate(one.shape) if at != axis]
        if rest != [size for at, size in enumerate(other.shape) if at != axis]:
            raise NoMeaning("shapes differ")
        return np.concatenate([one, other], axis=axis)

    return join


def _diagonal(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    if one.shape[1:3] != other.shape[1:3]:
        raise NoMeaning("kernels differ")
    shape = (len(one) + len(other), *one.shape[1:3], one.shape[3] + other.shape[3])
    made = np.zeros_like(np.empty(shape, one.dtype))
    made[: len(one), ..., : one.shape[3]] = one
    made[len(one) :, ..., one.shape[3] :] = other
    return made


def _grown(weight: np.ndarray) -> np.ndarray:
    if weight.shape[1:3] != (1, 1):
        raise NoMeaning("a kernel of more than one element")
    made = np.zeros_like(np.empty((len(weight), 3, 3, weight.shape[3]), weight.dtype))
    made[:, 1:2, 1:2] = weight
    return made


def _dense(weight: np.ndarray) -> np.ndarray:
    if weight.shape[3] != 1:
        raise NoMeaning("weights of more than one channel each")
    made = np.zeros_like(np.empty((*weight.shape[:3], len(weight)), weight.dtype))
    for channel in range(len(weight)):
        made[channel, ..., channel] = weight[channel, ..., 0]
    return made


def _sum(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    if one.shape != other.shape:
        raise NoMeaning("shapes differ")
    return one + other


_PLACES: dict[str, Callable[..., np.ndarray]] = {
    "cat": _joined(-1),
    "rows": _joined(-3),
    "first": lambda values: _halves(values, -1)[0],
    "second": lambda values: _halves(values, -1)[1],
    "top": lambda values: _halves(values, -3)[0],
    "bottom": lambda values: _halves(values, -3)[1],
    "turn": lambda values: np.swapaxes(values, -3, -2),
    "outs": _joined_weights(0),
    "ins": _joined_weights(3),
    "plus": _sum,
    "diag": _diagonal,
    "grow": _grown,
    "dense": _dense,
    "spun": lambda weight: np.swapaxes(weight, 1, 2),
}
__all__ = ["HALF", "ONE", "Domain", "NoMeaning", "Setting", "applied", "composed", "meaning"]
