"""Engine that generates texts for several threads in one thread of its own."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from weft.extras.language.run.lm import Completion, Generation, Model, check_options
from weft.hdl.errors import WeftError
from weft.sim.device import DeviceError

Event = str | Completion | WeftError
"""Piece of a text, then either the completion or the device's error."""
MAX_TEXTS = 256
"""Limit for running and waiting texts together."""


class BusyError(WeftError, RuntimeError):
    """Too many texts are running or waiting."""


@dataclass(eq=False)
class Ticket:
    """Handle of a requested text; `prompt` holds its tokens."""

    prompt: list[int]
    _options: dict[str, Any]
    _listener: Callable[[Event], None]
    _generation: Generation | None = None
    _cancelled: bool = False


class Engine:
    """Generator of texts in a thread, from `start` to `close`.

    Parameters
    ----------
    model : Model
        Used by this engine only. Its `step_costs` are discarded.

    Attributes
    ----------
    steps : int
        Number of device steps so far.
    """

    def __init__(self, model: Model) -> None:
        self.model = model
        self._changed = threading.Condition()
        self._tickets: list[Ticket] = []
        self._closing = False
        self.steps = 0
        self._failure: WeftError | None = None
        self._thread = threading.Thread(target=self._work, name="weft-engine", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """Stop the thread; texts that have not ended stay incomplete."""
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
        """Request a text.

        Parameters
        ----------
        prompt, options
            Arguments of `Model.generate`.
        listener : callable
            Called with each event, in the engine's thread; it must return quickly and not raise.

        Raises
        ------
        InputError
            If `Model.generate` refuses the arguments.
        BusyError
            If too many texts are running or waiting.
        WeftError
            If the device has failed before.
        """
        # Outside the lock, so that long prompts do not delay other texts.
        tokens = self.model.encode(prompt)
        check_options(**options)
        ticket = Ticket(tokens, options, listener)
        with self._changed:
            if self._failure is not None:
                raise self._failure
            if len(self._tickets) >= MAX_TEXTS:
                raise BusyError(
                    f"{MAX_TEXTS} texts are running or waiting, which is the limit: try again later"
                )
            self._tickets.append(ticket)
            self._changed.notify()
        return ticket

    def cancel(self, ticket: Ticket) -> None:
        """Cancel a text; its listener may still be called for one more step."""
        with self._changed:
            ticket._cancelled = True
            self._changed.notify()

    @property
    def texts(self) -> int:
        """Number of running and waiting texts."""
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
                # Clients get an error; the traceback is for the log.
                self._fail(DeviceError(f"computing texts failed: {error!r}"))
                raise
            with self._changed:
                # Requests may have come during the step.
                self._tickets = [ticket for ticket in self._tickets if ticket not in ended]

    def _step(self, tickets: list[Ticket]) -> list[Ticket]:
        """Run one step of the device and notify listeners; return the tickets that have ended."""
        # Only this thread may use the model, so that it also starts and cancels texts.
        ended = []
        for ticket in tickets:
            if ticket._cancelled:
                if ticket._generation is not None:
                    ticket._generation.close()
                ended.append(ticket)
            elif ticket._generation is None:
                ticket._generation = self.model.generate(ticket.prompt, **ticket._options)
        self.model.step()
        self.steps += len(self.model.step_costs)
        self.model.step_costs.clear()
        for ticket in tickets:
            if ticket not in ended and _notify(ticket):
                ended.append(ticket)
        return ended

    def _fail(self, error: WeftError) -> None:
        with self._changed:
            self._failure, tickets = error, self._tickets
            self._tickets = []
        for ticket in tickets:
            ticket._listener(error)


def _notify(ticket: Ticket) -> bool:
    """Send new events to the ticket's listener; return whether the text has ended."""
    generation = ticket._generation
    assert generation is not None
    while (piece := generation.poll()) is not None:
        ticket._listener(piece)
    if generation.ended:
        ticket._listener(generation.result)
    return generation.ended
