"""Recipes of docs/extending.md: applied to a copy of the sources, they work and need nothing else."""

from __future__ import annotations

from pathlib import Path

from support.documented import apply_diffs, copy_sources, run_tests, write_file


def test_an_instruction(tmp_path: Path) -> None:
    path = copy_sources(tmp_path)
    apply_diffs(tmp_path, "An instruction or a field")
    plain = "tests/sim/golden/test_golden.py::test_plain_loops_know_every_instruction"
    run_tests(tmp_path, path, write_file(tmp_path, "tests/sim/test_fill.py"), tmp_path / plain)


def test_an_operator(tmp_path: Path) -> None:
    path = copy_sources(tmp_path)
    write_file(tmp_path, "compiler/onnx/operators/summation.py")
    test = write_file(tmp_path, "tests/compiler/onnx/operators/test_op_summation.py")
    run_tests(tmp_path, path, test, tmp_path / "tests/compiler/onnx/test_registry.py")


def test_an_operator_of_the_device(tmp_path: Path) -> None:
    path = copy_sources(tmp_path)
    write_file(tmp_path, "compiler/operators/double.py")
    run_tests(tmp_path, path, write_file(tmp_path, "tests/compiler/test_double.py"))


def test_a_command(tmp_path: Path) -> None:
    path = copy_sources(tmp_path)
    write_file(tmp_path, "weft/cli/cycles_command.py")
    run_tests(tmp_path, path, write_file(tmp_path, "tests/cli/test_cycles_command.py"))


def test_a_pass(tmp_path: Path) -> None:
    path = copy_sources(tmp_path)
    write_file(tmp_path, "compiler/passes/drop_unread.py")
    apply_diffs(tmp_path, "A pass")
    test = write_file(tmp_path, "tests/compiler/test_drop_unread.py")
    run_tests(tmp_path, path, test, tmp_path / "tests/compiler/test_passes.py")
