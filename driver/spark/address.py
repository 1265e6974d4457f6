"""The address of Spark's driver: loopback for a local Spark, else the address of the host's name."""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Iterator
from contextlib import contextmanager

from forebay.model.errors import SettingsError, UnreachableError
from forebay.settings.reading.similar import did_you_mean

#: environment variable with the address of Spark's driver
ADDRESS = "SPARK_LOCAL_IP"
#: environment variable with its name
NAME = "SPARK_LOCAL_HOSTNAME"
_LOOPBACK = "127.0.0.1"


#: masters that Spark 4 accepts
_MASTER = re.compile(
    r"local(\[([0-9]+|\*)(\s*,\s*[0-9]+)?\])?"
    r"|local-cluster\[\s*[0-9]+\s*,\s*[0-9]+\s*,\s*[0-9]+\s*\]"
    r"|[a-z][a-z0-9+.-]*://.+|yarn|yarn-client|yarn-cluster"
)
_MASTERS = ("local", "local[*]", "local[2]", "spark://host:7077", "yarn", "k8s://https://host:443")


def check_master(master: str) -> None:
    """Raise SettingsError for a master that Spark does not accept. "" is accepted: Spark's own defaults name the master."""
    if master and not _MASTER.fullmatch(master):
        raise SettingsError(
            f"spark.'spark.master' = \"{master}\": {did_you_mean(master, _MASTERS)}"
            "Spark accepts local, local[N], local[*], spark://host:port, yarn or k8s://url"
        )


@contextmanager
def addressed(master: str) -> Iterator[None]:
    """Set the address of Spark's driver while this context is active; start Spark in it. ``master``: as configured; "" if not
    configured.

    A local Spark listens on loopback, regardless of the host's name, unless the environment sets another address. Raises as
    :func:`check_address`.
    """
    check_master(master)
    if not _is_local(master) or given():
        check_address(master)
        yield
        return
    os.environ[ADDRESS] = _LOOPBACK
    try:
        yield
    finally:
        del os.environ[ADDRESS]  # the program may start a session on a cluster later


def check_address(master: str) -> None:
    """Raise SettingsError if the host's own name has no address, UnreachableError if the name servers do not answer."""
    if _is_local(master) or given():
        return
    name = socket.gethostname()
    try:
        socket.getaddrinfo(name, None)
    except socket.gaierror as error:
        kind = UnreachableError if error.errno == socket.EAI_AGAIN else SettingsError
        raise kind(
            f"this host's own name {name!r} has no address ({error.strerror}), but Spark's executors must reach it: add it to "
            f"/etc/hosts, or set {ADDRESS} in the driver's environment"
        ) from None


def given() -> bool:
    """Whether the environment sets the address or the name."""
    return bool(os.environ.get(ADDRESS) or os.environ.get(NAME))


def is_on_loopback(master: str) -> bool:
    """Return whether Spark, with the Spark UI, can only be reached from this host."""
    address = os.environ.get(ADDRESS) or ("" if os.environ.get(NAME) else _LOOPBACK)
    return _is_local(master) and address.startswith(("127.", "::1", "localhost"))


def is_local(master: str) -> bool:
    """Whether tasks run on the driver's machine, in processes forked there."""
    return re.fullmatch(r"local(\[.*\])?", master) is not None


def _is_local(master: str) -> bool:
    return master.startswith("local")
