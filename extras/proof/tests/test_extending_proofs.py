"""The recipe for proofs in docs/extending.md, applied to a copy of the sources."""

from __future__ import annotations

from pathlib import Path

from support.documented import apply_diffs, copy_sources, run_tests, write_file


def test_proofs_of_an_instruction(tmp_path: Path) -> None:
    path = copy_sources(tmp_path)
    apply_diffs(tmp_path, "An instruction or a field")
    apply_diffs(tmp_path, "Proofs of an instruction")
    test = write_file(tmp_path, "extras/proof/tests/test_fill_proofs.py")
    run_tests(tmp_path, path, test, tmp_path / "extras/proof/tests/test_value_device.py")
