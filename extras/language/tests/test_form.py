"""What decoders have: the forms of models, and those for which there is no program."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from weft.compiler.errors import CompileError
from weft.extras.language.compiler.form import PRODUCTS, Form, form_of, matrices
from weft.extras.language.compiler.model import Block, LanguageModel, Linear, Norm, Rotary
from weft.extras.language.tests.support.language_models import random_model


def model(architecture: str = "llama", *, biases: bool | None = None) -> LanguageModel:
    return random_model(np.random.default_rng(0), architecture, biases=biases)


def with_first(found: LanguageModel, **changes: object) -> LanguageModel:
    """The model with a changed first block."""
    first = dataclasses.replace(found.blocks[0], **changes)  # type: ignore[arg-type]
    return dataclasses.replace(found, blocks=(first, *found.blocks[1:]))


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


def test_matrices_are_those_of_blocks() -> None:
    def found(block: Block) -> list[tuple[str, Linear, Norm | None]]:
        return [each for product in PRODUCTS for each in matrices(block, product)]

    llama, gpt2 = (model(name).blocks[0] for name in ("llama", "gpt2"))
    assert [name for name, _, _ in found(llama)] == ["query", "key", "value", "output", "gate", "up", "down"]
    assert [name for name, _, _ in found(gpt2)] == ["query", "key", "value", "output", "up", "down"]
    assert [norm for _, _, norm in found(llama)] == [
        *[llama.attention_norm] * 3, None, *[llama.feed_forward_norm] * 2, None,
    ]  # fmt: skip


def test_what_has_no_program_is_named() -> None:
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
