"""Progress: nothing for short work or where it is switched off, lines without a terminal, a bar on one."""

from __future__ import annotations

import io
import sys
import threading
from types import SimpleNamespace
from typing import Any

import pytest

from dropscope import progress as progress_module
from dropscope.progress import format_count, format_duration, format_pace, stage, track


def test_counts_a_person_reads() -> None:
    shown = [format_count(n) for n in (0, 999, 1000, 1_500_000, 2e9, 3.2e12)]
    assert shown == ["0", "999", "1.0 k", "1.5 M", "2.0 G", "3.2 T"]


def test_durations_a_person_reads() -> None:
    shown = [format_duration(seconds) for seconds in (0, 99, 100, 5999, 6000)]
    assert shown == ["0 s", "99 s", "2 min", "100 min", "1.7 h"]


def test_a_pace_is_per_second_minute_or_hour() -> None:
    shown = [format_pace(count, seconds, "steps") for count, seconds in ((3, 1), (1, 2), (1, 120))]
    assert shown == ["3 steps/s", "30.0 steps/min", "30.0 steps/h"]


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [0.0]
    monkeypatch.setattr(progress_module.time, "monotonic", lambda: now[0])
    return now


def test_a_line_now_and_then_with_rate_and_time_left(clock: list[float], capsys: Any) -> None:
    with track("sweep", 1000, show=None) as tick:
        clock[0] = 1.0
        tick(10)
        assert capsys.readouterr().err == ""  # short work shows nothing
        clock[0] = 20.0
        tick(390)
        clock[0] = 21.0
        tick(1)  # and then not at once again
    assert capsys.readouterr().err == "sweep: 40%, 20 predictions/s, 30 s left\n"


def test_no_line_before_anything_is_done(clock: list[float], capsys: Any) -> None:
    with track("training", 100, unit="steps") as tick:
        for now in (20.0, 40.0, 4000.0):
            clock[0] = now
            tick(0)
        assert capsys.readouterr().err == ""  # a pace of nothing is no news
        clock[0] = 5000.0
        tick(50)
    assert capsys.readouterr().err == "training: 50%, 36.0 steps/h, 83 min left\n"


def test_the_time_left_has_what_comes_after(clock: list[float], capsys: Any) -> None:
    with track("passes", 100, then=lambda whole: 10 + whole / 2) as tick:
        clock[0] = 20.0
        tick(50)
    assert capsys.readouterr().err == "passes: 50%, 2 predictions/s, 50 s left\n"  # 20 + 10 + 40 / 2


def test_a_stage_that_lasts_is_announced_and_a_short_one_is_not(capsys: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    with stage("tracing"):
        pass
    assert capsys.readouterr().err == ""
    monkeypatch.setattr(progress_module, "_QUIET_SECONDS", 0.0)
    for show in (None, False):
        with stage("tracing", show=show):
            threading.Event().wait(0.2)
    assert capsys.readouterr().err == "tracing …\n"


@pytest.mark.parametrize(("total", "show"), [(1000, False), (0, None)])
def test_nothing_where_it_is_switched_off_or_there_is_nothing(
    total: int, show: bool | None, clock: Any, capsys: Any
) -> None:
    with track("sweep", total, show=show) as tick:
        clock[0] = 100.0
        tick(500)
    assert capsys.readouterr().err == ""


def test_a_bar_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    screen = Terminal()
    monkeypatch.setattr(sys, "stderr", screen)
    monkeypatch.setenv("TERM", "xterm")
    with track("sweep", 100) as tick:
        tick(60)
        tick(40)
    assert "sweep" in screen.getvalue()
    assert "predictions/s" in screen.getvalue()


def test_a_bar_shows_no_pace_before_anything_is_done(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = io.StringIO()
    screen.isatty = lambda: True  # type: ignore[method-assign]
    monkeypatch.setattr(sys, "stderr", screen)
    monkeypatch.setenv("TERM", "xterm")
    with track("training", 100, unit="steps") as tick:
        tick(0)
    assert "training" in screen.getvalue()
    assert "steps/" not in screen.getvalue()


class Notebook:
    """As much of IPython as a notebook's kernel has: every state of every output."""

    def __init__(self, *, kernel: bool = True) -> None:
        self.outputs: list[list[str]] = []
        self.shell = SimpleNamespace(kernel=object()) if kernel else SimpleNamespace()

    def get_ipython(self) -> Any:
        return self.shell

    def display(self, data: dict[str, str], *, raw: bool, display_id: bool) -> Any:
        assert raw
        assert display_id
        states = [data["text/plain"]]
        self.outputs.append(states)
        return SimpleNamespace(update=lambda data, raw: states.append(data["text/plain"]))


@pytest.fixture
def notebook(monkeypatch: pytest.MonkeyPatch) -> Notebook:
    made = Notebook()
    monkeypatch.setitem(sys.modules, "IPython", made)
    monkeypatch.setitem(sys.modules, "IPython.display", SimpleNamespace(display=made.display))
    return made


@pytest.mark.usefixtures("notebook")
def test_a_stage_is_no_error_in_a_notebook(capsys: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress_module, "_QUIET_SECONDS", 0.0)
    with stage("tracing"):
        threading.Event().wait(0.2)
    assert capsys.readouterr() == ("tracing …\n", "")


def test_one_line_in_a_notebook_is_written_over(clock: list[float], capsys: Any, notebook: Notebook) -> None:
    with track("sweep", 1000) as tick:
        for now, count in ((0.5, 10), (10.0, 90), (10.1, 1), (20.0, 399)):
            clock[0] = now
            tick(count)
        clock[0] = 40.0
        tick(500)
    (states,) = notebook.outputs
    assert [state.count("█") for state in states] == [3, 15, 30, 0]
    assert states[1].endswith("50%, 25 predictions/s, 20 s left")
    assert states[-1] == "sweep: 1.0 k predictions in 40 s"
    assert capsys.readouterr() == ("", "")


def test_short_work_shows_nothing_in_a_notebook(clock: list[float], notebook: Notebook) -> None:
    with track("sweep", 1000) as tick:
        clock[0] = 0.9
        tick(1000)
    assert notebook.outputs == []


def test_a_line_in_a_notebook_says_where_it_stopped(clock: list[float], notebook: Notebook) -> None:
    def interrupted() -> None:
        with track("sweep", 1000) as tick:
            clock[0] = 10.0
            tick(250)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert notebook.outputs[0][-1] == "sweep: 250 predictions in 10 s (25%)"


def test_ipython_in_a_terminal_is_no_notebook(
    clock: list[float], capsys: Any, notebook: Notebook, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "IPython", Notebook(kernel=False))
    with track("sweep", 1000) as tick:
        clock[0] = 20.0
        tick(500)
    assert "sweep: 50%" in capsys.readouterr().err


def test_an_error_inside_is_not_swallowed(monkeypatch: pytest.MonkeyPatch) -> None:
    for terminal in (True, False):
        stream = io.StringIO()
        stream.isatty = lambda terminal=terminal: terminal  # type: ignore[method-assign]
        monkeypatch.setattr(sys, "stderr", stream)
        with pytest.raises(KeyError, match="inside"), track("sweep", 100):
            raise KeyError("inside")
