"""All benchmarks, one after the other: python benchmarks/run.py [--config default]"""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

HERE = Path(__file__).parent


def main() -> int:
    sys.path.insert(0, str(HERE))
    codes, options = [], sys.argv[1:]
    for script in ("speed.py", "utilisation.py", "attention.py", "accuracy.py", "network.py", "timing.py"):
        print(f"\n{script}\n")
        # The cycle model is compared on configurations of its own.
        sys.argv[1:] = [] if script == "timing.py" else options
        try:
            runpy.run_path(str(HERE / script), run_name="__main__")
        except SystemExit as end:
            codes.append(end.code or 0)
    return 1 if any(codes) else 0


if __name__ == "__main__":
    sys.exit(main())
