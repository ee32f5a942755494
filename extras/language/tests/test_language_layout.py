"""On-chip layout of a decoder's tensors: small ones checked by hand."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from weft.compiler.errors import CompileError
from weft.extras.language.compiler.layout import PRODUCTS, Form, Places, form_of, matrices
from weft.extras.language.compiler.model import Block, LanguageModel, Linear, Norm, Rotary, Sizes
from weft.extras.language.tests.support.language_models import random_model
from weft.hdl.isa.config import PRESETS

DEFAULT = PRESETS["default"]
SIZES = Sizes(
    context=64, width=32, blocks=2, heads=4, key_value_heads=2, key_length=16, value_length=16, feed_forward=64,
    vocabulary=99,
)  # fmt: skip
"""With N = 16: rows of 2 vectors, one head each; 4 vectors in the feed-forward network."""
BIASED = Form(biased=frozenset({"qkv", "inner"}))
LEARNED = Form(centred=True, rotary=False, gated=False, gains=True)


@pytest.mark.parametrize(
    ("form", "positions", "unturned", "gates", "gains"),
    [(Form(), 4, 0, 0, 0), (BIASED, 4, 8, 8, 0), (LEARNED, 4, 0, 0, 8)],
)
def test_one_token(form: Form, positions: int, unturned: int, gates: int, gains: int) -> None:
    """Tensors are adjacent; attention and feed-forward share space: array operands, then vector results, then weights
    after the larger of the two."""
    places = Places(SIZES, DEFAULT, 1, 16, form)
    assert places.groups == 2
    panel = 16 * 2  # keys of a page, of two heads
    begin = 4 + 4 + 2 * panel  # inputs of a product, probabilities of 4 heads, keys and values
    shared = begin + 4 + 4 + 1 + 1 + positions + 8 + gains + 11
    places_at = places.at
    assert {name: places_at[name] for name in ("a", "p", "keys", "values", "b")} == {
        "a": 0, "p": 4, "keys": 8, "values": 8 + panel, "b": 4,
    }  # fmt: skip
    assert {name: places_at[name] for name in ("x", "low", "row", "even", "positions", "scores", "gains", "idle")} == {
        "x": begin, "low": begin + 4, "row": begin + 8, "even": begin + 9, "positions": begin + 10,
        "scores": begin + 10 + positions, "gains": begin + 18 + positions, "idle": begin + 18 + positions + gains,
    }  # fmt: skip
    assert {name: places_at[name] for name in ("q", "k", "v", "unturned", "inner", "gates")} == {
        "q": shared, "k": shared + 4, "v": shared + 6, "unturned": shared + 8, "inner": shared, "gates": shared + 8,
    }  # fmt: skip
    assert places_at["weights"] == shared + 8 + max(unturned, gates)
    assert places_at["out"] == places_at["a"]
    assert [places_at[f"own {name}"] for name in "qkv"] == [places_at[name] for name in "qkv"]
    assert places.free == range(places_at["weights"], DEFAULT.scratchpad_size)


def test_bytes_in_memory() -> None:
    places = Places(SIZES, DEFAULT, 1, 16)
    assert (places.head_bytes, places.block_bytes, places.page_bytes) == (512, 1024, 2048)
    assert (places.token_vectors, places.token_bytes) == (8, 128)


@pytest.mark.parametrize(("rows", "bank"), [(8, 256), (20, 256), (20, 512), (40, 1024)])
def test_several_texts_have_a_bank_for_each_unit(rows: int, bank: int) -> None:
    """Per-text attention data has its own bank beside the rows of all texts."""
    places = Places(SIZES, DEFAULT.replace(scratchpad_depth=bank), rows, 16)
    at = places.at
    assert at["x"] == bank
    assert at["one"] == rows * 4
    assert [at[f"own {name}"] - at["one"] for name in "qkv"] == [0, 4, 6]
    assert at["values"] + 32 <= bank
    assert at["b"] == rows * 4
    assert at["out"] == at["v"] + rows * 2


def test_parts_share_a_bank_if_that_saves_one() -> None:
    """Both parts fit one bank together and would need two separately."""
    small = DEFAULT.replace(scratchpad_depth=1024)
    together = {}
    for rows in range(2, 60):
        places = Places(SIZES, small, rows, 16)
        used = max(places.at["values"] + 32, places.at["b"] + rows * 4)
        size = places.at["weights"] - places.at["x"]
        apart = -(-used // 1024) * 1024
        fewer = -(-(used + size) // 1024) < -(-(apart + size) // 1024)
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
def test_rows_of_all_heads_of_a_text(change: dict[str, int], groups: int) -> None:
    """16 tokens of a text with 4 query heads make 64 rows, or 32 per key head."""
    places = Places(SIZES, DEFAULT.replace(**change), 16, 16, consecutive=True)
    assert places.groups == groups
    with pytest.raises(CompileError, match=r"^attention of 16 tokens with heads of 16 elements does not fit"):
        Places(SIZES, DEFAULT.replace(row_states=16), 16, 16, consecutive=True)


def model(architecture: str = "llama", *, biases: bool | None = None) -> LanguageModel:
    return random_model(np.random.default_rng(0), architecture, biases=biases)


def with_first(base: LanguageModel, **changes: object) -> LanguageModel:
    """Return the model with a changed first block."""
    first = dataclasses.replace(base.blocks[0], **changes)  # type: ignore[arg-type]
    return dataclasses.replace(base, blocks=(first, *base.blocks[1:]))


def test_architectures() -> None:
    assert form_of(model(biases=False)) == Form()
    assert form_of(model(biases=False), gains=True) == Form(gains=True)
    every = frozenset({*PRODUCTS, "head"})
    assert form_of(model("gpt2")) == Form(centred=True, rotary=False, gated=False, biased=every)
    own = frozenset({"qkv", "inner", "head"})  # those behind norms
    assert form_of(model("gpt2", biases=False)).biased == own
    assert form_of(model(biases=True)).biased == every - {"head"}


@pytest.mark.parametrize(
    ("field", "product"), [(field, name) for name, named in PRODUCTS.items() for field in named.values()]
)
def test_a_bias_in_one_block_is_enough(field: str, product: str) -> None:
    plain = model(biases=False)
    weight = getattr(plain.blocks[0], field).weight
    biased = Linear(weight, np.zeros(len(weight), np.float32))
    form = form_of(with_first(plain, **{field: biased}))
    assert form == Form(biased=frozenset({product}))
    assert form.rotates_sums == (product != "qkv")
    assert form.gates_sums == (product != "inner")


def test_all_blocks_have_their_matrices() -> None:
    def all_of(block: Block) -> list[tuple[str, Linear, Norm | None]]:
        return [each for product in PRODUCTS for each in matrices(block, product)]

    llama, gpt2 = (model(name).blocks[0] for name in ("llama", "gpt2"))
    assert [name for name, _, _ in all_of(llama)] == ["query", "key", "value", "output", "gate", "up", "down"]
    assert [name for name, _, _ in all_of(gpt2)] == ["query", "key", "value", "output", "up", "down"]
    assert [norm for _, _, norm in all_of(llama)] == [
        *[llama.attention_norm] * 3, None, *[llama.feed_forward_norm] * 2, None,
    ]  # fmt: skip


def test_unsupported_models_are_reported() -> None:
    llama, gpt2 = model(biases=False), model("gpt2")
    width = llama.sizes.width
    centred = Norm(np.ones(width, np.float32), np.zeros(width, np.float32))
    with pytest.raises(CompileError, match="the model has norms with a bias in some places and not in other"):
        form_of(with_first(llama, feed_forward_norm=centred))
    with pytest.raises(CompileError, match="has gates in feed-forward networks in some places and not in"):
        form_of(with_first(llama, gate=None))
    for wrong in (
        dataclasses.replace(gpt2, positions=None),
        dataclasses.replace(gpt2, rotary=Rotary(8, 1e4)),
    ):
        with pytest.raises(CompileError, match="a decoder on the device has either rotary or learned posi"):
            form_of(wrong)
