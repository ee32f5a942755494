"""Families of operators whose rules weft contains."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Family:
    """Family of terms: variables, operators, windows and functions, and the maximum number of operators of a term.

    Operators on weights count.
    """

    name: str
    variables: tuple[str, ...]
    operators: tuple[str, ...]
    windows: tuple[str, ...] = ()
    functions: tuple[str, ...] = ("f", "g")
    size: int = 4


def _family(name: str, variables: str, operators: str, windows: str, functions: str, size: int) -> Family:
    return Family(
        name,
        tuple(variables.split()),
        tuple(operators.split()),
        tuple(windows.split()),
        tuple(functions.split()),
        size,
    )


FAMILIES = (
    _family("element by element", "x y", "func add mul cat first second", "", "f g e g.f f|g ~f", 3),
    _family("elements and places", "x y z u", "func add mul cat first second", "", "f ~f", 3),
    _family("exact elements", "x y z u", "add mul cat first second", "", "e", 3),
    _family("rows and columns", "x y", "func add rows top bottom turn cat", "", "f", 3),
    _family("maxima", "x y", "max func cat turn first second", "a b s a*b b*a a*s b*s", "f g.f", 3),
    _family("maxima and sums", "x y", "max func add cat", "a s a*s", "f", 4),
    _family("means", "x y", "mean func cat max first second", "1 s", "f e f|g", 3),
    _family("convolutions", "x w v", "conv func outs cat first second", "1", "f g g.f f|g", 4),
    _family("convolutions of two images", "x y w v", "conv cat outs ins diag add", "1", "f e", 4),
    _family("exact convolutions", "x y w v", "conv add plus ins cat", "1", "e", 4),
    _family("convolutions over windows", "x y k l", "conv cat outs diag", "a", "f g f|g", 4),
    _family("convolutions and windows", "x w k", "conv max func grow outs turn spun", "1 a s a*s", "f", 3),
    _family("channels by themselves", "x y d c", "depth func cat outs first second", "1", "f g f|g", 4),
    _family(
        "channels over windows", "x d p q", "depth conv cat outs dense max turn spun", "a s a*s 1", "f", 3
    ),
    _family("channels of two images", "x y p q", "depth cat outs max", "a s a*s", "f g f|g", 3),
    _family("exact channels", "x y d c", "depth add plus cat func", "1", "e f", 3),
)
"""Families that `weft rules --find` searches."""
