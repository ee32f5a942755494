"""Make the helper modules of this folder, and what benchmarks measure, importable from every test file."""

import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))
sys.path.append(str(HERE.parent / "benchmarks"))
