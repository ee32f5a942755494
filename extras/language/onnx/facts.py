"""Facts about a model from the files beside it: ``genai_config.json``, ``config.json``, ``generation_config.json``."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from weft.compiler.errors import CompileError
from weft.hdl.errors import SchemaError
from weft.hdl.schema import decode, printable, read_bytes, short_repr

CONTEXT = ("max_position_embeddings", "n_positions", "context_length")
"""Keys of the context length, which differ between models."""
_MAX_INTEGER = 1 << 24


@dataclass(frozen=True)
class Facts:
    """Facts about a model; None where no file gives them.

    Attributes
    ----------
    name : str
    context : int or None
        Context length in tokens.
    window : int or None
        Sliding window of ONNX Runtime's generator, in tokens.
    base : float or None
        Base frequency of rotary positions.
    begin : int or None
        Token at the begin of a text.
    ends : tuple of int
        Tokens that end a turn; the first one also ends a text.
    begin_text, end_text : str or None
        Texts of these tokens.
    template : str
        Chat template.
    """

    name: str = ""
    context: int | None = None
    window: int | None = None
    base: float | None = None
    begin: int | None = None
    ends: tuple[int, ...] = ()
    begin_text: str | None = None
    end_text: str | None = None
    template: str = ""


def read_json_object(path: Path) -> dict[str, Any] | None:
    """Read the JSON object in a file; return None if the file does not exist.

    Raises
    ------
    CompileError
        If the file cannot be read, or holds no object.
    """
    if not path.exists():
        return None
    try:
        return decode(read_bytes(path), dict[str, Any])
    except (SchemaError, OSError) as error:
        raise CompileError(f"cannot read {printable(str(path))}: {printable(str(error))}") from None


def read_facts(folder: Path) -> Facts:
    """Read the facts about the model in a folder.

    Raises
    ------
    CompileError
        If a file cannot be read, or a number is missing or out of range.
    """
    genai = _get_object(read_json_object(folder / "genai_config.json") or {}, "model")
    config = read_json_object(folder / "config.json") or {}
    generation = read_json_object(folder / "generation_config.json") or {}
    tokenizer = read_json_object(folder / "tokenizer_config.json") or {}
    rope = _get_object(config, "rope_parameters") or _get_object(config, "rope_scaling")
    window = _get_object(_get_object(genai, "decoder"), "sliding_window")
    # ONNX Runtime's own file takes precedence.
    contexts = [_get_integer(source, name) for source in (genai, config) for name in CONTEXT]
    ends = [
        end for source in (genai, generation, config) for end in _get_token_numbers(source, "eos_token_id")
    ]
    begins = [begin for source in (genai, config) for begin in _get_token_numbers(source, "bos_token_id")]
    bases = [_get_number(source, "rope_theta") for source in (rope, config)]
    return Facts(
        name=str(config.get("_name_or_path") or genai.get("type") or config.get("model_type") or ""),
        context=next((value for value in contexts if value is not None), None),
        window=_get_integer(window, "window_size"),
        base=next((value for value in bases if value is not None), None),
        begin=begins[0] if begins else None,
        ends=tuple(dict.fromkeys(ends)),
        begin_text=_token_text(tokenizer.get("bos_token")),
        end_text=_token_text(tokenizer.get("eos_token")),
        template=_read_template(folder, tokenizer),
    )


def _read_template(folder: Path, tokenizer: dict[str, Any]) -> str:
    path = folder / "chat_template.jinja"
    if path.exists():
        try:
            return read_bytes(path).decode()
        except (SchemaError, OSError, UnicodeDecodeError) as error:
            raise CompileError(f"cannot read {printable(str(path))}: {printable(str(error))}") from None
    template = tokenizer.get("chat_template")
    # A list has named templates; "default" is the one for messages without tools.
    if isinstance(template, list):
        defaults = [item for item in template if isinstance(item, dict) and item.get("name") == "default"]
        template = defaults[0].get("template") if defaults else ""
    return template if isinstance(template, str) else ""


def _get_object(source: dict[str, Any], name: str) -> dict[str, Any]:
    value = source.get(name)
    return value if isinstance(value, dict) else {}


def _token_text(value: object) -> str | None:
    """Return the text of a token, which is given as a string or as an object with its content."""
    content = value.get("content") if isinstance(value, dict) else value
    return content if isinstance(content, str) else None


def _get_integer(source: dict[str, Any], name: str) -> int | None:
    value = source.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= _MAX_INTEGER:
        raise CompileError(
            f"the configuration beside the model has {name} {short_repr(value)}; it must be a whole number from 1 to "
            f"{_MAX_INTEGER:,}"
        )
    return value


def _get_token_numbers(source: dict[str, Any], name: str) -> Iterator[int]:
    """Yield one or several token numbers."""
    value = source.get(name)
    for item in value if isinstance(value, list) else [value]:
        if isinstance(item, int) and not isinstance(item, bool) and item >= 0:
            yield item
        elif item is not None:
            raise CompileError(
                f"the configuration beside the model has {name} {short_repr(value)}; weft expects a token's number"
            )


def _get_number(source: dict[str, Any], name: str) -> float | None:
    value = source.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < 1e30:
        raise CompileError(
            f"the configuration beside the model has {name} {short_repr(value)}; it must be a number above zero"
        )
    return float(value)
