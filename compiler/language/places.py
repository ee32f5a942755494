"""How large the tensors of a decoder are, in vectors, and where they lie on the chip."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from weft.compiler.ir.graph import CompileError
from weft.compiler.language.model import Sizes
from weft.hdl.isa import PARAMETER_VECTORS
from weft.hdl.isa.config import Config


@dataclass(frozen=True)
class Places:
    """See the module.

    Parameters
    ----------
    sizes : Sizes
    config : Config
    rows : int
        Tokens side by side.
    page : int
        Keys of a page.
    gains : bool
        Norms multiply by numbers of their own.

    Raises
    ------
    CompileError
        If a size does not fit the array, or rows do not fit the scratchpad.
    """

    sizes: Sizes
    config: Config
    rows: int
    page: int
    gains: bool = False

    def __post_init__(self) -> None:
        sizes, n = self.sizes, self.config.n
        for name in ("width", "key_length", "value_length", "feed_forward"):
            if getattr(sizes, name) % n:
                raise CompileError(
                    f"{name} is {getattr(sizes, name)}, no multiple of the {n} columns of the array"
                )
        if sizes.key_length != sizes.value_length:
            raise CompileError(
                f"keys have {sizes.key_length} elements, values {sizes.value_length}: they must be equal"
            )
        if self.page % n:
            raise CompileError(f"pages have {self.page} keys, no multiple of {n}")
        if self.room < max(2 * (n * max(self.width, self.inner) + 2), self.config.table_depth // n):
            raise CompileError(
                f"the scratchpad of {self.config.scratchpad_size} vectors has room for {self.room} behind "
                f"{self.rows} rows"
            )

    @property
    def width(self) -> int:
        """Vectors of a token's row."""
        return self.sizes.width // self.config.n

    @property
    def head(self) -> int:
        """Vectors of a query, a key or a value."""
        return self.sizes.key_length // self.config.n

    @property
    def inner(self) -> int:
        """Vectors of a row inside the feed-forward network."""
        return self.sizes.feed_forward // self.config.n

    @property
    def queries(self) -> int:
        """Vectors of the queries of a token, and of attention's results."""
        return self.sizes.heads * self.head

    @property
    def keys(self) -> int:
        """Vectors of the keys of a token, and of its values."""
        return self.sizes.key_value_heads * self.head

    @property
    def columns(self) -> dict[str, int]:
        """Vectors of a row of the weights of each product, in the order of a block, and of the head."""
        return {
            "qkv": self.width, "output": self.queries, "gate": self.width, "down": self.inner, "head": self.width,
        }  # fmt: skip

    @property
    def one(self) -> int:
        """Vectors of all that is one token's in attention."""
        return self.queries + 2 * self.keys

    @cached_property
    def at(self) -> dict[str, int]:
        """The first vector of each tensor, by name; weights come last."""
        rows, residual = self.rows, 2 * self.rows * self.width
        one = {} if rows == 1 else {"one": self.one, "out": self.queries}
        sizes = {
            "x": residual, "low": residual, "a": rows * max(self.width, self.queries), "row": rows, "even": 1,
            "inner": 2 * rows * max(self.inner, self.width), "b": rows * self.inner, "angles": 4 * rows * self.head,
            "q": rows * self.queries, "k": rows * self.keys, "v": rows * self.keys, **one,
            "keys": self.page * self.keys, "values": self.page * self.keys,
            "p": self.sizes.heads * self.page // self.config.n, "scores": PARAMETER_VECTORS,
            "gains": 4 * self.width if self.gains else 0, "idle": PARAMETER_VECTORS + 3,
        }  # fmt: skip
        found, at = {}, 0
        for name, size in sizes.items():
            found[name], at = at, at + size
        if rows == 1:  # what is one token's is all that there is
            found |= {"one": found["q"], "out": found["a"]}
        return found | {"weights": at}

    @property
    def room(self) -> int:
        """Vectors for weights."""
        return self.config.scratchpad_size - self.at["weights"]

    # --- bytes in memory

    @property
    def head_bytes(self) -> int:
        """Bytes of the keys and values of a head in a page."""
        return 2 * self.page * self.sizes.key_length

    @property
    def block_bytes(self) -> int:
        """Bytes of those of all heads of a block."""
        return self.sizes.key_value_heads * self.head_bytes

    @property
    def page_bytes(self) -> int:
        """Bytes of a page, which has those of all blocks."""
        return self.sizes.blocks * self.block_bytes

    @property
    def one_bytes(self) -> int:
        """Bytes of all that is one token's in attention."""
        return self.one * self.config.n
