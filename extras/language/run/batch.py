"""Continuous batching of texts on one decoder.

Texts join and leave between steps, and each step computes tokens of several texts. Every running text has one row of
the step; spare rows compute further prompt tokens. Texts wait in order of arrival while rows or pages are missing. A
running text that needs a page when none is free takes the pages of the youngest text. That text is preempted: it waits,
and is recomputed from its tokens later. Other texts therefore never end a text; lack of pages ends it only if it would
not fit alone.

If the backend has a prompt program, it computes prompts in aligned groups of tokens, up to the token before the last.
The last token takes a normal step, which returns its logits. Prompt steps alternate with steps for the other texts.

A text starts with the pages of another text that has the same first tokens (prefix caching). A shared page that is not
full is copied before the text writes to it.

A full page holds the keys and values of as many tokens as fit. Its contents depend only on its tokens and all preceding
ones, so that texts with the same beginning can share it. Full pages without holders stay in the index until their space
is needed.
"""

from __future__ import annotations

import enum
from collections import OrderedDict, deque
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from weft.compiler.machine.emit import ceil_div
from weft.extras.language.run.decoder_run import Row

ROOT = 0
"""Index node of an empty text."""


class PagePool:
    """Pool of pages with reference counts and a prefix tree of full pages.

    A node of the tree is a number, `ROOT` for the empty text; `publish` and `find` lead from one full page to the next.

    Parameters
    ----------
    count : int
        Number of pages.
    """

    def __init__(self, count: int) -> None:
        self.count = count
        self._empty = list(range(count - 1, -1, -1))
        self._idle: OrderedDict[int, None] = OrderedDict()  # full pages without holders, oldest first
        self._holders = [0] * count
        self._index: dict[tuple[int, tuple[int, ...]], tuple[int, int]] = {}  # child node and page
        self._page_keys: dict[int, tuple[int, tuple[int, ...]]] = {}
        self._last_node = ROOT

    @property
    def free(self) -> int:
        """Number of pages without holders."""
        return len(self._empty) + len(self._idle)

    def take(self) -> int | None:
        """Return a page for one holder, with undefined contents; None if all pages are held."""
        if self._empty:
            page = self._empty.pop()
        elif self._idle:
            # Evict the page that has been idle for longest.
            page, _ = self._idle.popitem(last=False)
            # Pages after it stay indexed, but unreachable: nodes get new numbers.
            del self._index[self._page_keys.pop(page)]
        else:
            return None
        self._holders[page] = 1
        return page

    def hold(self, page: int) -> None:
        """Add a holder to a page that is held or indexed."""
        self._idle.pop(page, None)
        self._holders[page] += 1

    def release(self, page: int) -> None:
        """Remove a holder."""
        assert self._holders[page] > 0, f"nobody holds page {page}"
        self._holders[page] -= 1
        if self._holders[page] == 0:
            # An indexed page keeps its contents until it is evicted.
            if page in self._page_keys:
                self._idle[page] = None
            else:
                self._empty.append(page)

    def is_exclusive(self, page: int) -> bool:
        """Return whether the only holder may write to a page: it has no other holder and is not indexed."""
        return self._holders[page] == 1 and page not in self._page_keys

    def publish(self, node: int, tokens: Sequence[int], page: int) -> int:
        """Index a full page whose `tokens` follow `node`, and return the page's node.

        An existing page with these tokens stays in the index.
        """
        key = (node, tuple(tokens))
        if key not in self._index:
            self._last_node += 1
            self._index[key], self._page_keys[page] = (self._last_node, page), key
        return self._index[key][0]

    def find(self, node: int, tokens: Sequence[int]) -> tuple[int, int] | None:
        """Return the node and the page of `tokens` after `node`, or None."""
        return self._index.get((node, tuple(tokens)))


class End(enum.Enum):
    """Reason for the end of a text; the value is its description."""

    MODEL = "the model ended the text"
    STOP = "stop sequence reached"
    TOKENS = "token limit reached"
    CONTEXT = "context full"
    CACHE = "all pages of keys and values full"
    CANCELLED = "cancelled"


class DecoderBackend(Protocol):
    """Interface of `weft.extras.language.run.decoder_run.DecoderRun`, and of several devices in step."""

    def step(self, rows: Sequence[Row]) -> None: ...

    def prompt(self, rows: Sequence[Row]) -> None: ...

    def logits(self, row: int) -> np.ndarray: ...

    def copy(self, page: int, to: int) -> None: ...


@dataclass(eq=False)
class Request:
    """Text to continue.

    Parameters
    ----------
    tokens : list of int
        The prompt, at least one token; generated tokens are appended.
    max_tokens : int
        Maximum number of generated tokens.
    choose : callable
        Chooses the next token from logits, float64 (vocabulary,).
    ends : collection of int
        Tokens that end the text.
    keep_logits : bool
        Whether to store the logits after every token in `logits`.

    Attributes
    ----------
    reason : End or None
        None until the text has ended.
    computed : int
        Number of tokens whose keys and values are in pages.
    preemptions : int
        Number of times that the text lost its pages to older texts.
    """

    tokens: list[int]
    max_tokens: int
    choose: Callable[[np.ndarray], int]
    ends: Collection[int] = ()
    keep_logits: bool = False
    reason: End | None = None
    logits: list[np.ndarray] = field(default_factory=list)
    computed: int = 0
    preemptions: int = 0
    pages: list[int] = field(default_factory=list)
    prompt_length: int = 0
    _index_node: int = ROOT
    _published: int = 0

    def __post_init__(self) -> None:
        self.prompt_length = len(self.tokens)

    @property
    def generated_tokens(self) -> list[int]:
        """Tokens after the prompt."""
        return self.tokens[self.prompt_length :]


class Batch:
    """Scheduler of texts on one decoder.

    Parameters
    ----------
    backend : DecoderBackend
    rows : int
        Maximum number of tokens in a step, and of running texts.
    page : int
        Tokens of a page.
    pages : int
        Number of pages.
    context : int
        Maximum number of tokens of a text.
    prompt_rows : int
        Tokens of a prompt that `DecoderBackend.prompt` computes together, a divisor of `page`; 0 if the backend cannot.
    min_prompt_tokens : callable
        Returns the number of tokens from which `DecoderBackend.prompt` pays off. Called for prompts of two or more
        tokens.
    """

    def __init__(
        self,
        backend: DecoderBackend,
        *,
        rows: int,
        page: int,
        pages: int,
        context: int,
        prompt_rows: int = 0,
        min_prompt_tokens: Callable[[], int] = lambda: 2,
    ) -> None:
        self._backend, self._rows, self._page, self._context = backend, rows, page, context
        self._prompt_rows, self._min_prompt_tokens = prompt_rows, min_prompt_tokens
        self._last_was_prompt = False
        self.pool = PagePool(pages)
        self._waiting: deque[Request] = deque()
        self._running: list[Request] = []  # the oldest text first

    def add(self, request: Request) -> None:
        """Queue a text whose tokens fit the context."""
        assert 0 < request.prompt_length <= self._context
        self._waiting.append(request)

    def cancel(self, request: Request, reason: End = End.CANCELLED) -> None:
        """End a text now, unless it has ended."""
        if request.reason is None:
            if request in self._waiting:
                self._waiting.remove(request)
            self._end(request, reason)

    @property
    def busy(self) -> bool:
        """True while any text is waiting or running."""
        return bool(self._waiting or self._running)

    def step(self) -> list[Request]:
        """Compute one step and return the texts that gained a token or ended."""
        self._admit()
        # Prompt steps alternate with row steps, so that a long prompt does not stall the other texts.
        prompts = [request for request in self._running if self._uses_prompt_program(request)]
        running = [request for request in self._running if request not in prompts]
        if prompts and not (self._last_was_prompt and running):
            self._last_was_prompt = True
            return self._step_prompt(prompts[0])
        self._last_was_prompt = False
        return self._step_rows(running)

    def _step_prompt(self, request: Request) -> list[Request]:
        start, end = self._next_prompt_range(request)
        if not self._secure_page(request, start):
            return [request] if request.reason is not None else []
        self._backend.prompt([Row(request.tokens[at], at, request.pages) for at in range(start, end)])
        request.computed = end
        self._publish(request)
        return []

    def _step_rows(self, running: Sequence[Request]) -> list[Request]:
        """Compute a token of each text, and further prompt tokens in spare rows."""
        counts, ended = self._plan(running)
        rows = [
            Row(request.tokens[at], at, request.pages)
            for request, count in counts.items()
            for at in range(request.computed, request.computed + count)
        ]
        if rows:
            self._backend.step(rows)
        row, updated = 0, ended
        for request, count in counts.items():
            self._record_computed(request, row, count)
            row += count
            if request.computed == len(request.tokens):
                self._append_token(request, row - 1)
                updated.append(request)
            self._publish(request)
            if request.reason is not None:
                self._end(request, request.reason)
        return updated

    def _admit(self) -> None:
        """Start waiting texts while rows, and pages for their tokens, are left."""
        while self._waiting and len(self._running) < self._rows:
            request = self._waiting[0]
            self._reuse_pages(request)
            missing = ceil_div(len(request.tokens), self._page) - request.computed // self._page
            # With no text running it starts anyway: it ends by itself if it does not fit alone.
            if missing > self.pool.free and self._running:
                self._release_pages(request)
                return
            self._running.append(self._waiting.popleft())

    def _next_prompt_range(self, request: Request) -> tuple[int, int]:
        """Return the token range of the next prompt step, from an aligned start; its first tokens may be computed
        already.
        """
        start = request.computed // self._prompt_rows * self._prompt_rows
        # The last token is left to a step with logits.
        return start, min(start + self._prompt_rows, len(request.tokens) - 1)

    def _uses_prompt_program(self, request: Request) -> bool:
        """Return whether the next step of a text computes prompt tokens together."""
        # The prompt program computes no logits.
        if not self._prompt_rows or request.keep_logits:
            return False
        count = self._next_prompt_range(request)[1] - request.computed
        return count > 1 and count >= self._min_prompt_tokens()

    def _plan(self, running: Sequence[Request]) -> tuple[dict[Request, int], list[Request]]:
        """Return the number of tokens to compute for each text, and the texts that ended for lack of pages."""
        counts: dict[Request, int] = {}
        ended = []
        for request in running:
            # An older text may have preempted it in this loop.
            if request in self._running:
                if self._secure_page(request, request.computed):
                    counts[request] = 1
                elif request.reason is not None:
                    ended.append(request)
        # Older texts get spare rows first.
        spare_rows = self._rows - len(counts)
        for request, count in counts.items():
            while spare_rows and request.computed + count < len(request.tokens):
                if not self._get_writable_page(request, request.computed + count):
                    break
                count, spare_rows = count + 1, spare_rows - 1
            counts[request] = count
        return counts, ended

    def _secure_page(self, request: Request, position: int) -> bool:
        """Provide a page for the token at `position`, if necessary by preempting younger texts.

        Return False if the text had to wait or ended for lack of pages.
        """
        while not self._get_writable_page(request, position):
            last = self._running[-1]
            if last is not request:
                self._preempt(last)
                continue
            if len(self._running) > 1:
                self._preempt(request)
            else:
                self._end(request, End.CACHE)
            return False
        return True

    def _get_writable_page(self, request: Request, position: int) -> bool:
        """Provide a page for the token at `position` that only this text uses; return False if none is free."""
        index = position // self._page
        if index < len(request.pages) and self.pool.is_exclusive(request.pages[index]):
            return True
        page = self.pool.take()
        if page is None:
            return False
        # The page is the text's next one, or replaces a shared one (copy on write).
        if index == len(request.pages):
            request.pages.append(page)
        else:
            self._backend.copy(request.pages[index], page)
            self.pool.release(request.pages[index])
            request.pages[index] = page
        return True

    def _preempt(self, request: Request) -> None:
        self._running.remove(request)
        request.preemptions += 1
        self._release_pages(request)
        # Preempted texts stay before younger ones.
        self._waiting.appendleft(request)

    def _end(self, request: Request, reason: End) -> None:
        request.reason = reason
        if request in self._running:
            self._running.remove(request)
        self._release_pages(request)

    def _reuse_pages(self, request: Request) -> None:
        """Start a text with existing full pages of the same tokens.

        The last token is always computed, because its logits are needed.
        """
        # Logits of reused tokens would be missing.
        if request.keep_logits:
            return
        pool, size, tokens = self.pool, self._page, request.tokens
        while request.computed + size < len(tokens):
            entry = pool.find(request._index_node, tokens[request.computed : request.computed + size])
            if entry is None:
                break
            request._index_node, page = entry
            pool.hold(page)
            request.pages.append(page)
            request.computed += size
        request._published = len(request.pages)
        self._reuse_partial_page(request)

    def _reuse_partial_page(self, request: Request) -> None:
        """Start a text with the first part of a running text's next page, if their tokens agree."""
        start = request.computed
        remaining = request.tokens[start : start + self._page][: len(request.tokens) - 1 - start]
        longest, source = 0, None
        for other in self._running:
            if other.tokens[:start] == request.tokens[:start] and other.computed > start:
                length = _common_prefix(remaining, other.tokens[start : other.computed])
                if length > longest:
                    longest, source = length, other
        if source is not None:
            # The text that writes to the shared page first gets a copy.
            page = source.pages[start // self._page]
            self.pool.hold(page)
            request.pages.append(page)
            request.computed += longest

    def _release_pages(self, request: Request) -> None:
        """Release all pages of a text, last page first, so that the pool evicts the end of a text before its start."""
        for page in reversed(request.pages):
            self.pool.release(page)
        request.pages.clear()
        request.computed, request._index_node, request._published = 0, ROOT, 0

    def _publish(self, request: Request) -> None:
        """Add pages that are now full to the index."""
        while (request._published + 1) * self._page <= request.computed:
            start = request._published * self._page
            page = request.pages[request._published]
            request._index_node = self.pool.publish(
                request._index_node, request.tokens[start : start + self._page], page
            )
            request._published += 1

    def _record_computed(self, request: Request, row: int, count: int) -> None:
        """Count computed tokens, and store their logits if the request keeps them."""
        if request.keep_logits:
            for at in range(count):
                # A preempted text computes tokens again whose logits it has.
                if request.computed + at == len(request.logits):
                    request.logits.append(self._backend.logits(row + at))
        request.computed += count

    def _append_token(self, request: Request, row: int) -> None:
        """Append a token to a text that is computed up to its end, or set the reason for its end."""
        if len(request.tokens) - request.prompt_length < request.max_tokens:
            token = request.choose(self._backend.logits(row))
            request.tokens.append(token)
            if token in request.ends:
                request.reason = End.MODEL
        if request.reason is None and len(request.tokens) - request.prompt_length >= request.max_tokens:
            request.reason = End.TOKENS
        # The last token needs no keys and values: a text may have one token more than the context.
        if request.reason is None and len(request.tokens) > self._context:
            request.reason = End.CONTEXT


def _common_prefix(first: Sequence[int], second: Sequence[int]) -> int:
    """Return the length of the longest common prefix."""
    pairs = zip(first, second, strict=False)
    return next((at for at, (a, b) in enumerate(pairs) if a != b), min(len(first), len(second)))
