"""Ports of the services on this machine, the driver that runs, its clock, and where tasks read their blocks."""

from __future__ import annotations

import errno
import re
import socket
from collections.abc import Iterator
from contextlib import closing
from urllib.parse import urlsplit

from deploy.commands.setup.doctor.findings import Finding
from deploy.commands.setup.doctor.stores import clock_finding
from deploy.console.driver_requests import observer
from forebay.http.client import Client
from forebay.messages import Done, OverviewAnswer, StatusAnswer
from forebay.model.errors import AccessError, ForebayError, NoListenerError, SettingsError
from forebay.model.values import TIERS
from forebay.process.clock import Clock
from forebay.security.access import Access
from forebay.settings.schema import Settings

_AREA = "services"
_ANSWER_SECONDS = 3.0
#: an error that shows that the answer is no answer of a Forebay service
_STRANGE = re.compile(r"HTTP \d{3}$|can't be decoded")
#: share of ranges that tasks read on their own host, in percent, below which local copies are of little use
_LOCAL_SHARE_MIN = 50


def check_services(settings: Settings, clock: Clock) -> Iterator[Finding]:
    """Yield the findings about ports, the running driver, and locality."""
    for name, url in (("driver", settings.driver.url), ("agent", settings.agent.url)):
        yield _port(name, url, settings)
    try:
        with observer(settings, timeout_seconds=_ANSWER_SECONDS) as client:
            began = clock.wall_ms()
            overview = client.overview()
            here_ms = (began + clock.wall_ms()) / 2
            status = client.status()
    except (AccessError, SettingsError) as error:
        step = "use a token of the role reader or operator (security.token_file, FOREBAY_TOKENS)"
        yield Finding(_AREA, "driver", "wrong", str(error), step)
        return
    except ForebayError as error:
        yield Finding(_AREA, "driver", "note", f"no driver leads the stream: {error}", "start it with `forebay up`")
        yield _locality_of_settings(settings)
        return
    yield _running(overview)
    yield clock_finding(_AREA, "driver: clock", "the driver's clock", (overview.time_ms - here_ms) / 1000)
    yield locality(settings, status)


def _port(name: str, url: str, settings: Settings) -> Finding:
    """Return whether a service can listen at ``url`` on this machine, or which program listens there."""
    parts = urlsplit(url)
    title, host, port = f"{name}: port", parts.hostname or "", parts.port or 0
    if port == 0:
        return Finding(_AREA, title, "fine", f"{url}: the system chooses a free port")
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except OSError as error:
        step = f"correct {name}.url, or give the name an address"
        return Finding(_AREA, title, "wrong", f"{url}: {host} has no address: {error.strerror}", step)
    with closing(socket.socket(family, kind, protocol)) as tried:
        tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            tried.bind(address)
        except OSError as error:
            if error.errno == errno.EADDRNOTAVAIL:
                return Finding(
                    _AREA, title, "note", f"{url} belongs to another machine; run `forebay doctor` there too"
                )
            if error.errno == errno.EACCES:
                step = f"choose a port above 1023 in {name}.url, or give the service the right to use this one"
                return Finding(_AREA, title, "wrong", f"{url}: {error.strerror}", step)
            return _listener(name, title, url, settings)
    return Finding(_AREA, title, "fine", f"{url} is free")


def _listener(name: str, title: str, url: str, settings: Settings) -> Finding:
    strange = Finding(
        _AREA, title, "wrong", f"{url}: another program listens there", f"stop it, or choose another port in {name}.url"
    )
    try:
        with closing(Client(url, _ANSWER_SECONDS, Access.of(settings, "operator"))) as client:
            client.get("/v1/health", Done)
    except NoListenerError as error:
        return Finding(_AREA, title, "unknown", f"{url}: in use, but {error.reason}")
    except ForebayError as error:
        if _STRANGE.search(str(error)) or "did not answer" in str(error):
            return strange
        return Finding(_AREA, title, "fine", f"{url}: a Forebay service listens there ({error})")
    return Finding(_AREA, title, "fine", f"{url}: a Forebay service listens there, and is ready")


def _running(overview: OverviewAnswer) -> Finding:
    text = f"stream {overview.stream} is {overview.state}, release {overview.release}"
    if overview.problem_count:
        first = overview.problems[0].cause if overview.problems else ""
        step = "`forebay status` shows each problem with its next step"
        return Finding(_AREA, "driver", "wrong", f"{text}; {overview.problem_count} problems, first: {first}", step)
    if overview.paused:
        return Finding(_AREA, "driver", "note", f"{text}; paused: {overview.pause_cause}", "`forebay resume` continues")
    return Finding(_AREA, "driver", "fine", text)


def locality(settings: Settings, status: StatusAnswer) -> Finding:
    """Return whether tasks read their blocks on their own hosts, by the tiers that the running driver counted."""
    agents = sorted(agent.host for agent in status.agents)
    ranges = sum(status.tiers.get(tier, 0) for tier in TIERS)
    where = f"agents on {', '.join(agents)}" if agents else "no agent"
    if not ranges:
        return Finding(_AREA, "locality", "unknown", f"{where}; no task has read a block yet")
    share = 100 * status.tiers.get("local", 0) // ranges
    text = f"{share} % of {ranges} ranges were read on the task's own host; {where}"
    if settings.receiver.local_copies and share < _LOCAL_SHARE_MIN:
        step = (
            "set agent.host on each host to the name that Spark uses for its executor, and run an agent and receivers on the "
            "hosts of the executors"
        )
        return Finding(_AREA, "locality", "note", text, step)
    return Finding(_AREA, "locality", "fine", text)


def _locality_of_settings(settings: Settings) -> Finding:
    here = settings.agent.host or socket.gethostname()
    master = settings.spark.options.get("spark.master", "")
    if settings.driver.engine == "local" or master.startswith("local"):
        return Finding(_AREA, "locality", "fine", f"driver, tasks and agent run on this machine ({here})")
    detail = f"this host's agent has the name {here}; the driver compares it with the names of Spark's executors"
    return Finding(_AREA, "locality", "unknown", detail, "run `forebay doctor` again when the stream runs")
