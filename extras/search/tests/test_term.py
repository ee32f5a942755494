"""Terms as text, and what is no term."""

from __future__ import annotations

import pytest

from weft.extras.search.substitution.rule_file import carried
from weft.extras.search.substitution.term import Term, TermError, parsed


def test_every_carried_side_is_read_as_it_is_written() -> None:
    for rule in carried():
        for side in (rule.left, rule.right):
            assert parsed(side.text) == side


def test_size_counts_equal_parts_once() -> None:
    x = Term("x")
    one = Term("func", function="f", operands=(x,))
    assert Term("cat", operands=(one, one)).size == 2
    assert x.size == 0


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("", "''"),
        ("sum(x)", "'sum'"),
        ("max(x)", "0 of 1 parameters"),
        ("max[a]x", "without operands"),
        ("max[a](x", "without an end"),
        ("cat(x)", "1 operands"),
        ("cat(x, y) z", "goes on"),
        ("max[q](x)", "window 'q'"),
        ("max[a**b](x)", "window 'a**b'"),
        ("func[ff](x)", "function 'ff'"),
        ("conv[a,f](x, y)", "weights have to be"),
        ("conv[a,f](w, w)", "an image has to be"),
        ("outs(w, x)", "weights have to be"),
    ],
)
def test_what_is_no_term(text: str, what: str) -> None:
    with pytest.raises(TermError, match=what.replace("*", r"\*")):
        parsed(text)
