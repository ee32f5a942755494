"""Files of language models in any supported format."""

from __future__ import annotations

import dataclasses
import hashlib
import os
from pathlib import Path
from typing import Any

import numpy as np

from weft.compiler.errors import CompileError
from weft.extras.language.compiler.model import LanguageModel
from weft.extras.language.gguf import reader as gguf
from weft.extras.language.gguf.file import is_gguf
from weft.extras.language.onnx import reader as onnx

SUFFIX = ".onnx"
Source = str | os.PathLike[str] | bytes


def read(source: Source) -> LanguageModel:
    """Read a language model: a GGUF file or its bytes, or an ONNX file with ``tokenizer.json`` beside it.

    Raises
    ------
    weft.CompileError
        If the file has neither format, is damaged, or holds an unsupported model.
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
    """Return the SHA-256 of a model: of its file, or of the contents if several files hold it."""
    if isinstance(source, bytes):
        return hashlib.sha256(source).hexdigest()
    if _is_onnx(Path(source)):
        sha256 = hashlib.sha256()
        _update_hash(sha256, model)
        return sha256.hexdigest()
    with Path(source).open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _is_onnx(path: Path) -> bool:
    """Return whether the suffix is that of ONNX and the contents are not GGUF."""
    if path.suffix.lower() != SUFFIX:
        return False
    try:
        with path.open("rb") as file:
            return not is_gguf(file.read(8))
    except OSError:
        return True  # the reader reports the error


def _update_hash(sha256: Any, value: object) -> None:
    """Add a value, including all its fields or items, to a hash."""
    if isinstance(value, np.ndarray):
        sha256.update(f"{value.dtype} {value.shape}".encode())
        sha256.update(np.ascontiguousarray(value).data)
    elif isinstance(value, frozenset):
        _update_hash(sha256, tuple(sorted(value)))
    elif isinstance(value, tuple):
        sha256.update(f"({len(value)}".encode())
        for item in value:
            _update_hash(sha256, item)
    elif dataclasses.is_dataclass(value):
        for field in dataclasses.fields(value):
            sha256.update(field.name.encode())
            _update_hash(sha256, getattr(value, field.name))
    else:
        sha256.update(f"{value!r};".encode())
