"""The hardware configuration: one frozen, validated object that hardware and software share."""

from __future__ import annotations

import dataclasses
import enum
import hashlib
import json
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from weft.hdl import schema
from weft.hdl.errors import WeftError

FORMAT = "weft configuration 1"
"""The field `format` of a configuration file; it may be absent."""
_FILE_BYTES = 1 << 20
_LATER = ("int4", "loops", "parity", "descriptors")
"""Fields that count in `Config.digest` only where they are set."""
LOOKUP_TABLES = 8
"""Look-up tables at most."""
LOOKUP_ENTRIES = 256
"""Entries of a look-up table: one for each int8."""
KERNEL_ENTRIES = 256
"""Micro-operations that the kernel engine holds at most."""
BLOCKS_MOST = 32
"""Columns of an array whose LOAD has blocks of values of 4 bits, at most: a word has values of one block."""
DEPTHWISE_TAPS = 8
"""Products of neighbouring rows that an array adds up at most."""


class ConfigError(WeftError, ValueError):
    """A configuration that cannot be built; the message names the field, the value and the rule."""


def _is_power_of_two(value: int) -> bool:
    return value > 0 and value & (value - 1) == 0


@dataclass(frozen=True)
class Config:
    """Parameters of one accelerator.

    Parameters
    ----------
    n : int
        Side of the systolic array: ``n * n`` multipliers, and ``n`` bytes a scratchpad vector.
        A power of two from 2 to 128.
    lanes : int
        Lanes of the vector unit: accumulator columns requantised per cycle. A power of two, at most ``n``.
    scratchpad_banks, scratchpad_depth : int
        Banks of the scratchpad, and vectors of ``n`` bytes in each. Powers of two.
    accumulator_banks, accumulator_depth : int
        Banks of the accumulator, and rows of ``n`` int32 in each. Powers of two.
    bus_bytes : int
        Width of the AXI4 data bus in bytes. A power of two, at least ``max(n, 4)``, at most 128.
    mantissa_bits : int
        Width of requantisation mantissas: 24 (the default) or 16 (for small parts).
    queue_depth : int
        Instructions that wait in front of each unit. A power of two from 1 to 64.
    probability_bits : int
        Bits of softmax probabilities: 8, or 7 for arrays whose multipliers take signed bytes only, or 0 for an
        accelerator without softmax, which then costs nothing.
    row_states : int
        Rows of scores that softmax can have under way. A power of two from 4 to 4096.
    alignments : int
        Vectors of probabilities that can be under way. A power of two from 16 to 4096.
    table_depth : int
        Entries of the table for powers of two. A power of two from 256 to 2048.
    lookup_tables : int
        Look-up tables of `LOOKUP_ENTRIES` bytes that the vector unit can put results through: 1, 2, 4 or 8, or 0 for an
        accelerator without, which then cost nothing. Up to 8 take a block RAM for every two lanes.
    multiply : int
        1 if the vector unit can multiply and subtract two tensors element by element: a small multiplier for each lane.
        0 for an accelerator that only adds.
    kernel : int
        Micro-operations that the kernel engine's memory holds: a power of two from 16 to 256, or 0 for an accelerator
        without that engine, which then costs nothing.
    depthwise_taps : int
        Products of neighbouring rows that the array can add up for each channel by itself, as depthwise convolutions
        do: 2 to ``n / 2``, at most 8, or 0 for an array without that path.
    int4 : int
        1 if LOAD can widen values of 4 bits in memory to bytes: weights in 4 bits take half the memory, and half the
        time where the bus sets the pace. 2 if it can also multiply blocks of them by factors of their own, see
        `weft.hdl.isa.encoding`: for an ``n`` from 4 to 32, and a bus of ``n`` bytes. 0 for an accelerator without.
    loops : int
        1 if programs have loops and registers of their own, see `weft.hdl.isa.loops`. 0 for an accelerator whose
        programs are straight lists of instructions.
    parity : int
        1 if scratchpad, accumulators and, in the pipelined core, the words that are fetched ahead have parity bits: a
        run that reads a wrong one is stopped. 0 for memories without.
    descriptors : int
        1 if the accelerator runs lists of programs by itself, see `weft.hdl.isa.program_lists`. 0 for one that the host
        starts for each program.

    Raises
    ------
    ConfigError
        For a value outside the limits above.
    """

    n: int = 16
    lanes: int = 8
    scratchpad_banks: int = 8
    scratchpad_depth: int = 2048
    accumulator_banks: int = 4
    accumulator_depth: int = 512
    bus_bytes: int = 16
    mantissa_bits: int = 24
    queue_depth: int = 4
    probability_bits: int = 8
    row_states: int = 256
    alignments: int = 2048
    table_depth: int = 2048
    lookup_tables: int = 4
    multiply: int = 1
    kernel: int = 0
    depthwise_taps: int = 0
    int4: int = 0
    loops: int = 0
    parity: int = 0
    descriptors: int = 0

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if type(value) is not int:
                raise ConfigError(
                    f"configuration field {field.name!r} must be an integer, not {schema.shown(value)}"
                )
        self._power("n", 2, 128)
        self._power("lanes", 1, self.n)
        self._power("scratchpad_banks", 2, 64)
        self._power("scratchpad_depth", 16, 1 << 15)
        self._power("accumulator_banks", 2, 64)
        self._power("accumulator_depth", 16, 1 << 15)
        self._power("bus_bytes", max(self.n, 4), 128)
        self._power("queue_depth", 1, 64)
        if self.mantissa_bits not in (16, 24):
            raise ConfigError(
                f"configuration field 'mantissa_bits' must be 16 or 24, not {schema.shown(self.mantissa_bits)}"
            )
        if self.probability_bits not in (0, 7, 8):
            raise ConfigError(
                "configuration field 'probability_bits' must be 0 (no softmax), 7 or 8, not "
                f"{schema.shown(self.probability_bits)}"
            )
        self._power("row_states", 4, 4096)
        self._power("alignments", 16, 4096)
        self._power("table_depth", 256, 2048)
        if self.int4 not in (0, 1, 2):
            raise ConfigError(f"configuration field 'int4' must be 0, 1 or 2, not {schema.shown(self.int4)}")
        if self.int4 == 2 and not (4 <= self.n <= BLOCKS_MOST and self.bus_bytes == self.n):
            raise ConfigError(
                f"configuration field 'int4' is 2, which needs 'n' from 4 to {BLOCKS_MOST} and as many 'bus_bytes',"
                f" not {self.n} and {self.bus_bytes}"
            )
        for name in ("multiply", "loops", "parity", "descriptors"):
            value = getattr(self, name)
            if value not in (0, 1):
                raise ConfigError(f"configuration field {name!r} must be 0 or 1, not {schema.shown(value)}")
        if self.lookup_tables != 0:
            self._power("lookup_tables", 1, LOOKUP_TABLES, " or 0")
        if self.kernel != 0:
            self._power("kernel", 16, KERNEL_ENTRIES, " or 0")
        most = min(DEPTHWISE_TAPS, self.n // 2)
        if self.depthwise_taps != 0 and not 2 <= self.depthwise_taps <= most:
            choice = f"from 2 to {most}, or 0" if most >= 2 else f"0 where 'n' is {self.n}"
            raise ConfigError(
                f"configuration field 'depthwise_taps' must be {choice}, not {schema.shown(self.depthwise_taps)}"
            )
        for memory in ("scratchpad", "accumulator"):
            size = getattr(self, f"{memory}_banks") * getattr(self, f"{memory}_depth")
            if size > 1 << 16:
                raise ConfigError(f"the {memory} has {size} rows, but addresses are 16 bits: at most 65536")

    def _power(self, name: str, low: int, high: int, otherwise: str = "") -> None:
        value = getattr(self, name)
        if not (low <= value <= high and _is_power_of_two(value)):
            raise ConfigError(
                f"configuration field {name!r} must be a power of two from {low} to {high}{otherwise}, "
                f"not {schema.shown(value)}"
            )

    @cached_property
    def widths(self) -> Widths:
        """Widths that follow from the parameters."""
        return Widths(self)

    @property
    def scratchpad_size(self) -> int:
        """Vectors in the whole scratchpad."""
        return self.scratchpad_banks * self.scratchpad_depth

    @property
    def accumulator_size(self) -> int:
        """Rows in the whole accumulator."""
        return self.accumulator_banks * self.accumulator_depth

    @property
    def softmax(self) -> bool:
        """Whether there is a softmax unit, with all that attention needs."""
        return self.probability_bits > 0

    @property
    def wide_activations(self) -> bool:
        """Whether the array takes 9-bit activations: bytes less their zero point."""
        return self.probability_bits == 8

    @property
    def blocks(self) -> bool:
        """Whether LOAD multiplies blocks of values of 4 bits by factors of their own."""
        return self.int4 == 2

    @property
    def transposed_vectors(self) -> int:
        """Vectors of a pixel that LOAD transposes at a time, at most: 4, and 128 bytes where that is less."""
        return max(1, min(4, 128 // self.n))

    @property
    def groups(self) -> int:
        """Lane groups in a row: cycles the vector unit takes for ``n`` columns."""
        return self.n // self.lanes

    @cached_property
    def exp2_table(self) -> bytes:
        """The table of softmax: see `weft.hdl.isa.Table`. All 0 without softmax."""
        top = (1 << self.probability_bits) - 1
        steps = self.table_depth // 16
        octaves = [(entry + 0.5) / steps - 1 / 256 for entry in range(self.table_depth)]
        return bytes(round(top * 2.0**-octave) for octave in octaves)

    @cached_property
    def digest(self) -> int:
        """A 32-bit hash of all parameters, readable in the identification register.

        `int4`, `loops`, `parity` and `descriptors` count only where they are set: hardware without them is what it was
        before there were such fields.
        """
        values = dataclasses.asdict(self)
        text = json.dumps(
            {key: value for key, value in values.items() if key not in _LATER or value}, sort_keys=True
        )
        return int.from_bytes(hashlib.sha256(text.encode()).digest()[:4], "little")

    def replace(self, **changes: int) -> Config:
        """A copy with some parameters changed. Raises `ConfigError` as the constructor does."""
        return dataclasses.replace(self, **changes)

    def to_dict(self) -> dict[str, int]:
        """The fields by name, for `from_dict`."""
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls, values: Any) -> Config:
        """Build from a mapping of field names; unknown names and non-integers raise `ConfigError`."""
        if not isinstance(values, dict):
            raise ConfigError(f"a configuration is an object of fields, not {type(values).__name__}")
        names = {field.name for field in dataclasses.fields(cls)}
        for name in values:
            if name not in names:
                raise ConfigError(
                    f"unknown configuration field {schema.shown(name)}; the fields are {', '.join(sorted(names))}"
                )
        return cls(**values)

    @classmethod
    def load(cls, source: str | Path) -> Config:
        """A preset by name, or a JSON file of fields.

        In a file, a field ``preset`` names what the rest changes, and a field ``format``, if it is there, is `FORMAT`.

        Raises
        ------
        ConfigError
            If `source` is neither a preset nor a readable JSON file of valid fields.
        """
        if str(source) in PRESETS:
            return PRESETS[str(source)]
        path = Path(source)
        if path.suffix != ".json":
            raise ConfigError(f"unknown preset {str(source)!r}; choose {', '.join(PRESETS)}, or a .json file")
        try:
            raw = schema.read_bytes(path, _FILE_BYTES)
            values = schema.decode(raw, dict[str, Any], format=FORMAT, optional=True)
            values.pop("format", None)
            given = _preset(values.pop("preset")) if "preset" in values else {}
            return cls.from_dict(given | values)
        except OSError as error:
            raise ConfigError(f"cannot read configuration {path}: {error.strerror}") from None
        except (schema.SchemaError, ConfigError) as error:
            raise ConfigError(f"configuration {path}: {error}") from None


def _preset(name: object) -> dict[str, int]:
    """The fields of a preset."""
    if not isinstance(name, str) or name not in PRESETS:
        raise ConfigError(f"unknown preset {schema.shown(name)}; choose {', '.join(PRESETS)}")
    return PRESETS[name].to_dict()


class Widths:
    """Widths in bits that follow from a `Config`.

    Attributes
    ----------
    vector : a scratchpad vector, ``8 * n``
    row : an accumulator row, ``32 * n``
    activation : what enters the array from the west, 9 with `Config.wide_activations`, else 8
    psum : a partial sum at the foot of the array, ``16 + log2 n``
    scratchpad_address, accumulator_address : an address over all banks
    bus : the AXI4 data bus
    """

    def __init__(self, config: Config) -> None:
        self.vector = 8 * config.n
        self.row = 32 * config.n
        self.activation = 9 if config.wide_activations else 8
        # 255 * 128 * n is below 2**15 * n, so the ninth bit of activations costs none here.
        self.psum = 16 + (config.n - 1).bit_length()
        self.scratchpad_address = (config.scratchpad_size - 1).bit_length()
        self.accumulator_address = (config.accumulator_size - 1).bit_length()
        self.bus = 8 * config.bus_bytes


PRESETS: dict[str, Config] = {
    "tiny": Config(n=4, lanes=2, scratchpad_banks=4, scratchpad_depth=256,
                   accumulator_banks=2, accumulator_depth=64, bus_bytes=4, row_states=64, alignments=256),
    "small": Config(n=8, lanes=4, scratchpad_banks=8, scratchpad_depth=512,
                    accumulator_banks=4, accumulator_depth=128, bus_bytes=8, row_states=128, alignments=1024, int4=1),
    "default": Config(kernel=128, depthwise_taps=5, int4=1),
    "large": Config(n=32, lanes=32, bus_bytes=32, kernel=128, depthwise_taps=5, int4=1),
    "xlarge": Config(n=64, lanes=64, bus_bytes=64, row_states=512, kernel=128, depthwise_taps=5, int4=1),
    "huge": Config(n=128, lanes=128, bus_bytes=128, row_states=512, kernel=128, depthwise_taps=5, int4=1),
}  # fmt: skip


_NO_MULTIPLIERS = "the configuration has no products of elements ('multiply' is 0)"
_NO_KERNELS = "the configuration has no kernel engine ('kernel' is 0)"
_NO_TAPS = "the configuration's array adds up no products of neighbouring rows ('depthwise_taps' is 0)"
_NO_INT4 = "the configuration's LOAD widens no values of 4 bits ('int4' is 0)"
_NO_BLOCKS = "the configuration's LOAD multiplies no blocks of values of 4 bits ('int4' is not 2)"
_NO_LOOPS = "the configuration's programs are straight lists of instructions ('loops' is 0)"
_NO_TABLES = "the configuration has no look-up tables ('lookup_tables' is 0)"


class Feature(enum.Enum):
    """Something optional, by what documentation calls it."""

    SOFTMAX = "softmax only"
    WIDE_ACTIVATIONS = "softmax with 8-bit probabilities only"
    LOOKUP = "look-up tables only"
    MULTIPLY = "products of elements only"
    KERNEL = "kernel engine only"
    DEPTHWISE = "sums along rows only"
    INT4 = "values of 4 bits only"
    BLOCKS = "blocks of values of 4 bits only"
    LOOPS = "loops only"

    def missing(self, config: Config) -> str | None:
        """Why a configuration does not have it, as a clause; None if it has."""
        if self is Feature.LOOKUP:
            return None if config.lookup_tables else _NO_TABLES
        if self is Feature.KERNEL:
            return None if config.kernel else _NO_KERNELS
        if self is Feature.DEPTHWISE:
            return None if config.depthwise_taps else _NO_TAPS
        if self is Feature.INT4:
            return None if config.int4 else _NO_INT4
        if self is Feature.BLOCKS:
            return None if config.blocks else _NO_BLOCKS
        if self is Feature.LOOPS:
            return None if config.loops else _NO_LOOPS
        if self is Feature.MULTIPLY:
            return None if config.multiply else _NO_MULTIPLIERS
        if not config.softmax:
            return "the configuration has no softmax ('probability_bits' is 0)"
        if self is Feature.WIDE_ACTIVATIONS and not config.wide_activations:
            return f"'probability_bits' is {config.probability_bits} and not 8"
        return None


PARAMETER_VECTORS = 8
"""Scratchpad vectors of a parameter block: bytes of a parameter word."""


class Part(NamedTuple):
    """Some bits of a word."""

    low: int
    width: int
    signed: bool = False

    @property
    def bits(self) -> slice:
        return slice(self.low, self.low + self.width)

    def of(self, words: np.ndarray) -> np.ndarray:
        """This part of uint64 words, as int64."""
        value = (words >> np.uint64(self.low)).astype(np.int64) & ((1 << self.width) - 1)
        return value - ((value >> (self.width - 1)) << self.width) if self.signed else value

    def put(self, values: np.ndarray) -> np.ndarray:
        """uint64 words of which this part holds integers, modulo ``2**width``; the rest is 0."""
        part = values.astype(np.int64) & ((1 << self.width) - 1)
        return part.astype(np.uint64) << np.uint64(self.low)


BIAS = Part(0, 32, signed=True)
MANTISSA = Part(32, 24)
SHIFT = Part(56, 6)


def block(bias: np.ndarray, mantissa: np.ndarray, shift: np.ndarray, n: int) -> bytes:
    """The parameter block of at most `n` columns, arrays of integers of equal length; the other columns are 0."""
    words = np.zeros(n, "<u8")
    words[: len(bias)] = BIAS.put(bias) | MANTISSA.put(mantissa) | SHIFT.put(shift)
    return words.view(np.uint8).reshape(n, PARAMETER_VECTORS).T.tobytes()


def words(vectors: np.ndarray) -> np.ndarray:
    """The words (N,) uint64 in a parameter block, (`PARAMETER_VECTORS`, N) bytes of any sign."""
    return np.ascontiguousarray(vectors.view(np.uint8).T).view("<u8").ravel()
