"""A language model that several threads ask for texts: one thread of its own computes all of them together."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from weft.extras.language.run.lm import Completion, Generation, Model, check_options
from weft.hdl.errors import WeftError
from weft.sim.device import DeviceError

Event = str | Completion | WeftError
"""A piece of a text; then at its end what it has come to, or why the device failed."""
WAITING = 256
"""Texts that go on or wait at most."""


class BusyError(WeftError, RuntimeError):
    """There are too many texts already."""


@dataclass(eq=False)
class Ticket:
    """A text that was asked for: `prompt` are its tokens."""

    prompt: list[int]
    _options: dict[str, Any]
    _listener: Callable[[Event], None]
    _generation: Generation | None = None
    _cancelled: bool = False


class Engine:
    """Computes texts in a thread, from `start` to `close`.

    Parameters
    ----------
    model : Model
        Nobody else uses it meanwhile. What its steps took is not kept.

    Attributes
    ----------
    steps : int
        Steps of the device so far.
    """

    def __init__(self, model: Model) -> None:
        self.model = model
        self._changed = threading.Condition()
        self._tickets: list[Ticket] = []
        self._closing = False
        self.steps = 0
        self._failed: WeftError | None = None
        self._thread = threading.Thread(target=self._work, name="weft-engine", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """Stop computing: texts that have not ended do not end any more."""
        with self._changed:
            self._closing = True
            self._changed.notify()
        self._thread.join()

    def __enter__(self) -> Engine:
        self.start()
        return self

    def __exit__(self, *error: Any) -> None:
        self.close()

    def submit(
        self, prompt: str | list[int], options: dict[str, Any], listener: Callable[[Event], None]
    ) -> Ticket:
        """Ask for a text.

        Parameters
        ----------
        prompt, options
            As `Model.generate` has them.
        listener : callable
            Told of events, in the thread that computes; it returns soon, and raises nothing.

        Raises
        ------
        InputError
            If `Model.generate` refuses them.
        BusyError
            If there are too many texts.
        WeftError
            If the device has failed before.
        """
        tokens = self.model.encode(prompt)
        check_options(**options)
        ticket = Ticket(tokens, options, listener)
        with self._changed:
            if self._failed is not None:
                raise self._failed
            if len(self._tickets) >= WAITING:
                raise BusyError(f"{WAITING} texts are under way, and no more are taken: try again later")
            self._tickets.append(ticket)
            self._changed.notify()
        return ticket

    def cancel(self, ticket: Ticket) -> None:
        """Have a text not go on; its listener may be told of one more step."""
        with self._changed:
            ticket._cancelled = True
            self._changed.notify()

    @property
    def texts(self) -> int:
        """How many texts go on or wait."""
        with self._changed:
            return len(self._tickets)

    def _work(self) -> None:
        while True:
            with self._changed:
                while not self._tickets and not self._closing:
                    self._changed.wait()
                if self._closing:
                    return
                tickets = list(self._tickets)
            try:
                ended = self._step(tickets)
            except WeftError as error:
                self._fail(error)
                return
            except Exception as error:
                self._fail(DeviceError(f"computing texts failed: {error!r}"))
                raise
            with self._changed:
                self._tickets = [ticket for ticket in self._tickets if ticket not in ended]

    def _step(self, tickets: list[Ticket]) -> list[Ticket]:
        """One step of the device, and what it has brought; returns the texts that have ended."""
        ended = []
        for ticket in tickets:
            if ticket._cancelled:
                if ticket._generation is not None:
                    ticket._generation.close()
                ended.append(ticket)
            elif ticket._generation is None:
                ticket._generation = self.model.generate(ticket.prompt, **ticket._options)
        self.model.step()
        self.steps += len(self.model.counted)
        self.model.counted.clear()
        for ticket in tickets:
            if ticket not in ended and _told(ticket):
                ended.append(ticket)
        return ended

    def _fail(self, error: WeftError) -> None:
        with self._changed:
            self._failed, tickets = error, self._tickets
            self._tickets = []
        for ticket in tickets:
            ticket._listener(error)


def _told(ticket: Ticket) -> bool:
    """Tell a listener what is new; whether the text has ended."""
    generation = ticket._generation
    assert generation is not None
    while (piece := generation.poll()) is not None:
        ticket._listener(piece)
    if generation.ended:
        ticket._listener(generation.result)
    return generation.ended
