"""Graph substitutions of whole models: fewer cycles and equal bytes, on the golden interpreter and the RTL."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from support import qdq_models
from support.commands import code

import weft
from weft.boards.registry import BOARDS
from weft.compiler.backend import compile_segment
from weft.compiler.ir.graph import DeviceSegment
from weft.errors import InputError
from weft.extras.search.substitute import substitute_operators
from weft.extras.search.tests.support.substitution_cases import (
    atrous,
    dense_block,
    draw_segment,
    joined_maxima,
)
from weft.hdl.isa.config import PRESETS, Config
from weft.run.runtime import Image
from weft.sim.golden.interpreter import GoldenDevice
from weft.sim.rtl.device import RtlDevice

certified = pytest.importorskip("weft.extras.proof.tests.support.certified")
CONFIGS = PRESETS | {name: board.config for name, board in BOARDS.items()}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two branches of different scales, joined and pooled: requantisation is cheaper after the maximum."""
    builder = qdq_models.Builder(np.random.default_rng(3))
    value = builder.conv(builder.input((1, 16, 24, 24)), 16, (1, 1))
    parts = [builder.conv(value, 32, (1, 1)), builder.conv(value, 32, pads=(1, 1, 1, 1))]
    joined = builder.concat(parts, 1)
    pooled = builder.pool(joined, "MaxPool", kernel_shape=[3, 3], strides=[2, 2])
    path = tmp_path_factory.mktemp("model") / "model.onnx"
    onnx.save(builder.finish(builder.conv(pooled, 8, (1, 1))), path)
    return path


def test_a_model_takes_fewer_cycles_with_equal_results(model: Path) -> None:
    plain = weft.compile(model, "small", memory=4)
    program = weft.compile(model, "small", memory=4, substitute=60)
    assert plain.substitutions is None
    assert program.substitutions is not None
    assert program.substitutions.used
    assert program.substitutions.after < 0.97 * program.substitutions.before
    inputs = {
        name: np.random.default_rng(1).normal(0, 1, shape).astype(np.float32)
        for name, (_, shape) in program.inputs.items()
    }
    wanted, changed = plain.run(inputs), program.run(inputs)
    for name, values in wanted.outputs.items():
        np.testing.assert_array_equal(changed.outputs[name], values)
    timed = [item.run(inputs, on="timing", bandwidth=4).report["cycles"] for item in (plain, program)]
    assert timed == [program.substitutions.before, program.substitutions.after]


def test_the_command_reports_substitutions(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["compile", str(model), "-o", str(tmp_path / "p"), "--config", "small", "--substitute", "60"]
    assert code([*arguments, "--certify"]) == 0
    output = "".join(capsys.readouterr())
    assert "cat(max[a](x), max[a](y))" in output
    assert "by the cycle model" in output
    assert "proven" in output
    assert code(["verify", str(tmp_path / "p"), "--model", str(model)]) == 0


@pytest.mark.parametrize("most", [0, -1, 1.5, "10"])
def test_invalid_numbers_of_parts(most: object, model: Path) -> None:
    with pytest.raises(InputError, match="substitute"):
        weft.compile(model, "small", substitute=most)  # type: ignore[arg-type]


def test_a_wrong_rule_is_refused(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "rules.json"
    path.write_text('{"format": "weft rules 1", "rules": [{"left": "cat(x, y)", "right": "cat(y, x)"}]}')
    arguments = ["compile", str(model), "-o", str(tmp_path / "p"), "--rules", str(path)]
    assert code([*arguments, "--substitute", "5"]) == 2
    assert "rule 1 does not hold" in capsys.readouterr().err
    assert code(arguments) == 2
    assert "'substitute'" in capsys.readouterr().err
    assert not (tmp_path / "p").exists()


def check_rtl(segment: DeviceSegment, config: Config, seed: int) -> None:
    """Check that all of memory matches the golden interpreter after a run with random stalls."""
    program = compile_segment(segment, config)
    image = Image(program)
    rng = np.random.default_rng(seed)
    inputs = {
        name: rng.integers(-128, 128, program.input_shape(name)).astype(np.int8)
        for name, buffer in program.buffers.items()
        if buffer.kind == "input"
    }
    golden = GoldenDevice(config, image.memory_bytes)
    rtl = RtlDevice(config, image.memory_bytes, stall_seed=seed)
    image.run(golden, inputs)
    image.run(rtl, inputs)
    assert golden.read(0, image.memory_bytes) == rtl.read(0, image.memory_bytes)


def check(segment: DeviceSegment, config: Config, bandwidth: float | None, seed: int) -> int:
    """Check that a searched program is equivalent, and proven so; count the uses of rules."""
    (replaced,), done = substitute_operators([segment], config, most=40, bandwidth=bandwidth)
    assert done.after <= done.before
    if not done.used:
        return 0
    assert not certified.unproven_outputs(segment, replaced, config, seed)
    certified.prove_program(segment, config, compile_segment(replaced, config, bandwidth=bandwidth))
    return len(done.used)


@pytest.mark.parametrize(
    "segment",
    [joined_maxima(), dense_block(2), atrous()],
    ids=["joined maxima", "dense block", "atrous convolution"],
)
def test_equal_on_rtl_and_proven(segment: DeviceSegment) -> None:
    config = PRESETS["small"]
    (replaced,), done = substitute_operators([segment], config, most=40, bandwidth=2)
    assert done.used
    certified.prove_program(segment, config, compile_segment(replaced, config))
    check_rtl(replaced, config, 4)


@pytest.mark.parametrize("name", ["tiny", "ulx3s-45f", "icebreaker"])
def test_random_segments(name: str) -> None:
    for seed in range(2):
        check(
            draw_segment(70 + seed, 8, CONFIGS[name].lookup_tables > 0, bool(CONFIGS[name].multiply)),
            CONFIGS[name],
            [None, 1, 2, 4][seed],
            seed,
        )


@pytest.mark.long
@pytest.mark.parametrize("name", CONFIGS)
def test_random_segments_on_every_configuration(name: str) -> None:
    uses = sum(
        check(
            draw_segment(500 + seed, 10, CONFIGS[name].lookup_tables > 0, bool(CONFIGS[name].multiply)),
            CONFIGS[name],
            [None, 1, 2, 4, 16, 64][seed % 6],
            seed,
        )
        for seed in range(12)
    )
    assert uses > 0
