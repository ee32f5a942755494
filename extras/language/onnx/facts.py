"""What files beside an ONNX file say of a model: ``genai_config.json``, ``config.json``, ``generation_config.json``."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from weft.compiler.ir.graph import CompileError
from weft.hdl.schema import SchemaError, decode, printable, read_bytes, short_repr

CONTEXT = ("max_position_embeddings", "n_positions", "context_length")
"""Names of the same number in files of different models."""
_LARGEST_CONTEXT = 1 << 24


@dataclass(frozen=True)
class Facts:
    """What files say; None is for what they do not.

    Attributes
    ----------
    name : str
    context : int or None
    window : int or None
        Tokens that ONNX Runtime's generator lets a token see.
    base : float or None
        Base frequency of rotary positions.
    begin : int or None
    ends : tuple of int
        The first one ends texts, all of them turns.
    begin_text, end_text : str or None
        The same tokens by their text.
    template : str
        For chats.
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


def document(path: Path) -> dict[str, Any] | None:
    """The JSON object in a file, None if there is no such file.

    Raises
    ------
    CompileError
        If it cannot be read, or holds no object.
    """
    if not path.exists():
        return None
    try:
        return decode(read_bytes(path), dict[str, Any])
    except (SchemaError, OSError) as error:
        raise CompileError(f"cannot read {printable(str(path))}: {printable(str(error))}") from None


def read_facts(folder: Path) -> Facts:
    """What the files of a folder say of the model in it.

    Raises
    ------
    CompileError
        If one of them cannot be read, or has something else where a number is expected.
    """
    genai = _inner(document(folder / "genai_config.json") or {}, "model")
    config = document(folder / "config.json") or {}
    generation = document(folder / "generation_config.json") or {}
    tokenizer = document(folder / "tokenizer_config.json") or {}
    rope = _inner(config, "rope_parameters") or _inner(config, "rope_scaling")
    window = _inner(_inner(genai, "decoder"), "sliding_window")
    contexts = [_integer(source, name) for source in (genai, config) for name in CONTEXT]
    ends = [end for source in (genai, generation, config) for end in _integers(source, "eos_token_id")]
    begins = [begin for source in (genai, config) for begin in _integers(source, "bos_token_id")]
    bases = [_number(source, "rope_theta") for source in (rope, config)]
    return Facts(
        name=str(config.get("_name_or_path") or genai.get("type") or config.get("model_type") or ""),
        context=next((value for value in contexts if value is not None), None),
        window=_integer(window, "window_size"),
        base=next((value for value in bases if value is not None), None),
        begin=begins[0] if begins else None,
        ends=tuple(dict.fromkeys(ends)),
        begin_text=_text(tokenizer.get("bos_token")),
        end_text=_text(tokenizer.get("eos_token")),
        template=_template(folder, tokenizer),
    )


def _template(folder: Path, tokenizer: dict[str, Any]) -> str:
    path = folder / "chat_template.jinja"
    if path.exists():
        try:
            return read_bytes(path).decode()
        except (SchemaError, OSError, UnicodeDecodeError) as error:
            raise CompileError(f"cannot read {printable(str(path))}: {printable(str(error))}") from None
    found = tokenizer.get("chat_template")
    if isinstance(found, list):  # by names, of which one is for messages without tools
        named = [item for item in found if isinstance(item, dict) and item.get("name") == "default"]
        found = named[0].get("template") if named else ""
    return found if isinstance(found, str) else ""


def _inner(whole: dict[str, Any], name: str) -> dict[str, Any]:
    value = whole.get(name)
    return value if isinstance(value, dict) else {}


def _text(value: object) -> str | None:
    """A token, as its text or as an object with that."""
    content = value.get("content") if isinstance(value, dict) else value
    return content if isinstance(content, str) else None


def _integer(whole: dict[str, Any], name: str) -> int | None:
    value = whole.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= _LARGEST_CONTEXT:
        raise CompileError(
            f"the configuration beside the model has {name} {short_repr(value)}; it must be a whole number from 1 to "
            f"{_LARGEST_CONTEXT:,}"
        )
    return value


def _integers(whole: dict[str, Any], name: str) -> Iterator[int]:
    """A number of a token, or several."""
    value = whole.get(name)
    for item in value if isinstance(value, list) else [value]:
        if isinstance(item, int) and not isinstance(item, bool) and item >= 0:
            yield item
        elif item is not None:
            raise CompileError(
                f"the configuration beside the model has {name} {short_repr(value)}; weft expects a token's number"
            )


def _number(whole: dict[str, Any], name: str) -> float | None:
    value = whole.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < 1e30:
        raise CompileError(
            f"the configuration beside the model has {name} {short_repr(value)}; it must be a number above zero"
        )
    return float(value)
