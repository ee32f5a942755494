"""The messages of a conversation as a text, by the template that a model's file has."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from weft.errors import InputError
from weft.extras.language.compiler.vocabulary import Vocabulary
from weft.hdl.schema import printable

SECONDS, MEMORY = 1.0, 512 << 20
"""Processor time, and bytes of memory, that a template may take."""
LONGEST = 1 << 22
"""Characters of a text at most, if the caller sets no other limit."""
_WAIT = 30.0
"""Seconds until a process is killed that waits for something, or for a processor."""
_WORKER = Path(__file__).with_name("template_worker.py")
_LIBRARIES = ("jinja2", "markupsafe")
_LINE, _ESCAPED = 1 << 16, 12
"""Bytes of an answer without its text, and of a character of it, at most."""


class ChatTemplate:
    """A template in the language of Jinja. It comes with a file: it runs in Jinja's sandbox, in a process of its own
    with limits on processor time and memory. Several threads may use it.

    Parameters
    ----------
    source : str
    vocabulary : Vocabulary
        Templates write its tokens for the begin, the end and unknown text.

    Raises
    ------
    InputError
        If it is no template, or exceeds a limit when it is opened.
    """

    def __init__(self, source: str, vocabulary: Vocabulary) -> None:
        self._source = source
        self._names = {
            f"{name}_token": "" if token is None else vocabulary.tokens[token]
            for name, token in (
                ("bos", vocabulary.begin), ("eos", vocabulary.end), ("unk", vocabulary.unknown),
            )
        }  # fmt: skip
        self._lock = threading.Lock()
        self._worker = self._open()

    @property
    def begin(self) -> str:
        """How the token for the begin is written."""
        return self._names["bos_token"]

    def text(
        self,
        messages: Sequence[Mapping[str, Any]],
        longest: int = LONGEST,
        options: Mapping[str, Any] | None = None,
    ) -> str:
        """Render messages, up to where the model's answer begins.

        Parameters
        ----------
        messages : sequence of mapping
            Each has a role, mostly a content, and whatever else a template reads, such as ``tool_calls``: JSON values.
        longest : int
            Characters of the text at most.
        options : mapping
            Other names that the template reads, such as ``enable_thinking``.

        Raises
        ------
        InputError
            If there are no messages; if an option has a name that is taken; if the template refuses them, makes more
            than `longest` characters of them, or exceeds a limit.
        """
        if not messages:
            raise InputError("there are no messages")
        values = {
            "messages": messages, "tools": None, "documents": None, "add_generation_prompt": True, **self._names,
        }  # fmt: skip
        if taken := sorted(values.keys() & (options or {}).keys()):
            raise InputError(f"options of a chat template cannot be {', '.join(map(repr, taken))}")
        values |= options or {}
        with self._lock:
            if self._worker.ended:
                self._worker.close()
                self._worker = self._open()
            try:
                return self._worker.ask({"values": values, "longest": longest}, longest)
            except _TemplateError as error:
                raise InputError(f"the model's chat template does not take these messages: {error}") from None
            except RecursionError:
                raise InputError("the messages have values that are nested too deeply") from None

    def _open(self) -> _Worker:
        worker = _Worker()
        try:
            worker.ask({"source": self._source}, 0)
        except _TemplateError as error:
            worker.close()
            raise InputError(f"cannot open the model's chat template: {error}") from None
        return worker

    def close(self) -> None:
        """End the process; `text` starts another one."""
        with self._lock:
            self._worker.close()

    def __enter__(self) -> ChatTemplate:
        return self

    def __exit__(self, *error: Any) -> None:
        self.close()


class _TemplateError(InputError):
    """Why there is no text."""


class _Worker:
    """A process that runs `weft.extras.language.server.template_worker`."""

    def __init__(self) -> None:
        limits = [str(SECONDS), str(MEMORY)]
        self._late = False
        self._process = subprocess.Popen(
            # Without site and environment it starts sooner and sees no secrets; in a session of its own, no Ctrl-C.
            [sys.executable, "-I", "-S", str(_WORKER), *limits, *_folders()],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env={}, start_new_session=True,
        )  # fmt: skip

    def ask(self, request: dict[str, Any], longest: int) -> str:
        """The text that a request gets. Ends the process and raises `_TemplateError` if it exceeds a limit."""
        timer = threading.Timer(_WAIT, self._kill)
        timer.start()
        try:
            found = self._exchange(json.dumps(request).encode(), longest)
        except BaseException:
            self.close()  # an answer may come that nobody waits for
            raise
        finally:
            timer.cancel()
        if found is None or "memory" in found:
            self.close()
            raise _TemplateError(self._reason(found))
        if "error" in found:
            raise _TemplateError(printable(found["error"], 200))
        return found["text"]

    def _exchange(self, request: bytes, longest: int) -> dict[str, str] | None:
        """The answer to a request, None if the process has ended."""
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None
        assert stdout is not None
        with contextlib.suppress(BrokenPipeError):
            stdin.write(request + b"\n")
            stdin.flush()
        line = stdout.readline(_LINE + _ESCAPED * longest)
        return json.loads(line) if line.endswith(b"\n") else None

    def _reason(self, found: dict[str, str] | None) -> str:
        code = self._process.returncode
        if found is not None:
            return f"it takes more than {MEMORY >> 20:,} MB of memory"
        if code == -signal.SIGPROF:
            return f"it takes more than {SECONDS:g} s of processor time"
        if self._late:
            return f"it has not ended after {_WAIT:g} s"
        return f"its process ended with code {code}"

    @property
    def ended(self) -> bool:
        return self._process.poll() is not None

    def _kill(self) -> None:
        self._late = True
        self._process.kill()

    def close(self) -> None:
        """End the process, unless it has ended itself."""
        self._process.kill()
        with contextlib.suppress(BrokenPipeError), self._process:
            pass


def _folders() -> list[str]:
    """Where the libraries of the process are."""
    found = set()
    for name in _LIBRARIES:
        spec = importlib.util.find_spec(name)
        if spec is None or spec.origin is None:
            raise InputError(
                f"chats need the Python package {name!r}, which is not installed: pip install 'weft[serve]'"
            )
        found.add(str(Path(spec.origin).parents[1]))
    return sorted(found)
