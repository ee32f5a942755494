"""Optional libraries are imported on first use."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from weft.compiler.errors import CompileError
from weft.extras.language.compiler.libraries import import_library


def test_a_library() -> None:
    assert import_library("json") is json


def test_a_missing_library() -> None:
    with pytest.raises(CompileError) as caught:
        import_library("no_such_package")
    assert str(caught.value) == (
        "language models need the Python package 'no_such_package', which is not installed: pip install 'weft[lm]'"
    )


def test_nothing_is_imported_early() -> None:
    """weft starts without them and reads other models."""
    modules = (
        "weft.compiler.frontend, weft.extras.language.gguf.writer, weft.extras.language.compiler.tokenizer"
    )
    script = f"import sys, {modules}; print({{'gguf', 'regex'}} & set(sys.modules))"
    process = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert process.stdout == "set()\n"
