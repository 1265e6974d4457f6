"""Problems that can be derived from a status answer. Without I/O, because the command line uses this module too."""

from __future__ import annotations

from forebay.messages import Problem, StatusAnswer

#: the command that begins the next attempt at a failed batch now
RETRY_COMMAND = "forebay batch retry"
#: the command that ends a pause of the batches
RESUME_COMMAND = "forebay resume"


def in_answer(answer: StatusAnswer) -> tuple[Problem, ...]:
    """Return the problems that can be derived from the other fields of ``answer``: faults, receivers without a host, failing
    batches, cursors."""
    found = [Problem(kind="partition", cause=p.fault) for p in answer.partitions if p.fault]
    found += [Problem(kind="receiver-without-host", cause=r.fault) for r in answer.managed if r.fault]
    for batch in answer.batches:
        name = f"batch {batch.batch_id}"
        if batch.state == "unreadable":
            found.append(Problem(kind="batch-unreadable", cause=f"{name} can't be read: {batch.detail}"))
        elif batch.state in ("failing", "failed") or (batch.state == "running" and batch.detail):
            command = f"correct the job and start the driver again; if its cause is elsewhere: `{RETRY_COMMAND}`"
            found.append(Problem(kind="job", cause=f"the job fails, {name}: {batch.detail}", command=command))
    found += [
        Problem(
            kind="cursor",
            cause=f"cursor {c.cursor} {c.detail}. Start its query again, or acknowledge it: "
            f"forebay cursors drop {c.cursor} --apply",
        )
        for c in answer.cursors
        if c.state == "expired"
    ]
    if answer.state == "failed" and not any(problem.kind == "job" for problem in found):
        found.append(Problem(kind="driver", cause=f"the driver failed: {answer.detail}"))
    return tuple(found)
