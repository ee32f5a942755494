"""Decorator for tests of many small draws, because a pytest case takes longer than such a draw."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable
from typing import Any


def repeated(name: str, values: Iterable[Any]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Run a test with each value of its parameter `name`, in one case. An error notes the value.

    Fixtures are set up once for all values.
    """
    values = list(values)

    def decorate(test: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(test)
        def run(*given: Any, **named: Any) -> None:
            for value in values:
                try:
                    test(*given, **named, **{name: value})
                except BaseException as error:
                    error.add_note(f"{name} = {value!r}")
                    raise

        signature = inspect.signature(test)
        rest = [parameter for parameter in signature.parameters.values() if parameter.name != name]
        run.__dict__["__signature__"] = signature.replace(parameters=rest)
        return run

    return decorate
