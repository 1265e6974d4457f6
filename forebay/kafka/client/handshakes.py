"""Why a TLS handshake with a broker fails. librdkafka does not say which check of a certificate failed."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Mapping
from datetime import datetime, timezone
from pathlib import Path

from forebay.model.numbers import whole_number

#: maximum time to connect, and for the handshake
_SECONDS = 2.0
_PORT_MAX = 2**16 - 1


def handshake_fault(options: Mapping[str, str], now_ms: int) -> str:
    """Return what is wrong with the client's own certificate, or with that of the first bootstrap server; "" if nothing is found.

    ``options``: those of a client that failed to connect. ``now_ms``: the time. Connects once, for at most a few seconds.
    """
    if "ssl" not in options.get("security.protocol", "").lower():
        return ""
    return _own_fault(options, datetime.fromtimestamp(now_ms / 1000, timezone.utc)) or _broker_fault(options)


def _own_fault(options: Mapping[str, str], now: datetime) -> str:
    path, text = options.get("ssl.certificate.location", ""), options.get("ssl.certificate.pem", "")
    if not path and not text:
        return ""
    from cryptography import x509  # slow to import, and only this needs it

    name = f'"ssl.certificate.location" ({path})' if path else '"ssl.certificate.pem"'
    try:
        certificate = x509.load_pem_x509_certificate(text.encode() or Path(path).read_bytes())
    except (OSError, ValueError) as error:
        return f"cannot read the certificate of {name}: {error}"
    for time, state in (
        (certificate.not_valid_after_utc, "expired on"),
        (certificate.not_valid_before_utc, "begins on"),
    ):
        if (time < now) == (state == "expired on"):
            return f"this client's certificate {name} {state} {time:%Y-%m-%d %H:%M} UTC: renew it"
    return ""


def _broker_fault(options: Mapping[str, str]) -> str:
    host, _, port = options.get("bootstrap.servers", "").partition(",")[0].rpartition("://")[2].rpartition(":")
    host = host.strip("[] ")
    number = whole_number(port.strip(), _PORT_MAX)
    if not host or number is None or options.get("enable.ssl.certificate.verification", "true") == "false":
        return ""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = options.get("ssl.endpoint.identification.algorithm", "https") != "none"
    try:
        _trust(context, options)
        with socket.create_connection((host, number), _SECONDS) as connection:
            context.wrap_socket(connection, server_hostname=host).close()
    except ssl.SSLCertVerificationError as error:
        return f"the certificate of {host}:{number} is refused: {error.verify_message}; {_step(error)}"
    except (OSError, ValueError):  # the reason that librdkafka reported, or a passing one
        return ""
    return ""


def _trust(context: ssl.SSLContext, options: Mapping[str, str]) -> None:
    """Trust the authorities that librdkafka trusts."""
    location, text = options.get("ssl.ca.location", ""), options.get("ssl.ca.pem", "")
    if text:
        context.load_verify_locations(cadata=text)
    elif not location or location == "probe":
        context.load_default_certs()
    elif Path(location).is_dir():
        context.load_verify_locations(capath=location)
    else:
        context.load_verify_locations(cafile=location)


#: OpenSSL's codes of X509_V_ERR_
_NOT_YET_VALID, _EXPIRED, _HOST_MISMATCH, _ADDRESS_MISMATCH = 9, 10, 62, 64


def _step(error: ssl.SSLCertVerificationError) -> str:
    if error.verify_code == _EXPIRED:
        return "renew the broker's certificate"
    if error.verify_code == _NOT_YET_VALID:
        return "check the clock of this machine"
    if error.verify_code in (_HOST_MISMATCH, _ADDRESS_MISMATCH):
        return 'name the broker in "bootstrap.servers" and in advertised.listeners as its certificate does'
    return 'set "ssl.ca.location" to the certificate of the authority that issued it'
