"""Continuous batching: a text is independent of its neighbours and of shared pages."""

from __future__ import annotations

import dataclasses
import functools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from weft.extras.language.compiler.decoder import Decoder
from weft.extras.language.compiler.integers import to_integers
from weft.extras.language.compiler.model import Sizes
from weft.extras.language.compiler.reference import measure_ranges
from weft.extras.language.run.batch import ROOT, Batch, End, PagePool, Request
from weft.extras.language.run.decoder_run import DecoderMemory, DecoderRun
from weft.extras.language.run.generation import Sampler
from weft.extras.language.tests.support.language_models import random_model
from weft.extras.language.tests.support.recalled_texts import VOCABULARY, RecalledTexts
from weft.hdl.isa.config import Config
from weft.sim.compiled.device import CompiledDevice


@dataclasses.dataclass(frozen=True)
class Asked:
    """A text that joins before a step, and may be cancelled before a later one."""

    prompt: tuple[int, ...]
    most: int
    seed: int
    joins: int
    leaves: int | None
    every: bool
    ends: tuple[int, ...]

    def request(self) -> Request:
        choose = Sampler(1.0, seed=self.seed)
        return Request(list(self.prompt), self.most, choose, self.ends, self.every)


@dataclasses.dataclass(frozen=True)
class Schedule:
    rows: int
    page: int
    pages: int
    context: int
    asked: tuple[Asked, ...]
    prompt_rows: int = 0

    def batch(self, rows: int | None = None, prompt_rows: int = 0) -> Batch:
        rows = rows or self.rows
        steps = RecalledTexts(rows, self.page, self.pages, prompt_rows)
        return Batch(
            steps, rows=rows, page=self.page, pages=self.pages, context=self.context, prompt_rows=prompt_rows
        )


def run_to_end(batch: Batch, requests: list[Request], limit: int = 2000) -> None:
    for _ in range(limit):
        if not batch.busy:
            return
        batch.step()
    raise AssertionError([(request.reason, len(request.tokens)) for request in requests])


def run_together(schedule: Schedule, batch: Batch) -> list[Request]:
    """Run all texts, joining and leaving at their steps."""
    requests = [asked.request() for asked in schedule.asked]
    last = max(max(asked.joins, asked.leaves or 0) for asked in schedule.asked)
    for step in range(last + 1):
        for asked, request in zip(schedule.asked, requests, strict=True):
            if asked.joins == step:
                batch.add(request)
        batch.step()
        for asked, request in zip(schedule.asked, requests, strict=True):
            if asked.leaves == step and asked.joins <= step:
                batch.cancel(request)
    run_to_end(batch, requests)
    return requests


def run_alone(asked: Asked, batch: Batch) -> Request:
    request = asked.request()
    batch.add(request)
    run_to_end(batch, [request])
    return request


def check_equal(actual: Request, expected: Request) -> None:
    if actual.reason is End.CANCELLED:
        assert actual.tokens == expected.tokens[: len(actual.tokens)]
        return
    assert (actual.tokens, actual.reason) == (expected.tokens, expected.reason)
    assert len(actual.logits) == len(expected.logits)
    assert all(np.array_equal(a, b) for a, b in zip(actual.logits, expected.logits, strict=True))


@st.composite
def schedules(draw: st.DrawFn) -> Schedule:
    page, context = draw(st.sampled_from([1, 2, 3, 4, 4, 6, 8])), draw(st.integers(4, 20))
    starts = draw(
        st.lists(
            st.lists(st.integers(0, VOCABULARY - 1), min_size=1, max_size=context), min_size=1, max_size=2
        )
    )

    def draw_request() -> Asked:
        start = draw(st.sampled_from(starts))
        own = draw(st.lists(st.integers(0, 2), max_size=4))
        prompt = tuple([*start[: draw(st.integers(1, len(start)))], *own][:context])
        every = draw(st.booleans())
        most = draw(st.integers(0 if every else 1, 12))
        leaves = draw(st.none() | st.integers(0, 20))
        ends = tuple(draw(st.sets(st.integers(0, VOCABULARY - 1), max_size=1)))
        return Asked(prompt, most, draw(st.integers(0, 3)), draw(st.integers(0, 12)), leaves, every, ends)

    texts = tuple(draw_request() for _ in range(draw(st.integers(1, 6))))
    divisors = [0, *(count for count in range(1, page + 1) if page % count == 0)]
    return Schedule(
        draw(st.integers(1, 5)),
        page,
        draw(st.integers(1, 12)),
        context,
        texts,
        draw(st.sampled_from(divisors)),
    )


@settings(max_examples=250, deadline=None)
@given(schedules())
def test_a_text_is_independent_of_the_batch(schedule: Schedule) -> None:
    batch = schedule.batch(prompt_rows=schedule.prompt_rows)
    for asked, request in zip(schedule.asked, run_together(schedule, batch), strict=True):
        check_equal(request, run_alone(asked, schedule.batch()))
        check_equal(request, run_alone(asked, schedule.batch(rows=1)))
        check_equal(run_alone(asked, batch), run_alone(asked, schedule.batch()))  # with what others have left
    assert batch.pool.free == schedule.pages


def batch_of(rows: int = 2, page: int = 4, pages: int = 8, context: int = 32) -> tuple[Batch, RecalledTexts]:
    steps = RecalledTexts(rows, page, pages)
    return Batch(steps, rows=rows, page=page, pages=pages, context=context), steps


def first(prompt: list[int], most: int = 1) -> Request:
    return Request(prompt, most, lambda logits: int(logits.argmax()))


def test_prompts_use_free_rows() -> None:
    batch, steps = batch_of(rows=4)
    one, other = first([1] * 9, 3), first([2], 3)
    batch.add(one)
    batch.step()
    assert (one.computed, steps.computed) == (4, 4)
    batch.add(other)
    batch.step()
    assert (one.computed, other.computed, len(other.generated_tokens)) == (7, 1, 1)


def test_pages_of_a_text_that_has_ended_are_used_again() -> None:
    batch, steps = batch_of(rows=4)
    prompt = list(range(10))
    run_to_end(batch, [])
    for expected in (10, 2, 2):
        before = steps.computed
        batch.add(first([*prompt]))
        while batch.busy:
            batch.step()
        assert steps.computed - before == expected  # two full pages of four are there
    assert steps.copied == 0


def test_a_shared_page_is_copied_once_on_write() -> None:
    batch, steps = batch_of(rows=8)
    one, other = first([1, 2, 3, 4, 5, 6], 4), first([1, 2, 3, 4, 5, 7], 4)
    batch.add(one)
    batch.step()
    batch.add(other)
    batch.step()
    assert (steps.copied, other.computed) == (1, 6)
    assert steps.computed == 6 + 2
    run_to_end(batch, [one, other])
    assert steps.copied == 1


def test_the_latest_text_waits_for_pages() -> None:
    batch, _ = batch_of(rows=2, page=2, pages=4)
    one, other, later = first([1, 2], 5), first([3, 4], 5), first([5], 1)
    for request in (one, other, later):
        batch.add(request)
    while batch.busy:
        batch.step()
        if other.preemptions and not other.pages and other.reason is None:
            assert not later.computed  # it came behind
            assert later.reason is None
    assert (one.reason, other.reason) == (End.TOKENS, End.TOKENS)
    assert (one.preemptions, other.preemptions > 0) == (0, True)


@pytest.mark.parametrize(("pages", "context", "reason"), [(2, 32, End.CACHE), (8, 6, End.CONTEXT)])
def test_a_text_without_pages_ends_and_others_continue(pages: int, context: int, reason: End) -> None:
    batch, _ = batch_of(rows=2, page=4, pages=pages, context=context)
    long, short = first([1, 2, 3], 50), first([4], 5)
    batch.add(long)
    batch.add(short)
    run_to_end(batch, [long, short])
    assert (long.reason, short.reason, len(short.generated_tokens)) == (reason, End.TOKENS, 5)
    assert len(long.tokens) == (9 if reason is End.CACHE else 7)


def test_prompts_take_turns_with_other_texts() -> None:
    """Prompt tokens up to the last are computed together, interleaved with other texts' steps."""
    steps = RecalledTexts(2, 4, 8, 4)
    batch = Batch(steps, rows=2, page=4, pages=8, context=32, prompt_rows=4)
    one = first([1], 9)
    batch.add(one)
    batch.step()
    other = first(list(range(11)), 1)
    batch.add(other)
    done = []
    while other.reason is None:
        batch.step()
        done.append((len(one.generated_tokens), other.computed))
    assert done == [(1, 4), (2, 4), (2, 8), (3, 8), (3, 10), (4, 0)]  # its pages are others' then


def test_few_tokens_of_a_prompt_are_computed_with_others() -> None:
    steps = RecalledTexts(4, 8, 8, 8)
    batch = Batch(steps, rows=4, page=8, pages=8, context=32, prompt_rows=8, min_prompt_tokens=lambda: 4)
    one = first([1, 2, 3, 4], 1)
    batch.add(one)
    batch.step()
    assert (one.reason, steps.computed) == (End.TOKENS, 4)


def test_the_cycle_model_runs_only_for_long_prompts() -> None:
    """The cycle model is slow; single tokens, and texts whose logits are all requested, do not need it."""

    def compare() -> int:
        raise AssertionError

    batch = Batch(
        RecalledTexts(1, 4, 8, 4),
        rows=1,
        page=4,
        pages=8,
        context=32,
        prompt_rows=4,
        min_prompt_tokens=compare,
    )
    for request in (first([1, 2], 3), Request([1] * 9, 0, lambda logits: 0, keep_logits=True)):
        batch.add(request)
        run_to_end(batch, [request])
    batch.add(first([1, 2, 3, 4]))
    with pytest.raises(AssertionError):
        batch.step()


def test_waiting_texts_can_be_cancelled() -> None:
    batch, steps = batch_of(rows=1)
    one, other = first([1], 3), first([2], 3)
    batch.add(one)
    batch.add(other)
    batch.step()
    batch.cancel(other)
    run_to_end(batch, [one])
    assert (one.reason, other.reason, steps.computed) == (End.TOKENS, End.CANCELLED, 3)
    batch.cancel(one)
    assert one.reason is End.TOKENS


# --- on the compiled interpreter

_SIZES = Sizes(
    context=40, width=32, blocks=2, heads=4, key_value_heads=2, key_length=8, value_length=8, feed_forward=32,
    vocabulary=0,
)  # fmt: skip


@functools.cache
def decoder(rows: int, prompt_rows: int = 0) -> Decoder:
    model = random_model(np.random.default_rng(1), "llama", _SIZES, biases=False)
    text = np.random.default_rng(2).integers(0, model.sizes.vocabulary, 24).tolist()
    config = Config.load("small").replace(loops=1, kernel=256, lookup_tables=4)
    numbers = to_integers(model, measure_ranges(model, [text]))
    return Decoder(numbers, config, rows=rows, page=8, prompt_rows=prompt_rows)


def device_batch(rows: int, pages: int, prompt_rows: int = 0) -> Batch:
    compiled = decoder(rows, prompt_rows)
    memory = DecoderMemory(compiled, pages)
    run = DecoderRun(memory, CompiledDevice(compiled.config, memory.memory_bytes))
    return Batch(run, rows=rows, page=8, pages=pages, context=_SIZES.context, prompt_rows=prompt_rows)


def draw_schedule(seed: int) -> Schedule:
    """Draw texts with common beginnings that join and leave at random, with too few pages."""
    rng = np.random.default_rng(seed)
    starts = [rng.integers(0, 250, 13).tolist() for _ in range(2)]
    texts = []
    for index in range(6):
        prompt = [
            *starts[rng.integers(2)][: rng.integers(5, 14)],
            *rng.integers(0, 250, rng.integers(3)).tolist(),
        ]
        leaves = int(rng.integers(4, 12)) if index % 3 == 2 else None
        every = index == 1
        texts.append(
            Asked(tuple(prompt), int(rng.integers(2, 12)), index, int(rng.integers(0, 8)), leaves, every, ())
        )
    return Schedule(int(rng.integers(2, 5)), 8, int(rng.integers(4, 7)), _SIZES.context, tuple(texts))


@pytest.mark.parametrize("seed", range(3))
def test_a_text_is_independent_of_the_batch_on_the_interpreter(seed: int) -> None:
    schedule = draw_schedule(seed)
    requests = run_together(schedule, device_batch(schedule.rows, schedule.pages, (0, 4, 8)[seed]))
    for asked, request in zip(schedule.asked, requests, strict=True):
        check_equal(request, run_alone(asked, device_batch(1, 8)))


def test_rows_of_one_text_see_each_other() -> None:
    """A prompt in one step, in steps of two, or token by token gives identical bits across pages."""
    prompt = np.random.default_rng(4).integers(0, 250, 11).tolist()
    actual = []
    for rows in (1, 2, 4, 11):
        batch = device_batch(rows, 4)
        request = Request(list(prompt), 0, lambda logits: 0, keep_logits=True)
        batch.add(request)
        run_to_end(batch, [request])
        actual.append(np.stack(request.logits))
    assert all(np.array_equal(actual[0], other) for other in actual[1:])
    assert len(np.unique(actual[0], axis=0)) == len(prompt)


def test_every_page_is_taken_once() -> None:
    pool = PagePool(3)
    taken = [pool.take() for _ in range(3)]
    assert sorted(page for page in taken if page is not None) == [0, 1, 2]
    assert (pool.take(), pool.free) == (None, 0)
    assert taken[1] is not None
    pool.release(taken[1])
    assert pool.free == 1
    assert pool.take() == taken[1]


def test_a_page_is_free_when_its_last_holder_leaves() -> None:
    pool = PagePool(1)
    page = pool.take()
    assert page is not None
    assert pool.is_exclusive(page)
    pool.hold(page)
    assert not pool.is_exclusive(page)
    pool.release(page)
    assert (pool.is_exclusive(page), pool.free) == (True, 0)
    pool.release(page)
    assert pool.free == 1
    with pytest.raises(AssertionError, match="nobody holds page 0"):
        pool.release(page)


def test_full_pages_are_found_by_their_whole_prefix() -> None:
    pool = PagePool(4)
    first, second = pool.take(), pool.take()
    assert first is not None
    assert second is not None
    place = pool.publish(ROOT, [1, 2], first)
    next_place = pool.publish(place, [3, 4], second)
    assert pool.find(ROOT, [1, 2]) == (place, first)
    assert pool.find(place, [3, 4]) == (next_place, second)
    assert pool.find(ROOT, [3, 4]) is None
    assert not pool.is_exclusive(first)  # what the index has stays as it is
    again = pool.take()
    assert again is not None
    assert pool.publish(ROOT, [1, 2], again) == place
    assert pool.find(ROOT, [1, 2]) == (place, first)
    assert pool.is_exclusive(again)


def test_full_pages_are_evicted_oldest_first() -> None:
    pool = PagePool(3)
    pages = [page for page in (pool.take(), pool.take(), pool.take()) if page is not None]
    for at, page in enumerate(pages):
        pool.publish(ROOT, [at], page)
    for at in (1, 0, 2):
        pool.release(pages[at])
    assert pool.free == 3
    actual = pool.find(ROOT, [1])
    assert actual is not None
    pool.hold(actual[1])
    assert pool.free == 2
    pool.release(actual[1])  # now the youngest
    for at in (0, 2, 1):
        assert pool.find(ROOT, [at]) is not None
        assert pool.take() == pages[at]
        assert pool.find(ROOT, [at]) is None
    assert pool.take() is None


def test_children_of_an_evicted_page_are_not_found_under_its_successor() -> None:
    pool = PagePool(2)
    first, second = pool.take(), pool.take()
    assert first is not None
    assert second is not None
    place = pool.publish(ROOT, [1], first)
    pool.publish(place, [2], second)
    pool.release(first)
    taken = pool.take()  # the first one, as the second is held
    assert taken == first
    again = pool.publish(ROOT, [1], first)
    assert again != place
    assert pool.find(again, [2]) is None
