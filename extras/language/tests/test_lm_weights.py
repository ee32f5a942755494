"""Weights of language models that the device's arithmetic has no room for: refused in a sentence that names them."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest

import weft.extras.language.run.lm
from weft.compiler.errors import CompileError, KernelError
from weft.extras.language.tests.support.language_models import random_model, write


@pytest.mark.parametrize(("architecture", "field", "factor", "message"), [
    ("llama", "key", 1e3, r"the scores of block 1 reach [\d.e+]+ with 'blk.1.attn_q.weight' and 'blk.1.attn_k.weight': "
     "1.25 times that must be at most 166, because the device clamps larger scores"),
    ("gpt2", "query", 1e15, r"the scores of block 1 reach [\d.e+]+ with 'blk.1.attn_qkv.weight': 1.25 times .*"),
    ("llama", "value", 1e15, r"tensor 'blk.1.attn_v.weight' has values up to [\d.]+e\+15, while the median over "
     r"matrices is 0.\d+: the device's arithmetic cannot represent both"),
    ("gpt2", "attention_output", 1e15, r"tensor 'blk.1.attn_output.weight' has values up to [\d.]+e\+1[45], .*"),
])  # fmt: skip
def test_what_has_no_room(tmp_path: Path, architecture: str, field: str, factor: float, message: str) -> None:
    model = random_model(np.random.default_rng(0), architecture)
    first, last = model.blocks
    linear = getattr(last, field)
    linear = dataclasses.replace(linear, weight=linear.weight * np.float32(factor))
    blocks = (first, dataclasses.replace(last, **{field: linear}))
    write(dataclasses.replace(model, blocks=blocks), tmp_path / "model.gguf", "F32")
    with pytest.raises(CompileError, match=f"^{message}$") as caught:
        weft.extras.language.run.lm.load(tmp_path / "model.gguf", "small")
    assert not isinstance(caught.value, KernelError)
