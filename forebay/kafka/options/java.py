"""Translates settings of Kafka's Java client to librdkafka's.

:data:`TABLE` (shown in docs/KAFKA_OPTIONS.md) has the settings whose names differ, or that only one client has. All others are
passed on unchanged, and librdkafka refuses unknown settings by name. The only I/O is the reading of certificate stores.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from forebay.model.errors import SettingsError
from forebay.process.os_errors import failure
from forebay.settings.redaction import redacted

Read = Callable[[str], bytes]
#: (value, all options, reader of files) → librdkafka's options. Raises SettingsError.
Translation = Callable[[str, Mapping[str, str], Read], dict[str, str]]


@dataclass(frozen=True, slots=True)
class Translated:
    """``options``: librdkafka's. ``changes``: one sentence for each change, without any value."""

    options: dict[str, str]
    changes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Treatment:
    """The treatment of one Java setting. ``becomes``: librdkafka's names, or the reason why there is none."""

    outcome: Literal["translated", "left out", "refused"]
    becomes: str
    translation: Translation | None = field(default=None, compare=False)


def translate(options: Mapping[str, str], read: Read = lambda path: Path(path).read_bytes()) -> Translated:
    """Return ``options`` (names without a leading ``kafka.``) as librdkafka's options.

    ``read``: returns a file's bytes. Raises SettingsError for a setting without a counterpart, one that can't be translated, or
    two different values under the two names of a setting. No message contains a value of an option.
    """
    made = {name: value for name, value in options.items() if name not in TABLE}
    changes: list[str] = []
    for name, value in options.items():
        row = TABLE.get(name)
        if row is None:
            continue
        if row.outcome == "refused":
            raise SettingsError(f"kafka.{name!r}: refused: {row.becomes}")
        if row.outcome == "left out":
            changes.append(f"kafka.{name!r} is left out: {row.becomes}")
            continue
        assert row.translation is not None
        found = row.translation(value, options, read)
        for own, translated in found.items():
            if own in options and own not in TABLE and options[own] != translated:
                raise SettingsError(
                    f"kafka.{name!r} maps to {own!r}, which is also set, to a different value; remove one of them"
                )
        if found != {name: value}:
            changes.append(f"kafka.{name!r} becomes librdkafka's {', '.join(sorted(found)) or 'default'}")
        made.update(found)
    return Translated(made, tuple(changes))


# ---- translations ----------------------------------------------------------------------------------------------------


def _as(name: str) -> Translation:
    return lambda value, options, read: {name: value}


def _buffer(name: str) -> Translation:
    """The system's default size is -1 in Java, 0 in librdkafka."""
    return lambda value, options, read: {name: "0" if value.strip() == "-1" else value}


def _kibibytes(value: str, options: Mapping[str, str], read: Read) -> dict[str, str]:
    return {"queue.buffering.max.kbytes": str(max(1, _whole("buffer.memory", value) // 1024))}


def _whole(name: str, value: str) -> int:
    try:
        return int(value)
    except ValueError:
        raise SettingsError(f"kafka.{name!r}: {value!r} is not a whole number") from None


def _identification(value: str, options: Mapping[str, str], read: Read) -> dict[str, str]:
    return {"ssl.endpoint.identification.algorithm": value.strip() or "none"}


_RESETS = {"none": "error", "earliest": "earliest", "latest": "latest", "error": "error"}


def _reset(value: str, options: Mapping[str, str], read: Read) -> dict[str, str]:
    found = _RESETS.get(value.strip().lower())
    if found is None:
        raise SettingsError(f"kafka.'auto.offset.reset': {value!r}: allowed are earliest, latest and none")
    return {"auto.offset.reset": found}


_ASSIGNORS = {
    "RangeAssignor": "range",
    "RoundRobinAssignor": "roundrobin",
    "CooperativeStickyAssignor": "cooperative-sticky",
}


def _assignors(value: str, options: Mapping[str, str], read: Read) -> dict[str, str]:
    names = []
    for given in value.split(","):
        name = given.strip()
        known = name if name in _ASSIGNORS.values() else _ASSIGNORS.get(name.rpartition(".")[2])
        if known is None:
            raise SettingsError(
                f"kafka.'partition.assignment.strategy': {name!r}: librdkafka only has {', '.join(sorted(_ASSIGNORS))}"
            )
        names.append(known)
    return {"partition.assignment.strategy": ",".join(names)}


_BYTES_CLASSES = ("ByteArrayDeserializer", "ByteArraySerializer")


def _bytes_only(name: str) -> Translation:
    def translation(value: str, options: Mapping[str, str], read: Read) -> dict[str, str]:
        if value.rpartition(".")[2] not in _BYTES_CLASSES:
            raise SettingsError(
                f"kafka.{name!r}: {value!r}: keys and values are read and written as bytes; convert them where you read or write "
                "records"
            )
        return {}

    return translation


_JKS, _PEM = b"\xfe\xed\xfe\xed", b"-----BEGIN"


def _store(name: str, path: str, read: Read) -> bytes:
    """Return the bytes of a store. Raises SettingsError for a JKS store, and if it can't be read."""
    try:
        found = read(path)
    except OSError as error:
        raise failure(f"kafka.{name!r}: cannot read {redacted(path)}", error) from None
    if found.startswith(_JKS):
        raise SettingsError(
            f"kafka.{name!r}: {path} is a JKS store, which only Java can read: convert it with `keytool "
            f"-importkeystore -srckeystore {path} -destkeystore store.p12 -deststoretype PKCS12`"
        )
    return found


def _truststore(value: str, options: Mapping[str, str], read: Read) -> dict[str, str]:
    name = "ssl.truststore.location"
    found = _store(name, value, read)
    if found.lstrip().startswith(_PEM):
        return {"ssl.ca.location": value}
    from cryptography.hazmat.primitives.serialization import Encoding, pkcs12  # takes a while to import

    try:
        store = pkcs12.load_pkcs12(found, (options.get("ssl.truststore.password") or "").encode() or None)
    except ValueError:
        raise SettingsError(
            f"kafka.{name!r}: {value} is neither PEM nor a PKCS#12 store with the password 'ssl.truststore.password'"
        ) from None
    certificates = [held.certificate for held in (*store.additional_certs, *filter(None, [store.cert]))]
    if not certificates:
        raise SettingsError(f"kafka.{name!r}: {value} has no certificate")
    return {"ssl.ca.pem": b"".join(held.public_bytes(Encoding.PEM) for held in certificates).decode()}


def _keystore(value: str, options: Mapping[str, str], read: Read) -> dict[str, str]:
    if _store("ssl.keystore.location", value, read).lstrip().startswith(_PEM):
        return {"ssl.certificate.location": value, "ssl.key.location": value}
    return {"ssl.keystore.location": value}


_MODULE = re.compile(r"\s*([\w.$]+)\s+(required|requisite|sufficient|optional)\b", re.IGNORECASE)
_PAIR = re.compile(r"""\s*([\w.$-]+)\s*=\s*(?:"((?:[^"\\]|\\.)*)"|'((?:[^'\\]|\\.)*)'|([^\s;"']+))""")
#: login module → its option → librdkafka's option; "" for one without effect
_MODULES: dict[str, dict[str, str]] = {
    "PlainLoginModule": {"username": "sasl.username", "password": "sasl.password"},
    "ScramLoginModule": {"username": "sasl.username", "password": "sasl.password"},
    "Krb5LoginModule": {
        "keyTab": "sasl.kerberos.keytab", "principal": "sasl.kerberos.principal",
        "serviceName": "sasl.kerberos.service.name", "useKeyTab": "", "storeKey": "", "debug": "", "doNotPrompt": "",
        "refreshKrb5Config": "", "useTicketCache": "", "renewTGT": "", "isInitiator": "",
    },
    "OAuthBearerLoginModule": {
        "clientId": "sasl.oauthbearer.client.id", "clientSecret": "sasl.oauthbearer.client.secret",
        "scope": "sasl.oauthbearer.scope",
    },
}  # fmt: skip


def _jaas(value: str, options: Mapping[str, str], read: Read) -> dict[str, str]:
    where = "kafka.'sasl.jaas.config'"
    module = _MODULE.match(value)
    if module is None:
        raise SettingsError(f'{where}: expected `MODULE required OPTION="VALUE" …;` for one login module')
    name = module[1].rpartition(".")[2]
    known = _MODULES.get(name)
    if known is None:
        raise SettingsError(
            f"{where}: login module {name} is not supported; supported are {', '.join(sorted(_MODULES))}"
        )
    made = {"sasl.oauthbearer.method": "oidc"} if name == "OAuthBearerLoginModule" else {}
    place = module.end()
    while pair := _PAIR.match(value, place):
        place = pair.end()
        if pair[1] not in known:
            raise SettingsError(f"{where}: option {pair[1]!r} of {name}: allowed are {', '.join(sorted(known))}")
        if known[pair[1]]:
            quoted = pair[2] if pair[2] is not None else pair[3]
            made[known[pair[1]]] = pair[4] if quoted is None else re.sub(r"\\(.)", r"\1", quoted)
    if value[place:].strip() != ";":
        raise SettingsError(
            f"{where}: cannot parse the option {place - module.end()} characters after `{module[2]}`; the text must end with ;"
        )
    return made


# ---- the table -------------------------------------------------------------------------------------------------------


def _translated(becomes: str, translation: Translation) -> Treatment:
    return Treatment("translated", becomes, translation)


_OPENSSL = "librdkafka uses OpenSSL instead of Java's providers: configure OpenSSL itself, or set `ssl.cipher.suites`"
_PLUGIN = "the value is a Java class, which librdkafka cannot load"
_HARMLESS = "librdkafka limits or tunes this in its own way, and no record depends on it"

#: Java's name → its treatment
TABLE: dict[str, Treatment] = {
    "fetch.max.wait.ms": _translated("`fetch.wait.max.ms`", _as("fetch.wait.max.ms")),
    "receive.buffer.bytes": _translated("`socket.receive.buffer.bytes` (-1 becomes 0)", _buffer("socket.receive.buffer.bytes")),
    "send.buffer.bytes": _translated("`socket.send.buffer.bytes` (-1 becomes 0)", _buffer("socket.send.buffer.bytes")),
    "request.timeout.ms": _translated("`socket.timeout.ms`", _as("socket.timeout.ms")),
    "max.request.size": _translated("`message.max.bytes`", _as("message.max.bytes")),
    "buffer.memory": _translated("`queue.buffering.max.kbytes`, in KiB", _kibibytes),
    "auto.offset.reset": _translated("the same; `none` becomes `error`", _reset),
    "partition.assignment.strategy": _translated("the same, with librdkafka's names for the classes", _assignors),
    "ssl.endpoint.identification.algorithm": _translated("the same; an empty value becomes `none`", _identification),
    "ssl.truststore.location": _translated("`ssl.ca.location` (PEM) or `ssl.ca.pem` (PKCS#12); JKS is refused", _truststore),
    "ssl.truststore.certificates": _translated("`ssl.ca.pem`", _as("ssl.ca.pem")),
    "ssl.keystore.location": _translated(
        "`ssl.certificate.location` and `ssl.key.location` (PEM) or the same (PKCS#12); JKS is refused", _keystore
    ),
    "ssl.keystore.certificate.chain": _translated("`ssl.certificate.pem`", _as("ssl.certificate.pem")),
    "ssl.keystore.key": _translated("`ssl.key.pem`", _as("ssl.key.pem")),
    "sasl.jaas.config": _translated(
        "`sasl.username`, `sasl.password`, `sasl.kerberos.*` or `sasl.oauthbearer.*`, depending on its login module", _jaas
    ),
    "key.deserializer": _translated("nothing for byte arrays; others are refused", _bytes_only("key.deserializer")),
    "value.deserializer": _translated("nothing for byte arrays; others are refused", _bytes_only("value.deserializer")),
    "key.serializer": _translated("nothing for byte arrays; others are refused", _bytes_only("key.serializer")),
    "value.serializer": _translated("nothing for byte arrays; others are refused", _bytes_only("value.serializer")),
    **dict.fromkeys(("ssl.truststore.type", "ssl.keystore.type"), Treatment("left out", "the store's content shows its type")),
    "ssl.truststore.password": Treatment("left out", "needed only to open the store"),
    "max.poll.records": Treatment("left out", "Forebay decides how many records a poll returns"),
    **dict.fromkeys(
        (
            "default.api.timeout.ms", "max.block.ms", "metadata.max.idle.ms", "socket.connection.setup.timeout.max.ms",
            "exclude.internal.topics", "metrics.num.samples", "metrics.sample.window.ms", "metrics.recording.level",
            "auto.include.jmx.reporter", "partitioner.adaptive.partitioning.enable", "partitioner.availability.timeout.ms",
            "sasl.kerberos.ticket.renew.jitter", "sasl.kerberos.ticket.renew.window.factor",
        ),
        Treatment("left out", _HARMLESS),
    ),
    **dict.fromkeys(
        ("ssl.protocol", "ssl.provider", "ssl.enabled.protocols", "ssl.keymanager.algorithm", "ssl.trustmanager.algorithm",
         "ssl.secure.random.implementation", "security.providers"),
        Treatment("refused", _OPENSSL),
    ),
    **dict.fromkeys(
        ("ssl.engine.factory.class", "sasl.login.class", "sasl.login.callback.handler.class",
         "sasl.client.callback.handler.class", "interceptor.classes", "metric.reporters", "partitioner.class"),
        Treatment("refused", _PLUGIN),
    ),
    "partitioner.ignore.keys": Treatment("refused", "set the partition of each record instead"),
    **dict.fromkeys(
        ("compression.gzip.level", "compression.lz4.level", "compression.zstd.level"),
        Treatment("refused", "set librdkafka's `compression.level`"),
    ),
}  # fmt: skip
