"""Messages as text, by a template."""

from __future__ import annotations

import dataclasses

import pytest
from support.language_models import pieces

from weft.chat import ChatTemplate
from weft.errors import InputError

CHATML = """\
{%- for message in messages %}
    {{- '<|' + message.role + '|>' + message['content'] | trim + eos_token }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|assistant|>' }}
{%- endif %}
"""


def test_a_template_writes_messages() -> None:
    template = ChatTemplate("{{ bos_token }}" + CHATML, pieces())
    messages = [{"role": "system", "content": " be short "}, {"role": "user", "content": "hello"}]
    assert template.text(messages) == "<s><|system|>be short</s><|user|>hello</s><|assistant|>"
    assert template.begin == "<s>"
    without = ChatTemplate(CHATML, dataclasses.replace(pieces(), begin=None, end=None))
    assert (without.text(messages[1:]), without.begin) == ("<|user|>hello<|assistant|>", "")


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (
            "{{ raise_exception('roles must alternate') }}",
            "does not take these messages: roles must alternate",
        ),
        ("{{ messages[7].content }}", "does not take these messages: "),
        ("{{ 1 / 0 }}", "does not take these messages: division by zero"),
        ("{{ ''.__class__.__mro__ }}", "does not take these messages: access to attribute '__class__'"),
        ("{% for a in range(10 ** 9) %}{% endfor %}", "does not take these messages: Range too big"),
    ],
)
def test_templates_that_refuse_or_fail(source: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        ChatTemplate(source, pieces()).text([{"role": "user", "content": "a"}])


def test_what_is_no_template() -> None:
    with pytest.raises(InputError, match="the model's chat template is none: "):
        ChatTemplate("{% if %}", pieces())
    with pytest.raises(InputError, match="there are no messages"):
        ChatTemplate(CHATML, pieces()).text([])
