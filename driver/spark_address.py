"""By which address Spark is reached: loopback where nobody elsewhere is to reach it, else that of the host's name."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager

from forebay.errors import SettingsError, UnreachableError

#: in the environment of Spark's driver: its address
ADDRESS = "SPARK_LOCAL_IP"
#: or its name
NAME = "SPARK_LOCAL_HOSTNAME"
_LOOPBACK = "127.0.0.1"


@contextmanager
def addressed(master: str) -> Iterator[None]:
    """While Spark starts within, with ``master`` as the configuration names it (empty: it does not).

    A local Spark listens on loopback, whatever the host is called; what the environment or the configuration says otherwise
    counts. Raises as :func:`check_address`.
    """
    if not _is_local(master) or given():
        check_address(master)
        yield
        return
    os.environ[ADDRESS] = _LOOPBACK
    try:
        yield
    finally:
        del os.environ[ADDRESS]  # a session that the program makes later may be of a cluster


def check_address(master: str) -> None:
    """Raises SettingsError where Spark would look for its own host in vain, UnreachableError where nobody can tell now."""
    if _is_local(master) or given():
        return
    name = socket.gethostname()
    try:
        socket.getaddrinfo(name, None)
    except socket.gaierror as error:
        kind = UnreachableError if error.errno == socket.EAI_AGAIN else SettingsError
        raise kind(
            f"this host's own name {name!r} has no address ({error.strerror}), and Spark's executors are to reach it: name it in "
            f"/etc/hosts, or set {ADDRESS} in the driver's environment"
        ) from None


def given() -> bool:
    """Whether the environment says it."""
    return bool(os.environ.get(ADDRESS) or os.environ.get(NAME))


def _is_local(master: str) -> bool:
    return master.startswith("local")
