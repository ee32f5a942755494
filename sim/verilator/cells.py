"""Verilog with cells of an FPGA family to Verilog without, through models of them."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Sequence
from pathlib import Path

from weft.hdl.verilog import run_yosys

Libraries = Sequence[str | Path]
"""Verilog files with models of cells: paths, or names within Yosys's ``share`` folder. Of a cell that is in two of
them, the last is taken."""
_MODULE = re.compile(r"^module\s+(\w+)\b.*?^endmodule", re.DOTALL | re.MULTILINE)


def _models(libraries: Libraries, verilog: str) -> str:
    """Models of the cells that `verilog` names. To read a whole library takes up to a minute."""
    import pyosys

    share = Path(pyosys.__file__).with_name("share")
    texts = [(share / name).read_text() for name in libraries]
    models = {match[1]: match[0] for text in texts for match in _MODULE.finditer(text)}
    wanted: set[str] = set()
    new = set(re.findall(r"\w+", verilog)) & models.keys()
    while new:
        wanted |= new
        new = {name for model in new for name in re.findall(r"\w+", models[model])} & models.keys() - wanted
    # What stands before the first module: macros.
    heads = [text[: re.search(r"^(module|\(\*)", text, re.MULTILINE).start()] for text in texts]  # type: ignore[union-attr]
    return "\n".join([*heads, *(models[name] for name in sorted(wanted))])


def without_cells(verilog: str, *, top: str, models: Libraries) -> str:
    """`verilog` with all cells that are in `models` replaced by what they do, as one module `top`; without `models`,
    `verilog`.

    Raises `weft.hdl.verilog.YosysError` if a cell has no model.
    """
    if not models:
        return verilog
    with tempfile.TemporaryDirectory(prefix="weft-") as folder:
        path = Path(folder)
        (path / "design.v").write_text(verilog)
        (path / "models.v").write_text(_models(models, verilog))
        run_yosys(
            "read_verilog models.v",
            "read_verilog design.v",
            f"hierarchy -check -top {top}",
            "proc -norom",
            "flatten",
            "opt_expr",
            "opt_clean -purge",
            "pmuxtree",
            "memory_collect",
            "widen",
            "write_verilog -norename -noattr plain.v",
            cwd=path,
        )
        return (path / "plain.v").read_text()
