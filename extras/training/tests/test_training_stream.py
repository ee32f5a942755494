"""Consecutive training steps on a device that keeps weights and momenta."""

from __future__ import annotations

import numpy as np
import pytest
from support import trained_nets
from support.logged_device import Logged, need

import weft
from weft.extras.training.settings import Settings
from weft.extras.training.trainer import Trainer
from weft.run.stream import alternate_images, stream


@pytest.mark.parametrize("early", [False, True])
def test_states_stay_on_the_device(early: bool) -> None:
    """Weights and momenta are written once and read once."""
    net = trained_nets.perceptron(np.random.default_rng(3), (8, 12, 4))
    x, labels = trained_nets.samples(net, 40)
    trainer = Trainer(net, weft.Config.load("default"), Settings(batch=8), layers=None)
    trainer.prepare(0, {"x": x}, labels, np.random.default_rng(0))
    program = trainer.program
    assert program is not None
    runs = [trainer.batch({"x": x}, labels, np.arange(8) + 8 * index) for index in range(5)]
    before = program.states
    wanted = [program.run(inputs) for inputs in runs]
    after = program.states
    program.reset(before)
    device = Logged(4 * need(program), early=early, config=program.config)
    results = list(stream(program, runs, device))
    assert len(alternate_images(program, device.memory_bytes) or ()) == 2
    for result, expected in zip(results, wanted, strict=True):
        for output, array in expected.outputs.items():
            assert np.array_equal(result.outputs[output], array)
    assert all(np.array_equal(program.states[name], value) for name, value in after.items())
    assert not np.array_equal(before[f"{trainer.names[0]}/kept"], after[f"{trainer.names[0]}/kept"])
    (part,) = program.device_programs
    states, inputs_left = (
        sum(item.kind == kind for item in part.buffers.values()) for kind in ("state", "input")
    )
    assert states == len(before)
    assert device.log.count("write") == inputs_left * len(runs) + states
    assert device.log.count("read") == len(runs) + states
    # A second stream continues from that state.
    again = list(stream(program, runs[:2], device))
    assert again[0].outputs["probabilities"].shape == (8, 4)
    assert not np.array_equal(again[0].outputs["probabilities"], results[0].outputs["probabilities"])
