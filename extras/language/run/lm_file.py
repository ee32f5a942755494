"""Files of language models, of whichever format."""

from __future__ import annotations

import dataclasses
import hashlib
import os
from pathlib import Path
from typing import Any

import numpy as np

from weft.compiler.ir.graph import CompileError
from weft.extras.language.compiler.model import LanguageModel
from weft.extras.language.gguf import reader as gguf
from weft.extras.language.gguf.file import is_gguf
from weft.extras.language.onnx import reader as onnx

SUFFIX = ".onnx"
Source = str | os.PathLike[str] | bytes


def read(source: Source) -> LanguageModel:
    """Read a language model: a GGUF file, or its bytes; or an ONNX file with ``tokenizer.json`` beside it.

    Raises
    ------
    weft.CompileError
        If it is neither, damaged, or a model that weft does not support.
    """
    if isinstance(source, bytes):
        if source and not is_gguf(source):
            raise CompileError(
                f"these {len(source):,} bytes are no GGUF file; an ONNX model is read from its path, as its "
                "vocabulary is in files beside it"
            )
        return gguf.read(source)
    return onnx.read(source) if _is_onnx(Path(source)) else gguf.read(source)


def digest(source: Source, model: LanguageModel) -> str:
    """SHA-256 of all that a model is: of its file, or of what was read if that was in several."""
    if isinstance(source, bytes):
        return hashlib.sha256(source).hexdigest()
    if _is_onnx(Path(source)):
        found = hashlib.sha256()
        _add(found, model)
        return found.hexdigest()
    with Path(source).open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _is_onnx(path: Path) -> bool:
    """By the suffix, unless the file says itself that it is another one."""
    if path.suffix.lower() != SUFFIX:
        return False
    try:
        with path.open("rb") as file:
            return not is_gguf(file.read(8))
    except OSError:
        return True  # which the reader tells of


def _add(found: Any, value: object) -> None:
    """Add a value with all that is in it to a hash."""
    if isinstance(value, np.ndarray):
        found.update(f"{value.dtype} {value.shape}".encode())
        found.update(np.ascontiguousarray(value).data)
    elif isinstance(value, frozenset):
        _add(found, tuple(sorted(value)))
    elif isinstance(value, tuple):
        found.update(f"({len(value)}".encode())
        for item in value:
            _add(found, item)
    elif dataclasses.is_dataclass(value):
        for field in dataclasses.fields(value):
            found.update(field.name.encode())
            _add(found, getattr(value, field.name))
    else:
        found.update(f"{value!r};".encode())
