"""Hardware configuration: a frozen, validated object that hardware and software share."""

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
from weft.hdl.errors import ConfigError, SchemaError

FORMAT = "weft configuration 1"
"""Value of the optional field `format` in a configuration file."""
_MAX_FILE_BYTES = 1 << 20
_OPTIONAL_IN_DIGEST = ("int4", "loops", "parity", "descriptors")
"""Fields that `Config.digest` leaves out if they are 0."""
MAX_LOOKUP_TABLES = 8
LOOKUP_ENTRIES = 256
"""Entries of a look-up table: one for each int8."""
MAX_KERNEL_ENTRIES = 256
"""Maximum of micro-operations in the kernel engine's memory."""
MAX_BLOCK_COLUMNS = 32
"""Maximum `n` with block factors for int4 (``int4`` 2): a word must hold values of one block only."""
MAX_DEPTHWISE_TAPS = 8


def _is_power_of_two(value: int) -> bool:
    return value > 0 and value & (value - 1) == 0


@dataclass(frozen=True)
class Config:
    """Parameters of an accelerator.

    Parameters
    ----------
    n : int
        Side of the systolic array, which has ``n * n`` multipliers. A scratchpad vector has ``n`` bytes.
        A power of two from 2 to 128.
    lanes : int
        Accumulator columns that the vector unit requantises per cycle. A power of two, at most ``n``.
    scratchpad_banks, scratchpad_depth : int
        Banks of the scratchpad, and vectors of ``n`` bytes in each. Powers of two.
    accumulator_banks, accumulator_depth : int
        Banks of the accumulator, and rows of ``n`` int32 in each. Powers of two.
    bus_bytes : int
        Width of the AXI4 data bus in bytes. A power of two, at least ``max(n, 4)``, at most 128.
    mantissa_bits : int
        Width of requantisation mantissas: 24, or 16 for small FPGAs.
    queue_depth : int
        Capacity of each unit's instruction queue. A power of two from 1 to 64.
    probability_bits : int
        Width of softmax probabilities: 8, 7 for arrays whose multipliers take signed bytes only, or 0 for an
        accelerator without softmax hardware.
    row_states : int
        Maximum number of score rows with a softmax in progress. A power of two from 4 to 4096.
    alignments : int
        Maximum number of probability vectors with an alignment stored. A power of two from 16 to 4096.
    table_depth : int
        Entries of the softmax table of powers of two. A power of two from 256 to 2048.
    lookup_tables : int
        Look-up tables of `LOOKUP_ENTRIES` bytes for the vector unit's results: 1, 2, 4 or 8, or 0 for an accelerator
        without look-up hardware. Up to 8 tables take one block RAM per two lanes.
    multiply : int
        1 if the vector unit can multiply and subtract two tensors element by element, with a small multiplier per lane;
        0 if it only adds them.
    kernel : int
        Micro-operations in the kernel engine's memory: a power of two from 16 to 256, or 0 for an accelerator without
        the kernel engine.
    depthwise_taps : int
        Products of successive rows that the array can sum within each channel, for depthwise convolutions: 2 to
        ``n / 2``, at most 8, or 0 for an array without that data path.
    int4 : int
        1 if LOAD can expand 4-bit values in memory to bytes: weights of 4 bits take half the memory, and half the
        time where the bus is the bottleneck. 2 if it can also multiply blocks of values by block factors, see
        `weft.hdl.isa.encoding`; this needs ``n`` from 4 to 32 and a bus of ``n`` bytes. 0 for neither.
    loops : int
        1 if programs can have loops and registers, see `weft.hdl.isa.loops`; 0 for straight-line programs only.
    parity : int
        1 if the scratchpad, the accumulator and, in the pipelined core, the prefetch buffer have parity bits. A run
        that reads a word with wrong parity is stopped.
    descriptors : int
        1 if the accelerator can run lists of programs, see `weft.hdl.isa.program_lists`; 0 if the host starts each
        program.

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
                    f"configuration field {field.name!r} must be an integer, not {schema.short_repr(value)}"
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
                f"configuration field 'mantissa_bits' must be 16 or 24, not {schema.short_repr(self.mantissa_bits)}"
            )
        if self.probability_bits not in (0, 7, 8):
            raise ConfigError(
                "configuration field 'probability_bits' must be 0 (no softmax), 7 or 8, not "
                f"{schema.short_repr(self.probability_bits)}"
            )
        self._power("row_states", 4, 4096)
        self._power("alignments", 16, 4096)
        self._power("table_depth", 256, 2048)
        if self.int4 not in (0, 1, 2):
            raise ConfigError(
                f"configuration field 'int4' must be 0, 1 or 2, not {schema.short_repr(self.int4)}"
            )
        if self.int4 == 2 and not (4 <= self.n <= MAX_BLOCK_COLUMNS and self.bus_bytes == self.n):
            raise ConfigError(
                f"configuration field 'int4' is 2, which needs 'n' from 4 to {MAX_BLOCK_COLUMNS} and as many "
                f"'bus_bytes', not {self.n} and {self.bus_bytes}"
            )
        for name in ("multiply", "loops", "parity", "descriptors"):
            value = getattr(self, name)
            if value not in (0, 1):
                raise ConfigError(
                    f"configuration field {name!r} must be 0 or 1, not {schema.short_repr(value)}"
                )
        if self.lookup_tables != 0:
            self._power("lookup_tables", 1, MAX_LOOKUP_TABLES, " or 0")
        if self.kernel != 0:
            self._power("kernel", 16, MAX_KERNEL_ENTRIES, " or 0")
        most = min(MAX_DEPTHWISE_TAPS, self.n // 2)
        if self.depthwise_taps != 0 and not 2 <= self.depthwise_taps <= most:
            choice = f"from 2 to {most}, or 0" if most >= 2 else f"0 where 'n' is {self.n}"
            raise ConfigError(
                f"configuration field 'depthwise_taps' must be {choice}, not {schema.short_repr(self.depthwise_taps)}"
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
                f"not {schema.short_repr(value)}"
            )

    @cached_property
    def widths(self) -> Widths:
        """Widths in bits that follow from the parameters."""
        return Widths(self)

    @property
    def scratchpad_size(self) -> int:
        """Vectors in all banks of the scratchpad."""
        return self.scratchpad_banks * self.scratchpad_depth

    @property
    def accumulator_size(self) -> int:
        """Rows in all banks of the accumulator."""
        return self.accumulator_banks * self.accumulator_depth

    @property
    def softmax(self) -> bool:
        """True if the accelerator has softmax and the other hardware for attention."""
        return self.probability_bits > 0

    @property
    def wide_activations(self) -> bool:
        """True if the array takes 9-bit activations: bytes minus their zero point."""
        return self.probability_bits == 8

    @property
    def blocks(self) -> bool:
        """True if LOAD multiplies blocks of 4-bit values by block factors."""
        return self.int4 == 2

    @property
    def transposed_vectors(self) -> int:
        """Maximum vectors of a pixel in a transposing LOAD: 4, or as many as 128 bytes hold."""
        return max(1, min(4, 128 // self.n))

    @property
    def groups(self) -> int:
        """Lane groups in a row: cycles that the vector unit takes for ``n`` columns."""
        return self.n // self.lanes

    @cached_property
    def exp2_table(self) -> bytes:
        """Contents of the softmax table, see `weft.hdl.isa.Table`; all 0 without softmax."""
        top = (1 << self.probability_bits) - 1
        steps = self.table_depth // 16
        # An entry stands for several distances, multiples of 1/128 octave, and has the value for their mean.
        octaves = [(entry + 0.5) / steps - 1 / 256 for entry in range(self.table_depth)]
        return bytes(round(top * 2.0**-octave) for octave in octaves)

    @cached_property
    def digest(self) -> int:
        """32-bit hash of all parameters, which the register CONFIG holds.

        `int4`, `loops`, `parity` and `descriptors` are left out if they are 0, so that hardware without these features
        keeps the digest that it had before the fields existed.
        """
        values = dataclasses.asdict(self)
        text = json.dumps(
            {key: value for key, value in values.items() if key not in _OPTIONAL_IN_DIGEST or value},
            sort_keys=True,
        )
        return int.from_bytes(hashlib.sha256(text.encode()).digest()[:4], "little")

    def replace(self, **changes: int) -> Config:
        """Return a copy with some parameters changed. Raises `ConfigError` as the constructor does."""
        return dataclasses.replace(self, **changes)

    def to_dict(self) -> dict[str, int]:
        """Return the fields by name, for `from_dict`."""
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls, values: Any) -> Config:
        """Build a configuration from values by field name. Raises `ConfigError` for unknown names and non-integers."""
        if not isinstance(values, dict):
            raise ConfigError(f"a configuration is an object of fields, not {type(values).__name__}")
        names = {field.name for field in dataclasses.fields(cls)}
        for name in values:
            if name not in names:
                raise ConfigError(
                    f"unknown configuration field {schema.short_repr(name)}; the fields are {', '.join(sorted(names))}"
                )
        return cls(**values)

    @classmethod
    def load(cls, source: str | Path) -> Config:
        """Load a preset by name, or a JSON file of fields.

        In a file, the optional field ``preset`` names a preset that the other fields modify, and the optional field
        ``format`` must be `FORMAT`.

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
            raw = schema.read_bytes(path, _MAX_FILE_BYTES)
            values = schema.decode(raw, dict[str, Any], format=FORMAT, optional=True)
            values.pop("format", None)
            base = _preset_fields(values.pop("preset")) if "preset" in values else {}
            return cls.from_dict(base | values)
        except OSError as error:
            raise ConfigError(f"cannot read configuration {path}: {error.strerror}") from None
        except (SchemaError, ConfigError) as error:
            raise ConfigError(f"configuration {path}: {error}") from None


def _preset_fields(name: object) -> dict[str, int]:
    if not isinstance(name, str) or name not in PRESETS:
        raise ConfigError(f"unknown preset {schema.short_repr(name)}; choose {', '.join(PRESETS)}")
    return PRESETS[name].to_dict()


class Widths:
    """Widths in bits that follow from a `Config`.

    Attributes
    ----------
    vector : scratchpad vector, ``8 * n``
    row : accumulator row, ``32 * n``
    activation : activation at the array's input, 9 with `Config.wide_activations`, else 8
    psum : partial sum at the array's output, ``16 + log2 n``
    scratchpad_address, accumulator_address : address over all banks
    bus : AXI4 data bus
    """

    def __init__(self, config: Config) -> None:
        self.vector = 8 * config.n
        self.row = 32 * config.n
        self.activation = 9 if config.wide_activations else 8
        # |activation| <= 255 and |weight| <= 128, and 255 * 128 * n < 2**15 * n: the ninth bit needs no extra bit here.
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


_NO_MULTIPLIERS = "the configuration has no element-wise products ('multiply' is 0)"
_NO_KERNELS = "the configuration has no kernel engine ('kernel' is 0)"
_NO_TAPS = "the configuration's array has no depthwise path ('depthwise_taps' is 0)"
_NO_INT4 = "the configuration's LOAD expands no 4-bit values ('int4' is 0)"
_NO_BLOCKS = "the configuration's LOAD has no block factors for 4-bit values ('int4' is not 2)"
_NO_LOOPS = "the configuration has no loops and registers ('loops' is 0)"
_NO_TABLES = "the configuration has no look-up tables ('lookup_tables' is 0)"


class Feature(enum.Enum):
    """Optional hardware feature; the value marks its fields in the documentation."""

    SOFTMAX = "softmax only"
    WIDE_ACTIVATIONS = "softmax with 8-bit probabilities only"
    LOOKUP = "look-up tables only"
    MULTIPLY = "element-wise products only"
    KERNEL = "kernel engine only"
    DEPTHWISE = "depthwise path only"
    INT4 = "4-bit values only"
    BLOCKS = "block factors only"
    LOOPS = "loops only"

    def missing(self, config: Config) -> str | None:
        """Return the reason why `config` lacks the feature, as a clause, or None if it has it."""
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
"""Scratchpad vectors of a parameter block: vector i holds byte i of each column's 8-byte parameter word."""


class Part(NamedTuple):
    """Bit field of a 64-bit parameter word."""

    low: int
    width: int
    signed: bool = False

    @property
    def bits(self) -> slice:
        return slice(self.low, self.low + self.width)

    def of(self, words: np.ndarray) -> np.ndarray:
        """Extract the field from uint64 words, as int64."""
        value = (words >> np.uint64(self.low)).astype(np.int64) & ((1 << self.width) - 1)
        return value - ((value >> (self.width - 1)) << self.width) if self.signed else value

    def put(self, values: np.ndarray) -> np.ndarray:
        """Return uint64 words with `values` modulo ``2**width`` in the field and 0 elsewhere."""
        part = values.astype(np.int64) & ((1 << self.width) - 1)
        return part.astype(np.uint64) << np.uint64(self.low)


BIAS = Part(0, 32, signed=True)
MANTISSA = Part(32, 24)
SHIFT = Part(56, 6)


def parameter_block(bias: np.ndarray, mantissa: np.ndarray, shift: np.ndarray, n: int) -> bytes:
    """Encode the parameter block of `n` columns; columns after the end of the integer arrays are 0."""
    words = np.zeros(n, "<u8")
    words[: len(bias)] = BIAS.put(bias) | MANTISSA.put(mantissa) | SHIFT.put(shift)
    return words.view(np.uint8).reshape(n, PARAMETER_VECTORS).T.tobytes()


def parameter_words(vectors: np.ndarray) -> np.ndarray:
    """Return the parameter words, (N,) uint64, of a parameter block of (`PARAMETER_VECTORS`, N) bytes."""
    return np.ascontiguousarray(vectors.view(np.uint8).T).view("<u8").ravel()
