"""Models in files of other tools: how to recognise them, and what takes them instead."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import PurePath

from weft.compiler.gguf.file import is_gguf
from weft.compiler.ir.graph import CompileError
from weft.compiler.tflite.reader import HOW_TO_QUANTISE

_ONNX = b"\x08"
"""Begins ONNX files, whatever their names."""
_ZIP = b"PK\x03\x04"
_HDF5 = b"\x89HDF\r\n\x1a\n"
_LONGEST_HEADER = 100_000_000
"""Bytes of JSON that safetensors allows, whose number is in front of it."""
_FIRST_NAME = 256
"""Bytes of a zip file within which the name of its first member ends."""


@dataclass(frozen=True)
class _Kind:
    """A kind of file: the suffixes of its names, a test of its first bytes, and what messages say."""

    suffixes: tuple[str, ...]
    begins: Callable[[bytes], bool]
    description: str
    remedy: str


def _begins_zip(head: bytes, *names: bytes) -> bool:
    return head.startswith(_ZIP) and any(name in head[:_FIRST_NAME] for name in names)


_KINDS = (
    _Kind(
        (".gguf",),
        is_gguf,
        "a GGUF file, which holds a language model",
        "`weft generate` and `weft serve` take it",
    ),
    _Kind(
        (".pt", ".pth", ".pt2"),
        lambda head: _begins_zip(head, b"/data.pkl", b"/archive_format", b"/byteorder"),
        "a PyTorch file, which only PyTorch can run",
        "export the module with torch.onnx.export and give the ONNX file to `weft quantise`, or call "
        "weft.quantise(module, samples) in Python",
    ),
    _Kind(
        (".keras", ".h5", ".hdf5"),
        lambda head: head.startswith(_HDF5) or _begins_zip(head, b"metadata.json", b"config.json"),
        "a Keras file, which only Keras can run",
        "make a TFLite file of it with tf.lite.TFLiteConverter.from_keras_model, which `weft compile` takes, and "
        + HOW_TO_QUANTISE,
    ),
    _Kind(
        (".safetensors",),
        lambda head: head[8:10] == b'{"' and int.from_bytes(head[:8], "little") < _LONGEST_HEADER,
        "a safetensors file, which holds weights and no network",
        "export the model to ONNX and give that to `weft quantise`",
    ),
)


def check_kind(head: bytes, what: str) -> None:
    """Refuse a file that holds a model in another tool's format.

    Parameters
    ----------
    head : bytes
        The first bytes of the file.
    what : str
        Path of the file, or what messages call it.

    Raises
    ------
    CompileError
        The message names the format, and what takes the file.
    """
    suffix = "" if head.startswith(_ONNX) else PurePath(what).suffix.lower()
    for kind in _KINDS:
        if kind.begins(head) or suffix in kind.suffixes:
            raise CompileError(f"{what} is {kind.description}: {kind.remedy}")
