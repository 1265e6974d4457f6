"""Draws the pictures of docs/concepts.md as SVG files in docs/images.

    python scripts/drawings.py

The colours follow the reader's system, light or dark. Each picture has a background of its own, so that it is also readable on a
page of the other kind.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from xml.sax.saxutils import escape

FOLDER = Path(__file__).resolve().parents[1] / "docs" / "images"
_LINE = 17

_STYLE = """
.page { fill: #ffffff; } .box { fill: #f2f5f8; stroke: #8496a5; } .main { fill: #dcebf7; stroke: #2f6f9f; }
.disk { fill: #e6f2e8; stroke: #4b8a58; } .bad { fill: #fbe9e7; stroke: #b3473a; }
.line { stroke: #5b6b78; fill: none; } .weak { stroke: #a9b6c1; fill: none; } .tip { fill: #5b6b78; }
text { fill: #1c2730; font: 14px system-ui, sans-serif; } .title { font-weight: 600; }
.small { font-size: 12.5px; fill: #4a5964; }
.number { fill: #2f6f9f; } .digit { fill: #ffffff; font-size: 12px; font-weight: 600; }
@media (prefers-color-scheme: dark) {
  .page { fill: #1b2127; } .box { fill: #262e36; stroke: #71838f; } .main { fill: #1d3a52; stroke: #6db1e0; }
  .disk { fill: #21382a; stroke: #79b787; } .bad { fill: #472723; stroke: #e08a7e; }
  .line { stroke: #a8b6c1; } .weak { stroke: #56646f; } .tip { fill: #a8b6c1; }
  text { fill: #e8eef3; } .small { fill: #b3c0ca; } .number { fill: #6db1e0; } .digit { fill: #12212d; }
}
"""


@dataclass(slots=True)
class Picture:
    """Shapes on a page of ``width`` × ``height``. ``title`` and ``description`` are read to people who can't see it."""

    width: int
    height: int
    title: str
    description: str
    _shapes: list[str] = field(default_factory=list)

    def text(self, x: float, y: float, label: str, style: str = "", anchor: str = "start") -> None:
        """Write ``label``, with the base line of the first line at ``y``; | begins a new line."""
        for number, line in enumerate(label.split("|")):
            self._shapes.append(
                f'<text x="{x:g}" y="{y + number * _LINE:g}" class="{style}" text-anchor="{anchor}">{escape(line)}</text>'
            )

    def box(
        self, x: float, y: float, width: float, height: float, title: str, label: str = "", style: str = "box"
    ) -> None:
        """Draw a box with a title and lines of text below it, centred."""
        self._shapes.append(f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="6" class="{style}"/>')
        lines = label.split("|") if label else []
        top = y + height / 2 - _LINE * len(lines) / 2 + 5
        self.text(x + width / 2, top, title, "title", "middle")
        if lines:
            self.text(x + width / 2, top + _LINE + 1, label, "small", "middle")

    def arrow(self, *points: tuple[float, float], label: str = "", style: str = "line", dashed: bool = False) -> None:
        """Draw a line along ``points``, with its tip at the last one, and the label above its first part."""
        path = " ".join(f"{x:g},{y:g}" for x, y in points)
        dashes = ' stroke-dasharray="5 4"' if dashed else ""
        self._shapes.append(
            f'<polyline points="{path}" class="{style}" stroke-width="1.6" marker-end="url(#tip)"{dashes}/>'
        )
        if label:
            (x1, y1), (x2, y2) = points[0], points[1]
            self.text((x1 + x2) / 2, (y1 + y2) / 2 - 7 - _LINE * label.count("|"), label, "small", "middle")

    def line(self, x1: float, y1: float, x2: float, y2: float) -> None:
        """Draw a thin line without a tip."""
        self._shapes.append(f'<line x1="{x1:g}" y1="{y1:g}" x2="{x2:g}" y2="{y2:g}" class="weak" stroke-width="1.4"/>')

    def number(self, x: float, y: float, value: int) -> None:
        """Draw the number of a step in a circle."""
        self._shapes.append(f'<circle cx="{x:g}" cy="{y:g}" r="10" class="number"/>')
        self.text(x, y + 4.3, str(value), "digit", "middle")

    def svg(self) -> str:
        """Return the file."""
        shapes = "\n".join(self._shapes)
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {self.width} {self.height}" role="img" '
            f'aria-labelledby="title description">\n<title id="title">{escape(self.title)}</title>\n'
            f'<desc id="description">{escape(self.description)}</desc>\n<style>{_STYLE}</style>\n'
            '<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
            '<path d="M0,0 L8,4 L0,8 z" class="tip"/></marker></defs>\n'
            f'<rect width="{self.width}" height="{self.height}" rx="10" class="page"/>\n{shapes}\n</svg>\n'
        )


def way_of_a_record() -> Picture:
    made = Picture(
        980,
        410,
        "The way of a record",
        "Kafka to receiver; the receiver writes the block to the WAL and to a local copy, reports it to the driver, and commits "
        "to Kafka after the driver has accepted it; the driver makes batches; Spark tasks read the blocks; the job completes "
        "the batch.",
    )
    made.box(20, 150, 110, 70, "Kafka", "partitions")
    made.box(200, 140, 150, 90, "Receiver", "records → block|in columns", "main")
    made.box(430, 40, 150, 64, "WAL", "synced segment", "disk")
    made.box(430, 290, 150, 64, "Local copy", "file on this host", "disk")
    made.box(430, 150, 150, 70, "Driver", "decide, journal,|sync, answer", "main")
    made.box(680, 150, 120, 70, "Batch", "blocks → tasks", "main")
    made.box(850, 150, 110, 70, "Your job", "df, rdd, arrow")
    made.arrow((130, 172), (198, 172))
    made.number(164, 158, 1)
    made.arrow((290, 140), (290, 72), (428, 72))
    made.number(290, 105, 2)
    made.arrow((290, 230), (290, 322), (428, 322))
    made.number(290, 268, 2)
    made.arrow((350, 168), (428, 168), label="report")
    made.number(389, 182, 3)
    made.arrow((428, 208), (352, 208))
    made.text(390, 227, "accepted", "small", "middle")
    made.arrow((200, 212), (132, 212))
    made.number(166, 226, 4)
    made.text(110, 255, "commit of offsets", "small", "middle")
    made.arrow((580, 185), (678, 185), label="each interval")
    made.number(629, 200, 5)
    made.arrow((800, 185), (848, 185))
    made.number(824, 172, 6)
    made.arrow((580, 72), (740, 72), (740, 148), dashed=True)
    made.text(750, 112, "else the WAL", "small")
    made.arrow((580, 322), (740, 322), (740, 222), dashed=True)
    made.text(750, 270, "first the local copy,|then its host’s agent", "small")
    made.arrow((905, 222), (905, 378), (505, 378), (505, 358), style="weak")
    made.arrow((905, 150), (905, 20), (505, 20), (505, 38), style="weak")
    made.number(905, 250, 7)
    made.text(700, 398, "completed: clean-up deletes local copies, and later the segments", "small", "middle")
    return made


def ownership() -> Picture:
    made = Picture(
        980,
        530,
        "Ownership of a partition",
        "Kafka's group assigns a partition to receiver A, which looks its position up and claims it with token 7. A is paused. "
        "The group gives the partition to receiver B, which claims it with token 8. A's late report with token 7 is refused.",
    )
    columns = {"Kafka’s group": 110, "Receiver A": 360, "Driver": 610, "Receiver B": 860}
    for name, x in columns.items():
        made.line(x, 54, x, 515)
        made.box(x - 75, 16, 150, 38, name, style="main" if name == "Driver" else "box")
    kafka, first, driver, second = columns.values()
    made.arrow((kafka, 90), (first - 4, 90), label="assigns flights/0 to A")
    made.arrow((first, 122), (driver - 4, 122), label="lookup")
    made.arrow((driver, 150), (first + 4, 150), label="position 1200")
    made.arrow((first, 182), (kafka + 4, 182), label="commits 1200, as a member")
    made.arrow((first, 214), (driver - 4, 214), label="claim at 1200")
    made.arrow((driver, 242), (first + 4, 242), label="token 7, journalled")
    made.box(first - 85, 258, 170, 36, "reads, seals a block", style="disk")
    made.box(first - 85, 302, 170, 36, "is paused", style="bad")
    made.arrow((kafka, 372), (second - 4, 372))
    made.text(kafka + 12, 364, "assigns flights/0 to B", "small")
    made.text(second - 12, 364, "after session.timeout.ms", "small", "end")
    made.arrow((second, 404), (driver + 4, 404), label="lookup, commit, claim")
    made.arrow((driver, 432), (second - 4, 432), label="token 8")
    made.arrow((first, 468), (driver - 4, 468), label="A wakes: report with token 7", dashed=True)
    made.arrow((driver, 498), (first + 4, 498), label="refused: rewind", dashed=True)
    made.text(driver + 14, 478, "B reads the records of A’s|unaccepted block from Kafka", "small")
    return made


def batch_allocation() -> Picture:
    made = Picture(
        980,
        430,
        "From blocks to tasks",
        "At each batch interval the driver takes the waiting blocks in order, up to the limits, journals batch and packing, and "
        "gives each task the blocks of one host. A task reads a block from the first of four tiers that has it.",
    )
    made.text(20, 34, "Waiting blocks, in the order of acceptance", "title")
    for number, host in enumerate("ABABAAB"):
        x = 20 + number * 84
        style = "main" if host == "A" else "disk"
        made.box(x, 50, 72, 44, f"b{number + 1}", f"host {host}", style)
    made.line(518, 40, 518, 106)
    made.text(526, 118, "limit of the batch: the rest waits", "small")
    made.arrow((265, 100), (265, 148))
    made.text(278, 130, "each driver.batch_interval", "small")
    made.box(
        20,
        152,
        490,
        70,
        "Batch 41",
        "journalled with its packing before anything runs:|a rerun has the same blocks, rows and order",
    )
    made.arrow((140, 224), (140, 260))
    made.arrow((385, 224), (385, 260))
    made.box(20, 264, 235, 62, "Task 1, preferably on host A", "b1, b3, b5, b6", "main")
    made.box(275, 264, 235, 62, "Task 2, preferably on host B", "b2, b4", "disk")
    made.text(580, 172, "A task reads each block from", "title")
    for number, (name, label) in enumerate(
        (
            ("the local copy", "a file on its own host, mapped into memory"),
            ("an agent", "of a host that has a copy"),
            ("the WAL", "the segment’s frame, by its handle"),
            ("Kafka", "the exact offsets, compared with the journal’s digest"),
        )
    ):
        y = 206 + number * 48
        made.number(592, y, number + 1)
        made.text(612, y + 1, name, "title")
        made.text(612, y + 19, label, "small")
    made.text(20, 362, "If no tier has a block, the batch stops with an alert that names its offsets.", "small")
    made.text(20, 384, "It is never treated as an empty partition.", "small")
    made.text(20, 406, "Each tier’s bytes are compared with the checksum in the journal.", "small")
    return made


#: title, state and what the next process does after a kill
_MOMENTS = (
    (
        "polled",
        "the receiver holds|the records in memory",
        "The next owner of the|partition reads them|from Kafka again.",
    ),
    (
        "stored",
        "the WAL holds the block,|it is not reported",
        "They are read again. If|Kafka has lost them,|the driver adopts the|block from the WAL.",
    ),
    (
        "accepted",
        "the journal has the block,|Kafka’s offset is lower",
        "The next owner begins|at the journal’s position,|not at Kafka’s offset.",
    ),
    (
        "allocated",
        "the journal has the|batch, the job runs",
        "The next driver runs the|batch again: same id,|rows and tasks.",
    ),
    (
        "completed",
        "the journal has|the completion",
        "Nothing is repeated.|Clean-up continues from|its journalled intent.",
    ),
)


def recovery() -> Picture:
    made = Picture(
        980,
        370,
        "What happens if a process is killed",
        "Five moments between Kafka and the completion of a batch, each with what the next process does.",
    )
    width, gap = 174, 17
    for number, (title, state, after) in enumerate(_MOMENTS):
        x = 22 + number * (width + gap)
        made.box(x, 24, width, 74, title, state, "main" if number else "box")
        if number < len(_MOMENTS) - 1:
            made.arrow((x + width, 61), (x + width + gap - 2, 61))
        made.arrow((x + width / 2, 98), (x + width / 2, 146), dashed=True)
        made.text(x + width / 2 + 8, 126, "killed", "small")
        made.box(x, 150, width, 100, "", style="bad")
        made.text(x + width / 2, 204 - _LINE * after.count("|") / 2, after, "small", "middle")
    for number, label in enumerate(
        (
            "A process that was only paused changes nothing when it wakes up: its token or epoch is outdated.",
            "A write that was cut off in the middle is dropped when the log is opened, because its checksum does not match.",
            "Damage in the middle of a log is never dropped: it is an error that names the file and the byte.",
        )
    ):
        made.text(22, 290 + number * 24, label, "small")
    return made


PICTURES: dict[str, Callable[[], Picture]] = {
    "way-of-a-record.svg": way_of_a_record,
    "ownership.svg": ownership,
    "batch-allocation.svg": batch_allocation,
    "recovery.svg": recovery,
}


def problems() -> Iterable[str]:
    """Return which pictures are not what this script draws."""
    return [
        f"docs/images/{name} is not what scripts/drawings.py draws: run .venv/bin/python scripts/drawings.py"
        for name, draw in PICTURES.items()
        if not (FOLDER / name).is_file() or (FOLDER / name).read_text(encoding="utf-8") != draw().svg()
    ]


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for name, draw in PICTURES.items():
        (FOLDER / name).write_text(draw().svg(), encoding="utf-8")
    sys.exit(0)
