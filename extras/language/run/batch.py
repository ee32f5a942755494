"""Continuous batching: texts join and leave between steps, and each step computes tokens of several of them.

The texts that run have one token each in a step; what rows are left are for tokens of prompts, several of one text
side by side. Texts that there are no rows or no pages for wait, in the order in which they came. A text that needs a
page when there is none takes those of the one that came last, which waits then, and is computed again from its tokens
later. So a text never ends because of others: it ends for want of pages only where it would end by itself.

Prompts are computed many tokens together where what computes has a way for it: from one multiple of so many tokens to
the next, and up to the last token, whose logits are wanted. Such steps take turns with those of the other texts.

A text begins with the pages of another one whose tokens it shares. What it shares and does not fill up itself is copied
before it writes there.
"""

from __future__ import annotations

import enum
from collections import deque
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from weft.compiler.machine.emit import ceil_div
from weft.extras.language.run.decoder_run import Row
from weft.extras.language.run.pages import ROOT, PagePool


class End(enum.Enum):
    """Why a text ended, in words."""

    MODEL = "the model ended the text"
    STOP = "the text came to a stop sequence"
    TOKENS = "as many tokens as were asked for"
    CONTEXT = "the context is full"
    CACHE = "all pages of keys and values are full"
    CANCELLED = "it was cancelled"


class Steps(Protocol):
    """What computes: `weft.extras.language.run.decoder_run.DecoderRun`, or several of them."""

    def step(self, rows: Sequence[Row]) -> None: ...

    def prompt(self, rows: Sequence[Row]) -> None: ...

    def logits(self, row: int) -> np.ndarray: ...

    def copy(self, page: int, to: int) -> None: ...


@dataclass(eq=False)
class Request:
    """A text that goes on.

    Parameters
    ----------
    tokens : list of int
        The prompt, one token at least; what follows is appended.
    most : int
        Tokens that follow at most.
    choose : callable
        Gives the next token for logits, float64 (vocabulary,).
    ends : collection of int
        Tokens that end the text.
    every : bool
        Keep the logits behind every token in `logits`.

    Attributes
    ----------
    reason : End or None
        Why it has ended; None while it has not.
    computed : int
        Tokens whose keys and values are in pages.
    set_back : int
        How often it had to wait again, as others needed its pages.
    """

    tokens: list[int]
    most: int
    choose: Callable[[np.ndarray], int]
    ends: Collection[int] = ()
    every: bool = False
    reason: End | None = None
    logits: list[np.ndarray] = field(default_factory=list)
    computed: int = 0
    set_back: int = 0
    pages: list[int] = field(default_factory=list)
    given: int = 0
    _place: int = ROOT
    _published: int = 0

    def __post_init__(self) -> None:
        self.given = len(self.tokens)

    @property
    def made(self) -> list[int]:
        """The tokens behind the prompt."""
        return self.tokens[self.given :]


class Batch:
    """Texts on one decoder.

    Parameters
    ----------
    steps : Steps
    rows : int
        Tokens of a step at most, and texts that run at once.
    page : int
        Tokens of a page.
    pages : int
        Pages that there are.
    context : int
        Tokens of a text at most.
    prompt_rows : int
        Tokens of a prompt that are computed together, a divisor of `page`; 0 if there is no way for it.
    prompt_least : callable
        Tells from how many on that is worth it; asked when there is a prompt of more than one.
    """

    def __init__(
        self,
        steps: Steps,
        *,
        rows: int,
        page: int,
        pages: int,
        context: int,
        prompt_rows: int = 0,
        prompt_least: Callable[[], int] = lambda: 2,
    ) -> None:
        self._steps, self._rows, self._page, self._context = steps, rows, page, context
        self._prompt_rows, self._prompt_least, self._prompted = prompt_rows, prompt_least, False
        self.pool = PagePool(pages)
        self._waiting: deque[Request] = deque()
        self._running: list[Request] = []  # the one that came first in front

    def add(self, request: Request) -> None:
        """Have a text go on; its tokens are within the context."""
        assert 0 < request.given <= self._context
        self._waiting.append(request)

    def cancel(self, request: Request, reason: End = End.CANCELLED) -> None:
        """End a text now, if it has not ended."""
        if request.reason is None:
            if request in self._waiting:
                self._waiting.remove(request)
            self._end(request, reason)

    @property
    def busy(self) -> bool:
        """Whether there are texts that have not ended."""
        return bool(self._waiting or self._running)

    def step(self) -> list[Request]:
        """Compute some tokens; returns the texts that have got another token, or have ended."""
        self._admit()
        prompts = [request for request in self._running if self._worth(request)]
        others = [request for request in self._running if request not in prompts]
        if prompts and not (self._prompted and others):
            self._prompted = True
            return self._step_prompt(prompts[0])
        self._prompted = False
        return self._step_rows(others)

    def _step_prompt(self, request: Request) -> list[Request]:
        """Compute tokens of a prompt together."""
        start, end = self._prompt_part(request)
        if not self._roomy(request, start):
            return [request] if request.reason is not None else []
        self._steps.prompt([Row(request.tokens[at], at, request.pages) for at in range(start, end)])
        request.computed = end
        self._publish(request)
        return []

    def _step_rows(self, running: Sequence[Request]) -> list[Request]:
        """Compute a token of each of some texts, and more of their prompts."""
        counts, ended = self._plan(running)
        rows = [
            Row(request.tokens[at], at, request.pages)
            for request, count in counts.items()
            for at in range(request.computed, request.computed + count)
        ]
        if rows:
            self._steps.step(rows)
        row, changed = 0, ended
        for request, count in counts.items():
            self._take(request, row, count)
            row += count
            if request.computed == len(request.tokens):
                self._go_on(request, row - 1)
                changed.append(request)
            self._publish(request)
            if request.reason is not None:
                self._end(request, request.reason)
        return changed

    # --- who runs

    def _admit(self) -> None:
        """Let texts run that wait, as long as there are rows, and pages for their tokens."""
        while self._waiting and len(self._running) < self._rows:
            request = self._waiting[0]
            self._share(request)
            missing = ceil_div(len(request.tokens), self._page) - request.computed // self._page
            if missing > self.pool.free and self._running:
                self._forget(request)
                return
            self._running.append(self._waiting.popleft())

    def _prompt_part(self, request: Request) -> tuple[int, int]:
        """The tokens that may be computed together next, from the last multiple on: some may be there already."""
        start = request.computed // self._prompt_rows * self._prompt_rows
        return start, min(start + self._prompt_rows, len(request.tokens) - 1)

    def _worth(self, request: Request) -> bool:
        """Whether tokens of a prompt are to be computed together."""
        if not self._prompt_rows or request.every:
            return False
        count = self._prompt_part(request)[1] - request.computed
        return count > 1 and count >= self._prompt_least()

    def _plan(self, running: Sequence[Request]) -> tuple[dict[Request, int], list[Request]]:
        """How many tokens of each text are next, and texts that end for want of pages."""
        counts: dict[Request, int] = {}
        ended = []
        for request in running:
            if request in self._running:
                if self._roomy(request, request.computed):
                    counts[request] = 1
                elif request.reason is not None:
                    ended.append(request)
        left = self._rows - len(counts)
        for request, count in counts.items():
            while left and request.computed + count < len(request.tokens):
                if not self._room(request, request.computed + count):
                    break
                count, left = count + 1, left - 1
            counts[request] = count
        return counts, ended

    def _roomy(self, request: Request, position: int) -> bool:
        """Have a page for a token, if need be that of a text that came later; False if the text waits, or has ended for
        want of pages."""
        while not self._room(request, position):
            last = self._running[-1]
            if last is not request:
                self._set_back(last)
                continue
            if len(self._running) > 1:
                self._set_back(request)
            else:
                self._end(request, End.CACHE)
            return False
        return True

    def _room(self, request: Request, position: int) -> bool:
        """Have a page for a token that nobody else reads; False if there is none."""
        index = position // self._page
        if index < len(request.pages) and self.pool.own(request.pages[index]):
            return True
        page = self.pool.take()
        if page is None:
            return False
        if index == len(request.pages):
            request.pages.append(page)
        else:
            self._steps.copy(request.pages[index], page)
            self.pool.release(request.pages[index])
            request.pages[index] = page
        return True

    def _set_back(self, request: Request) -> None:
        """Let a text wait, and others have its pages."""
        self._running.remove(request)
        request.set_back += 1
        self._forget(request)
        self._waiting.appendleft(request)

    def _end(self, request: Request, reason: End) -> None:
        request.reason = reason
        if request in self._running:
            self._running.remove(request)
        self._forget(request)

    # --- pages

    def _share(self, request: Request) -> None:
        """Begin with pages of the same tokens. The last token is computed in any case, as its logits are wanted."""
        if request.every:
            return
        pool, size, tokens = self.pool, self._page, request.tokens
        while request.computed + size < len(tokens):
            found = pool.find(request._place, tokens[request.computed : request.computed + size])
            if found is None:
                break
            request._place, page = found
            pool.hold(page)
            request.pages.append(page)
            request.computed += size
        request._published = len(request.pages)
        self._share_part(request)

    def _share_part(self, request: Request) -> None:
        """The same with the page behind, of which a text that runs may have some tokens."""
        start = request.computed
        wanted = request.tokens[start : start + self._page][: len(request.tokens) - 1 - start]
        best, whose = 0, None
        for other in self._running:
            if other.tokens[:start] == request.tokens[:start] and other.computed > start:
                same = _same(wanted, other.tokens[start : other.computed])
                if same > best:
                    best, whose = same, other
        if whose is not None:
            page = whose.pages[start // self._page]
            self.pool.hold(page)
            request.pages.append(page)
            request.computed += best

    def _forget(self, request: Request) -> None:
        """Leave a text's pages to others; those behind are the first to go."""
        for page in reversed(request.pages):
            self.pool.release(page)
        request.pages.clear()
        request.computed, request._place, request._published = 0, ROOT, 0

    def _publish(self, request: Request) -> None:
        """Put pages that are full now into the index."""
        while (request._published + 1) * self._page <= request.computed:
            start = request._published * self._page
            page = request.pages[request._published]
            request._place = self.pool.publish(
                request._place, request.tokens[start : start + self._page], page
            )
            request._published += 1

    # --- what is computed

    def _take(self, request: Request, row: int, count: int) -> None:
        """Note that tokens are computed, and their logits if they are wanted."""
        if request.every:
            for at in range(count):
                if request.computed + at == len(request.logits):
                    request.logits.append(self._steps.logits(row + at))
        request.computed += count

    def _go_on(self, request: Request, row: int) -> None:
        """Append a token to a text that is computed up to its end, or note that it has ended."""
        if len(request.tokens) - request.given < request.most:
            token = request.choose(self._steps.logits(row))
            request.tokens.append(token)
            if token in request.ends:
                request.reason = End.MODEL
        if request.reason is None and len(request.tokens) - request.given >= request.most:
            request.reason = End.TOKENS
        if request.reason is None and len(request.tokens) > self._context:
            request.reason = End.CONTEXT


def _same(first: Sequence[int], second: Sequence[int]) -> int:
    """How many tokens two texts begin alike with."""
    pairs = zip(first, second, strict=False)
    return next((at for at, (a, b) in enumerate(pairs) if a != b), min(len(first), len(second)))
