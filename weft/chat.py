"""The messages of a conversation as a text, by the template that a model's file has."""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from typing import Any

from weft.compiler.language.vocabulary import Vocabulary
from weft.errors import InputError
from weft.hdl.files.schema import printable


class ChatTemplate:
    """A template in the language of Jinja. It comes with a file, and runs in Jinja's sandbox.

    Parameters
    ----------
    source : str
    vocabulary : Vocabulary
        Whose tokens for the begin and the end templates write.

    Raises
    ------
    InputError
        If it is no template.
    """

    def __init__(self, source: str, vocabulary: Vocabulary) -> None:
        self._jinja: Any = importlib.import_module("jinja2")
        sandbox: Any = importlib.import_module("jinja2.sandbox")
        environment = sandbox.ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
        )
        environment.globals["raise_exception"] = self._refuse
        self._names = {
            f"{name}_token": "" if token is None else vocabulary.tokens[token]
            for name, token in (("bos", vocabulary.begin), ("eos", vocabulary.end))
        }
        try:
            self._template = environment.from_string(source)
        except self._jinja.TemplateError as error:
            raise InputError(f"the model's chat template is none: {printable(str(error), 200)}") from None

    @property
    def begin(self) -> str:
        """How the token for the begin is written."""
        return self._names["bos_token"]

    def text(self, messages: Sequence[Mapping[str, str]]) -> str:
        """The text of messages (role and content), up to where the model's answer begins.

        Raises
        ------
        InputError
            If there are none, or the template refuses them.
        """
        if not messages:
            raise InputError("there are no messages")
        try:
            made: str = self._template.render(messages=messages, add_generation_prompt=True, **self._names)
        except InputError:
            raise
        except Exception as error:  # whatever an expression of the template raises
            raise InputError(
                f"the model's chat template does not take these messages: {printable(str(error), 200)}"
            ) from None
        return made

    def _refuse(self, message: object) -> None:
        raise InputError(
            f"the model's chat template does not take these messages: {printable(str(message), 200)}"
        )
