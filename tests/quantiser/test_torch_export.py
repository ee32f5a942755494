"""PyTorch modules, with a stand-in for PyTorch, and with PyTorch where it is installed."""

from __future__ import annotations

import contextlib
import importlib.util
import subprocess
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from support import float_nets
from support.torch_tensor import Tensor

import weft
from weft.errors import InputError
from weft.quantiser import quantise

HAS_TORCH = importlib.util.find_spec("torch") is not None


class Module:
    """The part of `torch.nn.Module` that weft uses."""

    def __init__(self) -> None:
        self.training = True
        self.inside: list[Module] = []

    def modules(self) -> Iterator[Module]:
        yield self
        for module in self.inside:
            yield from module.modules()

    def eval(self) -> Module:
        for module in self.modules():
            module.training = False
        return self

    def __call__(self, *given: Any, **named: Any) -> Any:
        return self.forward(*given, **named)

    def forward(self) -> Any:
        raise NotImplementedError


class Both(Module):
    def __init__(self) -> None:
        super().__init__()
        self.inside = [Module(), Module()]
        self.inside[0].training = False

    def forward(self, image: Any, vector: Any, factor: Any = None) -> Any:
        assert not any(module.training for module in self.modules())
        if vector.array.dtype != np.float32:
            raise TypeError("expected Float but got Double\nand more")


@pytest.fixture
def torch(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Stand-in for PyTorch that exports every module as a network of two inputs, and records its arguments."""
    calls: list[Any] = []

    def export(module: Any, given: Any, path: Path, *, kwargs: Any, input_names: Any, **options: Any) -> None:
        calls.append((given, kwargs, input_names, options))
        print("exporting")
        if calls[0] == "fail":
            raise RuntimeError("step 1 of 3") from ValueError("the cause\nand more")
        onnx.save(float_nets.two_inputs(), path)

    result = types.SimpleNamespace(
        nn=types.SimpleNamespace(Module=Module),
        onnx=types.SimpleNamespace(export=export),
        from_numpy=Tensor,
        no_grad=contextlib.nullcontext,
        calls=calls,
    )
    monkeypatch.setitem(sys.modules, "torch", result)  # type: ignore[arg-type]
    return result


def both(count: int = 5) -> dict[str, np.ndarray]:
    return float_nets.samples(float_nets.two_inputs(), count)


@pytest.mark.parametrize("turned", [False, True])
def test_a_module_is_exported_in_evaluation(
    torch: Any, turned: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    module, samples = Both(), both()
    given = dict(reversed(samples.items())) if turned else samples
    quantised = weft.quantise(module, {name: Tensor(array) for name, array in given.items()})
    ((tensors, keywords, names, options),) = torch.calls
    assert names == ["image", "vector"]
    assert keywords == {}
    assert [tensor.array.shape for tensor in tensors] == [(1, 3, 8, 8), (1, 4)]
    assert options["opset_version"] == 20
    assert [each.training for each in module.modules()] == [True, False, True]
    assert capsys.readouterr() == ("", "")
    expected = weft.quantise(float_nets.two_inputs(), samples)
    assert quantised.model == expected.model


def test_inputs_by_name(torch: Any) -> None:
    class Late(Both):
        def forward(self, mask: Any = None, image: Any = None, vector: Any = None) -> Any:  # type: ignore[override]
            assert mask is None
            assert image is not None

    weft.quantise(Late(), both())
    ((tensors, keywords, names, _),) = torch.calls
    assert tensors == ()
    assert list(keywords) == names == ["image", "vector"]


def test_refused_modules(torch: Any) -> None:
    with pytest.raises(
        InputError, match=r"^samples is empty: it must have an array for each input of the module$"
    ):
        weft.quantise(Both(), {})
    with pytest.raises(
        InputError, match=r"^samples: array 'image' has shape \(0, 3, 8, 8\): there is no sample"
    ):
        weft.quantise(Both(), both(0))
    with pytest.raises(InputError, match=r"^Both does not take the samples: expected Float but got Double$"):
        weft.quantise(Both(), both() | {"vector": np.ones((5, 4))})
    with pytest.raises(InputError, match=r"^Both does not take the samples: .*missing 1 required positional"):
        weft.quantise(Both(), {"image": both()["image"]})
    torch.calls.append("fail")
    with pytest.raises(weft.CompileError, match=r"^PyTorch does not export Both to ONNX: the cause$"):
        weft.quantise(Both(), both())


def test_torch_is_not_imported() -> None:
    """Only a user who has imported PyTorch can have a module."""
    assert HAS_TORCH or "torch" not in sys.modules
    code = "import sys, weft; weft.quantise; import weft.quantiser.quantise; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
    assert not quantise.is_module(3)


@pytest.mark.skipif(not HAS_TORCH, reason="PyTorch is not installed")
@pytest.mark.filterwarnings("ignore")
def test_with_torch() -> None:
    import torch

    torch.manual_seed(0)
    layers = [torch.nn.Conv2d(3, 8, 3), torch.nn.BatchNorm2d(8), torch.nn.SiLU(), torch.nn.AvgPool2d(6)]
    module = torch.nn.Sequential(*layers, torch.nn.Flatten(), torch.nn.Linear(8, 5)).train()
    samples = torch.randn(8, 3, 8, 8)
    quantised = weft.quantise(module, samples)
    assert module.training
    program = weft.compile(quantised.model, "small")
    assert sum(node[2] == "host" for node in program.assignment) == 2
    (name,) = program.inputs
    expected = module.eval()(samples).detach().numpy()
    got = np.concatenate(
        [next(iter(program.run({name: samples[at : at + 1].numpy()}).outputs.values())) for at in range(8)]
    )
    assert np.abs(expected - got).max() < 0.05 * np.abs(expected).max()
