"""Networks of torchvision, transformers and a few more, exported and quantised as people do it, on the device.

    python benchmarks/torch_networks.py [NETWORK ...] [--config default] [--quantiser Q] [--layers] [--write PAGE]

Each network (`torch_zoo.NETWORKS`, random weights) is exported by both of PyTorch's exporters and quantised with four
random samples, by ONNX Runtime with its defaults and by `weft.quantise`. *whole* tells whether all nodes between the
first and the last quantised value run on the device; if not, the most frequent reason of those that do not. Cycles are
those of the cycle model, from start to done of all programs, behind a memory of 30 cycles' latency that moves as many
bytes a cycle as the bus is wide. With ``--layers`` every layer runs on the golden interpreter, on ONNX Runtime's values
ahead of it: how many values differ, and by how many steps at most.

It needs more than the tests: ``pip install torch torchvision transformers onnxscript onnxruntime``.
"""

from __future__ import annotations

import argparse
import hashlib
import logging
import re
import sys
import warnings
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import onnx

import weft
from weft.compiler.backend import DeviceProgram
from weft.hdl.cache import entry
from weft.hdl.isa.config import Config

EXPORTERS = ("legacy", "dynamo")
QUANTISERS = ("ONNX Runtime", "weft")
HEADER = "| network | exporter | quantiser | whole | programs | MACs | cycles | utilisation |"
MARKS = "<!-- table -->\n", "<!-- end of table -->\n"
"""Between these lines of a page is the table."""


@dataclass(frozen=True)
class Row:
    """Result of a network: nodes between the first and the last quantised value on the host, with a reason for one of
    them, and the report of `weft.Program.run`."""

    name: str
    exporter: str
    quantiser: str
    host: int
    reason: str
    programs: int
    report: dict[str, Any]
    apart: str = ""

    def __str__(self) -> str:
        on_device = "yes" if not self.host else f"no: {self.host} nodes, {self.reason}"
        return (
            f"| {self.name} | {self.exporter} | {self.quantiser} | {on_device} | {self.programs} "
            f"| {self.report['macs']:,} | {self.report['cycles']:,} | {self.report['utilisation']:.1%} |{self.apart}"
        )


def quantise(name: str, exporter: str, quantiser: str) -> Path:
    """Return the file of a quantised network, which is cached."""
    import torch_zoo

    packages = ("torch", "torchvision", "transformers", "onnx", "onnxruntime")
    parts = (
        *map(version, packages), Path(torch_zoo.__file__).read_text(), Path(__file__).read_text(), name, exporter,
        quantiser,
    )  # fmt: skip
    key = hashlib.sha256("\0".join(parts).encode()).hexdigest()[:24]

    def make(folder: Path) -> None:
        _export(name, exporter, folder / "float.onnx")
        (_quantise if quantiser == "ONNX Runtime" else _quantise_for_weft)(folder)
        (folder / "float.onnx").unlink()

    return entry(f"torch-{name}-{key}", make) / "quantised.onnx"


def _export(name: str, exporter: str, target: Path) -> None:
    import torch
    import torch_zoo

    module, shape = torch_zoo.network(name)
    sample = (torch.randn(*shape),)
    if exporter == "dynamo":
        torch.onnx.export(
            module, sample, target, dynamo=True, input_names=["input"], external_data=False, verbose=False
        )
    else:
        torch.onnx.export(module, sample, target, dynamo=False, input_names=["input"], opset_version=17)


def _quantise_for_weft(folder: Path) -> None:
    calibration = np.concatenate(samples(_shape(onnx.load(folder / "float.onnx")), 4))
    weft.quantise(folder / "float.onnx", calibration).save(folder / "quantised.onnx")


def _quantise(folder: Path) -> None:
    from onnxruntime.quantization import CalibrationDataReader, QuantFormat, quantize_static
    from onnxruntime.quantization.shape_inference import quant_pre_process

    original, plain = folder / "float.onnx", folder / "plain.onnx"
    quant_pre_process(original, plain, skip_symbolic_shape=True)
    shape = _shape(onnx.load(plain))

    class Reader(CalibrationDataReader):
        def __init__(self) -> None:
            self.left = samples(shape, 4)

        def get_next(self) -> dict[str, np.ndarray] | None:
            return {"input": self.left.pop()} if self.left else None

    quantize_static(
        plain, folder / "quantised.onnx", Reader(), quant_format=QuantFormat.QDQ, per_channel=True
    )
    plain.unlink()


def _shape(model: onnx.ModelProto) -> list[int]:
    """Return the shape of a model's input."""
    return [dim.dim_value for dim in model.graph.input[0].type.tensor_type.shape.dim]


def samples(shape: list[int], count: int) -> list[np.ndarray]:
    rng = np.random.default_rng(1)
    return [rng.normal(0, 1, shape).astype(np.float32) for _ in range(count)]


def between(model: onnx.ModelProto) -> set[str]:
    """Return the names of nodes between the first and the last quantised activation."""
    graph = model.graph
    known = {tensor.name for tensor in graph.initializer}
    after: set[str] = set()
    before: set[str] = set()
    for node in graph.node:
        if known.issuperset(filter(None, node.input)):
            known.update(node.output)
        elif node.op_type == "QuantizeLinear" or after.intersection(node.input):
            after.update(node.output)
    for node in reversed(graph.node):
        if (node.op_type == "DequantizeLinear" and node.input[0] not in known) or before.intersection(
            node.output
        ):
            before.update(node.input)
    return {
        node.name
        for node in graph.node
        if after.intersection(node.input) and before.intersection(node.output)
    }


def measure(name: str, exporter: str, quantiser: str, config: Config, *, layers: bool) -> Row:
    path = quantise(name, exporter, quantiser)
    model = onnx.load(path)
    program = weft.compile(path, config)
    inner = between(model)
    host = [(node, why) for node, _, place, why in program.assignment if place == "host" and node in inner]
    reasons = Counter(re.sub(r" \(.*\)$", "", why) for _, why in host)
    programs = sum(isinstance(segment, DeviceProgram) for segment in program.segments)
    inputs = {key: np.zeros(shape, dtype) for key, (dtype, shape) in program.inputs.items()}
    report = program.run(inputs, on="timing").report
    reason = reasons.most_common(1)[0][0] if reasons else ""
    return Row(
        name,
        exporter,
        quantiser,
        len(host),
        reason,
        programs,
        report,
        _apart(model, config) if layers else "",
    )


def _apart(model: onnx.ModelProto, config: Config) -> str:
    """Format the distance of layers from ONNX Runtime as a column."""
    import oracle

    feeds = [{model.graph.input[0].name: sample} for sample in samples(_shape(model), 1)]
    differ = total = most = 0
    for layer in oracle.compare_layers(model, oracle.layers(model), feeds, config):
        (computed,) = layer.result.outputs.values()
        steps = oracle.steps(layer.wanted, computed)
        differ, total, most = differ + int((steps > 0).sum()), total + steps.size, max(most, int(steps.max()))
    return f" {differ / max(total, 1):.2%}, {most} |"


def rows(names: list[str], quantisers: list[str], config: Config, *, layers: bool) -> Iterator[Row]:
    for name in names:
        for exporter in EXPORTERS:
            for quantiser in quantisers:
                yield measure(name, exporter, quantiser, config, layers=layers)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("networks", nargs="*", metavar="NETWORK")
    parser.add_argument("--config", default="default")
    parser.add_argument("--layers", action="store_true")
    parser.add_argument("--quantiser", choices=QUANTISERS, action="append", help="all if not given")
    parser.add_argument("--write", type=Path, help="page whose table is made anew")
    options = parser.parse_args()
    warnings.filterwarnings("ignore")
    logging.disable(logging.WARNING)
    import torch_zoo

    config = Config.load(options.config)
    config = config.replace(kernel=64)  # the least that these networks need on 16 x 16
    header = HEADER + (" apart |" if options.layers else "")
    lines = [header, "|---" * (header.count("|") - 1) + "|"]
    print("\n".join(lines))
    names, quantisers = options.networks or list(torch_zoo.NETWORKS), options.quantiser or list(QUANTISERS)
    for row in rows(names, quantisers, config, layers=options.layers):
        lines.append(str(row))
        print(row, flush=True)
    if options.write:
        text = options.write.read_text()
        before, after = text.split(MARKS[0])[0], text.split(MARKS[1])[1]
        options.write.write_text(before + MARKS[0] + "\n".join(lines) + "\n" + MARKS[1] + after)
    return 0


if __name__ == "__main__":
    sys.exit(main())
