"""The page of a search: well-formed, points at their values, and legible labels."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from typing import Any
from xml.etree import ElementTree
from xml.etree.ElementTree import Element

import numpy as np
import pytest

from weft.boards.families.family import Resources
from weft.extras.search.explore.explore import Exploration
from weft.extras.search.explore.plot import page
from weft.extras.search.explore.point import OBJECTIVES, Measured, Place, Point, Timing, pareto_front
from weft.hdl.isa.config import PRESETS, Config

THREE = ("cycles", "lut", "ram")
LETTERS = {"k": 1e3, "M": 1e6, "G": 1e9}
LOWEST, HIGHEST = 6.2, 9.5
"""Size of letters in pixels: mean width in wide fonts at the labels' size, and height above the baseline."""


def point(
    cycles: int = 100,
    lut: int = 100,
    *,
    ff: int = 1,
    dsp: int = 1,
    ram: int = 1,
    origin: str = "search",
    place: str = "memory",
    config: Config = PRESETS["tiny"],
) -> Measured:
    result = Point(config, Place(place), 50e6, routed=False)
    return Measured(result, Resources(lut, ff, dsp, ram), Timing([cycles], 700, 1000, 70), origin)


def random_points(count: int, most: int = 1000, least: int = 1) -> list[Measured]:
    """Return random points, identified by their flip-flops."""
    rng = np.random.default_rng(count)
    rows = rng.integers(least, most, (count, 4)).tolist()
    return [point(a, b, dsp=c, ram=d, ff=1 + index) for index, (a, b, c, d) in enumerate(rows)]


def parse_page(exploration: Exploration) -> tuple[Element, list[Element]]:
    """Return the page and its plots, parsed as XML, which tolerates no errors."""
    text = page(exploration)
    root = ElementTree.fromstring(text)
    assert not {"script", "link", "img", "iframe", "image", "use"} & {item.tag for item in root.iter()}
    assert not re.search(r"https?:|url\(|@import|javascript:", text)
    for item in root.iter():
        for name, value in item.attrib.items():
            assert not re.search(r"\b(nan|inf)\b", value, re.IGNORECASE), value
            assert not name.startswith("on")
    return root, [item for item in root.iter("svg") if item.get("class") == "plot"]


def marks(plot: Element) -> Iterator[tuple[dict[str, Any], set[str], tuple[float, float]]]:
    """Return each mark's objectives, kinds and position in pixels."""
    for item in plot.iter():
        kinds = set(item.get("class", "").split())
        if kinds & {"point", "reference", "front"}:
            position = re.fullmatch(r"translate\(([\d.]+) ([\d.]+)\)", item.get("transform", ""))
            title = item.findtext("title")
            assert position, item.attrib
            assert title
            lines = dict(line.rsplit(": ", 1) for line in title.splitlines() if ": " in line)
            said = {name: float(lines[unit].replace(",", "")) for name, unit in OBJECTIVES.items()}
            yield said, kinds, (float(position[1]), float(position[2]))


def spots(plot: Element) -> list[tuple[float, float]]:
    """Return positions of marks, ordered by their points' flip-flops."""
    return [spot for _, _, spot in sorted(marks(plot), key=lambda mark: float(mark[0]["ff"]))]


def of_class(plot: Element, name: str) -> list[Element]:
    return [item for item in plot.iter() if item.get("class") == name]


def ticks(plot: Element, anchor: str, at: str) -> list[tuple[float, float]]:
    """Return values and positions on an axis, whose own label is larger."""
    texts = [
        item for item in plot.iter("text") if item.get("text-anchor") == anchor and not item.get("font-size")
    ]
    said = [item.text or "" for item in texts]
    values = [float(text.rstrip("kMG")) * LETTERS.get(text[-1], 1) for text in said]
    return [(value, float(item.attrib[at])) for value, item in zip(values, texts, strict=True)]


@pytest.mark.parametrize("count", [1, 2, 30, 400])
@pytest.mark.parametrize(
    "objectives", [("cycles", "lut"), THREE, ("energy", "ms", "bytes", "dsp"), ("ram",), ("lut",)]
)
def test_every_point_is_drawn_once_in_each_plot(count: int, objectives: tuple[str, ...]) -> None:
    actual = Exploration(objectives, random_points(count))
    _, plots = parse_page(actual)
    assert len(plots) == max(1, len(objectives) - 1)
    for plot in plots:
        drawn = list(marks(plot))
        assert sorted(said["ff"] for said, _, _ in drawn) == list(range(1, count + 1))
        best = sorted(said["ff"] for said, kinds, _ in drawn if "front" in kinds)
        assert best == sorted(item.need.ff for item in actual.pareto_front)
        for said, _, _ in drawn:
            assert said == pytest.approx(actual.measured[int(said["ff"]) - 1].values, rel=1e-3)


@pytest.mark.parametrize("objectives", [THREE, ("lut",), ("ram",)])
def test_axes_have_labels(objectives: tuple[str, ...]) -> None:
    """The first objective is vertical; a single one is plotted over LUTs, or LUTs over time."""
    _, plots = parse_page(Exploration(objectives, random_points(3)))
    others = objectives[1:] or {"lut": ["ms"], "ram": ["lut"]}[objectives[0]]
    for plot, other in zip(plots, others, strict=True):
        across, up = (item.text for item in plot.iter("text") if item.get("font-size"))
        assert (across, up) == (OBJECTIVES[other], OBJECTIVES[objectives[0]])


@pytest.mark.parametrize(("least", "most"), [(1, 4), (300, 1000), (1, 40), (1, 10**9)])
def test_positions_are_in_the_order_of_values(least: int, most: int) -> None:
    """On linear and logarithmic axes and for their few ticks. Larger values are higher."""
    items = [*random_points(40, most, least), point(least, least, ram=least, ff=41)]
    _, plots = parse_page(Exploration(THREE, items))
    for plot, other in zip(plots, THREE[1:], strict=True):
        drawn = list(marks(plot))
        across = [(said[other], x) for said, _, (x, _) in drawn]
        up = [(said["cycles"], -y) for said, _, (_, y) in drawn]
        below = [(value, -(y - 4)) for value, y in ticks(plot, "end", "y")]
        for known, marked in ((across, ticks(plot, "middle", "x")), (up, below)):
            assert 2 <= len({value for value, _ in marked}) == len(marked) <= 9
            for (one, before), (two, after) in itertools.combinations([*known, *marked], 2):
                assert (before < after) == (one < two) or abs(before - after) < 0.02
                assert (before == after) == (one == two) or abs(before - after) < 0.02
            assert len({at for _, at in known}) >= 0.9 * len({value for value, _ in known})


@pytest.mark.parametrize(
    ("values", "middle"),
    [
        ((1, 10, 100), 0.5),
        ((20, 60, 100), 0.5),  # up to a factor of 5 an axis is linear
        ((0, 50, 100), 0.5),  # and with a zero
        ((19, 60, 100), 0.692),
    ],
)
def test_axes_are_logarithmic_where_values_are_far_apart(values: tuple[int, ...], middle: float) -> None:
    _, (plot,) = parse_page(Exploration(("cycles", "dsp"), [point(ff=each, dsp=each) for each in values]))
    low, between, high = (x for x, _ in spots(plot))
    assert (between - low) / (high - low) == pytest.approx(middle, abs=1e-3)


@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("value", [0, 1, 2, 10**6])
def test_equal_values_are_in_the_middle(count: int, value: int) -> None:
    _, (plot,) = parse_page(
        Exploration(("ms", "dsp"), [point(dsp=value, ff=1 + index) for index in range(count)])
    )
    (edge,) = of_class(plot, "edge")
    x, y, width, height = (float(edge.attrib[name]) for name in ("x", "y", "width", "height"))
    assert spots(plot) == count * [pytest.approx((x + width / 2, y + height / 2))]
    marked = [tick for tick, _ in ticks(plot, "middle", "x")]
    assert value in marked
    assert all(tick >= 0 and tick == int(tick) for tick in marked)


@pytest.mark.parametrize("count", [1, 60])
def test_stairs_are_the_front_of_two(count: int) -> None:
    """From the top to the first point and from the last to the right, with a corner at each."""
    actual = Exploration(THREE, random_points(count))
    _, plots = parse_page(actual)
    for plot, other in zip(plots, THREE[1:], strict=True):
        (line,) = of_class(plot, "stairs")
        corners = [(float(x), float(y)) for x, y in re.findall(r"H([\d.]+)V([\d.]+)", line.attrib["d"])]
        drawn = spots(plot)
        assert corners == sorted(
            drawn[item.need.ff - 1] for item in pareto_front(actual.measured, ("cycles", other))
        )
        assert all(y > below for (_, below), (_, y) in itertools.pairwise(corners))
        (edge,) = of_class(plot, "edge")
        right = float(edge.attrib["x"]) + float(edge.attrib["width"])
        ends = re.findall(r"^M([\d.]+) ([\d.]+)H.*V[\d.]+H([\d.]+)$", line.attrib["d"])
        assert [tuple(map(float, end)) for end in ends] == [(corners[0][0], float(edge.attrib["y"]), right)]


@pytest.mark.parametrize("apart", [0, 3, 40])
@pytest.mark.parametrize(
    "places", [["memory"], ["memory", "ulx3s-85f", "icebreaker", "tang-nano-9k", "x" * 90]]
)
def test_labels_of_references_do_not_overlap(apart: int, places: list[str]) -> None:
    """However near their points are."""
    items = random_points(300)
    for place in places:
        for name in PRESETS:
            at = 400 + apart * (len(items) - 300)
            items.append(point(at, at, ff=1 + len(items), origin=f"preset {name}", place=place))
        items.append(point(400, 500, ff=1 + len(items), origin=f"board {place}", place=place))
    _, plots = parse_page(Exploration(THREE, items))
    for plot in plots:
        assert sum("reference" in kinds for _, kinds, _ in marks(plot)) == len(items) - 300
        texts = of_class(plot, "label")
        said = [item.text or "" for item in texts]
        several = len(places) > 1
        expected = [f"{name} on {place}" if several else name for place in places for name in PRESETS]
        short = {text for text in [*expected, *places] if len(text) <= 28}
        assert short <= set(said)
        assert len(said) == len(items) - 300
        (edge,) = of_class(plot, "edge")
        left, top, width, height = (float(edge.attrib[name]) for name in ("x", "y", "width", "height"))
        boxes = []
        for item, text in zip(texts, said, strict=True):
            x, y = float(item.attrib["x"]), float(item.attrib["y"])
            boxes.append((x, y - HIGHEST, x + LOWEST * len(text), y + 2))
            assert left <= x < boxes[-1][2] <= left + width
            assert top - 9 < y < top + height + 9
        for one, two in itertools.combinations(boxes, 2):
            assert one[2] <= two[0] or two[2] <= one[0] or one[3] <= two[1] or two[3] <= one[1]


def test_a_label_is_beside_its_mark_or_at_a_line_to_it() -> None:
    items = [point(origin=f"preset {name}", ff=1 + index) for index, name in enumerate(PRESETS)]
    _, (plot,) = parse_page(Exploration(("cycles", "lut"), items))
    (position,) = set(spots(plot))
    ends = [tuple(map(float, re.findall(r"[\d.]+", line.attrib["d"]))) for line in of_class(plot, "leader")]
    assert all(end[:2] == pytest.approx(position) for end in ends)
    beside = 0
    for label in of_class(plot, "label"):
        left, base = float(label.attrib["x"]), float(label.attrib["y"])
        right = left + 6.6 * len(label.text or "")
        near = left - 10 <= position[0] <= right + 10 and abs(base - 4 - position[1]) < 18
        at = any(left - 1 <= end[2] <= right + 1 and base - 12 <= end[3] <= base + 3 for end in ends)
        assert near or at
        beside += near
    assert 0 < beside < len(items) == beside + len(ends)


def test_a_preset_on_the_front_has_the_colour_of_its_place() -> None:
    """It is drawn once, as a diamond; other presets have no colour. The legend maps colours to places."""
    items = [
        point(1, 9, origin="preset tiny"), point(2, 8, place="ulx3s-85f"),
        point(9, 9, origin="board ulx3s-85f", place="ulx3s-85f"), point(3, 7), point(99, 99, place="unbeaten"),
    ]  # fmt: skip
    root, (plot,) = parse_page(Exploration(("cycles", "lut"), items))
    (diamond,) = of_class(plot, "reference front")
    (bare,) = of_class(plot, "reference")
    dots = of_class(plot, "front")
    assert diamond.tag == bare.tag == "path"
    assert bare.get("style") is None
    assert dots[1].get("style") == diamond.get("style") != dots[0].get("style")
    entries = {}
    for span in root.iter("span"):
        mark = span.find("svg")
        assert mark is not None
        entries[(mark.tail or "").strip()] = mark[0].get("style")
    assert entries["on the front: memory"] == diamond.get("style")
    assert entries["on the front: ulx3s-85f"] == dots[0].get("style")
    assert "on the front: unbeaten" not in entries


def test_tooltips_are_complete() -> None:
    config = PRESETS["small"]
    item = point(123456, 1234, origin="preset small", config=config)
    _, (plot,) = parse_page(Exploration(("ms", "lut"), [item]))
    (mark,) = of_class(plot, "reference front")
    title = mark.findtext("title") or ""
    assert title.splitlines()[0] == "memory, 50 MHz (preset small)"
    for line in (
        "cycles: 123,456",
        "milliseconds: 2.469",
        "LUTs: 1,234",
        "flip-flops: 1",
        "bytes moved: 700",
    ):
        assert line in title.splitlines()
    assert title.splitlines()[-1] == ", ".join(f"{name} {value}" for name, value in config.to_dict().items())


def test_the_table_has_the_front_and_what_differs() -> None:
    configs = [PRESETS["tiny"], PRESETS["tiny"].replace(lanes=1), PRESETS["small"]]
    items = [point(10 + index, 30 - index, config=config) for index, config in enumerate(configs[:2])]
    root, _ = parse_page(Exploration(("cycles", "lut"), [*items, point(999, 999, config=configs[2])]))
    heads = [item.text for item in root.iter("th")]
    assert heads == ["place", "from", *OBJECTIVES.values(), "MHz", "lanes"]
    assert [item.text for item in root.iter("th") if item.get("class") == "sought"] == ["cycles", "LUTs"]
    rows = [[cell.text for cell in row.iter("td")] for row in root.iter("tr")][1:]
    assert [row[:3] + row[4:5] + row[-2:] for row in rows] == [
        ["memory", "search", "10", "30", "50", "2"], ["memory", "search", "11", "29", "50", "1"]]  # fmt: skip
    (same,) = (item.text or "" for item in root.iter("p") if (item.text or "").startswith("Common to all"))
    assert "n 4, scratchpad_banks 4" in same
    assert "lanes" not in same


def test_names_are_escaped() -> None:
    """Names of places and origins appear verbatim, and the page stays valid."""
    name = "<script>alert('&amp;\"')</script>\x07\u202e"
    shown = name[:-2] + r"\x07\u202e"
    items = [point(1, 2, place=name, origin=f"preset {name}"), point(2, 1)]
    root, (plot,) = parse_page(Exploration(("cycles", "lut"), items))
    assert [item.text for item in root.iter("td")][:2] == [shown, f"preset {shown}"]
    (mark,) = of_class(plot, "reference front")
    assert (mark.findtext("title") or "").startswith(f"{shown}, 50 MHz (preset {shown})")
    (label,) = of_class(plot, "label")
    assert (label.text or "").startswith("<script>alert(")
    assert any((span[0].tail or "").strip() == f"on the front: {shown}" for span in root.iter("span"))


@pytest.mark.parametrize("objectives", [THREE, ("ms",)])
def test_a_search_without_solutions(objectives: tuple[str, ...]) -> None:
    root, plots = parse_page(Exploration(objectives))
    assert plots == list(root.iter("table")) == []
    assert [item.text for item in root.iter("p")] == ["No solution was measured, so there is no front."]


def test_pages_are_reproducible() -> None:
    def text() -> str:
        items = [*random_points(50), *(point(origin=f"preset {name}") for name in PRESETS)]
        return page(Exploration(THREE, items))

    assert text() == text()


def test_light_and_dark() -> None:
    root, _ = parse_page(Exploration(THREE, random_points(5)))
    style = root.findtext("head/style") or ""
    assert "@media (prefers-color-scheme: dark)" in style
    assert style.count("{") == style.count("}")
