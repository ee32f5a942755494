"""A decoder of the size of stories15M on the RTL: a prompt of 16 tokens together, then 16 one by one."""

from __future__ import annotations

import numpy as np
import pytest

from weft.extras.language.benchmarks import language
from weft.extras.language.compiler.integers import to_integers
from weft.extras.language.run.decoder_run import DecoderMemory, DecoderRun, Row
from weft.sim.compiled.device import golden_device
from weft.sim.rtl.device import RtlDevice

TOKENS = 16


@pytest.mark.long
@pytest.mark.parametrize("narrow", [False, True])
def test_a_model_of_15_million_parameters(narrow: bool) -> None:
    """Compares every byte of memory, with random weights in int8 and in blocks of 4 bits."""
    numbers = to_integers(language.model(narrow=narrow), language.ranges(), blocks=narrow)
    config = language.configuration("default")
    decoder = language.decoder_for(numbers, config, texts=0)
    assert decoder.prompts is not None
    assert decoder.prompts.places.rows >= TOKENS
    memory = DecoderMemory(decoder, 1)
    golden = DecoderRun(memory, golden_device(config, memory.memory_bytes))
    rtl = DecoderRun(memory, RtlDevice(config, memory.memory_bytes))
    text = np.random.default_rng(1).integers(0, language.SIZES.vocabulary, TOKENS + 1).tolist()
    for run in (golden, rtl):
        run.prompt([Row(token, at, [0]) for at, token in enumerate(text[:TOKENS])])
    token = text[TOKENS]
    for at in range(TOKENS, 2 * TOKENS):
        for run in (golden, rtl):
            run.step([Row(token, at, [0])])
        assert golden.logit_bytes(0) == rtl.logit_bytes(0)
        token = int(golden.logits(0).argmax())
    memories = [run.device.read(0, memory.memory_bytes) for run in (golden, rtl)]
    assert memories[0] == memories[1]
    rtl.device.close()
