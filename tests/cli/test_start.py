"""Start and end of weft: as a module, interrupted at any time, out of memory; public names and help."""

from __future__ import annotations

import os
import pydoc
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import weft
from weft import WeftError
from weft import __main__ as command
from weft.boards.registry import BOARDS
from weft.cli import main
from weft.examples import digits
from weft.hdl.isa.config import PRESETS

WEFT = [sys.executable, "-m", "weft"]


def run(*arguments: str, **options: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*WEFT, *arguments], capture_output=True, text=True, check=False, **options)


def call(*arguments: str) -> int:
    with pytest.raises(SystemExit) as stop:
        command.main(list(arguments))
    return int(stop.value.code or 0)


def test_module() -> None:
    assert run("--version").stdout == f"weft {weft.__version__}\n"
    short, long = (run(option).stdout for option in ("-h", "--help"))
    assert short == long
    assert "compile" in short
    for name in main.app.registered_commands:
        assert name.callback is not None


@pytest.mark.parametrize(
    "name", ["compile", "run", "trace", "tune", "quantise", "verilog", "demo", "example", "build", "flash"]
)
def test_every_command_that_acts_can_be_quiet(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert call(name, "-h") == 0
    text = capsys.readouterr().out
    assert "--quiet" in text
    assert "-q" in text


@pytest.mark.drawn(4)
@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)]
)
@pytest.mark.parametrize("module", ["typer", "rich.console", "numpy", "weft.cli.commands"])
def test_signal_during_start_exits_cleanly(module: str, number: signal.Signals, code: int) -> None:
    """Interrupt the process as soon as Python reports the import of a module.

    Where SIGINT falls into an `eval` of text, Python itself ends by the signal; a shell reports 130 for both.
    """
    command_line = [sys.executable, "-X", "importtime", "-m", "weft", "boards"]
    for _ in range(5):  # on a busy machine, the command may end before the signal
        lines = []
        with subprocess.Popen(command_line, stderr=subprocess.PIPE, text=True) as process:
            assert process.stderr is not None
            for line in process.stderr:
                if not line.startswith("import time:"):
                    lines.append(line)
                elif line.rstrip().endswith(f" {module}"):
                    process.send_signal(number)
        if process.returncode != 0:
            break
    assert process.returncode == code or (process.returncode == -number == -signal.SIGINT)
    assert lines == (["error: interrupted\n"] if number is signal.SIGINT else [])


@pytest.mark.drawn(1)
@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)]
)
def test_signal_in_a_destructor_is_not_lost(number: signal.Signals, code: int) -> None:
    """Python drops exceptions raised in a destructor or while an import releases its lock."""
    script = f"""if True:
        import os, time, weft
        from weft.__main__ import main
        class Dropping:
            def __del__(self):
                os.kill(os.getpid(), {int(number)})
        def slow(config, prefix):
            Dropping()
            time.sleep(20)
        weft.verilog = slow
        main(["verilog", "-o", "/dev/stdout", "-q"])
    """
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert (result.returncode, result.stdout) == (code, "")
    assert result.stderr == ("error: interrupted\n" if number is signal.SIGINT else "")


def test_other_errors_in_destructors_are_printed() -> None:
    script = """if True:
        import weft
        from weft.__main__ import main
        class Failing:
            def __del__(self):
                raise ValueError("of a destructor")
        weft.verilog = lambda config, prefix="": (Failing() and None, ("module weft;", {"core": "no"}))[1]
        main(["verilog", "-o", "/dev/stdout", "-q"])
    """
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert (result.returncode, result.stdout) == (0, "module weft;")
    assert "ValueError: of a destructor" in result.stderr


def test_previous_hook_still_sees_destructor_errors(monkeypatch: pytest.MonkeyPatch) -> None:
    """pytest's own hook turns such errors into test failures."""
    heard: list[object] = []
    hook = heard.append
    monkeypatch.setattr(sys, "unraisablehook", hook)

    class Failing:
        def __del__(self) -> None:
            raise ValueError("of a destructor")

    def fail(*arguments: object, **options: object) -> None:
        Failing()
        raise weft.CompileError("no")

    monkeypatch.setattr(weft, "verilog", fail, raising=False)
    assert call("verilog", "-o", "core.v", "-q") == 2
    assert [str(item.exc_value) for item in heard] == ["of a destructor"]  # type: ignore[attr-defined]
    assert sys.unraisablehook is hook


def test_weft_survives_hangup_under_nohup() -> None:
    """nohup ignores SIGHUP; here weft sends SIGHUP to itself during a run."""
    script = """if True:
        import os, signal, weft
        from weft.__main__ import main
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        written = "module weft;", {"core": "no"}
        weft.verilog = lambda config, prefix="": (os.kill(os.getpid(), signal.SIGHUP), written)[1]
        main(["verilog", "-o", "/dev/stdout", "-q"])
    """
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert (result.returncode, result.stdout) == (0, "module weft;")


def test_signal_handlers_are_restored() -> None:
    before = signal.signal(signal.SIGTERM, signal.SIG_DFL)
    try:
        assert call("--version") == 0
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    finally:
        signal.signal(signal.SIGTERM, before)


FAILURES: list[tuple[BaseException, int, str]] = [
    (KeyboardInterrupt(), 130, "error: interrupted"),
    (MemoryError(), 1, "error: not enough memory: the model or its memory does not fit"),
    (MemoryError("4 GB for the model\nmore"), 1, "error: not enough memory: 4 GB for the model"),
    (OSError(28, "No space left on device"), 2, "error: [Errno 28] No space left on device"),
    (FileNotFoundError(2, "No such file", "x\x1b[2J"), 2, "error: cannot use x\\x1b[2J: No such file"),
    (weft.CompileError("node 'a\x00b\u202e': no"), 2, "error: node 'a\\x00b\\u202e': no"),
    (weft.DeviceError("no end"), 1, "error: no end"),
    (weft.CompileError("node '" + "x" * 20000 + "' is unknown"), 2,
     "error: node '" + "x" * 29 + "…" + "x" * 28 + "' is unknown"),
    (weft.BuildError("g++ failed:\nline 1\nline 2"), 1, "error: g++ failed:\nline 1\nline 2"),
]  # fmt: skip


@pytest.mark.parametrize(("error", "code", "text"), FAILURES, ids=lambda value: str(value)[:20])
def test_failures_print_one_sentence(
    error: BaseException,
    code: int,
    text: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def fail(*arguments: object, **options: object) -> None:
        raise error

    monkeypatch.setattr(weft, "verilog", fail, raising=False)
    assert call("verilog", "-o", "core.v", "-q") == code
    assert capsys.readouterr().err == f"{text}\n"


def test_help_loads_no_large_library() -> None:
    """Commands import numpy and weft's packages when they run."""
    text = "import sys, weft.cli.main; print(*sys.modules)"
    names = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=True).stdout
    assert {"typer", "weft.cli.run_command", "weft.run.options"} <= set(names.split())
    assert not {"numpy", "onnx", "amaranth", "weft.compiler", "weft.sim"} & set(names.split())


def test_names_outside_the_locale_are_escaped(tmp_path: Path) -> None:
    result = run("example", "-o", "日本", cwd=tmp_path, env=os.environ | {"PYTHONIOENCODING": "ascii"})
    assert (result.returncode, result.stderr) == (0, "")
    assert result.stdout.startswith("\\u65e5\\u672c/digits.onnx: a network")
    assert (tmp_path / "日本/digits.onnx").exists()


def test_public_names_exist_and_are_documented() -> None:
    assert set(weft.__all__) <= set(dir(weft))
    text = pydoc.plain(pydoc.render_doc(weft))
    for name in weft.__all__:
        value = getattr(weft, name)
        assert name in text
        assert value.__doc__
        assert isinstance(value, type) or callable(value)
    errors = [getattr(weft, name) for name in weft.__all__ if name.endswith("Error")]
    assert {weft.CompileError, weft.ConfigError, weft.InputError, weft.DeviceError} < set(errors)
    assert all(issubclass(error, WeftError) for error in errors)
    with pytest.raises(AttributeError, match="module 'weft' has no attribute 'nothing'"):
        weft.nothing  # noqa: B018
    members = (weft.Program, weft.Result, weft.Config)
    for member in (
        value for kind in members for name, value in vars(kind).items() if not name.startswith("_")
    ):
        if callable(member) or isinstance(member, property):
            assert member.__doc__, member


def test_reprs_of_program_and_result() -> None:
    program = weft.compile(digits.model(), config="tiny")
    assert repr(program) == (
        "<weft.Program for an array of 4 x 4: image float32 1x1x8x8 -> logits float32 1x10; "
        "10 of 12 nodes on the device>"
    )
    result = program.run({"image": np.zeros((1, 1, 8, 8), np.float32)})
    size = f"{len(result.memory):,}"
    assert repr(result) == f"<weft.Result: logits float32 1x10; cycles unknown, {size} bytes of memory>"
    timed = program.run({"image": np.zeros((1, 1, 8, 8), np.float32)}, on="timing")
    assert repr(timed) == f"<weft.Result: no outputs; {timed.report['cycles']:,} cycles, 0 bytes of memory>"
    for report in (result.report, timed.report):
        assert report["format"] == "weft report 2"
        assert "utilisation" in report
        assert "utilization" not in str(report)


def test_shell_completes_configurations_and_boards() -> None:
    line = {"_WEFT_COMPLETE": "complete_bash", "COMP_CWORD": "4"}
    for text, expected in (
        ("weft compile m.onnx --config ", [*PRESETS, *BOARDS]),
        ("weft compile m.onnx --config ulx3s-1", ["ulx3s-12f"]),
        ("weft build --quiet --board tang", [name for name in BOARDS if name.startswith("tang")]),
    ):
        variables = os.environ | line | {"COMP_WORDS": text}
        script = "import sys; from weft.__main__ import main; sys.argv[0] = 'weft'; main()"
        result = subprocess.run(
            [sys.executable, "-c", script], env=variables, capture_output=True, text=True, check=False
        )
        assert result.stdout.split() == expected
