"""The screen of ``forebay top`` as text of a given size. Foreign text is printed without control characters."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from rich.cells import cell_len, set_cell_size
from rich.console import Group, RenderableType
from rich.filesize import decimal
from rich.style import Style
from rich.text import Text

from deploy.commands.inspection.top.screen import LIST_MAX, LISTS, Answers, ListName, Screen
from deploy.console.batch_tables import batch_note, delay, moment
from forebay import messages as m
from forebay.model.text import one_line

#: state → style; a state without one has the terminal's colour
_STYLES = {
    "running": "green", "active": "green", "completed": "green", "queued": "cyan", "waiting": "yellow", "standby": "cyan",
    "starting": "cyan", "registered": "cyan", "draining": "cyan", "paused": "yellow", "failing": "yellow", "stopping": "yellow",
    "failed": "bold red", "unreadable": "bold red", "lost": "bold red", "fenced": "bold red",
    m.FAULT_STATE: "bold red", "unclaimed": "red",
}  # fmt: skip
#: labels of the steps on the way of a record
_STEPS = {
    "kafka": "Kafka", "blocks": "blocks", "wal": "WAL", "tracker": "tracker", "batches": "batches", "committed": "committed",
}  # fmt: skip
#: series of the driver → label, unit
_SERIES = {
    "records_in_per_second": ("taken in", "/s"),
    "records_completed_per_second": ("completed", "/s"),
    "lag_records": ("lag", ""),
    "total_delay_ms": ("batch delay", " ms"),
}
_BARS = "▁▂▃▄▅▆▇█"
_KEYS = "q quit  p pause  ←→ list  ↑↓ scroll"
#: width at which the steps are shown side by side, and heights at which the parts are shown at all
_WIDE, _MIDDLE = 96, 60
_SPACED_HEIGHT, _SERIES_HEIGHT, _LIST_HEIGHT = 34, 26, 16
_PROBLEMS_MAX = 4


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a list. ``share``: of the width that is left by the columns with a ``width``."""

    title: str
    width: int = 0
    share: int = 0
    right: bool = False


def view(screen: Screen, width: int, height: int, now: float) -> Group:
    """Return the screen as at most ``height`` lines of at most ``width`` cells. ``now``: monotonic seconds, as of the answers."""
    answers = screen.answers
    if answers is None:
        lines = [
            _line(f"forebay top: {screen.url}", width, "bold"),
            _line(screen.lost or "waiting for the driver …", width),
        ]
        return _fitting([*lines], _footer(screen, width), height)
    space = [Text("")] if height >= _SPACED_HEIGHT else []
    lines = [*_header(screen, answers, width, now), *_problems(answers.overview, width), *space]
    lines += [*_steps(answers.overview.steps, width), *space]
    if height >= _SERIES_HEIGHT and (series := _series(answers.series, width)):
        lines += [*series, *space]
    lines += [*_counts(answers.overview, width), *space]
    left = height - len(lines) - 1
    if height >= _LIST_HEIGHT and left > 2:
        lines += _list(screen, answers, width, left)
    return _fitting(lines, _footer(screen, width), height)


def snapshot(screen: Screen, width: int, now: float) -> Group:
    """Return everything once, for a pipe: lines of at most ``width`` cells, and each list in full."""
    answers = screen.answers
    assert answers is not None
    lines = [*_header(screen, answers, width, now), *_problems(answers.overview, width)]
    lines += [
        *_steps(answers.overview.steps, width),
        *_series(answers.series, width),
        *_counts(answers.overview, width),
    ]
    for name in LISTS:
        entries = getattr(answers, name)
        if entries:
            lines += [
                Text(""),
                _line(f"{name}: {len(entries)} of {answers.totals.get(name, len(entries))}", width, "bold"),
            ]
            lines += _table(*_rows(name, entries), width)
    for line in lines:
        line.rstrip()
    return Group(*lines)


def _fitting(lines: Sequence[Text], footer: Text, height: int) -> Group:
    """Return the lines above the footer, which is in the last row."""
    rows = max(0, height - 1)
    shown: list[RenderableType] = [*lines[:rows], *(Text("") for _ in range(rows - len(lines)))]
    return Group(*shown, footer)


def _line(text: str, width: int, style: str = "") -> Text:
    """Return one line of foreign text, cut to ``width`` cells."""
    return Text(_cut(one_line(text), width), style, no_wrap=True, overflow="crop", end="\n")


def _cut(text: str, width: int) -> str:
    if cell_len(text) <= width:
        return text
    return set_cell_size(text, max(0, width - 1)).rstrip() + "…" if width > 0 else ""


def _joined(parts: Iterable[tuple[str, str]], width: int) -> Text:
    """Return one line of texts with their styles, cut to ``width`` cells."""
    line = Text(no_wrap=True, overflow="crop")
    left = width
    for text, style in parts:
        cut = _cut(one_line(text), left)
        line.append(cut, style or None)
        left -= cell_len(cut)
        if left <= 0:
            break
    return line


def _style(state: str) -> str:
    return _STYLES.get(state, "")


# ---- header and problems ---------------------------------------------------------------------------------------------


def _header(screen: Screen, answers: Answers, width: int, now: float) -> list[Text]:
    overview = answers.overview
    state = "paused" if overview.paused else overview.state
    parts = [
        (f"{overview.stream} ", "bold"),
        (state, _style(state)),
        (f"  {moment(overview.time_ms)[11:19]} UTC", ""),
        (f"  forebay {overview.release}", "dim"),
        (f"  {screen.url}", "dim"),
    ]
    lines = [_joined(parts, width)]
    if overview.leader:
        lines.append(
            _line(f"standby: {overview.leader if overview.leader != '?' else 'no driver'} leads", width, "cyan")
        )
    if overview.paused:
        lines.append(
            _line(f"paused by an operator: {overview.pause_cause}; `forebay resume` continues", width, "yellow")
        )
    elif overview.detail:
        lines.append(_line(overview.detail, width, _style(overview.state)))
    if screen.lost:
        age = max(0.0, now - answers.at)
        lines.append(_line(f"no answer for {age:.0f} s, this is the last one: {screen.lost}", width, "bold red"))
    elif screen.paused:
        lines.append(_line("the display is paused: p continues", width, "yellow"))
    return lines


def _problems(overview: m.OverviewAnswer, width: int) -> list[Text]:
    """Return what needs a person, each with its command on the next line."""
    lines = []
    for problem in overview.problems[:_PROBLEMS_MAX]:
        lines.append(_joined([("! ", "bold red"), (problem.cause, "bold red")], width))
        if problem.command:
            lines.append(_joined([("  → ", ""), (problem.command, "")], width))
    hidden = max(overview.problem_count, len(overview.problems)) - min(len(overview.problems), _PROBLEMS_MAX)
    if hidden > 0:
        lines.append(_line(f"! and {hidden} more: `forebay status`", width, "bold red"))
    lines += [_line(f"· not yet a problem: {one.cause}", width, "yellow") for one in overview.pending[:1]]
    return lines


# ---- the way of a record ---------------------------------------------------------------------------------------------


def _steps(steps: Sequence[m.Step], width: int) -> list[Text]:
    if not steps:
        return []
    cells = [(_STEPS.get(one.name, one.name), *_figures(one)) for one in steps]
    if width >= _WIDE:
        return _steps_side_by_side(cells, width)
    columns = [Column("", 10), Column("records/s", 10, right=True), Column("waiting", 9, right=True)]
    if width >= _MIDDLE:
        columns += [Column("oldest", 12, right=True), Column("delay", 12, right=True)]
    return _table(columns, [row[: len(columns)] for row in cells], width)


def _figures(step: m.Step) -> tuple[str, str, str, str]:
    return (
        _number(step.records_per_second),
        "-" if step.waiting_records is None else _number(step.waiting_records),
        _seconds(step.oldest_seconds),
        _seconds(step.delay_seconds),
    )


def _steps_side_by_side(cells: Sequence[tuple[str, ...]], width: int) -> list[Text]:
    each = width // len(cells)
    arrow = " ─▶ "
    head = "".join(f"{name}{arrow if at < len(cells) - 1 else ''}".ljust(each) for at, (name, *_) in enumerate(cells))
    rows = [("", "records/s"), ("waiting ", ""), ("oldest ", ""), ("delay ", "")]
    lines = [_line(head, width, "bold")]
    for number, (label, unit) in enumerate(rows, start=1):
        texts = [f"{label}{row[number]}{f' {unit}' if unit else ''}" for row in cells]
        lines.append(
            _line("".join(_cut(text, each - 1).ljust(each) for text in texts), width, "" if number < 3 else "dim")
        )
    return lines


def _counts(overview: m.OverviewAnswer, width: int) -> list[Text]:
    lines = []
    for name in ("partitions", "receivers", "hosts", "batches"):
        found: dict[str, int] = getattr(overview, name)
        parts = [(f"{name:<11}", "dim")]
        for state, count in sorted(found.items(), key=lambda item: (-item[1], item[0])):
            parts.append((f"{count} {state}  ", _style(state)))
        if found:
            lines.append(_joined(parts, width))
    totals = overview.totals
    text = f"{totals.records_taken:,} records taken in, {totals.records_completed:,} completed in "
    text += f"{totals.batches_completed:,} batches, {decimal(totals.bytes)} in the WAL"
    lag = "unknown" if overview.lag_records is None else f"{overview.lag_records:,} records"
    behind = "" if overview.lag_seconds is None else f", {_seconds(overview.lag_seconds)}"
    return [_joined([("lag        ", "dim"), (lag + behind, "bold")], width), *lines, _line(text, width, "dim")]


# ---- series ----------------------------------------------------------------------------------------------------------


def _series(series: m.SeriesAnswer | None, width: int) -> list[Text]:
    if series is None or not series.times_ms:
        return []
    lines = []
    room = max(1, width - 32)
    for name, (label, unit) in _SERIES.items():
        values = series.values.get(name, ())
        last = next((value for value in reversed(values) if value is not None), None)
        if last is None:
            continue
        shown = f"{_number(last)}{unit}"
        lines.append(
            _joined([(f"{label:<12}", "dim"), (f"{shown:>14}  ", ""), (sparkline(values, room), "cyan")], width)
        )
    return lines


def sparkline(values: Sequence[float | None], width: int) -> str:
    """Return the last ``width`` values as bars from 0 to the largest one; a space for an unknown value."""
    shown = list(values)[-width:]
    highest = max((value for value in shown if value is not None), default=0.0)
    return "".join(
        " " if value is None else _BARS[round(value / highest * (len(_BARS) - 1)) if highest > 0 and value > 0 else 0]
        for value in shown
    )


# ---- lists -----------------------------------------------------------------------------------------------------------


def _list(screen: Screen, answers: Answers, width: int, height: int) -> list[Text]:
    name = screen.shown_list
    entries = getattr(answers, name)
    total = answers.totals.get(name, len(entries))
    tabs = [(f" {one} ", "reverse" if one == name else "dim") for one in LISTS]
    rows = height - 2
    last = min(len(entries), screen.first + rows)
    place = f"  {screen.first + 1}–{last} of {total}" if entries else "  none"
    more = f"; `forebay {name}` lists more" if total > LIST_MAX else ""
    columns, cells = _rows(name, entries[screen.first : last])
    return [_joined([*tabs, (place + more, "dim")], width), *_table(columns, cells, width)]


def _rows(name: ListName, entries: Sequence[object]) -> tuple[list[Column], list[tuple[str, ...]]]:
    if name == "batches":
        columns = [
            Column("number", 8, right=True), Column("state", 10), Column("records", 9, right=True),
            Column("scheduling", 11, right=True), Column("processing", 11, right=True), Column("total", 11, right=True),
            Column("attempts", 8, right=True), Column("detail", share=1),
        ]  # fmt: skip
        return columns, [_batch(one) for one in entries if isinstance(one, m.BatchEntry)]
    if name == "receivers":
        columns = [
            Column("receiver", share=2), Column("host", share=2), Column("state", 10), Column("silent", 9, right=True),
            Column("buffered", 9, right=True), Column("records", 12, right=True), Column("detail", share=3),
        ]  # fmt: skip
        return columns, [_receiver(one) for one in entries if isinstance(one, m.TrackedReceiver)]
    if name == "partitions":
        columns = [
            Column("partition", share=2), Column("state", 10), Column("taken in", 12, right=True),
            Column("completed", 12, right=True), Column("lag", 9, right=True), Column("behind", 10, right=True),
            Column("receiver", share=1),
        ]  # fmt: skip
        return columns, [_partition(one) for one in entries if isinstance(one, m.TrackedPartition)]
    columns = [
        Column("host", share=2), Column("state", 10), Column("silent", 9, right=True), Column("blocks", 8, right=True),
        Column("used", 9, right=True), Column("free", 9, right=True), Column("load", 6, right=True),
        Column("labels", share=1),
    ]  # fmt: skip
    return columns, [_host(one) for one in entries if isinstance(one, m.TrackedAgent)]


def _batch(b: m.BatchEntry) -> tuple[str, ...]:
    delays = (delay(b.scheduling_delay_ms), delay(b.processing_ms), delay(b.total_delay_ms))
    return (str(b.number), b.state, _number(b.records), *delays, str(b.attempts), batch_note(b))


def _receiver(r: m.TrackedReceiver) -> tuple[str, ...]:
    silent = "-" if r.silent_seconds < 0 else _seconds(r.silent_seconds)
    return (r.receiver_id, r.host, r.state, silent, decimal(r.buffered_bytes), f"{r.records:,}", r.detail)


def _partition(p: m.TrackedPartition) -> tuple[str, ...]:
    lag = "unknown" if p.lag is None else _number(p.lag)
    name = f"{p.topic}/{p.partition}"
    return (name, p.state, f"{p.position:,}", f"{p.completed:,}", lag, _seconds(p.lag_seconds), p.receiver_id or "-")


def _host(h: m.TrackedAgent) -> tuple[str, ...]:
    silent = "-" if h.silent_seconds < 0 else _seconds(h.silent_seconds)
    sizes = (decimal(h.used_bytes), decimal(h.free_bytes))
    return (h.host, h.state, silent, str(h.blocks), *sizes, f"{h.load:.2f}", ", ".join(h.labels))


def _table(columns: Sequence[Column], rows: Sequence[Sequence[str]], width: int) -> list[Text]:
    """Return head and rows. Columns at the right are left out if they do not fit; columns with a share get the rest."""
    widths = _widths(columns, width)
    shown = columns[: len(widths)]
    lines = [_cells([column.title for column in shown], shown, widths, [Style(dim=True)] * len(shown))]
    for row in rows:
        styles = [
            Style.parse(_style(cell)) if column.title == "state" else Style()
            for column, cell in zip(shown, row, strict=False)
        ]
        lines.append(_cells(row, shown, widths, styles))
    return lines


def _widths(columns: Sequence[Column], width: int) -> list[int]:
    least = 8  # of a column with a share
    used, count = 0, 0
    for column in columns:
        needed = (column.width or least) + (1 if count else 0)
        if used + needed > width:
            break
        used, count = used + needed, count + 1
    shares = sum(column.share for column in columns[:count])
    left = max(0, width - used)
    return [column.width or least + left * column.share // shares for column in columns[:count]]


def _cells(row: Sequence[str], columns: Sequence[Column], widths: Sequence[int], styles: Sequence[Style]) -> Text:
    line = Text(no_wrap=True, overflow="crop")
    for at, (cell, column, width, style) in enumerate(zip(row, columns, widths, styles, strict=False)):
        cut = _cut(one_line(cell), width)
        space = " " * (width - cell_len(cut))
        line.append(" " if at else "").append(f"{space}{cut}" if column.right else f"{cut}{space}", style)
    return line


def _footer(screen: Screen, width: int) -> Text:
    return _line(_KEYS, width, "dim")


# ---- numbers ---------------------------------------------------------------------------------------------------------


def _number(value: float | None) -> str:
    """Return a number in at most seven characters: ``12``, ``1,234``, ``12.3k``, ``4.56M``."""
    if value is None:
        return "-"
    if abs(value) < 10 and value != int(value):
        return f"{value:.1f}"
    for limit, divisor, unit in ((1e4, 1, ""), (1e6, 1e3, "k"), (1e9, 1e6, "M"), (1e12, 1e9, "G")):
        if abs(value) < limit:
            return f"{round(value):,}" if not unit else f"{value / divisor:.1f}{unit}"
    return f"{value:.2e}"


def _seconds(seconds: float | None) -> str:
    return delay(None if seconds is None else round(seconds * 1000))
