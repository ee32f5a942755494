"""Chat templates in files beside a model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from weft.extras.language.onnx.facts import read_facts


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        ("{{ a }}", "{{ a }}"),
        (
            [{"name": "tool_use", "template": "{{ t }}"}, {"name": "default", "template": "{{ a }}"}],
            "{{ a }}",
        ),
        ([{"name": "tool_use", "template": "{{ t }}"}], ""),
        ([{"name": "default"}, 5], ""),
        (5, ""),
        (None, ""),
    ],
)
def test_a_template_by_itself_or_by_its_name(template: Any, expected: str, tmp_path: Path) -> None:
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": template}))
    assert read_facts(tmp_path).template == expected
    (tmp_path / "chat_template.jinja").write_text("{{ file }}")
    assert read_facts(tmp_path).template == "{{ file }}"
