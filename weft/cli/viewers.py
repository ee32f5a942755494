"""Waveforms of a run, with files that arrange their signals in viewers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from weft.errors import FileError
from weft.files import whole_file, write_text
from weft.sim.device import DeviceError
from weft.sim.waves import FORMATS, Waves, gtkw, sucl, variables

VIEWERS = (".gtkw", ".sucl")
"""Endings of the files next to a waveform, for GTKWave and Surfer."""


@contextmanager
def recording(path: Path | None, first: int = 0, cycles: int | None = None) -> Iterator[Waves | None]:
    """What to give to a run as ``trace``; when the block ends, `path` and the files next to it are there, or none.

    A device that fails leaves waveforms, as long as its program came to them: they are what tells why.

    Raises
    ------
    FileError
        If `path` has no ending that names a format, or there is nothing to show.
    """
    if path is None:
        yield None
        return
    if path.suffix not in FORMATS:
        raise FileError(f"{path}: the file of waveforms must end in {' or '.join(FORMATS)}")
    with whole_file(path) as part:
        waves = Waves(part, first, cycles)
        failure = None
        try:
            yield waves
        except DeviceError as error:
            if waves.zero is None:
                raise
            failure = error
        if waves.zero is None:
            raise FileError("nothing of this program runs on the device, so there are no waveforms")
        if waves.ran <= first:
            raise failure or FileError(
                f"there are no waveforms from cycle {first:,} on: the program takes {waves.ran:,}"
            )
        names = variables(part)
        texts = (gtkw(names, waves, path), sucl(names, waves))
        for suffix, text in zip(VIEWERS, texts, strict=True):
            write_text(path.with_suffix(suffix), text)
    if failure is not None:
        raise failure
