"""An error of the operating system ends a service for good only if a person must correct something (exit code 2)."""

from __future__ import annotations

import errno
import os
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from deploy.commands.setup.validation import check_configuration, check_folders, require_writable
from deploy.supervision.detached import start_detached
from deploy.supervision.run_lock import holder, only_one
from deploy.supervision.verdicts import VERDICTS, ExitVerdict, how_it_ended
from driver.spark.java.check import check_java
from forebay.kafka.options.java import translate
from forebay.kafka.options.librdkafka import check_security
from forebay.model.errors import ForebayError, SettingsError, StoreError, UsageError
from forebay.process.os_errors import failure
from forebay.process.secret_file import read_secret
from forebay.security.access import Access, TokenFile
from forebay.security.certificates import Certificates
from forebay.settings.reading.load import load, load_if_right

PASSES = [errno.EIO, errno.EMFILE, errno.ENFILE, errno.ESTALE, errno.ENOMEM, errno.EINTR, errno.ETIMEDOUT]
CORRECTED = [
    errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.EISDIR, errno.EEXIST, errno.ENOENT, errno.ELOOP,
    errno.ENAMETOOLONG, errno.ENOEXEC,
]  # fmt: skip
TOKEN = "operator 0123456789abcdef0123456789abcdef\n"


@pytest.mark.parametrize("error", PASSES)
def test_service_is_started_again_after_an_error_that_may_pass(error: int) -> None:
    found = failure("k: /a can't be written", OSError(error, os.strerror(error)), "change it")
    assert isinstance(found, StoreError) and found.exit_code == 1
    assert VERDICTS[how_it_ended(found.exit_code, alone=False)][0] is ExitVerdict.RESTART
    assert str(found) == (
        f"k: /a can't be written: {os.strerror(error)}; check this host's disk and limits, and try again"
    )


@pytest.mark.parametrize("kind", [SettingsError, UsageError])
@pytest.mark.parametrize("error", CORRECTED)
def test_service_ends_after_an_error_that_a_person_must_correct(error: int, kind: type[UsageError]) -> None:
    found = failure("k: /a can't be written", OSError(error, os.strerror(error)), "change it", kind=kind)
    assert type(found) is kind and found.exit_code == 2
    assert str(found) == f"k: /a can't be written: {os.strerror(error)}; change it"


@pytest.fixture
def raising(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Let a function raise an error of the operating system for a path that contains a text."""

    def patch(owner: Any, name: str, error: int, part: str) -> None:
        real = getattr(owner, name)

        def call(*arguments: Any, **options: Any) -> Any:
            if any(part in str(one) for one in (*arguments, *options.values())):
                raise OSError(error, os.strerror(error), part)
            return real(*arguments, **options)

        monkeypatch.setattr(owner, name, call)

    return patch


ATTEMPTS: dict[str, tuple[tuple[Any, str], Callable[[Path], object]]] = {
    "folder": ((tempfile, "TemporaryFile"), lambda path: require_writable("wal.url", str(path.parent))),
    "folder-status": ((Path, "exists"), lambda path: require_writable("wal.url", f"file://{path}")),
    "secret": ((os, "open"), lambda path: read_secret("wal.key_file", path)),
    "token-status": ((Path, "stat"), lambda path: TokenFile(str(path), {}).tokens),
    "tokens": ((os, "open"), lambda path: TokenFile(str(path), {}).tokens),
    "configuration": ((Path, "read_text"), lambda path: load(path, {})),
    "lock": ((os, "open"), lambda path: only_one(path.parent, "s", print).__enter__()),
    "holder": ((os, "open"), lambda path: holder(path).__enter__()),
    "log": ((os, "open"), lambda path: start_detached(["true"], path, print)),
    "kafka-file": ((os, "stat"), lambda path: check_security({"ssl.key.location": str(path)})),
    "kafka-store": (
        (Path, "read_bytes"),
        lambda path: translate({"ssl.truststore.location": str(path), "ssl.truststore.type": "JKS"}),
    ),
    "java": ((subprocess, "run"), lambda path: check_java({"JAVA_HOME": str(path)})),
}


@pytest.mark.parametrize(
    ("error", "kind"), [(errno.EIO, StoreError), (errno.EMFILE, StoreError), (errno.EACCES, UsageError)]
)
@pytest.mark.parametrize("what", ATTEMPTS)
def test_each_place_tells_an_error_that_may_pass_from_a_wrong_setting(
    raising: Callable[..., None], tmp_path: Path, what: str, error: int, kind: type[ForebayError]
) -> None:
    path = tmp_path / "there"
    path.write_text(TOKEN)
    path.chmod(0o600)
    if what == "java":
        path.unlink()
        (path / "bin").mkdir(parents=True)
        (path / "bin" / "java").write_text("")
        (path / "bin" / "java").chmod(0o700)
    (owner, name), attempt = ATTEMPTS[what]
    raising(owner, name, error, str(tmp_path))
    with pytest.raises(kind, match=os.strerror(error)):
        attempt(path)


def test_java_that_does_not_answer_in_time_may_answer_later(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "java").write_text("#!/bin/sh\nexec sleep 60\n")
    (tmp_path / "bin" / "java").chmod(0o700)
    monkeypatch.setattr("driver.spark.java.check._ANSWER_SECONDS", 0.1)
    with pytest.raises(StoreError, match="did not say its version"):
        check_java({"JAVA_HOME": str(tmp_path)})


def test_tokens_stay_valid_while_their_file_cannot_be_read(raising: Callable[..., None], tmp_path: Path) -> None:
    path = tmp_path / "tokens"
    path.write_text(TOKEN)
    path.chmod(0o600)
    file = TokenFile(str(path), {})
    before = file.tokens
    assert before is not None
    raising(Path, "stat", errno.EIO, str(path))
    assert file.tokens is before


def test_token_that_a_task_carries_is_used_while_the_file_cannot_be_read(
    raising: Callable[..., None], tmp_path: Path
) -> None:
    raising(Path, "stat", errno.EIO, str(tmp_path))
    access = Access(role="task", token="carried", token_file=str(tmp_path / "tokens"))
    assert access.headers() == {"authorization": "Bearer carried"}


def test_certificates_that_cannot_be_read_for_a_while_end_no_service(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    class Faulty:
        minimum_version = verify_mode = None

        def __init__(self, protocol: object) -> None: ...

        def load_verify_locations(self, path: str) -> None:
            raise OSError(errno.EIO, os.strerror(errno.EIO))

        def load_cert_chain(self, *files: object, **options: object) -> None:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    with monkeypatch.context() as patched:
        patched.setattr("ssl.SSLContext", Faulty)
        with pytest.raises(StoreError, match=r"security\.ca_file: .*Input/output error"):
            Certificates(server=False, ca_file="/a").context()
        with pytest.raises(StoreError, match=r"security\.cert_file: .*Too many open files"):
            Certificates(server=True, cert_file="/a", key_file="/b").context()
    with pytest.raises(SettingsError, match=r"security\.ca_file: .*No such file"):
        Certificates(server=False, ca_file=str(tmp_path / "none")).context()


def test_validation_shows_an_error_that_may_pass_and_goes_on(
    raising: Callable[..., None], project: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = load(project.config)
    raising(tempfile, "TemporaryFile", errno.EIO, str(project.folder))
    assert {check.outcome for check in check_folders(settings)} == {"unreachable"}
    raising(Path, "read_text", errno.EIO, str(project.config))
    first, last = check_configuration(project.config)
    assert (first.name, first.outcome) == ("configuration", "unreachable") and "Input/output error" in first.detail
    assert last.outcome == "unknown"
    assert load_if_right(project.config) is None
