"""``forebay validate``: everything that can be wrong before a service starts, each as one line."""

from __future__ import annotations

import errno
import os
import secrets
import socket
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import click
import msgspec

from deploy.console.invocation import (
    FINE,
    UNREACHABLE,
    WRONG_USE,
    Invocation,
    example,
    job_folders,
    pass_invocation,
    prepare_job_imports,
    shared_options,
)
from driver.spark.address import check_address, check_master
from driver.spark.java import check_java
from forebay.model.errors import SettingsError, SourceError, StoreError, UnreachableError, UsageError
from forebay.settings.durability_notes import without_wal
from forebay.settings.load import load, mistakes
from forebay.settings.schema import Settings
from forebay.settings.stores import local_path
from forebay_start import hidden

#: how long `validate` waits for a broker
BROKER_TIMEOUT_SECONDS = 10.0
#: how long it tries a remote store again
STORE_TIMEOUT_SECONDS = 5.0


class Check(msgspec.Struct, frozen=True):
    """One line. ``outcome``: fine | wrong | unreachable | unknown (what it needs could not be reached)."""

    name: str
    outcome: str
    detail: str


def check_all(settings: Settings, config_path: Path) -> Iterator[Check]:
    """Each check as it is done. The last ones ask the broker, or the user's own source."""
    yield Check("configuration", "fine", str(config_path))
    if not settings.has_wal:
        yield Check("wal", "fine", without_wal(settings))
    yield from check_folders(settings)
    yield from _check_keys(settings)
    yield from _check_access(settings)
    yield from _check_names(config_path)
    if settings.driver.job is None:
        yield Check("job", "fine", "none is named: batches wait for a program with IngestContext")
    else:
        names = ", ".join(settings.driver.jobs)
        yield _outcome("job", f"{names} can be called", lambda: import_jobs(settings, config_path))
    if settings.driver.listeners:
        names = ", ".join(settings.driver.listeners)
        yield _outcome("listeners", f"{names} can be made", lambda: make_listeners(settings, config_path))
    if settings.driver.engine == "spark" and settings.driver.job is not None:
        yield _outcome("java", "found", check_java)
        yield _check_master(settings)
        master = settings.spark.options.get("spark.master", "")
        yield _outcome("spark address", "this host has one", lambda: check_address(master))
    if settings.custom_source:
        yield from _check_custom_source(settings, config_path)
    else:
        yield from _check_kafka(settings)


def check_configuration(config_path: Path, offline: bool = False) -> Iterator[Check]:
    """Each mistake in the file and the environment; if there is none, all the other checks."""
    wrong = mistakes(config_path)
    if wrong:
        yield from (Check("configuration", "wrong", str(error)) for error in wrong)
        yield Check("everything else", "unknown", "not checked: the configuration is wrong")
        return
    yield from (check_offline if offline else check_all)(load(config_path), config_path)


def check_offline(settings: Settings, config_path: Path) -> Iterator[Check]:
    """What the configuration says by itself, wherever it is looked at."""
    yield Check("configuration", "fine", str(config_path))
    if settings.driver.engine == "spark":
        yield _check_master(settings)
    if not settings.custom_source:
        yield _check_kafka_options(settings)


def check_folders(settings: Settings) -> Iterator[Check]:
    """WAL, journal, blocks and dead letters: can a file be made there, and on a store of whole objects, only if it is
    absent?"""
    letters = settings.dead_letters.url
    for name, key, place in (
        *([("wal", "wal.url", settings.wal.url)] if settings.has_wal else []),
        ("journal", "driver.journal", settings.driver.journal),
        ("blocks", "agent.blocks", settings.agent.blocks),
        *([("dead letters", "dead_letters.url", letters)] if letters is not None else []),
    ):
        check = (
            partial(require_store, key, place, settings) if is_remote(place) else partial(require_writable, key, place)
        )
        yield _outcome(name, f"{place} can be written", check)


def _check_names(config_path: Path) -> Iterator[Check]:
    """What jobs may expect to import, and don't get."""
    for path in [path for folder in job_folders(config_path) for path in hidden(folder)]:
        name = path.parent.name if path.name == "__init__.py" else path.stem
        detail = f"{path}: `import {name}` gives Forebay's own package; give this one another name if a job needs it"
        yield Check("names", "fine", detail)


def _check_keys(settings: Settings) -> Iterator[Check]:
    from wal.blocks.encryption import load_keys

    try:
        keys = load_keys(settings.wal.key_file)
    except SettingsError as error:
        yield Check("wal keys", "wrong", str(error))
        return
    words = "blocks are not encrypted" if keys is None else f"{keys.current} encrypts; known are {', '.join(keys.ids)}"
    yield Check("wal keys", "fine", words)


def _check_access(settings: Settings) -> Iterator[Check]:
    """Tokens and certificates, of those roles that a process of this file may have."""
    from forebay.security.access import Access, Guard, TokenFile

    try:
        tokens = TokenFile(settings.security.token_file).tokens
        words = "there are none: services listen on this machine alone"
        if tokens is not None:
            words = f"lines for each role: {tokens.summary}"
        guard = Guard(settings)
        guard.tls()
        for url in (settings.driver.url, settings.agent.url):
            guard.check_address(_number_of(urlsplit(url).hostname or ""), url)
        Access.of(settings, "operator").tls()
    except SettingsError as error:
        yield Check("tokens", "wrong", str(error))
        return
    yield Check("tokens", "fine", words)


def _number_of(host: str) -> str:
    """The address of ``host`` as a service here would listen on it; ``host`` itself if it has none here."""
    try:
        return str(socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)[0][4][0])
    except OSError:
        return host


def _check_master(settings: Settings) -> Check:
    master = settings.spark.options.get("spark.master", "")
    return _outcome("spark master", master or "as Spark's own defaults say", lambda: check_master(master))


def _outcome(name: str, words: str, run: Callable[[], Any]) -> Check:
    try:
        run()
    except SettingsError as error:
        return Check(name, "wrong", str(error))
    except UnreachableError as error:
        return Check(name, "unreachable", str(error))
    return Check(name, "fine", words)


def is_remote(place: str) -> bool:
    return "://" in place and local_path(place) is None


def require_store(key: str, url: str, settings: Settings) -> None:
    """Writes to the remote store at ``url``, as two processes that race would, and removes it again. Raises SettingsError
    naming ``key`` if it can't keep a log, UnreachableError if it does not answer."""
    from wal.storage import open_storage, tried_for
    from wal.storage.probe import probe

    try:
        storage = tried_for(open_storage(url, settings.storage), STORE_TIMEOUT_SECONDS)
        probe(storage, settings.stream, lambda: secrets.randbits(64))
    except UsageError as error:
        raise SettingsError(f"{key}: {error}") from None
    except StoreError as error:
        raise UnreachableError(f"{key}: {error}") from None


def require_writable(key: str, place: str) -> None:
    """``place`` is a folder's path or a ``file://`` URL. Leaves nothing behind. Raises SettingsError naming ``key``; of
    another url, UsageError if no store has it."""
    if is_remote(place):
        from wal.storage import open_storage

        open_storage(place)
        return
    folder = Path(urlsplit(place).path if "://" in place else place)
    try:
        while not folder.exists():
            folder = folder.parent
        if not folder.is_dir():
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))
        with tempfile.TemporaryFile(dir=folder):
            return
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            return  # a full disk is waited for, not refused
        raise SettingsError(f"{key}: {place} can't be written: {folder}: {error.strerror}") from None


def import_jobs(settings: Settings, config_path: Path) -> None:
    """Imports what ``driver.job`` names. Raises SettingsError that says why it can't be had."""
    prepare_job_imports(config_path)
    from driver.main import find_jobs

    try:
        find_jobs(settings)
    except SettingsError:
        raise
    except Exception as error:  # whatever the user's module raises while it is imported is the user's to read
        raise SettingsError(
            f"driver.job: {', '.join(settings.driver.jobs)}: importing it failed: {type(error).__name__}: {error}"
        ) from None


def make_listeners(settings: Settings, config_path: Path) -> None:
    """Makes one of each that ``driver.listeners`` names. Raises SettingsError that says why it can't be had."""
    prepare_job_imports(config_path)
    from driver.listeners.dispatch import find_listener

    for name in settings.driver.listeners:
        find_listener(name)


def _check_custom_source(settings: Settings, config_path: Path) -> Iterator[Check]:
    """The class, made but not started, and the partitions that it names here."""
    from forebay.sources.custom import CustomUpstream

    prepare_job_imports(config_path)
    made: list[CustomUpstream] = []
    words = f"{settings.receiver.source} can be made"
    checked = _outcome("source", words, lambda: made.append(CustomUpstream(settings)))
    yield checked
    if checked.outcome != "fine":
        yield Check("partitions", "unknown", "not asked: the source is wrong")
        return
    try:
        partitions = sorted(made[0].partitions())
    except UnreachableError as error:
        yield Check("partitions", "unreachable", str(error))
    except SourceError as error:
        yield Check("partitions", "wrong", f"receiver.source: {error}")
    else:
        yield Check("partitions", "fine", ", ".join(map(str, partitions)) or "none yet")


def _check_kafka_options(settings: Settings) -> Check:
    from forebay.kafka.client.options import check_options

    return _outcome("kafka options", "librdkafka takes them", lambda: check_options(settings.kafka.options))


def _check_kafka(settings: Settings) -> Iterator[Check]:
    from forebay.kafka.client.admin import KafkaAdmin

    checked = _check_kafka_options(settings)
    yield checked
    if checked.outcome != "fine":
        yield Check("broker", "unknown", "not asked: the options are wrong")
        return
    address = settings.kafka.options["bootstrap.servers"]
    with KafkaAdmin(settings.kafka.options, timeout_seconds=BROKER_TIMEOUT_SECONDS) as admin:
        reached = _outcome("broker", f"{address} answers", lambda: admin.check(BROKER_TIMEOUT_SECONDS))
        yield reached
        if reached.outcome != "fine":
            yield Check("topics", "unknown", "not asked: no broker answers")
            return
        partitions = admin.partitions(settings.kafka.topics, settings.kafka.pattern)
    there = {tp.topic for tp in partitions}
    missing = [topic for topic in settings.kafka.topics if topic not in there]
    if missing:
        yield Check(
            "topics", "wrong", f"kafka.topics: {address} has no topic {', '.join(missing)}; create it or name another"
        )
    elif not there:
        yield Check("topics", "fine", f"kafka.pattern: no topic matches {settings.kafka.pattern} yet")
    else:
        yield Check("topics", "fine", f"{', '.join(sorted(there))}: {len(partitions)} partitions")


@click.command(
    short_help="Check configuration, folders, job, broker and topics.",
    epilog=example("forebay --config forebay.toml validate", "forebay validate --json", "forebay validate --offline"),
)
@click.option("--offline", is_flag=True, help="Look at the configuration alone: no folder, no job, no broker.")
@shared_options
@pass_invocation
def validate(invocation: Invocation, offline: bool) -> int:
    """Check the configuration, the folders, the job, the broker and the topics, each as one line; changes nothing.

    With --offline it may be that of another host. Exits with 2 if something is wrong, with 3 if all is right but no broker
    answers.
    """
    checks = []
    for check in check_configuration(invocation.config_path, offline):
        checks.append(check)
        if not invocation.json:
            click.echo(f"{check.outcome:<12}{check.name}: {check.detail}")
    if invocation.json:
        invocation.write(checks)
    outcomes = {check.outcome for check in checks}
    if "wrong" in outcomes:
        return WRONG_USE
    return UNREACHABLE if "unreachable" in outcomes else FINE
