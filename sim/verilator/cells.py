"""Verilog with vendors' cells to Verilog without, through Yosys's models of them and some of our own."""

from __future__ import annotations

import re
import tempfile
from pathlib import Path

from weft.hdl.verilog import run_yosys

_OWN = Path(__file__).with_name("cells.v")
# Files of Yosys, and one of ours; of a cell that is in two of them, the last is taken.
_LIBRARIES: dict[str, tuple[str | Path, ...]] = {
    "ecp5": ("lattice/common_sim.vh", "lattice/ccu2c_sim.vh", _OWN),
    "ice40": ("ice40/cells_sim.v",),
}
_MODULE = re.compile(r"^module\s+(\w+)\b.*?^endmodule", re.DOTALL | re.MULTILINE)


def _models(part: str, verilog: str) -> str:
    """Models of the cells that `verilog` names. To read a whole library takes up to a minute."""
    import pyosys

    share = Path(pyosys.__file__).with_name("share")
    texts = [(share / name).read_text() for name in _LIBRARIES[part]]
    models = {match[1]: match[0] for text in texts for match in _MODULE.finditer(text)}
    wanted: set[str] = set()
    new = set(re.findall(r"\w+", verilog)) & models.keys()
    while new:
        wanted |= new
        new = {name for model in new for name in re.findall(r"\w+", models[model])} & models.keys() - wanted
    # What stands before the first module: macros.
    heads = [text[: re.search(r"^(module|\(\*)", text, re.MULTILINE).start()] for text in texts]  # type: ignore[union-attr]
    return "\n".join([*heads, *(models[name] for name in sorted(wanted))])


def without_cells(verilog: str, *, top: str, part: str) -> str:
    """`verilog` with its cells of `part` (see `weft.hdl.lib.parts`) replaced by what they do, as one module `top`.

    Raises `weft.hdl.verilog.YosysError` if a cell has no model.
    """
    if part not in _LIBRARIES:
        return verilog
    with tempfile.TemporaryDirectory(prefix="weft-") as folder:
        path = Path(folder)
        (path / "design.v").write_text(verilog)
        (path / "models.v").write_text(_models(part, verilog))
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
