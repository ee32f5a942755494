"""Rules: two terms that are equal, under a condition that the proof found."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain

from weft.extras.search.substitution.rule_proof import equal_in, scenes, window_names
from weft.extras.search.substitution.term import (
    IMAGES,
    KERNEL_CHANNELS,
    KERNELS,
    POINT_CHANNELS,
    POINTS,
    Term,
    is_weights,
)

_FUNCTIONS, _WINDOWS = ("f", "g", "h"), ("a", "b")
_FAMILIES = (IMAGES, POINTS, KERNELS, POINT_CHANNELS, KERNEL_CHANNELS)


@dataclass(frozen=True)
class Rule:
    """Two terms that are equal for all integers.

    `rising` functions must not fall: requantisations by positive factors, clamps, and tables that never fall. With
    `bound` the proof holds for some windows and sizes and not for others, so that it is to be made for those at hand.
    """

    left: Term
    right: Term
    rising: tuple[str, ...] = field(default=(), compare=False)
    bound: bool = field(default=False, compare=False)

    @property
    def text(self) -> str:
        """Both sides, as they are shown."""
        return f"{self.left.text} = {self.right.text}"

    @property
    def told(self) -> str:
        """Both sides, and the condition."""
        rising = f" if {' and '.join(self.rising)} never fall" if self.rising else ""
        return f"{self.text}{rising}{' for windows that prove it' if self.bound else ''}"

    @property
    def turned(self) -> Rule:
        """The same from right to left."""
        return Rule(self.right, self.left, self.rising, self.bound)


def judged(left: Term, right: Term) -> Rule | None:
    """The rule that two terms are, with the weakest condition that its proof needs; None if there is no proof."""
    held = _held(left, right, frozenset())
    if held is None:
        return None
    # Whether windows are one behind the other depends on what each of them leaves out at the borders.
    bound = held or _behind_each_other(left, right)
    names = sorted({name for name in _functions(left, right) if name != "e"})
    if not any(part.operator == "max" for term in (left, right) for part in term.parts):
        return Rule(left, right, (), bound)  # all that a function that rises passes through
    if _held(left, right, frozenset(names)) == held:
        return Rule(left, right, (), bound)
    rising = [name for name in names if _held(left, right, frozenset((name,))) != held]
    return Rule(left, right, tuple(rising), bound)


def holds(rule: Rule) -> bool:
    """Whether the proof of a rule, with the condition that it states, can be made."""
    loose = frozenset(name for name in _functions(rule.left, rule.right) if name not in (*rule.rising, "e"))
    bound = _held(rule.left, rule.right, loose)
    return bound is not None and (bound or _behind_each_other(rule.left, rule.right)) <= rule.bound


def _behind_each_other(*terms: Term) -> bool:
    """Whether terms have windows that are one behind the other."""
    return any("*" in part.window for term in terms for part in term.parts)


def _held(left: Term, right: Term, unsteady: frozenset[str]) -> bool | None:
    """Whether a rule has equal forms in some scenes only; None if it has none in a third of those where windows with
    different names are different."""
    square = any(part.operator in ("turn", "spun") for term in (left, right) for part in term.parts)
    names = window_names(left, right)
    held = counted = 0
    bound = False
    for scene in scenes(names, square=square):
        equal = equal_in(left, right, scene, unsteady)
        if equal is False and not names:
            return None
        bound |= equal is False
        if equal is not None and len({window for _, window in scene.windows}) == len(names):
            counted += 1
            held += equal
    return None if held * 3 < max(counted, 1) else bound


def _functions(*terms: Term) -> Iterator[str]:
    """The names of functions in terms, in the order in which they first appear."""
    seen = (part.function.lstrip("~") for term in terms for part in term.parts if part.function)
    yield from dict.fromkeys(chain.from_iterable(name.replace("|", ".").split(".") for name in seen))


def general(left: Term, right: Term) -> Iterator[tuple[Term, Term]]:
    """Two terms with what both have in common as variables: the most general pair first, themselves last."""
    used = {part.operator for term in (left, right) for part in term.parts if not part.operands}
    shared = [part for part in dict.fromkeys(left.parts) if part.operands and part in set(right.parts)]
    largest = [
        part for part in shared if not any(part is not other and part in set(other.parts) for other in shared)
    ]
    known = {}
    for part in largest:
        family = _family(part)
        free = next((name for name in family if name not in used), None)
        if free is not None:
            used.add(free)
            known[part] = Term(free)
    if known and left not in known and right not in known:
        yield left.replaced(known), right.replaced(known)
    yield left, right


def _family(part: Term) -> tuple[str, ...]:
    """The names that a variable in place of a term may have."""
    if not is_weights(part):
        return IMAGES
    inner = next(item.operator for item in part.parts if not item.operands)
    family = next(names for names in _FAMILIES if inner in names)
    if part.operator == "dense":
        return POINTS if family == POINT_CHANNELS else KERNELS
    return KERNELS if part.operator == "grow" else family


def renamed(left: Term, right: Term) -> tuple[Term, Term]:
    """Both with variables, functions and windows named in the order in which they first appear."""
    names: dict[str, str] = {}
    for family in _FAMILIES:
        free = iter(family)
        for term in (left, right):
            for part in term.parts:
                if part.operator in family and part.operator not in names:
                    names[part.operator] = next(free)
    functions = _numbered(_functions(left, right), _FUNCTIONS, ("e",))
    windows = _numbered(window_names(left, right), _WINDOWS, ("s", "1"))
    if not {*KERNELS, *KERNEL_CHANNELS}.isdisjoint(names):
        windows = {name: name for name in windows}  # the kernels of weights are window `a`

    def anew(term: Term) -> Term:
        if not term.operands:
            return Term(names[term.operator])
        function = "".join(functions.get(char, char) for char in term.function)
        window = "".join(windows.get(char, char) for char in term.window)
        return Term(term.operator, window, function, tuple(anew(item) for item in term.operands))

    return anew(left), anew(right)


def _numbered(found: Iterable[str], names: Sequence[str], fixed: Sequence[str]) -> dict[str, str]:
    free = iter(names)
    return {name: next(free) for name in found if name not in fixed}


Binding = dict[str, Term | str]


def is_instance(rule: Rule, other: Rule) -> bool:
    """Whether a rule says no more than another one, of which it is a case."""
    if other.bound and not rule.bound:
        return False
    for left, right in ((rule.left, rule.right), (rule.right, rule.left)):
        found: Binding = {}
        if _bound(other.left, left, found) and _bound(other.right, right, found):
            return True
    return False


def rewritten(term: Term, rules: Sequence[Rule]) -> Iterator[Term]:
    """What a term becomes by one use of a rule, from left to right, anywhere in it."""
    for rule in rules:
        found: Binding = {}
        if _bound(rule.left, term, found):
            yield _instance(rule.right, found)
    for index, operand in enumerate(term.operands):
        for other in rewritten(operand, rules):
            operands = (*term.operands[:index], other, *term.operands[index + 1 :])
            yield Term(term.operator, term.window, term.function, operands)


def _instance(pattern: Term, found: Binding) -> Term:
    if not pattern.operands:
        value = found[pattern.operator]
        assert isinstance(value, Term)
        return value
    function, window = (
        "".join(str(found.get(kind + char, char)) for char in name)
        for kind, name in (("f", pattern.function), ("a", pattern.window))
    )
    operands = tuple(_instance(item, found) for item in pattern.operands)
    return Term(pattern.operator, window, function, operands)


def _bound(pattern: Term, term: Term, found: Binding) -> bool:
    if not pattern.operands:
        if _family(pattern) != _family(term):
            return False
        return found.setdefault(pattern.operator, term) == term
    if pattern.operator != term.operator or not _named(pattern.function, term.function, "f", found):
        return False
    if not _named(pattern.window, term.window, "a", found):
        return False
    return all(_bound(one, other, found) for one, other in zip(pattern.operands, term.operands, strict=True))


def _named(pattern: str, name: str, kind: str, found: Binding) -> bool:
    if len(pattern) > 1 or pattern in ("", "e", "1", "s"):
        if len(pattern) != len(name):
            return False
        return all(
            (one == other) if one in "~.|*1se" else found.setdefault(kind + one, other) == other
            for one, other in zip(pattern, name, strict=True)
        )
    return found.setdefault(kind + pattern, name) == name
