"""Functions of one value: every constraint violated once, with the reason."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

import numpy as np
import onnx
import pytest
from support.fallbacks import Case, builder, check_fallback, finish_model, source, two, untested_constraints
from support.function_models import Chain, check, silu
from support.graph_runs import device_ops, on_host

from weft.compiler.frontend import import_model
from weft.compiler.onnx.operator import NodeContext, sentence
from weft.compiler.onnx.operators.lookup import LOOKUP_OPERATORS, numbers, one_value, tables
from weft.hdl.isa.config import Config


def of_float() -> onnx.ModelProto:
    built = builder()
    value = built.node("LogSoftmax", [built.dequantise(source(built))])
    return finish_model(built, built.node("Sigmoid", [value]))


def logarithm(op: str = "Log") -> onnx.ModelProto:
    built = builder()
    value = built.node(op, [built.dequantise(source(built))])
    return finish_model(built, built.node("Relu", [value]))


CASES: dict[str, Case] = {
    "of what the host computes": (of_float, "Sigmoid", one_value),
    "of two values": (lambda: two("Mod", (2, 4), (2, 4), fmod=1), "Mod", one_value),
    "not defined": (logarithm, "Log", numbers),
    "of what is not defined": (logarithm, "Relu", numbers),
}


@pytest.mark.parametrize("name", CASES)
def test_fallback(name: str) -> None:
    check_fallback(CASES[name])


def test_every_constraint_has_a_case() -> None:
    # Tables and values of 16 bits have tests of their own; Q nodes without parameters are tried with those.
    assert untested_constraints(LOOKUP_OPERATORS, CASES.values()) == {
        "tables",
        "per_tensor",
        "lines_near",
        "wide_engine",
    }


def test_without_tables() -> None:
    chain = Chain()
    model = chain.finish_with(silu(chain, chain.value))
    assert on_host(import_model(model)) == {}
    graph = import_model(model, config=Config(lookup_tables=0))
    reasons = on_host(graph)
    assert not device_ops(graph)
    (product,) = (name for name in reasons if name.startswith("mul"))
    (sigmoid,) = (name for name in reasons if name.startswith("sigmoid"))
    assert reasons[product] == reasons[sigmoid] == sentence(tables)


def test_inputs_without_a_result_are_named() -> None:
    """The first and the last that the value can have, as the model has them."""
    chain = Chain(0.5, 100)
    model = chain.finish_with(chain.apply("Tanh", chain.apply("Sqrt", chain.value)))
    reasons = on_host(import_model(model))
    (cause,) = {reason for name, reason in reasons.items() if name.startswith(("sqrt", "tanh"))}
    (name,) = (name for name in reasons if name.startswith("sqrt"))
    assert cause == f"{sentence(numbers)} ({name!r} computes NaN for inputs from -114 to -0.5)"
    assert not device_ops(check(model, {"source": np.full(chain.shape, 110, np.int8)}))


def test_the_reason_is_that_of_the_nearest_value() -> None:
    """A function of several values that is no number of any of them."""

    def results_of(*causes: str) -> NodeContext:
        """Function results with the cause of each invalid result; "" if valid."""
        entries = (SimpleNamespace(is_defined=not cause, cause=cause) for cause in causes)
        return cast(
            NodeContext, SimpleNamespace(functions=[SimpleNamespace(entries=item) for item in entries])
        )

    assert numbers(results_of("near", "far")) == "near"
    assert numbers(results_of("near", "")) is None


def test_unselected_values_may_be_nan() -> None:
    chain = Chain()
    positive = chain.apply("Greater", chain.value, 0.0)
    model = chain.finish_with(
        chain.apply("Where", positive, chain.apply("Log", chain.value), chain.number(0.0))
    )
    assert on_host(check(model, chain.feeds)) == {}


def test_rounded_nan_stays_on_the_host() -> None:
    """Its bytes are whatever the host makes of it; the host keeps that, and the device goes on from there."""
    chain = Chain()
    value = chain.round_trip(chain.apply("Log", chain.value))
    graph = import_model(chain.finish_with(chain.apply("Tanh", value)))
    assert {name.split("_")[0] for name in on_host(graph)} == {"log"}
    assert len(device_ops(graph)) == 1


def test_by_channel_at_the_end() -> None:
    chain = Chain()
    value = chain.apply("Sigmoid", chain.value)
    pair = [chain.constant(np.full(4, 0.01, np.float32)), chain.constant(np.zeros(4, np.int8))]
    value = chain.node(
        "DequantizeLinear", [chain.node("QuantizeLinear", [value, *pair], axis=1), *pair], axis=1
    )
    chain.give(value, onnx.TensorProto.FLOAT)
    reasons = on_host(check(chain.model(), chain.feeds))
    (reason,) = (why for name, why in reasons.items() if name.startswith("sigmoid"))
    assert reason.endswith("has type int8 and 4 scales)")


def test_scales_too_large_to_multiply_by() -> None:
    """A requantisation that the device cannot compute is still a table."""
    chain = Chain(1e6)
    model = chain.finish_with(chain.apply("Relu", chain.value), 1e-3)
    assert device_ops(check(model, chain.feeds))[0].lookup is not None
