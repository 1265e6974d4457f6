"""What the embedded Kafka needs: a Java, and Apache Kafka's jars, fetched once by the Ivy that comes with pyspark."""

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
from collections.abc import Sequence
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


def jars_present(cache: str | Path | None = None) -> bool:
    return (cache_directory(cache) / f"kafka-{KAFKA_VERSION}" / "complete").exists()


def fetch_jars(cache: str | Path | None = None) -> Path:
    """The directory of Kafka's jars, fetched once by the Ivy that comes with pyspark.

    Raises UsageError that says what to run if that fails. Two processes may fetch at once: the first to finish counts.
    """
    target = cache_directory(cache) / f"kafka-{KAFKA_VERSION}"
    libraries = target / "libs"
    if jars_present(cache):
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
    module.write_text(_IVY)
    command = [
        find_java(), *_trust(work), "-jar", str(ivy[-1]), "-cache", str(work / "ivy"), "-confs", "default", "-warn",
        "-ivy", str(module), "-retrieve", str(work / "libs" / "[artifact]-[revision].[ext]"),
    ]  # fmt: skip
    try:
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=_FETCH_SECONDS, check=False)
            words = done.stdout + done.stderr
        except subprocess.TimeoutExpired:
            words = f"no end within {_FETCH_SECONDS:g} s"
        if not list(work.glob("libs/kafka-server-[0-9]*.jar")) or not list(work.glob("libs/kafka_2.13-*.jar")):
            raise UsageError(
                f"the jars of Apache Kafka {KAFKA_VERSION} could not be fetched: {words.strip()[-1500:]}\n"
                f"try again with a way out to Maven Central, or put the jars into {libraries} and create {target / 'complete'}; "
                f"what was run: {' '.join(command)}"
            )
        shutil.rmtree(work / "ivy")
        (work / "complete").touch()
        try:
            work.rename(target)
        except OSError:
            if not jars_present(cache):  # an earlier, incomplete one lies there
                shutil.rmtree(target)
                work.rename(target)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    return libraries


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


#: Kafka, and the binding that lets what it logs through SLF4J reach its own log
_IVY = f"""\
<ivy-module version="2.0">
  <info organisation="forebay" module="embedded-kafka"/>
  <dependencies>
    <dependency org="org.apache.kafka" name="kafka_2.13" rev="{KAFKA_VERSION}" conf="default"/>
    <dependency org="org.apache.logging.log4j" name="log4j-slf4j-impl" rev="2.24.3" conf="default"/>
  </dependencies>
</ivy-module>
"""


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
