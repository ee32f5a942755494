"""Configurations: every limit with its whole message, loading, presets, derived values."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from weft.hdl.errors import ConfigError
from weft.hdl.isa.config import PRESETS, Config

CHOICES = "tiny, small, default, large, xlarge, huge"


def refuse(message: str, **changes: Any) -> None:
    with pytest.raises(ConfigError) as caught:
        Config(**changes)
    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("name", "low", "high"),
    [
        ("n", 2, 128),
        ("lanes", 1, 16),
        ("scratchpad_banks", 2, 64),
        ("scratchpad_depth", 16, 32768),
        ("accumulator_banks", 2, 64),
        ("accumulator_depth", 16, 32768),
        ("bus_bytes", 16, 128),
        ("queue_depth", 1, 64),
    ],
)
def test_powers_of_two(name: str, low: int, high: int) -> None:
    for value in (low // 2, 2 * high, 3 * low if low > 1 else 3, 0, -low):
        refuse(f"configuration field {name!r} must be a power of two from {low} to {high}, not {value}",
               **{name: value})  # fmt: skip


@pytest.mark.parametrize("field", dataclasses.fields(Config), ids=lambda field: field.name)
@pytest.mark.parametrize("value", [True, 4.0, "4", None])
def test_integers_only(field: dataclasses.Field[int], value: object) -> None:
    refuse(f"configuration field {field.name!r} must be an integer, not {value!r}", **{field.name: value})


def test_limits_that_join_fields() -> None:
    refuse("configuration field 'mantissa_bits' must be 16 or 24, not 20", mantissa_bits=20)
    refuse("the scratchpad has 131072 rows, but addresses are 16 bits: at most 65536",
           scratchpad_banks=64, scratchpad_depth=2048)  # fmt: skip
    refuse("the accumulator has 131072 rows, but addresses are 16 bits: at most 65536",
           accumulator_banks=8, accumulator_depth=16384)  # fmt: skip
    refuse("configuration field 'lanes' must be a power of two from 1 to 4, not 8", n=4)
    refuse("configuration field 'bus_bytes' must be a power of two from 32 to 128, not 16", n=32)
    refuse(
        "configuration field 'bus_bytes' must be a power of two from 4 to 128, not 2",
        n=2,
        lanes=2,
        bus_bytes=2,
    )


def test_look_up_tables() -> None:
    for tables in (0, 1, 2, 4, 8):
        assert Config(lookup_tables=tables).lookup_tables == tables
    for tables in (-1, 3, 16):
        refuse(
            f"configuration field 'lookup_tables' must be a power of two from 1 to 8 or 0, not {tables}",
            lookup_tables=tables,
        )


def test_kernel_engine() -> None:
    for kernel in (0, 16, 256):
        assert Config(kernel=kernel).kernel == kernel
    for kernel in (-1, 8, 48, 512):
        refuse(
            f"configuration field 'kernel' must be a power of two from 16 to 256 or 0, not {kernel}",
            kernel=kernel,
        )


def test_sums_along_rows() -> None:
    for n, taps in ((2, 0), (4, 2), (16, 8), (128, 8)):
        assert Config(n=n, lanes=1, bus_bytes=128, depthwise_taps=taps).depthwise_taps == taps
    for n, taps, most in ((4, 3, 2), (16, 1, 8), (16, 9, 8), (8, -1, 4)):
        refuse(
            f"configuration field 'depthwise_taps' must be from 2 to {most}, or 0, not {taps}",
            n=n,
            lanes=1,
            depthwise_taps=taps,
        )
    refuse(
        "configuration field 'depthwise_taps' must be 0 where 'n' is 2, not 2", n=2, lanes=1, depthwise_taps=2
    )


def test_parts_that_are_there_or_not() -> None:
    assert [Config(int4=value).blocks for value in (0, 1, 2)] == [False, False, True]
    for value in (-1, 3):
        refuse(f"configuration field 'int4' must be 0, 1 or 2, not {value}", int4=value)
    needs = "configuration field 'int4' is 2, which needs 'n' from 4 to 32 and as many 'bus_bytes', not "
    refuse(f"{needs}16 and 32", bus_bytes=32, int4=2)
    refuse(f"{needs}64 and 64", n=64, bus_bytes=64, int4=2)
    refuse(f"{needs}2 and 4", n=2, lanes=1, bus_bytes=4, int4=2)
    for name in ("multiply", "loops", "descriptors"):
        assert [getattr(Config(**{name: value}), name) for value in (0, 1)] == [0, 1]
        for value in (-1, 2):
            refuse(f"configuration field {name!r} must be 0 or 1, not {value}", **{name: value})


def test_derived_values() -> None:
    config = Config()
    assert (config.scratchpad_size, config.accumulator_size, config.groups) == (16384, 2048, 2)
    widths = config.widths
    assert (widths.vector, widths.row, widths.psum, widths.bus) == (128, 512, 20, 128)
    assert (widths.scratchpad_address, widths.accumulator_address) == (14, 11)


@pytest.mark.parametrize("name", PRESETS)
def test_presets_are_valid_and_survive_a_dict(name: str) -> None:
    config = Config.load(name)
    assert config is PRESETS[name]
    assert Config.from_dict(json.loads(json.dumps(config.to_dict()))) == config


def test_digest_tells_configurations_apart() -> None:
    digests = {config.digest for config in PRESETS.values()}
    assert len(digests) == len(PRESETS)
    assert all(0 <= digest < 1 << 32 for digest in digests)
    assert Config().digest == Config().replace(queue_depth=4).digest != Config(queue_depth=8).digest
    assert Config().digest != Config(int4=1).digest != Config(loops=1).digest != Config().digest


def test_digest_ignores_later_fields_at_their_defaults() -> None:
    """Boards that were built then keep their programs."""
    values = {
        name: value
        for name, value in PRESETS["tiny"].to_dict().items()
        if name not in ("int4", "loops", "parity", "descriptors")
    }
    text = json.dumps(values, sort_keys=True).encode()
    assert PRESETS["tiny"].digest == int.from_bytes(hashlib.sha256(text).digest()[:4], "little")


def test_from_dict_errors() -> None:
    with pytest.raises(ConfigError, match=r"^a configuration is an object of fields, not list$"):
        Config.from_dict([])
    with pytest.raises(
        ConfigError, match=r"^unknown configuration field 'N'; the fields are accumulator_banks, "
    ):
        Config.from_dict({"N": 4})


def test_load(tmp_path: Path) -> None:
    path = tmp_path / "my.json"
    path.write_text('{"preset": "small", "lanes": 2}')
    assert Config.load(path) == Config.load(str(path)) == PRESETS["small"].replace(lanes=2)
    path.write_text('{"format": "weft configuration 1", "n": 8, "lanes": 8}')
    assert Config.load(path) == Config(n=8)
    path.write_text('{"n": 8, "lanes": 8}')
    assert Config.load(path) == Config(n=8)


UNREADABLE = {
    "{": "it is not JSON (input data was truncated)",
    "{'n': 8}": "it is not JSON (object keys must be strings (byte 1))",
    "": "it is not JSON (input data was truncated)",
    "null": "expected object, got null",
    "[]": "expected object, got array",
    '{"preset": "big"}': f"unknown preset 'big'; choose {CHOICES}",
    '{"preset": []}': f"unknown preset []; choose {CHOICES}",
    '{"preset": {"a": 1}}': f"unknown preset {{'a': 1}}; choose {CHOICES}",
    '{"preset": null}': f"unknown preset None; choose {CHOICES}",
    '{"n": null}': "configuration field 'n' must be an integer, not None",
    '{"n": 8.5}': "configuration field 'n' must be an integer, not 8.5",
    '{"n": 5}': "configuration field 'n' must be a power of two from 2 to 128, not 5",
    f'{{"n": {"9" * 5000}}}': "a field: integer value out of range",
    f'{{"n": {"9" * 4000}}}': "configuration field 'n' must be a power of two from 2 to 128, not "
                              f"{'9' * 28}...{'9' * 29}",
    '{"n": 8, "lanes": 8, "\\u001b[2J": 1}': "unknown configuration field '\\x1b[2J'; the fields are ",
    '{"n": NaN}': "it is not JSON (invalid character (byte 6))",
    f'{{"n": {"[" * 100_000}': "it is nested too deeply",
    '{"format": "weft configuration 2"}':
        "it has format 'weft configuration 2', and this version of weft reads 'weft configuration 1'",
    '{"format": null}': "format: expected str, got null",
    " " * (1 << 20) + "{}": "it has more than 1,048,576 bytes",
}  # fmt: skip


@pytest.mark.parametrize(("text", "message"), UNREADABLE.items(), ids=range(len(UNREADABLE)))
def test_load_errors(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "my.json"
    path.write_text(text)
    with pytest.raises(ConfigError) as caught:
        Config.load(path)
    assert str(caught.value).startswith(f"configuration {path}: {message}")
    assert len(str(caught.value)) < 500


@pytest.mark.parametrize("raw", [b"\xff\xfe", b'{"\xff": 1}', b"\xef\xbb\xbf{}", b"\x00"])
def test_load_of_what_is_no_text(tmp_path: Path, raw: bytes) -> None:
    path = tmp_path / "my.json"
    path.write_bytes(raw)
    with pytest.raises(ConfigError, match=r"my.json: it is not (JSON|UTF-8 text) \("):
        Config.load(path)


@pytest.mark.parametrize(
    "value", [10**5000, -(10**5000), [10**5000], "x" * 10_000, float("nan"), {}], ids=range(6)
)
def test_values_that_are_no_integers_or_huge(value: object) -> None:
    for field in dataclasses.fields(Config):
        with pytest.raises(ConfigError) as caught:
            Config(**{field.name: value})
        assert len(str(caught.value)) < 200


def test_load_of_nothing(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        Config.load("big")
    assert str(caught.value) == f"unknown preset 'big'; choose {CHOICES}, or a .json file"
    path = tmp_path / "none.json"
    with pytest.raises(ConfigError) as caught:
        Config.load(path)
    assert str(caught.value) == f"cannot read configuration {path}: No such file or directory"
    with pytest.raises(ConfigError, match=r"^configuration a\x00.json: no file has such a name \("):
        Config.load("a\x00.json")
