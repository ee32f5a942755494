"""`language_accuracy.py` on a few tokens: its arithmetic, and the tables it writes."""

from __future__ import annotations

import functools
from pathlib import Path

import numpy as np
import pytest
from gguf import GGMLQuantizationType, quants

from weft.extras.language import example
from weft.extras.language.benchmarks import language_accuracy
from weft.extras.language.benchmarks.language_accuracy import CAUSES, FILES, Bench, product_errors
from weft.extras.language.benchmarks.language_blocks import BLOCK, product
from weft.extras.language.benchmarks.language_measures import Text, difference
from weft.extras.language.benchmarks.language_roundings import DEVICE, Rounded, Roundings
from weft.extras.language.compiler.model import BlockTensor
from weft.extras.language.example import measure

PAGE = Path(__file__).parents[1] / "README.md"
TOKENS = 20


@functools.cache
def bench() -> Bench:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(measure, "texts", lambda: {"first": example.held_out()[:2], "second": ["7 + 8:"] * 4})
        return Bench(TOKENS, 1)


@pytest.mark.parametrize("columns", [BLOCK, 3 * BLOCK])
@pytest.mark.parametrize("rows", [1, 5])
def test_products_in_blocks_match_quantised_rows(rows: int, columns: int) -> None:
    rng = np.random.default_rng(rows)
    x = rng.normal(0, 2, (rows, columns)).astype(np.float32)
    x[0, :BLOCK] = 0
    values = rng.integers(-8, 8, (7, columns)).astype(np.int8)
    scales = rng.normal(0, 1, (7, columns // BLOCK)).astype(np.float32)
    weight = BlockTensor(values, scales, None, BLOCK)
    kind = GGMLQuantizationType.Q8_0
    rounded = quants.dequantize(quants.quantize(x, kind), kind).astype(np.float64)
    np.testing.assert_allclose(product(weight, x), rounded @ weight.dense().T, rtol=1e-4, atol=1e-4)


def test_other_blocks_are_refused() -> None:
    weight = BlockTensor(np.zeros((1, 32), np.int8), np.zeros((1, 2), np.float32), None, 16)
    with pytest.raises(ValueError, match="weights must be in blocks of 32 without minimums"):
        product(weight, np.zeros((1, 32), np.float32))


@pytest.mark.parametrize("name", FILES)
def test_without_roundings_it_is_the_reference(name: str) -> None:
    case = bench().case(name)
    tokens = case.texts[0].windows[0]
    exact = case.reference.logits(tokens)
    np.testing.assert_allclose(Rounded(*case.numbers, Roundings()).logits(tokens), exact, atol=2e-3)


@pytest.mark.parametrize("name", FILES)
def test_errors_of_all_roundings_resemble_the_device(name: str) -> None:
    """Both errors against float32 have equal size and correlate; windows differ where an early rounding falls the other
    way."""
    case = bench().case(name)
    ours, theirs = [], []
    with case.device() as device:
        for text in case.texts:
            tokens = text.windows[0]
            exact = case.reference.logits(tokens)
            ours.append((Rounded(*case.numbers, DEVICE).logits(tokens) - exact).ravel())
            theirs.append((device.logits(tokens) - exact).ravel())
    simulated, measured = np.concatenate(ours), np.concatenate(theirs)
    assert np.corrcoef(simulated, measured)[0, 1] > 0.2
    assert 0.5 < simulated.std() / measured.std() < 2


@pytest.mark.parametrize("rounding", CAUSES)
def test_each_rounding_changes_logits_slightly(rounding: str) -> None:
    actual = bench().case("Q8_0").apply(Roundings(**CAUSES[rounding]))  # type: ignore[arg-type]
    assert 0 < actual.error < 0.1


def test_finer_steps_of_keys_and_values_are_nearer() -> None:
    case = bench().case("Q8_0")
    actual = [
        case.apply(Roundings(key=how, value=how, room=1.5)).error for how in ("free", "power", "device")
    ]
    assert actual == sorted(actual)
    assert (
        case.apply(Roundings(key="head", value="head")).error
        < case.apply(Roundings(key="head", value="head", room=8)).error
    )


def test_products_are_near_the_device() -> None:
    for name in ("Q8_0", "Q4_0"):
        for blocks, device in product_errors(bench().case(name)).values():
            assert 0 < blocks < 0.02
            assert blocks < device < 0.06


def test_a_difference_by_hand() -> None:
    exact = np.log([[0.5, 0.25, 0.25], [1 / 3] * 3])
    text = Text.of("", [0, 1], lambda tokens: exact)
    actual = difference(text, lambda tokens: np.log([[0.25, 0.5, 0.25], [1 / 3] * 3]) + 5)
    assert actual.exact == pytest.approx(4)
    assert actual.perplexity == pytest.approx(2)
    assert actual.change == pytest.approx(-0.5)
    assert actual.divergence == pytest.approx(0.25 * np.log(2))
    assert actual.same == 0


@pytest.mark.parametrize("name", language_accuracy.TABLES)
def test_tables_go_into_the_page(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "page.md"
    page.write_text(PAGE.read_text())
    monkeypatch.setattr(language_accuracy, "Bench", lambda tokens, problems: bench())
    monkeypatch.setattr("sys.argv", ["language_accuracy.py", name, "--write", str(page)])
    language_accuracy.main()
    begin = language_accuracy.BEGIN.format(name)
    inside = page.read_text().partition(begin)[2].partition(language_accuracy.END)[0]
    before = PAGE.read_text().partition(begin)[2].partition(language_accuracy.END)[0]
    assert inside in capsys.readouterr().out
    assert inside.count("\n") == before.count("\n"), "the page has a table with as many rows"
    for line in inside.splitlines():
        assert not line or line.startswith("| ")
