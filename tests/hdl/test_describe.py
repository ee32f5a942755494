"""The description of an accelerator against its Verilog and its register map."""

from __future__ import annotations

import json
import re

from weft.hdl.core import Core
from weft.hdl.isa.config import PRESETS
from weft.hdl.isa.memmap import SIZE, Counter, Reg
from weft.hdl.verilog import describe, generate

CONFIG = PRESETS["tiny"]


def test_ports_are_those_of_the_verilog_module() -> None:
    text = generate(Core(CONFIG), name="weft")
    top = re.search(r"^module weft\(.*?^endmodule", text, re.MULTILINE | re.DOTALL)
    assert top
    found = {
        name: (direction, int(high or 0) + 1)
        for direction, high, name in re.findall(
            r"^ +(input|output) (?:\[(\d+):0\] )?(\w+);", top.group(), re.MULTILINE
        )
    }
    ports = describe(CONFIG, "weft")["ports"]
    assert {port["name"]: (port["direction"], port["width"]) for port in ports} == found


def test_registers_have_addresses_of_their_own() -> None:
    description = describe(CONFIG, "weft")
    addresses = [register["address"] for register in description["registers"]]
    addresses += [address + part for address in description["counters"].values() for part in (0, 4)]
    assert len(addresses) == len(set(addresses))
    assert max(addresses) < description["window"] == SIZE
    names = {register["name"] for register in description["registers"]}
    assert names == {register.name.lower() for register in Reg} - {"base", "counter"} | {
        f"base{i}" for i in range(8)
    }
    assert len(description["counters"]) == len(Counter)
    assert description["registers"][2] == {
        "name": "config",
        "address": 8,
        "access": "r",
        "value": CONFIG.digest,
    }


def test_it_is_json() -> None:
    assert json.loads(json.dumps(describe(CONFIG, "weft"))) == describe(CONFIG, "weft")
