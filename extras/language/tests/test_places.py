"""Where the tensors of a decoder lie on the chip: small ones counted by hand."""

from __future__ import annotations

import dataclasses

import pytest

from weft.compiler.errors import CompileError
from weft.extras.language.compiler.form import Form
from weft.extras.language.compiler.model import Sizes
from weft.extras.language.compiler.places import Places
from weft.hdl.isa.config import PRESETS

DEFAULT = PRESETS["default"]
SIZES = Sizes(
    context=64, width=32, blocks=2, heads=4, key_value_heads=2, key_length=16, value_length=16, feed_forward=64,
    vocabulary=99,
)  # fmt: skip
"""Of N = 16: vectors of 2, a head in each; 4 in the feed-forward network."""
BIASED = Form(biased=frozenset({"qkv", "inner"}))
LEARNED = Form(centred=True, rotary=False, gated=False, gains=True)


@pytest.mark.parametrize(
    ("form", "positions", "unturned", "gates", "gains"),
    [(Form(), 4, 0, 0, 0), (BIASED, 4, 8, 8, 0), (LEARNED, 4, 0, 0, 8)],
)
def test_one_token(form: Form, positions: int, unturned: int, gates: int, gains: int) -> None:
    """All follow each other, those of attention and of the feed-forward network at the same place: first what the array
    works on, then what the vector unit does, and weights behind the larger of the two."""
    places = Places(SIZES, DEFAULT, 1, 16, form)
    assert places.groups == 2
    panel = 16 * 2  # keys of a page, of two heads
    begin = 4 + 4 + 2 * panel  # inputs of a product, probabilities of 4 heads, keys and values
    rest = begin + 4 + 4 + 1 + 1 + positions + 8 + gains + 11
    found = places.at
    assert {name: found[name] for name in ("a", "p", "keys", "values", "b")} == {
        "a": 0, "p": 4, "keys": 8, "values": 8 + panel, "b": 4,
    }  # fmt: skip
    assert {name: found[name] for name in ("x", "low", "row", "even", "positions", "scores", "gains", "idle")} == {
        "x": begin, "low": begin + 4, "row": begin + 8, "even": begin + 9, "positions": begin + 10,
        "scores": begin + 10 + positions, "gains": begin + 18 + positions, "idle": begin + 18 + positions + gains,
    }  # fmt: skip
    assert {name: found[name] for name in ("q", "k", "v", "unturned", "inner", "gates")} == {
        "q": rest, "k": rest + 4, "v": rest + 6, "unturned": rest + 8, "inner": rest, "gates": rest + 8,
    }  # fmt: skip
    assert found["weights"] == rest + 8 + max(unturned, gates)
    assert found["out"] == found["a"]
    assert [found[f"own {name}"] for name in "qkv"] == [found[name] for name in "qkv"]
    assert places.free == range(found["weights"], DEFAULT.scratchpad_size)


def test_bytes_in_memory() -> None:
    places = Places(SIZES, DEFAULT, 1, 16)
    assert (places.head_bytes, places.block_bytes, places.page_bytes) == (512, 1024, 2048)
    assert (places.token_vectors, places.token_bytes) == (8, 128)


@pytest.mark.parametrize(("rows", "bank"), [(8, 256), (20, 256), (20, 512), (40, 1024)])
def test_several_texts_have_a_bank_for_each_unit(rows: int, bank: int) -> None:
    """What is one text's in attention has a place of its own beside the rows of all of them."""
    places = Places(SIZES, DEFAULT.replace(scratchpad_depth=bank), rows, 16)
    found = places.at
    assert found["x"] == bank
    assert found["one"] == rows * 4
    assert [found[f"own {name}"] - found["one"] for name in "qkv"] == [0, 4, 6]
    assert found["values"] + 32 <= bank
    assert found["b"] == rows * 4
    assert found["out"] == found["v"] + rows * 2


def test_no_bank_of_its_own_where_that_takes_one_more() -> None:
    """Both parts fit one bank together, and two if each has its own."""
    small = DEFAULT.replace(scratchpad_depth=1024)
    together = {}
    for rows in range(2, 60):
        places = Places(SIZES, small, rows, 16)
        used = max(places.at["values"] + 32, places.at["b"] + rows * 4)
        whole = places.at["weights"] - places.at["x"]
        apart = -(-used // 1024) * 1024
        fewer = -(-(used + whole) // 1024) < -(-(apart + whole) // 1024)
        assert places.at["x"] == (used if fewer else apart), rows
        together[rows] = fewer
    assert len(set(together.values())) == 2


REFUSED = {
    "width is 40, no multiple of the 16 columns of the array": {"width": 40},
    "key_length is 8, no multiple of the 16 columns of the array": {"key_length": 8},
    "keys have 32 elements, values 16: they must be equal": {"key_length": 32},
    "feed_forward is 65, no multiple of the 16 columns of the array": {"feed_forward": 65},
}


@pytest.mark.parametrize("message", REFUSED)
def test_sizes_that_do_not_fit(message: str) -> None:
    with pytest.raises(CompileError, match=f"^{message}$"):
        Places(dataclasses.replace(SIZES, **REFUSED[message]), DEFAULT, 1, 16)


def test_pages_that_do_not_fit() -> None:
    with pytest.raises(CompileError, match=r"^pages have 24 keys, no multiple of 16$"):
        Places(SIZES, DEFAULT, 1, 24)
    with pytest.raises(CompileError, match=r"^pages have 16 keys, no multiple of the 3 tokens"):
        Places(SIZES, DEFAULT, 3, 16, consecutive=True)


@pytest.mark.parametrize(
    ("change", "groups"),
    [
        ({}, 2),
        ({"row_states": 64}, 2),
        ({"row_states": 32}, 1),
        ({"alignments": 64}, 2),
        ({"alignments": 32}, 1),
    ],
)
def test_heads_together(change: dict[str, int], groups: int) -> None:
    """16 tokens of a text, 4 heads of queries: 64 rows, or 32 with one head of keys."""
    places = Places(SIZES, DEFAULT.replace(**change), 16, 16, consecutive=True)
    assert places.groups == groups
    with pytest.raises(CompileError, match=r"^attention of 16 tokens with heads of 16 elements does not fit"):
        Places(SIZES, DEFAULT.replace(row_states=16), 16, 16, consecutive=True)
