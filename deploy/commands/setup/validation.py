"""``forebay validate``: checks of configuration, folders, job, broker and topics before a service starts."""

from __future__ import annotations

import errno
import os
import secrets
import socket
import tempfile
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import click
import msgspec

from deploy.commands.setup.installation import CONFIGURATION, ROLES, other_token_file, unit_path
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
from driver.spark.java.check import check_java
from forebay.http.address import loopback_note
from forebay.model.errors import MissingRightError, SettingsError, SourceError, StoreError, UnreachableError, UsageError
from forebay.process.os_errors import failure
from forebay.settings.durability_notes import without_wal
from forebay.settings.reading.load import load, mistakes
from forebay.settings.reading.similar import did_you_mean
from forebay.settings.schema import Settings
from forebay.settings.stores import local_path
from forebay.sources.kind import source_kind
from forebay_start import hidden

#: maximum time for an answer of a broker
BROKER_TIMEOUT_SECONDS = 10.0
#: maximum time of retries at a remote store
STORE_TIMEOUT_SECONDS = 5.0


class Check(msgspec.Struct, frozen=True):
    """The result of one check.

    ``outcome``: fine | note (no mistake on some hosts) | wrong | unreachable | unknown (depends on a check that failed).
    """

    name: str
    outcome: str
    detail: str


def check_all(settings: Settings, config_path: Path) -> Iterator[Check]:
    """Yield each check when it is done. The last ones ask the broker, or the custom source."""
    yield Check("configuration", "fine", str(config_path))
    if not settings.has_wal:
        yield Check("wal", "fine", without_wal(settings))
    yield from check_folders(settings)
    yield from _check_keys(settings)
    yield from _check_access(settings, config_path)
    yield from _check_addresses(settings)
    yield from _check_names(config_path)
    if settings.driver.job is None:
        yield Check("job", "fine", "driver.job is not set: batches wait for a program with IngestContext")
    else:
        names = ", ".join(settings.driver.jobs)
        yield _outcome("job", f"{names} can be called", lambda: import_jobs(settings, config_path))
    if settings.driver.listeners:
        names = ", ".join(settings.driver.listeners)
        yield _outcome("listeners", f"{names} can be created", lambda: make_listeners(settings, config_path))
    if settings.driver.engine == "spark" and settings.driver.job is not None:
        yield _outcome("java", "found", check_java)
        yield _check_master(settings)
        master = settings.spark.options.get("spark.master", "")
        yield _outcome("spark address", "this host has one", lambda: check_address(master))
    kind = source_kind(settings)
    if kind.runs_user_code:
        yield from _check_custom_source(settings, config_path)
    if kind.kafka_options():
        yield from _check_kafka(settings)


def check_configuration(config_path: Path, offline: bool = False) -> Iterator[Check]:
    """Yield each mistake in the file and the environment; if there is none, all other checks.

    ``offline``: only checks of the configuration itself.
    """
    try:
        wrong = mistakes(config_path)
    except StoreError as error:  # as after an I/O error
        yield Check("configuration", "unreachable", str(error))
        yield Check("everything else", "unknown", "not checked, because the configuration can't be read")
        return
    if wrong:
        yield from (Check("configuration", "wrong", str(error)) for error in wrong)
        yield Check("everything else", "unknown", "not checked, because the configuration is wrong")
        return
    yield from (check_offline if offline else check_all)(load(config_path), config_path)


def check_offline(settings: Settings, config_path: Path) -> Iterator[Check]:
    """Yield the checks that need only the configuration, which may belong to another host."""
    yield Check("configuration", "fine", str(config_path))
    yield from _check_addresses(settings)
    if settings.driver.engine == "spark":
        yield _check_master(settings)
    if source_kind(settings).kafka_options():
        yield _check_kafka_options(settings)


def check_folders(settings: Settings) -> Iterator[Check]:
    """Check that WAL, journal, blocks and dead letters can be written.

    A store of whole objects must also refuse to create an object that exists.
    """
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
    """Report the user's modules that jobs can't import, because Forebay's packages have their names."""
    for path in [path for folder in job_folders(config_path) for path in hidden(folder)]:
        name = path.parent.name if path.name == "__init__.py" else path.stem
        detail = f"{path}: `import {name}` imports Forebay's own package; rename this one if a job imports it"
        yield Check("names", "fine", detail)


def _check_keys(settings: Settings) -> Iterator[Check]:
    from wal.blocks.encryption import load_keys

    try:
        keys = load_keys(settings.wal.key_file)
    except SettingsError as error:
        yield Check("wal keys", "wrong", str(error))
        return
    except StoreError as error:
        yield Check("wal keys", "unreachable", str(error))
        return
    detail = (
        "blocks are not encrypted" if keys is None else f"{keys.current} encrypts; known keys: {', '.join(keys.ids)}"
    )
    yield Check("wal keys", "fine", detail)


def _check_access(settings: Settings, config_path: Path) -> Iterator[Check]:
    """Check the tokens and certificates of the roles that a process with this configuration may have."""
    from forebay.security.access import Access, Guard, TokenFile

    try:
        tokens = TokenFile(settings.security.token_file).tokens
        detail = "security.token_file is not set: services listen only on this machine"
        if tokens is not None:
            detail = f"lines for each role: {tokens.summary}"
        guard = Guard(settings)
        guard.tls()
        for url in (settings.driver.url, settings.agent.url):
            guard.check_address(_number_of(urlsplit(url).hostname or ""), url)
        Access.of(settings, "operator").tls()
    except SettingsError as error:
        yield Check("tokens", "wrong", str(error))
        return
    except StoreError as error:
        yield Check("tokens", "unreachable", str(error))
        return
    # on an installed host the services have other tokens than the commands, which would get HTTP 401
    is_installed = config_path.resolve() == Path(CONFIGURATION) and any(map(os.path.exists, map(unit_path, ROLES)))
    problem = other_token_file(settings) if is_installed else None
    yield Check("tokens", "fine" if problem is None else "note", problem or detail)


def _check_addresses(settings: Settings) -> Iterator[Check]:
    """Yield a note for each service that other hosts can't reach, although the configuration names other hosts."""
    for service in ("driver", "agent"):
        if note := loopback_note(settings, service):
            yield Check("addresses", "note", note)


def _number_of(host: str) -> str:
    """Return the address on which a service here would listen for ``host``; ``host`` itself if it can't be resolved."""
    try:
        return str(socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)[0][4][0])
    except OSError:
        return host


def _check_master(settings: Settings) -> Check:
    master = settings.spark.options.get("spark.master", "")
    return _outcome("spark master", master or "Spark's default", lambda: check_master(master))


def _outcome(name: str, detail: str, run: Callable[[], Any]) -> Check:
    try:
        run()
    except SettingsError as error:
        return Check(name, "wrong", str(error))
    except MissingRightError as error:
        return Check(name, "wrong", str(error))
    except (UnreachableError, StoreError) as error:
        return Check(name, "unreachable", str(error))
    return Check(name, "fine", detail)


def is_remote(place: str) -> bool:
    """Whether ``place`` is a URL of a store other than ``file://``."""
    return "://" in place and local_path(place) is None


def require_store(key: str, url: str, settings: Settings) -> None:
    """Check by a race of writes that the remote store at ``url`` can keep a log; the written objects are removed.

    Raises SettingsError with ``key`` if the store can't keep a log, UnreachableError if it does not answer.
    """
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
    """Check that a folder, given as a path or a ``file://`` URL, can be written. Leaves no file.

    Of another URL, only the scheme is checked. Raises SettingsError with ``key`` if a person must correct something, StoreError
    after another failure of the system, such as an I/O error; UsageError for an unknown scheme.
    """
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
            return  # a service waits for space on a full disk
        correct = "make it writable for this user, or name another folder"
        raise failure(f"{key}: {place} can't be written: {folder}", error, correct) from None


def import_jobs(settings: Settings, config_path: Path) -> None:
    """Import the functions that ``driver.job`` names. Raises SettingsError with the cause if that fails."""
    prepare_job_imports(config_path)
    from driver.main import find_jobs

    try:
        find_jobs(settings)
    except SettingsError:
        raise
    except Exception as error:  # the user's module may raise anything while it is imported
        raise SettingsError(
            f"driver.job: {', '.join(settings.driver.jobs)}: import failed: {type(error).__name__}: {error}"
        ) from None


def refuse_equal_modules(config_paths: Sequence[Path]) -> None:
    """Raise SettingsError if two configurations have modules of one name beside them: a process imports one of them for both."""
    found: dict[str, Path] = {}
    for folder in dict.fromkeys(path.resolve().parent for path in config_paths):
        for entry in sorted(folder.iterdir()):
            is_package = entry.is_dir() and entry.name.isidentifier() and any(entry.glob("*.py"))
            if not is_package and entry.suffix != ".py":
                continue
            before = found.setdefault(entry.stem, entry)
            if before != entry and not before.samefile(entry):
                raise SettingsError(
                    f"--with: {before} and {entry} have the same module name, and a process has one module of each name: rename "
                    "one of them, or give these streams processes of their own"
                )


def make_listeners(settings: Settings, config_path: Path) -> None:
    """Create each listener that ``driver.listeners`` names. Raises SettingsError with the cause if that fails."""
    prepare_job_imports(config_path)
    from driver.listeners.dispatch import find_listener

    for name in settings.driver.listeners:
        find_listener(name)


def _check_custom_source(settings: Settings, config_path: Path) -> Iterator[Check]:
    """Create the custom source without starting it, and ask it for its partitions."""
    from forebay.sources.custom import CustomUpstream

    prepare_job_imports(config_path)
    made: list[CustomUpstream] = []
    detail = f"{settings.receiver.source} can be created"
    checked = _outcome("source", detail, lambda: made.append(CustomUpstream(settings)))
    yield checked
    if checked.outcome != "fine":
        yield Check("partitions", "unknown", "not asked, because the source is wrong")
        return
    try:
        partitions = sorted(made[0].partitions())
    except UnreachableError as error:
        yield Check("partitions", "unreachable", str(error))
    except SourceError as error:
        yield Check("partitions", "wrong", f"receiver.source: {error}")
    else:
        yield Check("partitions", "fine", ", ".join(map(str, partitions)) or "none yet")


def _is_loopback(address: str) -> bool:
    return address.rpartition(":")[0] in ("127.0.0.1", "localhost", "[::1]")


def _check_kafka_options(settings: Settings) -> Check:
    from forebay.kafka.options.librdkafka import check_options

    return _outcome("kafka options", "librdkafka accepts them", lambda: check_options(settings.kafka.options))


def _check_kafka(settings: Settings) -> Iterator[Check]:
    from forebay.kafka.client.admin import KafkaAdmin

    checked = _check_kafka_options(settings)
    yield checked
    if checked.outcome != "fine":
        yield Check("broker", "unknown", "not asked, because the options are wrong")
        return
    address = settings.kafka.options["bootstrap.servers"]
    with KafkaAdmin(settings.kafka.options, timeout_seconds=BROKER_TIMEOUT_SECONDS) as admin:
        reached = _outcome("broker", f"{address} answers", lambda: admin.check(BROKER_TIMEOUT_SECONDS))
        if reached.outcome != "fine":
            # a first user has no broker yet
            trial = "; for a trial, run `forebay broker` in another terminal" if _is_loopback(address) else ""
            yield msgspec.structs.replace(reached, detail=reached.detail + trial)
            yield Check("topics", "unknown", "not asked, because no broker answers")
            return
        yield reached
        try:
            partitions = admin.partitions(settings.kafka.topics, settings.kafka.pattern)
        except MissingRightError as error:
            yield Check("topics", "wrong", str(error))
            return
        there = {tp.topic for tp in partitions}
        missing = [topic for topic in settings.kafka.topics if topic not in there]
        existing = set(admin.topics()) if missing else set()
    if missing:
        meant = "".join(did_you_mean(topic, existing) for topic in missing)
        yield Check(
            "topics",
            "wrong",
            f"kafka.topics: {address} has no topic {', '.join(missing)}; {meant}create it or name another one",
        )
    elif not there:
        yield Check("topics", "fine", f"kafka.pattern: no topic matches {settings.kafka.pattern} yet")
    else:
        yield Check("topics", "fine", f"{', '.join(sorted(there))}: {len(partitions)} partitions")


@click.command(
    epilog=example("forebay --config forebay.toml validate", "forebay validate --json", "forebay validate --offline"),
)
@click.option("--offline", is_flag=True, help="Check only the configuration: no folder, job or broker.")
@shared_options
@pass_invocation
def validate(invocation: Invocation, offline: bool) -> int:
    """Check configuration, folders, stores, job, broker and topics, and print one line for each check. Changes nothing.

    Use it before a service is started. With --offline, the configuration may belong to another host. Exits with 2 if a check
    fails; with 3 if none fails, but a broker, a store or a disk does not answer.
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
