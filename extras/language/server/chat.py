"""Rendering of chat messages with the model's own Jinja template."""

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
from weft.extras.language.compiler.model import Vocabulary
from weft.hdl.schema import printable

MAX_SECONDS, MAX_MEMORY = 1.0, 512 << 20
"""Limits of a template: processor time, and bytes of memory."""
MAX_CHARACTERS = 1 << 22
"""Default limit for the characters of a text."""
_TIMEOUT = 30.0
"""Seconds of wall-clock time until the worker is killed, for templates that wait."""
_WORKER = Path(__file__).with_name("template_worker.py")
_LIBRARIES = ("jinja2", "markupsafe")
_MAX_OVERHEAD = 1 << 16
"""Limit for bytes of an answer without its text."""
_MAX_ESCAPE = 12
"""Bytes of the longest JSON escape of one character."""


class ChatTemplate:
    """Chat template in Jinja's language, which several threads may use.

    Templates are untrusted input: they run in Jinja's sandbox, in a separate process with limits on processor time and
    memory.

    Parameters
    ----------
    source : str
    vocabulary : Vocabulary
        Source of the begin, end and unknown tokens, which templates refer to.

    Raises
    ------
    InputError
        If the template is invalid, or exceeds a limit when it is compiled.
    """

    def __init__(self, source: str, vocabulary: Vocabulary) -> None:
        self._source = source
        self._special_tokens = {
            f"{name}_token": "" if token is None else vocabulary.tokens[token]
            for name, token in (
                ("bos", vocabulary.begin), ("eos", vocabulary.end), ("unk", vocabulary.unknown),
            )
        }  # fmt: skip
        self._lock = threading.Lock()
        self._worker = self._open()

    @property
    def begin(self) -> str:
        """Text of the begin token."""
        return self._special_tokens["bos_token"]

    def text(
        self,
        messages: Sequence[Mapping[str, Any]],
        longest: int = MAX_CHARACTERS,
        options: Mapping[str, Any] | None = None,
    ) -> str:
        """Render messages, up to the start of the model's answer.

        Parameters
        ----------
        messages : sequence of mapping
            JSON values, each with a role, usually a content, and anything else that the template reads, such as
            ``tool_calls``.
        longest : int
            Maximum number of characters.
        options : mapping
            Further names that the template reads, such as ``enable_thinking``.

        Raises
        ------
        InputError
            If there are no messages, an option has a reserved name, or the template refuses the messages, returns more
            than `longest` characters, or exceeds a limit.
        """
        if not messages:
            raise InputError("there are no messages")
        values = {
            "messages": messages, "tools": None, "documents": None, "add_generation_prompt": True,
            **self._special_tokens,
        }  # fmt: skip
        if reserved := sorted(values.keys() & (options or {}).keys()):
            raise InputError(f"options of a chat template cannot be {', '.join(map(repr, reserved))}")
        values |= options or {}
        with self._lock:
            # A request that exceeded a limit has ended the process.
            if self._worker.ended:
                self._worker.close()
                self._worker = self._open()
            try:
                return self._worker.request({"values": values, "longest": longest}, longest)
            except _TemplateError as error:
                raise InputError(f"the model's chat template refuses these messages: {error}") from None
            except RecursionError:
                raise InputError("the messages have values that are nested too deeply") from None

    def _open(self) -> _Worker:
        worker = _Worker()
        try:
            worker.request({"source": self._source}, 0)
        except _TemplateError as error:
            worker.close()
            raise InputError(f"cannot open the model's chat template: {error}") from None
        return worker

    def close(self) -> None:
        """End the process; `text` starts a new one."""
        with self._lock:
            self._worker.close()

    def __enter__(self) -> ChatTemplate:
        return self

    def __exit__(self, *error: Any) -> None:
        self.close()


class _TemplateError(InputError):
    """Failure to render a text."""


class _Worker:
    """Process that runs `weft.extras.language.server.template_worker`."""

    def __init__(self) -> None:
        limits = [str(MAX_SECONDS), str(MAX_MEMORY)]
        self._timed_out = False
        self._process = subprocess.Popen(
            # Without site packages it starts faster; without environment it sees no secrets; in its own session it
            # gets no Ctrl-C.
            [sys.executable, "-I", "-S", str(_WORKER), *limits, *_library_folders()],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env={}, start_new_session=True,
        )  # fmt: skip

    def request(self, message: dict[str, Any], longest: int) -> str:
        """Return the text for a request; end the process and raise `_TemplateError` if it exceeds a limit."""
        timer = threading.Timer(_TIMEOUT, self._kill)
        timer.start()
        try:
            answer = self._exchange(json.dumps(message).encode(), longest)
        except BaseException:
            # A late answer would be taken for the next request's.
            self.close()
            raise
        finally:
            timer.cancel()
        if answer is None or "memory" in answer:
            self.close()
            raise _TemplateError(self._failure_reason(answer))
        if "error" in answer:
            raise _TemplateError(printable(answer["error"], 200))
        return answer["text"]

    def _exchange(self, message: bytes, longest: int) -> dict[str, str] | None:
        """Return the answer, or None if the process has ended."""
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None
        assert stdout is not None
        with contextlib.suppress(BrokenPipeError):
            stdin.write(message + b"\n")
            stdin.flush()
        # A longer line is no valid answer: never read without a limit.
        line = stdout.readline(_MAX_OVERHEAD + _MAX_ESCAPE * longest)
        return json.loads(line) if line.endswith(b"\n") else None

    def _failure_reason(self, answer: dict[str, str] | None) -> str:
        code = self._process.returncode
        if answer is not None:
            return f"it takes more than {MAX_MEMORY >> 20:,} MB of memory"
        if code == -signal.SIGPROF:
            return f"it takes more than {MAX_SECONDS:g} s of processor time"
        if self._timed_out:
            return f"it has not ended after {_TIMEOUT:g} s"
        return f"its process ended with code {code}"

    @property
    def ended(self) -> bool:
        return self._process.poll() is not None

    def _kill(self) -> None:
        self._timed_out = True
        self._process.kill()

    def close(self) -> None:
        self._process.kill()
        # Leaving the context closes the pipes and waits for the process.
        with contextlib.suppress(BrokenPipeError), self._process:
            pass


def _library_folders() -> list[str]:
    """Return the folders of the libraries that the process imports."""
    folders = set()
    for name in _LIBRARIES:
        spec = importlib.util.find_spec(name)
        if spec is None or spec.origin is None:
            raise InputError(
                f"chats need the Python package {name!r}, which is not installed: pip install 'weft[serve]'"
            )
        folders.add(str(Path(spec.origin).parents[1]))
    return sorted(folders)
