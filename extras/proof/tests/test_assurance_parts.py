"""Proofs in the table of docs/assurance.md."""

from __future__ import annotations

from weft.extras.proof.tests.support import assurance


def test_kinds_of_proofs() -> None:
    kinds = [
        assurance.kind_of(*result)
        for result in (
            ("proven", "an invariant of 7 clauses"),
            ("proven", "induction over 2 cycles"),
            ("bounded", "all 8 first cycles"),
            ("not proven", "out of time"),
        )
    ]
    assert kinds == [
        "proven by an inductive invariant",
        "proven by k-induction",
        "hold in the first cycles, up to a bound",
        "not proven",
    ]
