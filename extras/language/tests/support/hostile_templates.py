"""Hostile chat templates that loop forever, take gigabytes or look for secrets, and the expected refusals."""

from __future__ import annotations

_TIME = "it takes more than {seconds:g} s of processor time"
_MEMORY = "it takes more than 512 MB of memory"
_EITHER = f"{_TIME}|{_MEMORY}"
_UNSAFE = "access to attribute "
_NO_FILES = "no loader for this environment specified"


RENDERED: dict[str, tuple[str, str | None]] = {
    "nested loops": ("{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}", _TIME),
    "a long range": ("{% for i in range(10 ** 9) %}{% endfor %}", "Range too big"),
    "a macro that calls itself": (
        "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
        "maximum recursion depth",
    ),
    "a macro that calls itself twice": (
        "{% macro m(n) %}{% if n %}{{ m(n - 1) }}{{ m(n - 1) }}{% endif %}{% endmacro %}{{ m(40) }}",
        _TIME,
    ),
    "a power": ("{% set x = 9 %}{{ (x ** 99999999) % 7 }}", _TIME),
    "a long integer": ("{% set x = 9 %}{{ x ** 9999 }}", "Exceeds the limit"),
    "many words": ("{{ lipsum(n=100000, max=1000) | length }}", _TIME),
    "a product of a text": ("{{ 'a' * (10 ** 10) }}", _MEMORY),
    "a product of a text and a variable": ("{% set n = 10 ** 10 %}{{ 'a' * n }}", _MEMORY),
    "a product of a list": ("{% set n = 10 ** 9 %}{{ ([1] * n) | length }}", _MEMORY),
    "a constant format": ("{{ '%1000000000d' % 1 }}", _MEMORY),
    "a format": ("{{ '{:>1000000000}'.format(1) }}", _MEMORY),
    "centred text": ("{{ 'a' | center(2000000000) | length }}", _MEMORY),
    "batches": ("{{ [1] | batch(1000000000, 0) | list | length }}", _MEMORY),
    "a list that doubles": (
        "{% set ns = namespace(l=[1]) %}{% for i in range(60) %}{% set ns.l = ns.l + ns.l %}{% endfor %}",
        _EITHER,
    ),
    "a text that doubles": (
        "{% set ns = namespace(t='a') %}{% for i in range(60) %}{% set ns.t = ns.t ~ ns.t %}{% endfor %}",
        _EITHER,
    ),
    "output without an end": (
        "{% for i in range(99999) %}{{ 'a' * 1000 }}{% endfor %}",
        "the text has more than 4,194,304 characters",
    ),
    "a class": ("{{ ''.__class__.__mro__ }}", _UNSAFE),
    "a class by a format": ("{{ '{0.__class__.__mro__}'.format('') }}", _UNSAFE),
    "a class by a filter": ("{{ '' | attr('__class__') }}", None),
    "a class of each": ("{{ [''] | map(attribute='__class__') | list }}", None),
    "globals": ("{{ cycler.__init__.__globals__ }}", _UNSAFE),
    "a function's globals": ("{{ raise_exception.__globals__ }}", None),
    "a long date": ("{{ strftime_now('%Y' * 10 ** 9) }}", _MEMORY),
    "globals of the date": ("{{ strftime_now.__globals__ }}", None),
    "long JSON": ("{{ [1] | tojson(indent=10 ** 10) }}", _MEMORY),
    "JSON of itself": ("{{ namespace | tojson }}", "Object of type"),
    "a method's object": ("{{ raise_exception.__self__ }}", None),
    "a file": ("{% include '/etc/passwd' %}", _NO_FILES),
    "a module": ("{% from '/etc/passwd' import x %}", _NO_FILES),
    "messages that change": ("{% set _ = messages.append(1) %}{{ messages }}", _UNSAFE),
}
"""By name: a template, and how it is refused when it gets messages (a regular expression); None if it does nothing."""

OPENED: dict[str, tuple[str, str]] = {
    "a constant": ("{{ (9 ** 99999999) % 7 }}", _TIME),
    "many constants": ("{{ " + " ~ ".join(["'a' * 9999999"] * 200) + " }}", _EITHER),
    "parentheses": ("{{ " + "(" * 100_000 + ")" * 100_000 + " }}", "maximum recursion depth"),
    "operators": ("{{ " + "-" * 100_000 + "1 }}", "maximum recursion depth"),
    "blocks": ("{% if 1 %}" * 10_000 + "{% endif %}" * 10_000, "maximum recursion depth"),
    "filters": ("{{ a" + "|trim" * 100_000 + " }}", f"maximum recursion depth|{_TIME}"),
    "expressions": ("{{ a }}" * 400_000, _TIME),
}
"""By name: a template, and how it is refused when it is opened, as a regular expression."""
