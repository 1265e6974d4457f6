"""What the embedded Kafka needs."""

from __future__ import annotations

import hashlib
import shutil
import ssl
import subprocess
from pathlib import Path

import pytest

from forebay.errors import UsageError
from forebay.kafka.jars import Libraries, fetch_jars, find_java, jars_present, key_store
from tests.conftest import missing


def test_java_reads_the_key_store_that_carries_pythons_certificates(tmp_path: Path) -> None:
    keytool = shutil.which("keytool")
    if keytool is None:
        missing("keytool, which comes with Java")
    certificates = ssl.create_default_context().get_ca_certs(binary_form=True)[:3]
    (tmp_path / "store").write_bytes(key_store(certificates))
    done = subprocess.run(
        [str(keytool), "-list", "-keystore", str(tmp_path / "store"), "-storepass", "changeit"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    assert done.stdout.count("trustedCertEntry") == len(certificates)


def test_a_missing_java_is_named_with_the_command_to_run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    with pytest.raises(UsageError, match="apt-get install -y openjdk-17-jre-headless"):
        find_java()


def test_jars_that_cannot_be_fetched_leave_nothing_that_looks_whole(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("forebay.kafka.jars.find_java", lambda: "/bin/false")
    with pytest.raises(UsageError, match="could not be fetched"):
        fetch_jars(tmp_path)
    assert not jars_present(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_jar_with_another_checksum_than_the_one_that_is_known_is_not_kept(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    java, cache = tmp_path / "java", tmp_path / "cache"
    # stands for Ivy: puts one jar where it is told to
    java.write_text(
        '#!/bin/sh\nfor last; do :; done\nmkdir -p "${last%/*}" "${last%/libs/*}/ivy"\nprintf new > "${last%/*}/a-1.jar"\n'
    )
    java.chmod(0o755)
    monkeypatch.setattr("forebay.kafka.jars.find_java", lambda: str(java))
    wrong, right = (
        Libraries("a-1", "A", (("a", "a", "1"),), ("a-*.jar",), checksums={"a-1.jar": hashlib.sha256(own).hexdigest()})
        for own in (b"old", b"new")
    )
    with pytest.raises(UsageError, match=r"a-1\.jar as fetched has the SHA-256"):
        wrong.fetch(cache)
    assert not wrong.present(cache)
    assert (right.fetch(cache) / "a-1.jar").read_bytes() == b"new"
