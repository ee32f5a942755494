"""The process that opens and renders a chat template, which comes with a file and may do anything.

Templates see what the `transformers` package gives them: its filters, functions and tags.

`weft.extras.language.server.chat` starts this file as a script. It imports Jinja and nothing of weft, so that it
starts in 50 ms. Requests and answers are JSON, one a line. The kernel ends the process when a request takes too much
processor time: Jinja evaluates constants while it opens a template, and a single operation on long integers runs for
minutes.
"""

from __future__ import annotations

import datetime
import json
import resource
import signal
import sys
from typing import Any

_SHOWN = 1000
"""Characters of a message that are sent."""


def limit(memory: int) -> None:
    """Limit this process to `memory` bytes, and to no files written."""
    signal.signal(signal.SIGPROF, signal.SIG_DFL)  # which ends the process
    for kind, most in ((resource.RLIMIT_AS, memory), (resource.RLIMIT_FSIZE, 0), (resource.RLIMIT_CORE, 0)):
        resource.setrlimit(kind, (most, most))


def open_template(source: str) -> Any:
    """A template in Jinja's sandbox."""
    import jinja2.sandbox

    environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols", _generation_tag()]
    )
    environment.filters["tojson"] = _write_json
    environment.globals["raise_exception"] = _refuse
    environment.globals["strftime_now"] = _write_now
    return environment.from_string(source)


def _generation_tag() -> type:
    """The tag around text of the model, which trainers look at: ``{% generation %}...{% endgeneration %}``."""
    import jinja2.ext
    import jinja2.nodes

    class Generation(jinja2.ext.Extension):
        tags = {"generation"}  # noqa: RUF012

        def parse(self, parser: Any) -> Any:
            line = next(parser.stream).lineno
            body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
            call = jinja2.nodes.CallBlock(self.call_method("render"), [], [], body)
            return call.set_lineno(line)

        def render(self, caller: Any) -> Any:
            return caller()

    return Generation


def render(template: Any, values: dict[str, Any], longest: int) -> str:
    """Render a template. Raises `ValueError` if the text has more than `longest` characters."""
    pieces, length = [], 0
    for piece in template.generate(**values):
        length += len(piece)
        if length > longest:
            raise ValueError(f"the text has more than {longest:,} characters")
        pieces.append(piece)
    return "".join(pieces)


def answer(template: Any, request: dict[str, Any]) -> tuple[Any, dict[str, str]]:
    """Carry out a request; returns the template and what to send."""
    try:
        if template is None:
            return open_template(request["source"]), {"text": ""}
        return template, {"text": render(template, request["values"], request["longest"])}
    except MemoryError:
        return template, {"memory": ""}
    except Exception as error:  # whatever an expression of the template raises
        return template, {"error": str(error)[:_SHOWN]}


def main(seconds: float, memory: int, folders: list[str]) -> None:
    """Answer requests until there are no more.

    Parameters
    ----------
    seconds : float
        Processor time of a request at most.
    memory : int
        Bytes of the process at most.
    folders : list of str
        Where Jinja is.
    """
    sys.path += folders
    limit(memory)
    template = None
    for line in sys.stdin.buffer:
        signal.setitimer(signal.ITIMER_PROF, seconds)
        template, found = answer(template, json.loads(line))
        print(json.dumps(found), flush=True)
        signal.setitimer(signal.ITIMER_PROF, 0)


def _write_json(
    value: object,
    ensure_ascii: bool = False,
    indent: Any = None,
    separators: Any = None,
    sort_keys: bool = False,
) -> str:
    # Unlike Jinja's filter of this name it neither escapes <, >, & and ' nor sorts keys.
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def _write_now(pattern: str) -> str:
    return datetime.datetime.now().strftime(pattern)


def _refuse(message: object) -> None:
    raise ValueError(str(message))


if __name__ == "__main__":
    main(float(sys.argv[1]), int(sys.argv[2]), sys.argv[3:])
