"""Compilation with rewrites that change rounding: the reported difference is the measured one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from support import qdq_models
from support.commands import code
from support.mostly_long import mostly_long

import weft
from weft.boards.registry import BOARDS
from weft.errors import InputError
from weft.extras.search.budget import Budget, Difference
from weft.hdl.errors import WeftError
from weft.hdl.isa.config import PRESETS

CONFIGS = PRESETS | {name: board.config for name, board in BOARDS.items()}


def transition(seed: int, classes: bool = True) -> onnx.ModelProto:
    """Return parts of a concatenation, one after a mean as in Inception, a convolution, and its mean as between blocks
    of DenseNet. The output is bytes."""
    builder = qdq_models.Builder(np.random.default_rng(seed))
    value = builder.conv(builder.input((1, 8, 12, 12)), 32, (1, 1), relu=True)
    parts = [builder.conv(value, 16, pads=(1, 1, 1, 1), gain=gain) for gain in (1.0, 1.7)]
    mean = builder.pool(value, "AveragePool", kernel_shape=[3, 3], pads=[1, 1, 1, 1])
    parts.append(builder.conv(mean, 8, (1, 1), relu=True))
    value = builder.conv(builder.concat(parts, 1), 32, (1, 1))
    value = builder.pool(value, "AveragePool", kernel_shape=[2, 2], strides=[2, 2])
    value = builder.conv(value, 16, (1, 1))
    if classes:
        value = builder.dense(builder.flatten(value), 10)
    return builder.finish_as(value.name, onnx.TensorProto.UINT8 if value.unsigned else onnx.TensorProto.INT8)


def samples_of(program: weft.Program, count: int, seed: int = 1) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    return {
        name: rng.normal(0, 1, (count, *shape)).astype(np.float32)
        for name, (_, shape) in program.inputs.items()
    }


def difference(one: weft.Program, other: weft.Program, samples: dict[str, np.ndarray]) -> tuple[int, int]:
    """Return outputs' largest difference on golden devices, and the number of runs whose maximum moves."""
    largest = elsewhere = 0
    for index in range(len(next(iter(samples.values())))):
        inputs = {name: values[index] for name, values in samples.items()}
        wanted, changed = (
            next(iter(program.run(inputs).outputs.values())).astype(int) for program in (one, other)
        )
        largest = max(largest, int(np.abs(wanted - changed).max()))
        elsewhere += int((wanted.argmax(-1) != changed.argmax(-1)).sum()) if wanted.ndim == 2 else 0
    return largest, elsewhere


@pytest.mark.parametrize("seed", mostly_long(range(2), 0))
def test_the_reported_difference_matches_the_programs(seed: int) -> None:
    model = transition(seed).SerializeToString()
    plain = weft.compile(model, "small", memory=4)
    samples = samples_of(plain, 3)
    assert plain.roundings is None
    largest = []
    for budget in (0, 2, 100):
        program = weft.compile(model, "small", memory=4, budget=budget, samples=samples)
        done = program.roundings
        assert done is not None
        assert done.difference.largest <= budget
        assert (done.difference.largest, done.difference.moved) == difference(plain, program, samples)
        assert done.difference.runs == done.difference.choices == 3
        cycles = [
            item.run({name: values[0] for name, values in samples.items()}, on="timing").report["cycles"]
            for item in (plain, program)
        ]
        assert cycles == [done.before, done.after]
        assert (done.after < done.before) == bool(done.used)
        largest.append(done.difference.largest)
    assert done.used
    for rule in ("mean taken before", "taken before the mean"):
        assert any(rule in item.rules[0] for item in done.used)
    assert largest == sorted(largest)
    assert largest[-1] > 0


@pytest.mark.long
@pytest.mark.parametrize("name", CONFIGS)
def test_every_configuration(name: str) -> None:
    for seed in range(3):
        model = transition(10 + seed).SerializeToString()
        plain = weft.compile(model, name)
        samples = samples_of(plain, 2)
        program = weft.compile(model, name, budget=3, samples=samples)
        done = program.roundings
        assert done is not None
        assert (done.difference.largest, done.difference.moved) == difference(plain, program, samples)
        assert done.after <= done.before


def test_the_rtl_computes_it_and_rules_come_on_top() -> None:
    model = transition(1).SerializeToString()
    samples = samples_of(weft.compile(model, "small"), 1)
    program = weft.compile(model, "small", budget=3, samples=samples, substitute=20)
    assert program.roundings is not None
    assert program.roundings.used
    assert program.substitutions is not None
    assert program.substitutions.before == program.roundings.after
    inputs = {name: values[0] for name, values in samples.items()}
    golden, rtl = (
        program.run(inputs, on=device, stall_seed=stalls) for device, stalls in (("golden", None), ("rtl", 3))
    )
    for name, values in golden.outputs.items():
        np.testing.assert_array_equal(rtl.outputs[name], values)


@pytest.mark.parametrize(
    ("text", "budget"),
    [
        (2, Budget(steps=2)), ("2", Budget(steps=2)), (" 0 ", Budget(steps=0)), (np.float32(1.5), Budget(steps=1.5)),
        ("1%", Budget(share=0.01)), ("0%", Budget(share=0)), ("100 %", Budget(share=1)), (65_535, Budget(steps=65_535)),
    ],
)  # fmt: skip
def test_budgets(text: object, budget: Budget) -> None:
    assert Budget.of(text) == budget


@pytest.mark.parametrize(
    "text", [-1, "-1%", "101%", "", "%", "one", True, None, "nan", float("inf"), 65_536, [1]]
)
def test_invalid_budgets(text: object) -> None:
    with pytest.raises(InputError, match="'budget' must be steps of outputs"):
        Budget.of(text)


def test_budgets_allow_differences_up_to_a_limit() -> None:
    actual = Difference(runs=10, largest=3, mean=0.5, choices=10, moved=2)
    assert Budget(steps=3).allows(actual)
    assert not Budget(steps=2.9).allows(actual)
    assert Budget(share=0.2).allows(actual)
    assert not Budget(share=0.19).allows(actual)


def test_a_share_of_classes() -> None:
    model = transition(1).SerializeToString()
    plain = weft.compile(model, "small")
    samples = samples_of(plain, 4)
    program = weft.compile(model, "small", budget="100%", samples=samples)
    assert program.roundings is not None
    assert program.roundings.used
    with pytest.raises(InputError, match=r"\(n, classes\), and this model has none"):
        weft.compile(transition(1, classes=False).SerializeToString(), "small", budget="5%", samples=samples)


def refuse(call: Any, message: str) -> None:
    with pytest.raises((WeftError, OSError), match=message):
        call()


def test_refused_combinations() -> None:
    model = transition(1).SerializeToString()
    samples = samples_of(weft.compile(model, "small"), 1)
    (name,) = samples
    for options, message in (
        ({"budget": 1}, "'budget' is measured on 'samples'"),
        ({"samples": samples}, "'budget' is measured on 'samples'"),
        ({"budget": "much", "samples": samples}, "'much'"),
        ({"budget": 1, "samples": {name: samples[name][:, :, :3]}}, "the model takes"),
        ({"budget": 1, "samples": {name: samples[name][:0]}}, "no sample"),
        ({"budget": 1, "samples": {"other": samples[name]}}, "no array"),
        ({"budget": 1, "samples": "nowhere.npz"}, "nowhere.npz"),
        ({"budget": 1, "samples": 5}, "samples"),
    ):
        refuse(lambda options=options: weft.compile(model, "small", **options), message)


def test_the_command_and_its_certificate(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model, data, folder = tmp_path / "model.onnx", tmp_path / "data.npz", tmp_path / "p"
    onnx.save(transition(1), model)
    np.savez(data, **samples_of(weft.compile(model, "small"), 2))
    arguments = ["compile", str(model), "-o", str(folder), "--config", "small", "--certify"]
    assert code([*arguments, "--budget", "3"]) == 2
    assert "'budget' is measured on 'samples'" in capsys.readouterr().err
    assert not folder.exists()
    assert code([*arguments, "--budget", "3", "--samples", str(data)]) == 0
    output = " ".join("".join(capsys.readouterr()).split())
    assert "rewrites with different rounding" in output
    assert "on 2 samples values that leave the device differ by" in output
    assert "are proven" in output
    written = json.loads((folder / "certificate.json").read_text())
    assert any("mean taken before" in rule for item in written["roundings"] for rule in item["rules"])
    assert f"after {len(written['roundings'])} rewrites with different rounding" in output
    assert code(["verify", str(folder), "--model", str(model)]) == 0
    assert "rewrites with different rounding" in " ".join("".join(capsys.readouterr()).split())
    written["roundings"] = written["roundings"][1:]
    (folder / "certificate.json").write_text(json.dumps(written))
    assert code(["verify", str(folder), "--model", str(model)]) == 1
    assert "is not a program of " in capsys.readouterr().err
    written["roundings"] = [{"rules": ["none"], "operator": "none", "before": 2, "behind": 1}]
    (folder / "certificate.json").write_text(json.dumps(written))
    assert code(["verify", str(folder), "--model", str(model)]) == 1
    assert "has no rewrite 'none' at 'none'" in capsys.readouterr().err
