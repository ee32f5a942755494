"""Worker process that compiles and renders an untrusted chat template.

Templates get the filters, functions and tags that the package `transformers` provides.
`weft.extras.language.server.chat` starts this file as a script. It imports Jinja and nothing of weft, so that it starts
in 50 ms. Requests and answers are JSON, one per line. The kernel ends the process when a request exceeds its processor
time. That is necessary because Jinja evaluates constants while compiling, and one operation on long integers can run
for minutes.
"""

from __future__ import annotations

import datetime
import json
import resource
import signal
import sys
from typing import Any

_MAX_MESSAGE = 1000
"""Limit for the characters of an error message."""


def limit_resources(memory: int) -> None:
    """Limit this process to `memory` bytes, and forbid it to write files."""
    signal.signal(signal.SIGPROF, signal.SIG_DFL)  # the default action ends the process
    for kind, maximum in (
        (resource.RLIMIT_AS, memory),
        (resource.RLIMIT_FSIZE, 0),
        (resource.RLIMIT_CORE, 0),
    ):
        resource.setrlimit(kind, (maximum, maximum))


def open_template(source: str) -> Any:
    """Compile a template in Jinja's sandbox."""
    import jinja2.sandbox

    environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols", _generation_tag()]
    )
    environment.filters["tojson"] = _write_json
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = _write_now
    return environment.from_string(source)


def _generation_tag() -> type:
    """Return an extension for ``{% generation %}...{% endgeneration %}``, which marks the model's text for training."""
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
    """Render a template; raise `ValueError` if the text has more than `longest` characters."""
    pieces, length = [], 0
    for piece in template.generate(**values):
        length += len(piece)
        if length > longest:
            raise ValueError(f"the text has more than {longest:,} characters")
        pieces.append(piece)
    return "".join(pieces)


def answer(template: Any, request: dict[str, Any]) -> tuple[Any, dict[str, str]]:
    """Handle a request; return the template and the answer."""
    try:
        if template is None:
            return open_template(request["source"]), {"text": ""}
        return template, {"text": render(template, request["values"], request["longest"])}
    except MemoryError:
        return template, {"memory": ""}
    except Exception as error:  # an expression of the template can raise anything
        return template, {"error": str(error)[:_MAX_MESSAGE]}


def main(seconds: float, memory: int, folders: list[str]) -> None:
    """Answer requests until the input ends.

    Parameters
    ----------
    seconds : float
        Limit for the processor time of a request.
    memory : int
        Limit for the memory of the process, in bytes.
    folders : list of str
        Folders of Jinja and its dependencies.
    """
    sys.path += folders
    limit_resources(memory)
    template = None
    for line in sys.stdin.buffer:
        # This timer counts processor time.
        signal.setitimer(signal.ITIMER_PROF, seconds)
        template, reply = answer(template, json.loads(line))
        print(json.dumps(reply), flush=True)
        signal.setitimer(signal.ITIMER_PROF, 0)


def _write_json(
    value: object,
    ensure_ascii: bool = False,
    indent: Any = None,
    separators: Any = None,
    sort_keys: bool = False,
) -> str:
    # Unlike Jinja's filter of this name, it neither escapes <, >, & and ' nor sorts keys.
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def _write_now(pattern: str) -> str:
    return datetime.datetime.now().strftime(pattern)


def _raise_exception(message: object) -> None:
    raise ValueError(str(message))


if __name__ == "__main__":
    main(float(sys.argv[1]), int(sys.argv[2]), sys.argv[3:])
