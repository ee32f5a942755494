"""Run cocotb benches of one component in Verilator or Icarus Verilog."""

from __future__ import annotations

import hashlib
import inspect
import json
import os
import secrets
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

from amaranth.lib import wiring

from weft.hdl.cache import entry
from weft.hdl.verilog import generate
from weft.sim.verilate import Libraries, Model, replace_cells


def _ports(component: wiring.Component) -> list[str]:
    names = ["clk", "rst"]
    for path, _member, _value in component.signature.flatten(component):
        names.append("__".join(str(part) for part in path))  # as in Amaranth's Verilog
    return names


def build_bench(component: wiring.Component, *, models: Libraries = ()) -> Path:
    """Build the cocotb executable of `component` (top module ``dut``) unless the cache has it, and return its path.

    `models` are simulation models of the cells that `component` instantiates.
    """
    import cocotb_tools.config

    return Model(
        verilog=replace_cells(generate(component, name="dut"), top="dut", models=models),
        top="dut",
        driver=cocotb_tools.config.share_dir / "lib" / "verilator" / "verilator.cpp",
        output="bench",
        vpi_ports=_ports(component),
        optimise="-O1",
        link=[
            f"-Wl,-rpath,{cocotb_tools.config.libs_dir}",
            f"-L{cocotb_tools.config.libs_dir}",
            "-lcocotbvpi_verilator",
            "-ldl",
        ],
    ).build()


def build_icarus(component: wiring.Component) -> list[str | Path]:
    """Build `component` (top module ``dut``) for Icarus Verilog, and return the command that runs it with cocotb.

    Icarus Verilog simulates four values: undriven signals, and all that depend on them, are X. The build is cached.
    ``iverilog`` and ``vvp`` must be on the path.
    """
    import cocotb_tools.config

    verilog = generate(component, name="dut")
    version = subprocess.run(
        ["iverilog", "-V"], capture_output=True, text=True, check=True
    ).stdout.splitlines()[0]
    digest = hashlib.sha256(f"{version} {verilog}".encode()).hexdigest()

    def make(folder: Path) -> None:
        source = folder / "bench.v"
        source.write_text(f"`timescale 1ns/1ps\n{verilog}")
        subprocess.run(["iverilog", "-g2005", "-s", "dut", "-o", folder / "bench.vvp", source], check=True)
        source.unlink()

    built = entry(f"icarus-{digest[:24]}", make) / "bench.vvp"
    return ["vvp", "-m", cocotb_tools.config.lib_entry("vpi", "icarus"), built, "-none"]


def run_bench(
    component: wiring.Component,
    *,
    parameters: dict[str, Any] | None = None,
    only: str = "",
    models: Libraries = (),
    icarus: bool = False,
) -> None:
    """Run the cocotb tests of the calling file against `component`. Raises `AssertionError` if one fails.

    Parameters
    ----------
    component : wiring.Component
        The device under test; its flattened port names are attributes of ``dut``.
    parameters : dict
        JSON values that the cocotb tests read back with `bench_parameters`.
    only : str
        Regular expression; cocotb tests whose name does not match are skipped.
    models : sequence of str or Path
        Simulation models that replace cells of `component`, see `weft.sim.verilate`.
    icarus : bool
        Simulate in Icarus Verilog, which ignores `models`, instead of Verilator.

    Prints the random seed, which ``COCOTB_RANDOM_SEED`` sets.
    """
    import cocotb_tools.config
    import find_libpython

    # cocotb imports the calling test file as a module in the simulator's process.
    module = Path(inspect.stack()[1].filename)
    command = build_icarus(component) if icarus else [build_bench(component, models=models)]
    with tempfile.TemporaryDirectory(prefix="weft-bench-") as folder:
        results = Path(folder) / "results.xml"
        seed = os.environ.get("COCOTB_RANDOM_SEED", str(secrets.randbits(32)))
        print(f"COCOTB_RANDOM_SEED={seed}")
        environment = os.environ | {
            "COCOTB_RANDOM_SEED": seed,
            "PYTHONPATH": os.pathsep.join([str(module.parent), *sys.path]),
            "PYGPI_PYTHON_BIN": sys.executable,
            "GPI_USERS": f"{find_libpython.find_libpython()};{cocotb_tools.config.pygpi_entry_point()}",
            "COCOTB_TEST_MODULES": module.stem,
            "COCOTB_TOPLEVEL": "dut",
            "COCOTB_RESULTS_FILE": str(results),
            # Icarus Verilog applies inertial writes while registers still take their inputs.
            "COCOTB_TRUST_INERTIAL_WRITES": "0" if icarus else "1",
            "COCOTB_LOG_LEVEL": "WARNING",
            "TOPLEVEL_LANG": "verilog",
            "WEFT_BENCH": json.dumps(parameters or {}),
        }
        if only:
            environment["COCOTB_TEST_FILTER"] = only
        process = subprocess.run(
            command,
            cwd=folder,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=1800,
        )
        print(process.stdout + process.stderr)
        if process.returncode or not results.exists():
            raise AssertionError(f"the bench ended with exit code {process.returncode}")
        cases = list(ElementTree.parse(results).iter("testcase"))
        failed = [
            case.get("name")
            for case in cases
            if case.find("failure") is not None or case.find("error") is not None
        ]
        assert cases, "the bench ran no test"
        assert not failed, f"failed: {', '.join(map(str, failed))}"


def bench_parameters() -> dict[str, Any]:
    """Return the `parameters` of the `run_bench` call that started this simulation."""
    return json.loads(os.environ["WEFT_BENCH"])
