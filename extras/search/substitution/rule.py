"""Rules: two equal terms, with the condition that their proof needs; and files of rules, including weft's own."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import chain
from pathlib import Path

from weft.extras.search.substitution.rule_proof import equal_in, make_scenes, window_names
from weft.extras.search.substitution.term import (
    IMAGES,
    KERNEL_CHANNELS,
    KERNELS,
    POINT_CHANNELS,
    POINTS,
    Term,
    TermError,
    is_weights,
    parse,
)
from weft.hdl import schema
from weft.hdl.errors import WeftError

_FUNCTIONS, _WINDOWS = ("f", "g", "h"), ("a", "b")
_FAMILIES = (IMAGES, POINTS, KERNELS, POINT_CHANNELS, KERNEL_CHANNELS)


@dataclass(frozen=True)
class Rule:
    """Two terms that are equal for all integers.

    `rising` functions must be non-decreasing: requantisations by positive factors, clamps, and non-decreasing tables.
    With `bound`, the proof holds for some windows and sizes only, so that it must be repeated for those at hand.
    """

    left: Term
    right: Term
    rising: tuple[str, ...] = field(default=(), compare=False)
    bound: bool = field(default=False, compare=False)

    @property
    def text(self) -> str:
        """Both sides."""
        return f"{self.left.text} = {self.right.text}"

    @property
    def description(self) -> str:
        """Both sides, and the condition."""
        rising = f" if {' and '.join(self.rising)} never fall" if self.rising else ""
        return f"{self.text}{rising}{' for windows that prove it' if self.bound else ''}"

    @property
    def reversed(self) -> Rule:
        """The rule from right to left."""
        return Rule(self.right, self.left, self.rising, self.bound)


def prove(left: Term, right: Term) -> Rule | None:
    """Return the rule for two terms, with the weakest condition that its proof needs; None without a proof."""
    bound_or_none = _check_scenes(left, right, frozenset())
    if bound_or_none is None:
        return None
    # Whether successive windows equal one window depends on what each of them omits at the borders.
    bound = bound_or_none or _has_window_products(left, right)
    names = sorted({name for name in _functions(left, right) if name != "e"})
    if not any(part.operator == "max" for term in (left, right) for part in term.parts):
        return Rule(left, right, (), bound)  # only maxima need a non-decreasing function
    if _check_scenes(left, right, frozenset(names)) == bound_or_none:
        return Rule(left, right, (), bound)
    rising = [name for name in names if _check_scenes(left, right, frozenset((name,))) != bound_or_none]
    return Rule(left, right, tuple(rising), bound)


def holds(rule: Rule) -> bool:
    """Return whether a rule has a proof under the condition that it states."""
    non_monotone = frozenset(
        name for name in _functions(rule.left, rule.right) if name not in (*rule.rising, "e")
    )
    bound = _check_scenes(rule.left, rule.right, non_monotone)
    return bound is not None and (bound or _has_window_products(rule.left, rule.right)) <= rule.bound


def _has_window_products(*terms: Term) -> bool:
    """Return whether terms have products of windows."""
    return any("*" in part.window for term in terms for part in term.parts)


def _check_scenes(left: Term, right: Term, non_monotone: frozenset[str]) -> bool | None:
    """Check a rule in all scenes.

    Return whether it has equal forms in some scenes only. Return None if fewer than a third of the scenes with distinct
    windows have equal forms.
    """
    square = any(part.operator in ("turn", "spun") for term in (left, right) for part in term.parts)
    names = window_names(left, right)
    equal_scenes = distinct_scenes = 0
    bound = False
    for scene in make_scenes(names, square=square):
        equal = equal_in(left, right, scene, non_monotone)
        # Without windows nothing depends on sizes, so that one counterexample suffices.
        if equal is False and not names:
            return None
        bound |= equal is False
        if equal is not None and len({window for _, window in scene.windows}) == len(names):
            distinct_scenes += 1
            equal_scenes += equal
    return None if equal_scenes * 3 < max(distinct_scenes, 1) else bound


def _functions(*terms: Term) -> Iterator[str]:
    """Yield the names of functions in terms, in the order of first appearance."""
    function_texts = (part.function.lstrip("~") for term in terms for part in term.parts if part.function)
    yield from dict.fromkeys(
        chain.from_iterable(name.replace("|", ".").split(".") for name in function_texts)
    )


def generalise(left: Term, right: Term) -> Iterator[tuple[Term, Term]]:
    """Yield pairs of terms with common subterms as variables: the most general pair first, the terms themselves
    last.
    """
    used = {part.operator for term in (left, right) for part in term.parts if not part.operands}
    shared = [part for part in dict.fromkeys(left.parts) if part.operands and part in set(right.parts)]
    largest = [
        part for part in shared if not any(part is not other and part in set(other.parts) for other in shared)
    ]
    replacements = {}
    for part in largest:
        family = _family(part)
        free_name = next((name for name in family if name not in used), None)
        if free_name is not None:
            used.add(free_name)
            replacements[part] = Term(free_name)
    if replacements and left not in replacements and right not in replacements:
        yield left.substitute(replacements), right.substitute(replacements)
    yield left, right


def _family(part: Term) -> tuple[str, ...]:
    """Return the names of variables that can replace a term."""
    if not is_weights(part):
        return IMAGES
    inner = next(item.operator for item in part.parts if not item.operands)
    family = next(names for names in _FAMILIES if inner in names)
    if part.operator == "dense":
        return POINTS if family == POINT_CHANNELS else KERNELS
    return KERNELS if part.operator == "grow" else family


def canonical_names(left: Term, right: Term) -> tuple[Term, Term]:
    """Return both terms with variables, functions and windows named in the order of first appearance."""
    names: dict[str, str] = {}
    for family in _FAMILIES:
        free = iter(family)
        for term in (left, right):
            for part in term.parts:
                if part.operator in family and part.operator not in names:
                    names[part.operator] = next(free)
    functions = _assign_names(_functions(left, right), _FUNCTIONS, ("e",))
    windows = _assign_names(window_names(left, right), _WINDOWS, ("s", "1"))
    if not {*KERNELS, *KERNEL_CHANNELS}.isdisjoint(names):
        windows = {name: name for name in windows}  # kernels of weights belong to window `a`

    def rename(term: Term) -> Term:
        if not term.operands:
            return Term(names[term.operator])
        function = "".join(functions.get(char, char) for char in term.function)
        window = "".join(windows.get(char, char) for char in term.window)
        return Term(term.operator, window, function, tuple(rename(item) for item in term.operands))

    return rename(left), rename(right)


def _assign_names(used_names: Iterable[str], names: Sequence[str], fixed: Sequence[str]) -> dict[str, str]:
    free = iter(names)
    return {name: next(free) for name in used_names if name not in fixed}


Binding = dict[str, Term | str]


def is_instance(rule: Rule, other: Rule) -> bool:
    """Return whether a rule is an instance of another one."""
    if other.bound and not rule.bound:
        return False
    for left, right in ((rule.left, rule.right), (rule.right, rule.left)):
        binding: Binding = {}
        if _match(other.left, left, binding) and _match(other.right, right, binding):
            return True
    return False


def rewrite_once(term: Term, rules: Sequence[Rule]) -> Iterator[Term]:
    """Yield the terms to which one use of a rule, from left to right at any place, leads."""
    for rule in rules:
        binding: Binding = {}
        if _match(rule.left, term, binding):
            yield _instantiate(rule.right, binding)
    for index, operand in enumerate(term.operands):
        for other in rewrite_once(operand, rules):
            operands = (*term.operands[:index], other, *term.operands[index + 1 :])
            yield Term(term.operator, term.window, term.function, operands)


def _instantiate(pattern: Term, binding: Binding) -> Term:
    if not pattern.operands:
        value = binding[pattern.operator]
        assert isinstance(value, Term)
        return value
    # The prefix keeps functions and windows apart from variables of the same letter.
    function, window = (
        "".join(str(binding.get(kind + char, char)) for char in name)
        for kind, name in (("f", pattern.function), ("a", pattern.window))
    )
    operands = tuple(_instantiate(item, binding) for item in pattern.operands)
    return Term(pattern.operator, window, function, operands)


def _match(pattern: Term, term: Term, binding: Binding) -> bool:
    if not pattern.operands:
        if _family(pattern) != _family(term):
            return False
        return binding.setdefault(pattern.operator, term) == term
    if pattern.operator != term.operator or not _match_names(pattern.function, term.function, "f", binding):
        return False
    if not _match_names(pattern.window, term.window, "a", binding):
        return False
    return all(
        _match(one, other, binding) for one, other in zip(pattern.operands, term.operands, strict=True)
    )


def _match_names(pattern: str, name: str, kind: str, binding: Binding) -> bool:
    # Compositions match name by name, and fixed names match only themselves.
    if len(pattern) > 1 or pattern in ("", "e", "1", "s"):
        if len(pattern) != len(name):
            return False
        return all(
            (one == other) if one in "~.|*1se" else binding.setdefault(kind + one, other) == other
            for one, other in zip(pattern, name, strict=True)
        )
    return binding.setdefault(kind + pattern, name) == name


FORMAT = "weft rules 1"
BUILTIN_RULES = Path(__file__).with_name("rules.json")
"""Rules that `weft rules --find` found for `weft.extras.search.substitution.discovery`."""


class RuleError(WeftError, ValueError):
    """A file of rules is invalid, or a rule does not hold."""


def read(path: str | Path = BUILTIN_RULES) -> tuple[Rule, ...]:
    """Read the rules of a file, without proving them.

    Raises
    ------
    RuleError
        If the file cannot be read, has another format, or contains an invalid rule.
    """
    try:
        data = json.loads(Path(path).read_text())
    except OSError as error:
        raise RuleError(f"cannot read the rules {path}: {error.strerror}") from None
    except ValueError as error:
        raise RuleError(f"{path} holds no rules: it is no JSON ({error})") from None
    if not isinstance(data, dict) or data.get("format") != FORMAT:
        stated_format = data.get("format") if isinstance(data, dict) else None
        raise RuleError(
            f"{path} is of format {schema.short_repr(stated_format)}, not {FORMAT!r}: create it with "
            "`weft rules --find`"
        )
    rules = data.get("rules")
    if not isinstance(rules, list):
        raise RuleError(f"{path} has no list of rules under 'rules'")
    return tuple(_rule(item, f"{path}: rule {number}") for number, item in enumerate(rules, 1))


@cache
def builtin_rules() -> tuple[Rule, ...]:
    """Return weft's own rules."""
    return read()


def prove_rules(rules: Iterable[Rule], path: str | Path) -> Iterator[Rule]:
    """Yield rules, each after its proof.

    Raises
    ------
    RuleError
        If a rule has no proof.
    """
    for number, rule in enumerate(rules, 1):
        if not holds(rule):
            raise RuleError(
                f"{path}: rule {number} does not hold under the condition that it states: {rule.description}; "
                "remove it, or create the file again with `weft rules --find`"
            )
        yield rule


def _rule(item: object, place: str) -> Rule:
    if not isinstance(item, dict) or not {"left", "right"} <= set(item) <= {
        "left",
        "right",
        "rising",
        "bound",
    }:
        raise RuleError(f"{place} is {schema.short_repr(item)}, not an object with 'left' and 'right'")
    rising, bound = item.get("rising", []), item.get("bound", False)
    if (
        not isinstance(rising, list)
        or not all(isinstance(name, str) for name in rising)
        or not isinstance(bound, bool)
    ):
        raise RuleError(f"{place}: 'rising' has to be a list of names and 'bound' true or false")
    sides = []
    for side in ("left", "right"):
        if not isinstance(item[side], str):
            raise RuleError(f"{place}: {side!r} is {schema.short_repr(item[side])}, not the text of a term")
        try:
            sides.append(parse(item[side]))
        except TermError as error:
            raise RuleError(f"{place}: {error}") from None
    return Rule(sides[0], sides[1], tuple(rising), bound)


def write(path: str | Path, rules: Sequence[Rule]) -> None:
    """Write rules to a file, one per line."""
    Path(path).write_text("\n".join(_lines(rules)) + "\n")


def _lines(rules: Sequence[Rule]) -> Iterable[str]:
    yield f'{{"format": {json.dumps(FORMAT)}, "rules": ['
    for number, rule in enumerate(rules, 1):
        item: dict[str, object] = {"left": rule.left.text, "right": rule.right.text}
        if rule.rising:
            item["rising"] = list(rule.rising)
        if rule.bound:
            item["bound"] = True
        yield json.dumps(item) + ("," if number < len(rules) else "")
    yield "]}"
