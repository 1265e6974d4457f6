"""What the embedded Kafka needs: a Java, and Apache Kafka's jars, fetched once by the Ivy that comes with pyspark; other
servers of the tests are fetched the same way."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import ssl
import struct
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path

from forebay.errors import UsageError

KAFKA_VERSION = "4.1.0"

_JAVA_RELEASES = (17, 21)
_FETCH_SECONDS = 600.0
#: who sets one of these wants it trusted in place of the system's certificates; Java knows none of them
_CERTIFICATE_VARIABLES = ("SSL_CERT_FILE", "PIP_CERT", "REQUESTS_CA_BUNDLE")
_STORE_PASSWORD = "changeit"  # guards nothing: the store holds public certificates


def find_java() -> str:
    """The path of a Java 17 or 21, by JAVA_HOME or PATH. Raises UsageError that says what to install."""
    home = os.environ.get("JAVA_HOME")
    candidates = [str(Path(home) / "bin" / "java")] if home else []
    on_path = shutil.which("java")
    candidates += [on_path] if on_path else []
    seen: list[str] = []
    for java in candidates:
        try:
            done = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=30, check=False)
        except OSError:
            continue
        match = re.search(r'version "(\d+)', done.stderr)
        if match and int(match[1]) in _JAVA_RELEASES:
            return java
        seen.append(f"{java} is Java {match[1] if match else 'of an unknown release'}")
    found = f" ({'; '.join(seen)})" if seen else ""
    raise UsageError(
        f"Java 17 or 21 is needed and was not found{found}: "
        "install it (apt-get install -y openjdk-17-jre-headless) or set JAVA_HOME"
    )


def cache_directory(cache: str | Path | None = None) -> Path:
    """Where fetched files are kept: ``cache``, else FOREBAY_CACHE, else ``.cache`` beside the packages."""
    given = cache or os.environ.get("FOREBAY_CACHE")
    return Path(given).resolve() if given else Path(__file__).resolve().parents[2] / ".cache"


@dataclass(frozen=True, slots=True)
class Libraries:
    """Java libraries with all that they depend on. ``name``: their folder in the cache, with the version.

    ``dependencies``: organisation, module and version of each, as Maven Central names them. ``needed``: patterns of the
    jars without which a fetch has failed. ``alone``: nothing that they depend on is fetched. ``checksums``: jar → SHA-256 that
    it must have.
    """

    name: str
    title: str
    dependencies: tuple[tuple[str, str, str], ...]
    needed: tuple[str, ...]
    alone: bool = False
    checksums: Mapping[str, str] = field(default_factory=dict)

    def folder(self, cache: str | Path | None = None) -> Path:
        return cache_directory(cache) / self.name / "libs"

    def present(self, cache: str | Path | None = None) -> bool:
        return (cache_directory(cache) / self.name / "complete").exists()

    def fetch(self, cache: str | Path | None = None) -> Path:
        """The directory of the jars, fetched once by the Ivy that comes with pyspark.

        Raises UsageError that says what to run if that fails. Two processes may fetch at once: the first to finish counts.
        """
        libraries = self.folder(cache)
        target = libraries.parent
        if self.present(cache):
            return libraries
        spark = find_spec("pyspark")  # where it lies; importing it would take a second
        roots = (spark.submodule_search_locations or []) if spark is not None else []
        ivy = sorted(jar for root in roots for jar in (Path(root) / "jars").glob("ivy-*.jar"))
        if not ivy:
            raise UsageError("pyspark's jars hold no Ivy: reinstall with `make setup`")
        work = target.with_name(f"{target.name}.{os.getpid()}")
        shutil.rmtree(work, ignore_errors=True)
        work.mkdir(parents=True)
        module = work / "ivy.xml"
        module.write_text(self._module())
        command = [
            find_java(), *_trust(work), "-jar", str(ivy[-1]), "-cache", str(work / "ivy"), "-confs", "default", "-warn",
            "-ivy", str(module), "-retrieve", str(work / "libs" / "[artifact]-[revision](-[classifier]).[ext]"),
        ]  # fmt: skip
        try:
            try:
                done = subprocess.run(command, capture_output=True, text=True, timeout=_FETCH_SECONDS, check=False)
                words = done.stdout + done.stderr
            except subprocess.TimeoutExpired:
                words = f"no end within {_FETCH_SECONDS:g} s"
            if not all(list(work.glob(f"libs/{pattern}")) for pattern in self.needed):
                raise UsageError(
                    f"the jars of {self.title} could not be fetched: {words.strip()[-1500:]}\n"
                    f"try again with a way out to Maven Central, or put the jars into {libraries} and create "
                    f"{target / 'complete'}; what was run: {' '.join(command)}"
                )
            self._check(work / "libs")
            shutil.rmtree(work / "ivy")
            (work / "complete").touch()
            try:
                work.rename(target)
            except OSError:
                if not self.present(cache):  # an earlier, incomplete one lies there
                    shutil.rmtree(target)
                    work.rename(target)
        finally:
            shutil.rmtree(work, ignore_errors=True)
        return libraries

    def _check(self, libraries: Path) -> None:
        for name, wanted in self.checksums.items():
            found = hashlib.sha256((libraries / name).read_bytes()).hexdigest()
            if found != wanted:
                raise UsageError(f"{self.title}: {name} as fetched has the SHA-256 {found}, and must have {wanted}")

    def _module(self) -> str:
        more = ' transitive="false"' if self.alone else ""
        lines = [
            f'    <dependency org="{organisation}" name="{module}" rev="{version}" conf="default"{more}/>'
            for organisation, module, version in self.dependencies
        ]
        return "\n".join(
            (
                '<ivy-module version="2.0">',
                f'  <info organisation="forebay" module="{self.name}"/>',
                "  <dependencies>",
                *lines,
                "  </dependencies>",
                "</ivy-module>",
                "",
            )
        )


#: Kafka, and the binding that lets what it logs through SLF4J reach its own log
KAFKA = Libraries(
    f"kafka-{KAFKA_VERSION}",
    f"Apache Kafka {KAFKA_VERSION}",
    (
        ("org.apache.kafka", "kafka_2.13", KAFKA_VERSION),
        ("org.apache.logging.log4j", "log4j-slf4j-impl", "2.24.3"),
    ),
    needed=("kafka-server-[0-9]*.jar", "kafka_2.13-*.jar"),
)


def jars_present(cache: str | Path | None = None) -> bool:
    return KAFKA.present(cache)


def fetch_jars(cache: str | Path | None = None) -> Path:
    """The directory of Kafka's jars (:meth:`Libraries.fetch`)."""
    return KAFKA.fetch(cache)


def _trust(directory: Path) -> list[str]:
    """Java's options to trust the certificates that the environment names, if it names any."""
    bundle = next((os.environ[name] for name in _CERTIFICATE_VARIABLES if os.environ.get(name)), None)
    if bundle is None or not Path(bundle).is_file():
        return []
    store = directory / "trusted.jks"
    store.write_bytes(key_store(ssl.create_default_context(cafile=bundle).get_ca_certs(binary_form=True)))
    return [f"-Djavax.net.ssl.trustStore={store}", f"-Djavax.net.ssl.trustStorePassword={_STORE_PASSWORD}"]


def key_store(certificates: Sequence[bytes]) -> bytes:
    """A Java key store (format JKS, version 2) of trusted certificates in DER."""

    def text(words: str) -> bytes:
        return struct.pack(">H", len(words)) + words.encode()

    made_ms = time.time_ns() // 1_000_000
    body = struct.pack(">III", 0xFEEDFEED, 2, len(certificates))
    for number, certificate in enumerate(certificates):
        body += struct.pack(">I", 2) + text(f"certificate-{number}") + struct.pack(">Q", made_ms)
        body += text("X.509") + struct.pack(">I", len(certificate)) + certificate
    salted = _STORE_PASSWORD.encode("utf-16-be") + b"Mighty Aphrodite" + body
    return body + hashlib.sha1(salted, usedforsecurity=False).digest()


def main() -> int:
    """``python -m forebay.kafka.jars``: fetches the jars and says where they are (make kafka, make test)."""
    try:
        print(fetch_jars())
    except UsageError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
