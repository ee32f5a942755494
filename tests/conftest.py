"""Make the helper modules of this folder, and what benchmarks measure, importable from every test file."""

import signal
import sys
from pathlib import Path

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # As in a shell's background job. Commands that tests interrupt would inherit it.
    signal.signal(signal.SIGINT, signal.default_int_handler)

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))
sys.path.append(str(HERE.parent / "benchmarks"))
