"""Chat templates, which may be hostile: each runs in its own process with limits."""

from __future__ import annotations

import dataclasses
import datetime
import json
import os
import re
import resource
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from weft.errors import InputError
from weft.extras.language.server import chat
from weft.extras.language.server.chat import ChatTemplate
from weft.extras.language.tests.support.hostile_templates import OPENED, RENDERED
from weft.extras.language.tests.support.language_models import pieces

CHATML = """\
{%- for message in messages %}
    {{- '<|' + message.role + '|>' + message['content'] | trim + eos_token }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|assistant|>' }}
{%- endif %}
"""
OTHERS = json.loads((Path(__file__).with_name("rendered_templates.json")).read_text())
"""Reference texts from transformers, stored because the package loads slowly; the file says how to regenerate them."""
HELLO = [{"role": "user", "content": "hello"}]
ECHO = "{% for message in messages %}{{ message.content }}{% endfor %}"
LOOP = "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}"


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> Iterator[float]:
    """Shorten the limit of processor time, which does not depend on the machine's load."""
    monkeypatch.setattr(chat, "MAX_SECONDS", 0.2)
    began = resource.getrusage(resource.RUSAGE_CHILDREN)
    yield 0.2
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert ended.ru_utime + ended.ru_stime - began.ru_utime - began.ru_stime < 1


def render_chat(source: str, content: str = "hello", longest: int = chat.MAX_CHARACTERS) -> str:
    with ChatTemplate(source, pieces()) as template:
        return template.text([{"role": "user", "content": content}], longest)


def test_a_template_writes_messages() -> None:
    messages = [{"role": "system", "content": " be short "}, *HELLO]
    with ChatTemplate("{{ bos_token }}" + CHATML, pieces()) as template:
        assert template.text(messages) == "<s><|system|>be short</s><|user|>hello</s><|assistant|>"
        assert template.begin == "<s>"
    with ChatTemplate(CHATML, dataclasses.replace(pieces(), begin=None, end=None)) as without:
        assert (without.text(messages[1:]), without.begin) == ("<|user|>hello<|assistant|>", "")


@pytest.mark.drawn(15)
@pytest.mark.parametrize("name", OTHERS["templates"])
def test_texts_match_transformers(name: str) -> None:
    case = OTHERS["templates"][name]
    messages = OTHERS["conversations"][case["conversation"]]

    def render() -> str:
        with ChatTemplate(case["template"], pieces()) as template:
            return template.text(messages, options=case["options"])

    if case["text"] is None:
        with pytest.raises(InputError, match="the model's chat template"):
            render()
    else:
        assert render() == case["text"]


@pytest.mark.parametrize(
    "source",
    [
        "{{ strftime_now('%d %B %Y') }}",
        "{% if strftime_now is defined %}{{ strftime_now('%d %B %Y') }}{% endif %}",
    ],
)
def test_the_date(source: str) -> None:
    before = datetime.datetime.now()
    text = render_chat(source)
    assert text in {time.strftime("%d %B %Y") for time in (before, datetime.datetime.now())}


def test_options_do_not_replace_messages() -> None:
    with ChatTemplate(ECHO, pieces()) as template, pytest.raises(InputError) as refused:
        template.text(HELLO, options={"x": 1, "tools": [], "messages": []})
    assert str(refused.value) == "options of a chat template cannot be 'messages', 'tools'"


def test_any_text_comes_through() -> None:
    text = "".join(map(chr, (*range(1, 0x180), 0x2028, 0x1F98A, 0xD800))) * 3
    assert render_chat(ECHO, text) == text
    assert render_chat(ECHO, "é\n" * 500_000) == "é\n" * 500_000


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("{{ raise_exception('roles must alternate') }}", "roles must alternate"),
        ("{{ messages[7].content }}", ""),
        ("{{ 1 / 0 }}", "division by zero"),
        ("{% set n = 10000000 %}{{ raise_exception('a\\x1b\\n' * n) }}", r"a\\x1b\\na"),
        ("{{ 'a' * 21 }}", "the text has more than 20 characters"),
    ],
)
def test_templates_that_refuse_or_fail(source: str, message: str) -> None:
    with pytest.raises(InputError, match=f"^the model's chat template refuses these messages: {message}"):
        render_chat(source, longest=20)


def test_no_template() -> None:
    with pytest.raises(
        InputError, match=r"^cannot open the model's chat template: Expected an expression, got"
    ):
        ChatTemplate("{% if %}", pieces())
    with (
        ChatTemplate(CHATML, pieces()) as template,
        pytest.raises(InputError, match=r"^there are no messages$"),
    ):
        template.text([])


@pytest.mark.drawn(12)
@pytest.mark.parametrize("name", RENDERED)
def test_hostile_templates(name: str, short: float) -> None:
    """Each is refused in one sentence or has no effect, and later messages are answered."""
    source, reason = RENDERED[name]
    both = f"{{% if messages[0].content == 'attack' %}}{source}{{% else %}}{ECHO}{{% endif %}}"
    with ChatTemplate(both, pieces()) as template:
        if reason is None:
            assert "/" not in template.text([{"role": "user", "content": "attack"}], 100)
        else:
            with pytest.raises(InputError) as refused:
                template.text([{"role": "user", "content": "attack"}])
            head, _, tail = str(refused.value).partition(": ")
            assert head == "the model's chat template refuses these messages"
            assert re.match(reason.format(seconds=short), tail)
        assert template.text(HELLO) == "hello"


@pytest.mark.parametrize("name", OPENED)
def test_templates_that_are_hostile_on_loading(name: str, short: float) -> None:
    source, reason = OPENED[name]
    message = "^cannot open the model's chat template: " + reason.format(seconds=short)
    with pytest.raises(InputError, match=message):
        ChatTemplate(source, pieces())


def test_limits_apply_to_each_request(short: float) -> None:
    """Limits on time and memory do not accumulate over requests."""
    busy = "{% for i in range(100000) %}{% endfor %}{% set n = 10 ** 8 %}{% set text = 'a' * n %}" + ECHO
    with ChatTemplate(busy, pieces()) as template:
        process = template._worker._process.pid
        used, times = 0.0, 0
        while used < 2 * short or times * 10**8 < chat.MAX_MEMORY:
            assert template.text(HELLO) == "hello"
            ticks = Path(f"/proc/{process}/stat").read_text().split()[13:15]
            used, times = sum(map(int, ticks)) / os.sysconf("SC_CLK_TCK"), times + 1
        assert template._worker._process.pid == process


def test_an_idle_process_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    with ChatTemplate(ECHO, pieces()) as template:
        monkeypatch.setattr(chat, "_TIMEOUT", 0.3)
        os.kill(template._worker._process.pid, signal.SIGSTOP)
        with pytest.raises(InputError, match=r": it has not ended after 0\.3 s$"):
            template.text(HELLO)
        monkeypatch.undo()
        assert template.text(HELLO) == "hello"


def test_a_killed_process_is_restarted() -> None:
    with ChatTemplate(ECHO, pieces()) as template:
        for _ in range(2):
            os.kill(template._worker._process.pid, signal.SIGSEGV)
            template._worker._process.wait()
            assert template.text(HELLO) == "hello"
        template.close()
        assert template.text(HELLO) == "hello"


def test_threads_share_a_template(short: float) -> None:
    """One of the threads sends a hostile chat."""
    actual = []
    with ChatTemplate(
        f"{{% if messages[0].content == '7' %}}{LOOP}{{% endif %}}{ECHO}", pieces()
    ) as template:

        def ask(number: int) -> None:
            try:
                actual.append(template.text([{"role": "user", "content": str(number)}]))
            except InputError:
                actual.append("refused")

        threads = [threading.Thread(target=ask, args=(number,)) for number in range(12)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert sorted(actual) == sorted(["refused", *(str(number) for number in range(12) if number != 7)])


def test_the_process_has_no_secrets_and_ends_with_its_parent() -> None:
    """It ends even if the parent is killed."""
    code = (
        "import time; from weft.extras.language.tests.support.language_models import pieces\n"
        "from weft.extras.language.server.chat import ChatTemplate; template = ChatTemplate('', pieces())\n"
        "print(template._worker._process.pid, flush=True); time.sleep(60)"
    )
    root = Path(__file__).parents[3]
    with subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, cwd=root, env=os.environ | {"SECRET": "x"}
    ) as parent:
        assert parent.stdout is not None
        process = Path("/proc") / parent.stdout.readline().decode().strip()
        assert b"SECRET" not in (process / "environ").read_bytes()
        assert os.getsid(int(process.name)) != os.getsid(parent.pid)
        os.set_blocking(parent.stdout.fileno(), False)
        parent.kill()
    for _ in range(1000):
        if not process.exists() or "Z" in (process / "stat").read_text().split(")")[1][:3]:
            break
        threading.Event().wait(0.02)
    else:
        pytest.fail("the process goes on")


def test_without_the_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chat, "_LIBRARIES", ("jinja3",))
    message = r"^chats need the Python package 'jinja3', which is not installed: pip install 'weft\[serve\]'$"
    with pytest.raises(InputError, match=message):
        ChatTemplate("", pieces())
