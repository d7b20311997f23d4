import inspect
import json
from pathlib import Path
from typing import Any, Protocol
from xml.etree import ElementTree as ET

import pytest

import pblas
from pblas import Event, Trace
from pblas.backends.device import Device
from pblas.backends.push_engine import Engine
from pblas.backends.recorder import Arrival
from pblas.backends.traced import marks
from pblas.cli import main
from pblas.matrices import complete_files as files
from pblas.trace import formats
from pblas.trace.merge import messages

LEFT_OUT = ("self", "lane")  # the recorder knows the lane
Capture = pytest.CaptureFixture[str]


def some_trace(nprocs: int = 2, *, last: float = 1e-3) -> Trace:
    trace = Trace("a title", nprocs)
    trace.events = tuple(
        event
        for rank in range(nprocs)
        for event in (
            Event(rank, "from rank 1", "message", "message from rank 1", 0.0, 0.5e-3, {"bytes": 8}),
            Event(rank, "main", "gemm", "GEMM 2 x 3 x 4", 0.25e-3, 0.5e-3, {"flops": 48}),
            Event(rank, "main", "wait", "for a message", 0.5e-3, last),
        )
    )
    return trace


def test_notebooks_show_the_picture(monkeypatch: pytest.MonkeyPatch) -> None:
    trace = some_trace()
    html = trace._repr_html_()
    assert html.startswith("<svg")
    assert ET.fromstring(html).tag.endswith("svg")
    assert Trace("a < b", 2)._repr_html_() == "<pre>&lt;Trace &#x27;a &lt; b&#x27;: 0 events of 2 ranks&gt;</pre>"
    monkeypatch.setattr(formats, "can_draw", lambda: False)
    assert trace._repr_html_() == f"<pre>{trace}</pre>"
    assert "\n" not in repr(trace)


def test_every_operation_of_an_engine_is_traced() -> None:
    operations = {
        name
        for name, method in inspect.getmembers(Engine, inspect.isfunction)
        if list(inspect.signature(method).parameters)[1:2] == ["lane"] and name not in {"follow", "mark"}
    }
    assert set(marks(Engine)) == operations


def test_a_method_without_a_mark_is_found() -> None:
    class Other(Device, Protocol):
        def transpose(self, x: Any) -> None: ...

    with pytest.raises(TypeError, match=r"Other\.transpose is neither traced nor untraced"):
        marks(Other)


@pytest.mark.parametrize(("protocol", "name"), [(p, name) for p in (Device, Engine) for name in marks(p)])
def test_calls_are_described_with_all_that_they_take(protocol: type, name: str) -> None:
    taken = [p for p in inspect.signature(getattr(protocol, name)).parameters.values() if p.name not in LEFT_OUT]
    named = {p.name: None for p in taken if p.kind is p.KEYWORD_ONLY}
    mark = marks(protocol)[name]
    for describe in (mark.text, mark.kind):
        if callable(describe):
            inspect.signature(describe).bind(*[None] * (len(taken) - len(named)), **named)


def test_a_burst_without_puts_is_a_wait() -> None:
    """Peers may be late: no part of this time counts as a copy."""
    burst = marks(Engine)["burst"].described
    assert burst("main", [], 1, (1, 2), (2, 1), "results of") == ("main", "wait", "results of ranks 2, 1", {"phase": 1})
    pushed = ("main", "copy", "push to ranks 1, 2", {"bytes": 0, "phase": 1})
    assert burst("main", [], 1, (1, 2), (), "results of") == pushed


def test_a_trace_is_read_as_it_was_written(tmp_path: Path) -> None:
    before = some_trace()
    before.is_whole = False
    before.write(tmp_path / "trace.json")
    found = json.loads((tmp_path / "trace.json").read_text())
    spans = [entry for entry in found["traceEvents"] if entry["ph"] == "X"]
    assert all({"name", "cat", "ts", "dur", "pid", "tid", "args"} <= set(span) for span in spans)
    named = {(e["pid"], e["tid"]): e["args"]["name"] for e in found["traceEvents"] if e["name"] == "thread_name"}
    assert named == {(r, i): lane for r in (0, 1) for i, lane in enumerate(("main", "from rank 1"))}
    after = Trace.read(tmp_path / "trace.json")
    assert (after.title, after.nprocs, after.is_whole) == ("a title", 2, False)
    for event, other in zip(before.events, after.events, strict=True):
        assert (event.start, event.stop) == pytest.approx((other.start, other.stop))
        assert (event.rank, event.lane, event.kind, event.name) == (other.rank, other.lane, other.kind, other.name)
        assert event.details == other.details
    assert "incomplete: a rank records its first 200,000 operations only" in str(after)


@pytest.mark.parametrize("nprocs", [2, 40])
def test_a_picture_is_drawn_from_a_file(nprocs: int, tmp_path: Path, capsys: Capture) -> None:
    some_trace(nprocs, last=1.0).write(tmp_path / "trace.json")
    png, svg = tmp_path / "trace.png", tmp_path / "trace.svg"
    assert main(["trace", str(tmp_path / "trace.json"), "-o", str(png), "-o", str(svg), "--title", "another"]) == 0
    assert png.read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
    text = svg.read_text()
    assert text.rstrip().endswith("</svg>")
    assert all(colour in text for colour in (formats.COLOURS[kind] for kind in ("gemm", "wait", "message")))
    assert formats.COLOURS["sum"] not in text
    assert "another" in capsys.readouterr().out
    assert main(["trace", str(tmp_path / "trace.json")]) == 0
    assert "ms on the main lane" in capsys.readouterr().out
    assert {path.name for path in tmp_path.iterdir()} == {"trace.json", "trace.png", "trace.svg"}


def test_a_trace_without_events_is_drawn(tmp_path: Path) -> None:
    Trace("nothing", 1).write(tmp_path / "empty.png")
    assert (tmp_path / "empty.png").stat().st_size > 100


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ([], "expected --m, --n and --k"),
        (["none.json", "-o", "x.json"], "none.json: cannot be read"),
        (["foreign.json", "-o", "x.json"], "not a trace of pblas"),
        (["text.json", "-o", "x.json"], "not a trace of pblas"),
        (["good.json", "-o", "x.gif"], "must end in .json"),
        (["good.json", "-o", "nowhere/x.json"], "cannot be written"),
    ],
)
def test_wrong_arguments_are_one_line(
    arguments: list[str], expected: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("foreign.json").write_text('{"traceEvents": []}')
    Path("text.json").write_text("no JSON")
    some_trace().write("good.json")
    assert main(["trace", *arguments]) == 1
    error = capsys.readouterr().err
    assert error.startswith("pblas: error: ")
    assert error.count("\n") == 1
    assert expected in error


def test_pictures_need_matplotlib(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(formats, "find_spec", lambda _: None)
    with pytest.raises(pblas.BackendError, match="pip install matplotlib"):
        some_trace().write(tmp_path / "x.png")
    some_trace().write(tmp_path / "x.json")


def test_messages_begin_when_both_ends_are_ready_and_one_after_the_other() -> None:
    sends = [[(1, 7, 1.0), (1, 7, 2.0), (1, 8, 2.5)], []]
    arrivals = [Arrival(0, 7, 10, 0.0, 4.0), Arrival(0, 7, 20, 3.0, 5.0), Arrival(0, 8, 30, 3.0, None)]
    late = Arrival(0, 9, 40, 0.0, 9.0)  # a message whose sending was not recorded
    found = messages(sends, [[], [*arrivals, late]])
    assert [(e.start, e.stop, e.details["bytes"]) for e in found] == [(1.0, 4.0, 10), (4.0, 5.0, 20)]
    assert all((e.rank, e.lane) == (1, "from rank 0") for e in found)


def test_a_file_that_is_there_keeps_its_name(tmp_path: Path) -> None:
    names = [files.unused(tmp_path / "trace.json") for _ in range(3)]
    assert [Path(name).name for name in names] == ["trace.json", "trace.1.json", "trace.2.json"]
    with pytest.raises(pblas.FileFormatError, match="cannot be written"):
        files.unused(tmp_path / "none" / "trace.json")


def test_a_trace_has_a_short_repr() -> None:
    assert repr(Trace("products", 2)) == "<Trace 'products': 0 events of 2 ranks>"
