"""Stand-in for a decoder in a batch's steps: logits show which tokens it finds in a text's pages."""

from __future__ import annotations

import zlib
from collections.abc import Sequence

import numpy as np

from weft.extras.language.run.decoder_run import Row

VOCABULARY = 12


def logits_of(tokens: Sequence[int]) -> np.ndarray:
    """Return pseudo-random logits that are a function of the text."""
    return np.random.default_rng(zlib.crc32(bytes(tokens))).normal(size=VOCABULARY)


class RecalledTexts:
    """Pages of tokens with their positions.

    Attributes
    ----------
    computed : int
        Tokens so far.
    """

    def __init__(self, rows: int, page: int, pages: int, prompt_rows: int = 0) -> None:
        self._rows, self._page, self._prompt_rows = rows, page, prompt_rows
        self._pages: list[list[tuple[int, int] | None]] = [[None] * page for _ in range(pages)]
        self._logits: list[np.ndarray] = []
        self.computed = self.copied = 0

    def step(self, rows: Sequence[Row]) -> None:
        assert 0 < len(rows) <= self._rows
        self._logits = []
        for row in rows:
            page, slot = divmod(row.position, self._page)
            self._pages[row.pages[page]][slot] = (row.token, row.position)
            self._logits.append(logits_of(self._text(row)))
        self.computed += len(rows)

    def prompt(self, rows: Sequence[Row]) -> None:
        """Store tokens; overwrite the slots after them up to the next multiple of `prompt_rows`."""
        first, text = rows[0], [row.token for row in rows]
        assert 0 < len(rows) <= self._prompt_rows
        assert first.position % self._prompt_rows == 0
        assert [row.position for row in rows] == list(range(first.position, first.position + len(rows)))
        page, slot = divmod(first.position, self._page)
        entries = self._pages[first.pages[page]]
        entries[slot : slot + self._prompt_rows] = [None] * self._prompt_rows
        for at, token in enumerate(text):
            entries[slot + at] = (token, first.position + at)
        self._text(rows[-1])  # all of it is there
        self.computed += len(rows)

    def _text(self, row: Row) -> list[int]:
        """Return the tokens up to a row's own, as its pages hold them."""
        tokens = []
        for at in range(row.position + 1):
            stored = self._pages[row.pages[at // self._page]][at % self._page]
            assert stored is not None
            assert stored[1] == at
            tokens.append(stored[0])
        return tokens

    def logits(self, row: int) -> np.ndarray:
        return self._logits[row]

    def copy(self, page: int, to: int) -> None:
        assert page != to
        self._pages[to] = list(self._pages[page])
        self.copied += 1
