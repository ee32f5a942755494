"""Arrays on disk: flipped bits, false headers, names that no file can have, and files read back by numpy."""

from __future__ import annotations

import io
import random
import sys
import tracemalloc
import zipfile
from collections.abc import Callable
from pathlib import Path, PurePosixPath, PureWindowsPath

import numpy as np
import pytest

from weft.arrays import STDIN, array_name, check_outputs, member_name, read_inputs, save_arrays
from weft.errors import FileError

SIGNATURE = {"image": ("float32", (2, 3)), "mask": ("uint8", (4,))}
ARRAYS = {
    "image": np.arange(6, dtype=np.float32).reshape(2, 3),
    "mask": np.array([1, 0, 255, 3], np.uint8),
}


def make_npz(save: Callable[..., None] = np.savez, **arrays: np.ndarray) -> bytes:
    file = io.BytesIO()
    save(file, **(arrays or ARRAYS))
    return file.getvalue()


def equal_arrays(actual: dict[str, np.ndarray]) -> bool:
    return actual.keys() == ARRAYS.keys() and all(
        np.array_equal(actual[name], ARRAYS[name]) and actual[name].dtype == ARRAYS[name].dtype
        for name in ARRAYS
    )


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_only_requested_arrays_are_read(tmp_path: Path, save: Callable[..., None]) -> None:
    path = tmp_path / "in.npz"
    path.write_bytes(make_npz(save, spare=np.array([None]), **ARRAYS))
    assert equal_arrays(read_inputs(path, SIGNATURE))


@pytest.mark.drawn(1)
@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_every_flipped_bit_of_an_npz(tmp_path: Path, save: Callable[..., None]) -> None:
    """Data has a checksum: arrays are intact, or one sentence reports the damage."""
    path, raw, texts = tmp_path / "in.npz", make_npz(save, image=ARRAYS["image"]), list[str]()
    for bit in range(8 * len(raw)):
        damaged = bytearray(raw)
        damaged[bit // 8] ^= 1 << bit % 8
        path.write_bytes(damaged)
        try:
            actual = read_inputs(path, {"image": SIGNATURE["image"]})["image"]
            assert np.array_equal(actual, ARRAYS["image"]), f"bit {bit}"
        except FileError as error:
            texts.append(str(error))
    assert all(text.startswith(str(path)) and text.isprintable() for text in texts)
    assert len(texts) > 4 * len(raw)


@pytest.mark.parametrize("raw", [make_npz(), make_npz(np.savez_compressed)], ids=["stored", "deflated"])
def test_every_shorter_npz(tmp_path: Path, raw: bytes) -> None:
    path = tmp_path / "in.npz"
    for size in range(len(raw)):
        path.write_bytes(raw[:size])
        with pytest.raises(FileError, match=r"in.npz (is damaged|is no \.npz or \.npy file)"):
            read_inputs(path, SIGNATURE)


def test_every_flipped_byte_of_an_npy_header(tmp_path: Path) -> None:
    path, rng = tmp_path / "in.npy", random.Random(0)
    file = io.BytesIO()
    np.save(file, ARRAYS["image"])
    raw = file.getvalue()
    refused = 0
    for at in range(len(raw) - 24):
        damaged = bytearray(raw)
        damaged[at] ^= rng.randrange(1, 256)
        path.write_bytes(damaged)
        try:
            assert read_inputs(path, {"image": ("float32", (2, 3))})["image"].shape == (2, 3)
        except FileError:
            refused += 1
    assert refused > 50


def forge(shape: str, data: bytes, descr: str = "'<f4'", compression: int = zipfile.ZIP_DEFLATED) -> bytes:
    """Return an .npz with the given header and data."""
    header = f"{{'descr': {descr}, 'fortran_order': False, 'shape': {shape}}}".ljust(117).encode() + b"\n"
    member = b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header + data
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", compression) as archive:
        archive.writestr("image.npy", member)
    return file.getvalue()


BOMB = bytes(16 << 20)


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        (forge("(2, 3)", bytes(24)), None),
        (forge("(4096, 4096)", BOMB), "array 'image' has shape (4096, 4096), but the model takes (2, 3)"),
        (forge("(2, 3)", BOMB), f"array 'image' is damaged: its data has {len(BOMB)} bytes, not 24"),
        (forge("(2, 3)", bytes(23)), "array 'image' is damaged: its data has 23 bytes, not 24"),
        (forge("(2, 3)", bytes(24), "'<f8'"), "array 'image' is float64, but the model takes float32"),
        (forge("(2, 3)", bytes(24), "'|O'"), "array 'image' holds Python objects, which weft does not read"),
        (forge("(2, 3)", bytes(24), "[('a', '<f4')]"), "array 'image' is [('a', '<f4')], but the model takes float32"),
        (forge("(2, " + "9" * 5000 + ")", b""), "array 'image' is damaged: its header cannot be read"),
        (forge("(" * 5000, b""), "array 'image' is damaged: its header cannot be read"),
        (forge("(2, x)", b""), "array 'image' is damaged: its header cannot be read"),
        (forge("(2, -3)", bytes(24)), "array 'image' has shape (2, -3), but the model takes (2, 3)"),
    ],
    ids=range(11),
)  # fmt: skip
def test_sizes_are_checked_before_anything_is_read(tmp_path: Path, raw: bytes, message: str | None) -> None:
    path = tmp_path / "in.npz"
    path.write_bytes(raw)
    tracemalloc.start()
    try:
        if message is None:
            assert not read_inputs(path, {"image": ("float32", (2, 3))})["image"].any()
        else:
            with pytest.raises(FileError) as caught:
                read_inputs(path, {"image": ("float32", (2, 3))})
            assert message in str(caught.value)
            assert len(str(caught.value)) < 300
        assert tracemalloc.get_traced_memory()[1] < 4 << 20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("name", ["image", "mask"])
def test_duplicate_name_is_refused(tmp_path: Path, name: str) -> None:
    path, file = tmp_path / "in.npz", io.BytesIO(make_npz())
    with zipfile.ZipFile(file, "a") as archive:
        archive.writestr(name, b"")
    path.write_bytes(file.getvalue())
    with pytest.raises(FileError, match=f"in.npz has 2 arrays of the name '{name}'$"):
        read_inputs(path, SIGNATURE)


def test_names_in_messages_are_few_and_short(tmp_path: Path) -> None:
    path = tmp_path / "in.npz"
    path.write_bytes(make_npz(**{f"\x1b[2J{'x' * 1000}{index}": np.zeros(1) for index in range(100)}))
    with pytest.raises(FileError, match=r"has no array 'image' .*; it holds '.*', \.\.\.$") as caught:
        read_inputs(path, SIGNATURE)
    assert len(str(caught.value)) < 800
    assert str(caught.value).isprintable()


@pytest.mark.parametrize(
    "dtype", ["float32", "float64", "float16", "int64", "int8", "uint8", "bool", "complex64"]
)
def test_other_byte_orders_and_orders_of_axes(tmp_path: Path, dtype: str) -> None:
    path, rng = tmp_path / "in.npy", np.random.default_rng(0)
    array = rng.integers(0, 100, (3, 4, 5)).astype(dtype)
    for order in "<>":
        for stored in (array, np.asfortranarray(array)):
            np.save(path, stored.astype(np.dtype(dtype).newbyteorder(order), order="K"))
            (actual,) = read_inputs(path, {"x": (dtype, (3, 4, 5))}).values()
            assert actual.dtype.name == dtype
            assert actual.dtype.isnative
            assert actual.flags.c_contiguous
            assert np.array_equal(actual, array)


def test_scalars_and_empty_arrays(tmp_path: Path) -> None:
    path = tmp_path / "in.npy"
    for shape in ((), (0,), (3, 0)):
        np.save(path, np.zeros(shape, np.int32))
        assert read_inputs(path, {"x": ("int32", shape)})["x"].shape == shape


def test_single_array_suits_a_single_input(tmp_path: Path) -> None:
    path = tmp_path / "in.npy"
    np.save(path, ARRAYS["image"])
    assert np.array_equal(read_inputs(path, {"x": ("float32", (2, 3))})["x"], ARRAYS["image"])
    with pytest.raises(
        FileError, match=r"in.npy holds one array, but the model has 2 inputs \('image', 'mask'\)"
    ):
        read_inputs(path, SIGNATURE)
    with pytest.raises(FileError, match=r"in.npy has shape \(2, 3\), but the model takes \(3, 2\)$"):
        read_inputs(path, {"x": ("float32", (3, 2))})
    path.write_bytes(path.read_bytes() + b"x")
    with pytest.raises(FileError, match=r"in.npy is damaged: its data has not 24 bytes$"):
        read_inputs(path, {"x": ("float32", (2, 3))})


def test_versions_of_npy(tmp_path: Path) -> None:
    path = tmp_path / "in.npy"
    for version in ((1, 0), (2, 0), (3, 0)):
        with path.open("wb") as file:
            np.lib.format.write_array(file, ARRAYS["mask"], version=version)
        if version < (3, 0):
            assert np.array_equal(read_inputs(path, {"x": ("uint8", (4,))})["x"], ARRAYS["mask"])
            continue
        with pytest.raises(FileError, match=r"in.npy is a .npy file of version 3.0; weft reads 1.0 and 2.0$"):
            read_inputs(path, {"x": ("uint8", (4,))})


def test_other_files_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "in.npz"
    for raw in (b"", b"onnx", b"\x00" * 100):
        path.write_bytes(raw)
        with pytest.raises(FileError, match=r"in.npz is no .npz or .npy file, and no image of a known kind$"):
            read_inputs(path, SIGNATURE)
    with pytest.raises(FileNotFoundError):
        read_inputs(tmp_path / "none.npz", SIGNATURE)


def test_strings(tmp_path: Path) -> None:
    """A model's strings are objects in numpy, but not in files."""
    path, words = tmp_path / "out.npz", np.array([["a", "\u00e4\U0001f600"], ["", "long " * 9]], object)
    save_arrays(path, {"words": words})
    actual = read_inputs(path, {"words": ("object", (2, 2))})["words"]
    assert actual.dtype == object
    assert np.array_equal(actual, words)
    with pytest.raises(
        FileError, match=r"^output 'words' holds Python objects, which a .npz file cannot hold$"
    ):
        save_arrays(tmp_path / "none.npz", {"words": np.array([None])})
    assert not (tmp_path / "none.npz").exists()


class Stdin:
    """Standard input from a pipe."""

    def __init__(self, raw: bytes, terminal: bool = False) -> None:
        self.buffer = io.BytesIO(raw)
        self.terminal = terminal

    def isatty(self) -> bool:
        return self.terminal


def test_stdin(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", Stdin(make_npz()))
    assert equal_arrays(read_inputs(STDIN, SIGNATURE))
    file = io.BytesIO()
    np.save(file, ARRAYS["mask"])
    monkeypatch.setattr(sys, "stdin", Stdin(file.getvalue()))
    assert np.array_equal(read_inputs(STDIN, {"m": ("uint8", (4,))})["m"], ARRAYS["mask"])
    monkeypatch.setattr(sys, "stdin", Stdin(b"text"))
    with pytest.raises(FileError, match=r"^stdin is no .npz or .npy file"):
        read_inputs(STDIN, SIGNATURE)
    monkeypatch.setattr(sys, "stdin", Stdin(b"", terminal=True))
    with pytest.raises(FileError, match=r"^--input - reads a file from stdin"):
        read_inputs(STDIN, SIGNATURE)


def test_stdin_has_a_size_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("weft.arrays._STDIN_BYTES", 3 << 20)
    monkeypatch.setattr(sys, "stdin", Stdin(b"PK" + bytes(4 << 20)))
    with pytest.raises(
        FileError, match=r"^stdin has more than 3,145,728 bytes, and the model reads 28: give a file$"
    ):
        read_inputs(STDIN, SIGNATURE)


NAMES = [
    "logits", "logits:0", "/model/fc/Gemm_output_0", "model/fc", "file", "allow_pickle", "arr_0", "", "%", "%25",
    "a%2Fb", "..", ".", "../../etc/passwd", "a/../b", "a/..", "a//b", "///", "/", "a/", "x.npy", ".npy", "x.npy.npy",
    "C:/x", "C:", "a\\b", "\x00", "a\x00b", "\x1b[2J", "a\nb", "\u202etxt", "\u00e4\u6f22\U0001f600", "\ud800", "a b",
    "...", "x" * 60_000, "%2E%2E", "a/%2E", " ", "~", "con", "a/.b", ".a/b",
]  # fmt: skip


def test_all_names_in_one_file(tmp_path: Path) -> None:
    """Each array comes back under its own name in weft and under `member_name` in numpy; none is a path."""
    path = tmp_path / "out.npz"
    arrays = {name: np.full((2, 2), index, np.int32) for index, name in enumerate(NAMES)}
    save_arrays(path, arrays)
    actual = read_inputs(path, dict.fromkeys(arrays, ("int32", (2, 2))))
    with np.load(path) as stored:
        assert len(stored.files) == len(NAMES)
        for name, array in arrays.items():
            assert np.array_equal(stored[member_name(name)], array)
            assert np.array_equal(actual[name], array)
    plain = ["logits", "logits:0", "model/fc", "file", "allow_pickle", "\u00e4\u6f22\U0001f600"]
    assert [member_name(name) for name in plain] == plain
    with zipfile.ZipFile(path) as archive:
        for member in archive.namelist():
            check_member(member)


def check_member(member: str) -> None:
    assert member.isprintable()
    for path in (PurePosixPath(member), PureWindowsPath(member)):
        assert not path.is_absolute()
        assert not path.drive
        assert ".." not in path.parts
    assert str(PurePosixPath(member)) == member


def test_random_names() -> None:
    rng, seen = random.Random(0), {}
    for _ in range(20_000):
        name = "".join(rng.choice("aC:/\\.%2Fnpy\0\x1b\ud800\u00e4") for _ in range(rng.randrange(8)))
        member = member_name(name)
        assert array_name(member) == name
        assert seen.setdefault(member, name) == name
        check_member(f"{member}.npy")


def test_unstorable_arrays_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "out.npz"
    with pytest.raises(
        FileError, match=r"^output 'xxx.*xxx' has a name of 65,532 bytes, more than a .npz file can hold$"
    ):
        save_arrays(path, {"x" * 65_532: np.zeros(1)})
    save_arrays(path, {"x" * 65_531: np.zeros(1)})
    import ml_dtypes  # noqa: F401 (numpy knows its dtypes by name from here on)

    with pytest.raises(
        FileError, match=r"^output 'y' is bfloat16, which a .npz file cannot hold; cast it in the model$"
    ):
        check_outputs({"y": ("bfloat16", (1,))})


def test_saved_files_are_reproducible(tmp_path: Path) -> None:
    raw = []
    for name in ("a.npz", "b.npz"):
        save_arrays(tmp_path / name, ARRAYS)
        raw.append((tmp_path / name).read_bytes())
    assert raw[0] == raw[1]
