"""Chat messages in the form that templates read."""

from __future__ import annotations

import json
from typing import Any

import pytest

from weft.errors import InputError
from weft.extras.language.server.messages import ChatRequest, parse_request


def plain(*messages: Any) -> list[dict[str, Any]]:
    return parse_request(ChatRequest, json.dumps({"messages": messages}).encode()).template_messages()


def call(arguments: Any) -> dict[str, Any]:
    return {"id": "1", "type": "function", "function": {"name": "f", "arguments": arguments}}


def test_calls_of_functions_reach_templates() -> None:
    """Arguments become mappings, which templates write as JSON; null fields are dropped."""
    user = {"role": "user", "content": "x"}
    for arguments, expected in (('{"a": [1, "é"]}', {"a": [1, "é"]}), ("", {}), ({"a": 1}, {"a": 1})):
        message = {"role": "assistant", "content": None, "tool_calls": [call(arguments)], "refusal": None}
        answer = {"role": "tool", "tool_call_id": "1", "content": "5"}
        assert plain(user, message, answer) == [
            user, {"role": "assistant", "tool_calls": [call(expected)]}, answer,
        ]  # fmt: skip


def test_contents() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    assert plain(
        {"role": "user", "content": parts, "name": "me"},
        {"role": "user"},
        {"role": "assistant", "content": "c", "tool_calls": None, "reasoning_content": "d"},
        {"role": "assistant", "content": "", "tool_calls": [call({})]},
    ) == [
        {"role": "user", "content": "ab", "name": "me"},
        {"role": "user", "content": ""},
        {"role": "assistant", "content": "c", "reasoning_content": "d"},
        {"role": "assistant", "content": "", "tool_calls": [call({})]},
    ]


@pytest.mark.parametrize(
    ("message", "why"),
    [
        ({"content": "x"}, "the request does not fit: message 1: Object missing required field `role`"),
        (
            {"role": "user", "content": 5},
            "the request does not fit: message 1: Expected `str | array | null`, got `int` - at `$.content`",
        ),
        (
            {"role": "user", "content": [{"type": "image_url"}]},
            "this server takes text only; a message has a part of type 'image_url'",
        ),
        (
            {"role": "assistant", "tool_calls": [{"id": "1"}]},
            "the request does not fit: message 1: Object missing required field `function` - at `$.tool_calls[0]`",
        ),
        (
            {"role": "assistant", "tool_calls": [call("[1]")]},
            "message 1: the arguments of function 'f' are '[1]', which is no JSON object",
        ),
        (
            {"role": "assistant", "tool_calls": [call("{")]},
            "message 1: the arguments of function 'f' are '{', which is no JSON object",
        ),
        (
            {"role": "assistant", "function_call": {"name": "f"}},
            "the request does not fit: message 1: Expected `null`, got `object` - at `$.function_call`",
        ),
    ],
)
def test_messages_that_are_refused(message: dict[str, Any], why: str) -> None:
    with pytest.raises(InputError) as refused:
        plain({"role": "user", "content": "x"}, message)
    assert str(refused.value) == why
