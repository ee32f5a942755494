"""Waveforms of a run, with files that arrange their signals in GTKWave and Surfer."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from weft.errors import FileError
from weft.files import whole_file, write_text
from weft.run.options import RunOptions
from weft.sim.device import DeviceError
from weft.sim.waves import FORMATS, Waves, gtkw, sucl, variables

VIEWERS = (".gtkw", ".sucl")
"""Endings of the files next to a waveform, for GTKWave and Surfer."""


@contextmanager
def recording(options: RunOptions) -> Iterator[RunOptions]:
    """Yield options of a run that records the waveforms of `options`, if they name a file.

    When the block ends, the waveforms and the files of both viewers are written, all of them or none. If the device
    fails after its first recorded cycle, they are written too, because they show the cause.

    Raises
    ------
    FileError
        If the suffix of the file names no format, or no cycle was recorded.
    """
    wanted = options.recording
    if wanted is None:
        yield options
        return
    path, first = wanted.path, wanted.first
    if path.suffix not in FORMATS:
        raise FileError(f"{path}: the file of waveforms must end in {' or '.join(FORMATS)}")
    with whole_file(path) as part:
        waves = Waves(part, first, wanted.cycles)
        failure = None
        try:
            yield replace(options, waves=waves)
        except DeviceError as error:
            if waves.zero is None:  # it failed before the program started
                raise
            failure = error
        if waves.zero is None:
            raise FileError("nothing of this program runs on the device, so there are no waveforms")
        # `waves.ran` counts the cycles of the program, from its start.
        if waves.ran <= first:
            raise failure or FileError(
                f"there are no waveforms from cycle {first:,} on: the program takes {waves.ran:,}"
            )
        signals = variables(part)
        texts = (gtkw(signals, waves, path), sucl(signals, waves))
        for suffix, text in zip(VIEWERS, texts, strict=True):
            write_text(path.with_suffix(suffix), text)
    if failure is not None:
        raise failure
