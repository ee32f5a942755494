"""Structure of a decoder as its program sees it: sizes of tensors in vectors, and their addresses on the chip."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from weft.compiler.errors import CompileError
from weft.compiler.machine.emit import ceil_div
from weft.compiler.machine.target import COUNT_MAX
from weft.extras.language.compiler.model import Block, LanguageModel, Linear, Norm, Sizes
from weft.hdl.isa import PARAMETER_VECTORS
from weft.hdl.isa.config import Config

PRODUCTS = {
    "qkv": {"query": "query", "key": "key", "value": "value"},
    "output": {"output": "attention_output"},
    "inner": {"gate": "gate", "up": "up"},
    "down": {"down": "down"},
}
"""Products of a block in order, and the matrices of each: names, and fields of `Block`."""
_NORMS = {"qkv": "attention_norm", "inner": "feed_forward_norm"}
"""Norms before products, as fields of `Block`."""


@dataclass(frozen=True)
class Form:
    """Structure of a decoder; the defaults are those of the architecture ``llama``.

    Attributes
    ----------
    centred : bool
        Norms subtract the mean of a row first: LayerNorm instead of RMSNorm.
    rotary : bool
        Queries and keys are rotated by their position. Otherwise position embeddings are added to token embeddings.
    gated : bool
        Feed-forward networks multiply two products, one of them after SiLU. Otherwise they have one product, followed
        by GELU.
    biased : frozenset of str
        Products of `PRODUCTS`, or "head", with biases in any block: their own, or the bias of the norm before them.
    gains : bool
        Norms multiply by their weights. Otherwise these are folded into the matrices that follow.
    """

    centred: bool = False
    rotary: bool = True
    gated: bool = True
    biased: frozenset[str] = frozenset()
    gains: bool = False

    @property
    def rotates_sums(self) -> bool:
        """True if one kernel rotates and requantises sums of queries and keys, which leaves no operand for biases."""
        return self.rotary and "qkv" not in self.biased

    @property
    def gates_sums(self) -> bool:
        """True if one kernel processes sums of a gate and of its factor, which leaves no operand for biases."""
        return self.gated and "inner" not in self.biased


def form_of(model: LanguageModel, *, gains: bool = False) -> Form:
    """Return the form of a model's decoder.

    Raises
    ------
    CompileError
        If the device has no program for the model.
    """
    norms = [norm for block in model.blocks for norm in (block.attention_norm, block.feed_forward_norm)]
    centred = _uniform("norms with a bias", [norm.bias is not None for norm in (*norms, model.output_norm)])
    gated = _uniform("gates in feed-forward networks", [block.gate is not None for block in model.blocks])
    biased = {name for name in PRODUCTS if any(_has_bias(block, name) for block in model.blocks)}
    if model.output.bias is not None or model.output_norm.bias is not None:
        biased.add("head")
    if (model.rotary is None) == (model.positions is None):
        raise CompileError("a decoder on the device has either rotary or learned positions")
    return Form(centred, model.rotary is not None, gated, frozenset(biased), gains)


def matrices(block: Block, product: str) -> Iterator[tuple[str, Linear, Norm | None]]:
    """Yield the matrices of a block's product, each with its name and the norm before the product."""
    norm = getattr(block, _NORMS[product]) if product in _NORMS else None
    for name, field in PRODUCTS[product].items():
        linear = getattr(block, field)
        if linear is not None:
            yield name, linear, norm


def _has_bias(block: Block, product: str) -> bool:
    return any(
        linear.bias is not None or (norm is not None and norm.bias is not None)
        for _, linear, norm in matrices(block, product)
    )


def _uniform(feature: str, flags: list[bool]) -> bool:
    """Return the common value of all flags; raise `CompileError` if they differ."""
    if len(set(flags)) > 1:
        raise CompileError(
            f"the model has {feature} in some places and not in others: a decoder on the device has them everywhere, "
            "or nowhere"
        )
    return flags[0]


MANTISSAS = 2
"""Vectors of the mantissas of a tile."""
_BIASES = {"qkv": 2, "output": 3, "inner": 2, "down": 3, "head": 2}
"""Vectors of the biases of a tile, one for each digit."""


@dataclass(frozen=True)
class Places:
    """Layout of a decoder's tensors in the scratchpad.

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
        Whether all rows are consecutive tokens of one text. The position of the first is a multiple of `rows`, which
        divides `page`.

    Raises
    ------
    CompileError
        If a size does not fit the array, or rows fit neither the scratchpad nor attention's memories.
    """

    sizes: Sizes
    config: Config
    rows: int
    page: int
    form: Form = Form()
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
        if self.page % self.tokens_per_text:
            raise CompileError(
                f"pages have {self.page} keys, no multiple of the {self.tokens_per_text} tokens that follow each other"
            )
        if not self.groups:
            raise CompileError(
                f"attention of {self.rows} tokens with heads of {sizes.key_length} elements does not fit the "
                f"configuration: it has row_states={self.config.row_states}, alignments={self.config.alignments}, and "
                f"{self.config.accumulator_size} rows of the accumulator"
            )
        # Two slots for a tile of the widest product with its mantissas; tables pass through the same vectors.
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
        """Vectors of a token's queries, and of attention's results."""
        return self.sizes.heads * self.head

    @property
    def keys(self) -> int:
        """Vectors of a token's keys, and of its values."""
        return self.sizes.key_value_heads * self.head

    @property
    def columns(self) -> dict[str, int]:
        """Vectors of a row of weights, for each product of a block in order and the head."""
        return {
            "qkv": self.width, "output": self.queries, "inner": self.width, "down": self.inner, "head": self.width,
        }  # fmt: skip

    def biases(self, product: str) -> int:
        """Return the vectors of a tile's biases: one for each digit, or none."""
        return _BIASES[product] if product in self.form.biased else 0

    def parameter_vectors(self, product: str) -> int:
        """Return the vectors of a tile's mantissas and biases."""
        return MANTISSAS + self.biases(product)

    @property
    def position(self) -> int:
        """Vectors of a position's cosines and sines, or of its embedding."""
        return 4 * self.head if self.form.rotary else 2 * self.width

    @property
    def token_vectors(self) -> int:
        """Vectors of a token's queries, keys and values."""
        return self.queries + 2 * self.keys

    @property
    def tokens_per_text(self) -> int:
        """Tokens that attention processes together."""
        return self.rows if self.consecutive else 1

    @cached_property
    def groups(self) -> int:
        """Key and value heads that attention processes together: as many as fit, 0 if not even one does."""
        heads = self.sizes.key_value_heads
        return next((count for count in range(heads, 0, -1) if heads % count == 0 and self._fits(count)), 0)

    def _fits(self, groups: int) -> bool:
        """Return whether scores and the rest of attention fit for `groups` heads of keys and values."""
        config = self.config
        # One half of the accumulator holds scores, the other half sums of values.
        rows, half = self.queries_of(groups) * self.tokens_per_text, config.accumulator_size // 2
        return (
            rows <= min(config.row_states, COUNT_MAX) and rows * self.head <= half
            and rows * self.page // config.n <= min(config.alignments, half)
        )  # fmt: skip

    def queries_of(self, groups: int) -> int:
        """Return the number of query heads that read `groups` heads of keys and values."""
        return self.sizes.heads // self.sizes.key_value_heads * groups

    @cached_property
    def at(self) -> dict[str, int]:
        """First vector of each tensor, by name; weights come last.

        Tensors of MM and LOAD come first, then those of VEC and STORE. With several rows, all units are busy at a time;
        the second kind then starts in a bank of its own unless that takes more banks. Tensors of attention and of
        feed-forward networks share their space.
        """
        common, attention, inner = self._array_tensors()
        addresses, end = _place(common, 0)
        shared = [_place(tensors, end) for tensors in (attention, inner)]
        end = max(at for _, at in shared)
        common, attention, inner = self._vector_tensors()
        size = sum(common.values()) + max(sum(attention.values()), sum(inner.values()))
        bank = self.config.scratchpad_depth
        begin = ceil_div(end, bank) * bank
        # With one row the units take turns, so that banks of their own gain nothing.
        if self.rows == 1 or ceil_div(end + size, bank) < ceil_div(begin + size, bank):
            begin = end
        vector_tensors, end = _place(common, begin)
        shared += [_place(tensors, end) for tensors in (attention, inner)]
        for tensors in (vector_tensors, *(tensors for tensors, _ in shared)):
            addresses |= tensors
        if self.tokens_per_text == self.rows:  # the tokens of one text are all rows
            addresses |= {"out": addresses["a"]} | {f"own {name}": addresses[name] for name in "qkv"}
        else:
            # The loop over tokens loads one token's queries, keys and values to `one`.
            places = itertools.accumulate((self.queries, self.keys), initial=addresses["one"])
            addresses |= {f"own {name}": at for name, at in zip("qkv", places, strict=True)}
        return addresses | {"weights": max(at for _, at in shared[2:])}

    def _array_tensors(self) -> tuple[dict[str, int], dict[str, int], dict[str, int]]:
        """Return the vectors of tensors that MM reads and LOAD writes: common, attention's, and feed-forward's."""
        rows = self.rows
        token = {} if self.tokens_per_text == rows else {"one": self.token_vectors}
        scores = self.queries_of(self.groups) * self.tokens_per_text
        panel = self.page * self.groups * self.head
        return (
            {"a": rows * max(self.width, self.queries)},
            {**token, "p": scores * self.page // self.config.n, "keys": panel, "values": panel},
            {"b": rows * self.inner},
        )  # fmt: skip

    def _vector_tensors(self) -> tuple[dict[str, int], dict[str, int], dict[str, int]]:
        """Return the vectors of tensors that VEC works on: common, attention's, and feed-forward's."""
        rows, residual = self.rows, 2 * self.rows * self.width
        out = {} if self.tokens_per_text == rows else {"out": self.queries}
        # Two digits of queries, or keys, before the rotation; and two digits of gates.
        unrotated = 2 * rows * self.queries if self.form.rotary and not self.form.rotates_sums else 0
        gates = 2 * rows * self.inner if self.form.gated and not self.form.gates_sums else 0
        return (
            {
                "x": residual, "low": residual, "row": rows, "even": 1, "positions": rows * self.position,
                "scores": PARAMETER_VECTORS, "gains": 4 * self.width if self.form.gains else 0,
                "idle": PARAMETER_VECTORS + 3,
            },
            {"q": rows * self.queries, "k": rows * self.keys, "v": rows * self.keys, **out, "unturned": unrotated},
            {"inner": 2 * rows * max(self.inner, self.width), "gates": gates},
        )  # fmt: skip

    @property
    def room(self) -> int:
        """Number of vectors for weights."""
        return len(self.free)

    @property
    def free(self) -> range:
        """Vectors for weights."""
        return range(self.at["weights"], self.config.scratchpad_size)

    @property
    def head_bytes(self) -> int:
        """Bytes of a head's keys and values in a page."""
        return 2 * self.page * self.sizes.key_length

    @property
    def block_bytes(self) -> int:
        """Bytes of the keys and values of a block's heads in a page."""
        return self.sizes.key_value_heads * self.head_bytes

    @property
    def page_bytes(self) -> int:
        """Bytes of a page, which holds the keys and values of all blocks."""
        return self.sizes.blocks * self.block_bytes

    @property
    def token_bytes(self) -> int:
        """Bytes of a token's queries, keys and values."""
        return self.token_vectors * self.config.n


def _place(sizes: dict[str, int], at: int) -> tuple[dict[str, int], int]:
    """Place tensors with these numbers of vectors one after the other; return their addresses and the end."""
    addresses = {}
    for name, size in sizes.items():
        addresses[name], at = at, at + size
    return addresses, at
