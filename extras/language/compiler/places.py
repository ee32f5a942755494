"""How large the tensors of a decoder are, in vectors, and where they lie on the chip."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from functools import cached_property

from weft.compiler.ir.graph import CompileError
from weft.compiler.machine.emit import ceil_div
from weft.compiler.machine.target import COUNT_MAX
from weft.extras.language.compiler.form import Form
from weft.extras.language.compiler.model import Sizes
from weft.hdl.isa import PARAMETER_VECTORS
from weft.hdl.isa.config import Config

MANTISSAS = 2
"""Vectors of the mantissas of a tile."""
_BIASES = {"qkv": 2, "output": 3, "inner": 2, "down": 3, "head": 2}
"""Vectors of the biases of a tile of a product, one for each of their digits."""


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
    form : Form
    consecutive : bool
        Tokens follow each other in one text; the place of the first one is a multiple of `rows`, which divides `page`.

    Raises
    ------
    CompileError
        If a size does not fit the array, or rows do not fit the scratchpad or what attention works with.
    """

    sizes: Sizes
    config: Config
    rows: int
    page: int
    form: Form = Form()  # noqa: RUF009
    consecutive: bool = False

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
        if self.page % self.together:
            raise CompileError(
                f"pages have {self.page} keys, no multiple of the {self.together} tokens that follow each other"
            )
        if not self.groups:
            raise CompileError(
                f"attention of {self.rows} tokens with heads of {sizes.key_length} elements does not fit the "
                f"configuration: it has row_states={self.config.row_states}, alignments={self.config.alignments}, and "
                f"{self.config.accumulator_size} rows of the accumulator"
            )
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
            "qkv": self.width, "output": self.queries, "inner": self.width, "down": self.inner, "head": self.width,
        }  # fmt: skip

    def biases(self, product: str) -> int:
        """Vectors of the biases of a tile of a product: one for each digit, or none."""
        return _BIASES[product] if product in self.form.biased else 0

    def beside(self, product: str) -> int:
        """Vectors that a tile of a product has beside its weights: mantissas and biases."""
        return MANTISSAS + self.biases(product)

    @property
    def position(self) -> int:
        """Vectors of what a position has: the cosines and sines of its angles, or its embedding."""
        return 4 * self.head if self.form.rotary else 2 * self.width

    @property
    def one(self) -> int:
        """Vectors of all that is one token's in attention."""
        return self.queries + 2 * self.keys

    @property
    def together(self) -> int:
        """Tokens that attention works on together."""
        return self.rows if self.consecutive else 1

    @cached_property
    def groups(self) -> int:
        """Heads of keys and values that attention works on together: as many as there is room for; 0 if there is none
        for one."""
        heads = self.sizes.key_value_heads
        return next((count for count in range(heads, 0, -1) if heads % count == 0 and self._fits(count)), 0)

    def _fits(self, groups: int) -> bool:
        """Whether scores, and the rest of attention, have room for so many heads of keys and values."""
        config = self.config
        rows, half = self.queries_of(groups) * self.together, config.accumulator_size // 2
        return (
            rows <= min(config.row_states, COUNT_MAX) and rows * self.head <= half
            and rows * self.page // config.n <= min(config.alignments, half)
        )  # fmt: skip

    def queries_of(self, groups: int) -> int:
        """Heads of queries that read so many heads of keys and values."""
        return self.sizes.heads // self.sizes.key_value_heads * groups

    @cached_property
    def at(self) -> dict[str, int]:
        """The first vector of each tensor, by name; weights come last.

        What MM and LOAD work on comes first, and then what VEC and STORE do: for several tokens, with which all of them
        are busy at a time, in banks of its own where that takes no more banks. What attention and what feed-forward
        networks work on share their room.
        """
        first, attention, inner = self._array_tensors()
        found, end = _placed(first, 0)
        shared = [_placed(tensors, end) for tensors in (attention, inner)]
        end = max(at for _, at in shared)
        first, attention, inner = self._vector_tensors()
        size = sum(first.values()) + max(sum(attention.values()), sum(inner.values()))
        bank = self.config.scratchpad_depth
        begin = ceil_div(end, bank) * bank
        if self.rows == 1 or ceil_div(end + size, bank) < ceil_div(begin + size, bank):
            begin = end
        more, end = _placed(first, begin)
        shared += [_placed(tensors, end) for tensors in (attention, inner)]
        for tensors in (more, *(tensors for tensors, _ in shared)):
            found |= tensors
        if self.together == self.rows:  # what is one text's is all that there is
            found |= {"out": found["a"]} | {f"own {name}": found[name] for name in "qkv"}
        else:
            places = itertools.accumulate((self.queries, self.keys), initial=found["one"])
            found |= {f"own {name}": at for name, at in zip("qkv", places, strict=True)}
        return found | {"weights": max(at for _, at in shared[2:])}

    def _array_tensors(self) -> tuple[dict[str, int], dict[str, int], dict[str, int]]:
        """Vectors of what MM reads and LOAD writes: what is always there, what is for attention, and what is for
        feed-forward networks."""
        rows = self.rows
        one = {} if self.together == rows else {"one": self.one}
        scores = self.queries_of(self.groups) * self.together
        panel = self.page * self.groups * self.head
        return (
            {"a": rows * max(self.width, self.queries)},
            {**one, "p": scores * self.page // self.config.n, "keys": panel, "values": panel},
            {"b": rows * self.inner},
        )  # fmt: skip

    def _vector_tensors(self) -> tuple[dict[str, int], dict[str, int], dict[str, int]]:
        """The same of what VEC works on."""
        rows, residual = self.rows, 2 * self.rows * self.width
        out = {} if self.together == rows else {"out": self.queries}
        # Two digits of queries, or keys, before they are turned; and those of gates.
        unturned = 2 * rows * self.queries if self.form.rotary and not self.form.turned_sums else 0
        gates = 2 * rows * self.inner if self.form.gated and not self.form.gated_sums else 0
        return (
            {
                "x": residual, "low": residual, "row": rows, "even": 1, "positions": rows * self.position,
                "scores": PARAMETER_VECTORS, "gains": 4 * self.width if self.form.gains else 0,
                "idle": PARAMETER_VECTORS + 3,
            },
            {"q": rows * self.queries, "k": rows * self.keys, "v": rows * self.keys, **out, "unturned": unturned},
            {"inner": 2 * rows * max(self.inner, self.width), "gates": gates},
        )  # fmt: skip

    @property
    def room(self) -> int:
        """Vectors for weights."""
        return len(self.free)

    @property
    def free(self) -> range:
        """The vectors for weights."""
        return range(self.at["weights"], self.config.scratchpad_size)

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


def _placed(sizes: dict[str, int], at: int) -> tuple[dict[str, int], int]:
    """Where tensors of so many vectors each are, one behind the other, and what follows."""
    found = {}
    for name, size in sizes.items():
        found[name], at = at, at + size
    return found, at
