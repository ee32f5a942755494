"""Terms as text, and invalid terms."""

from __future__ import annotations

import pytest

from weft.extras.search.substitution.rule import builtin_rules
from weft.extras.search.substitution.term import Term, TermError, parse


def test_every_built_in_side_round_trips() -> None:
    for rule in builtin_rules():
        for side in (rule.left, rule.right):
            assert parse(side.text) == side


def test_size_counts_equal_parts_once() -> None:
    x = Term("x")
    one = Term("func", function="f", operands=(x,))
    assert Term("cat", operands=(one, one)).size == 2
    assert x.size == 0


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "''"),
        ("sum(x)", "'sum'"),
        ("max(x)", "0 of 1 parameters"),
        ("max[a]x", "without operands"),
        ("max[a](x", "without an end"),
        ("cat(x)", "1 operands"),
        ("cat(x, y) z", "continues after"),
        ("max[q](x)", "window 'q'"),
        ("max[a**b](x)", "window 'a**b'"),
        ("func[ff](x)", "function 'ff'"),
        ("conv[a,f](x, y)", "weights are expected"),
        ("conv[a,f](w, w)", "an image is expected"),
        ("outs(w, x)", "weights are expected"),
    ],
)
def test_invalid_terms(text: str, message: str) -> None:
    with pytest.raises(TermError, match=message.replace("*", r"\*")):
        parse(text)
