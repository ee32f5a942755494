"""Input files of the documentation's examples."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from weft.extras.language.tests.support import language_models, onnx_decoders


def write_files(page: str) -> None:
    """Write the files that a page's examples read into the current folder."""
    if page == "extras/language/README.md":
        model = language_models.write_random(Path("model.gguf"), np.random.default_rng(0))
        form = onnx_decoders.Form(style="plain")
        onnx_decoders.write(Path("exported"), model, form, np.random.default_rng(0))
