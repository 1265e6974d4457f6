"""Errors of the operating system at files: which of them a person must correct, and which may end by themselves."""

from __future__ import annotations

import errno

from forebay.model.errors import SettingsError, StoreError, UsageError

#: they last until a person changes the file, its rights or the setting; after any other, a new attempt may succeed
_TO_CORRECT = frozenset(
    {
        errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.EISDIR, errno.EEXIST, errno.ENOENT, errno.ELOOP,
        errno.ENAMETOOLONG, errno.ENOEXEC,
    }
)  # fmt: skip


def failure(
    what: str, error: OSError, correct: str = "", *, kind: type[UsageError] = SettingsError
) -> UsageError | StoreError:
    """Return the error for ``error``. ``what``: what failed, on what. ``correct``: what to do if only a person can help.

    It is of ``kind``, with which no supervisor starts a service again, if a person must correct something; otherwise, as after an
    I/O error or without free file descriptors, it is a StoreError, after which the service is started again.
    """
    cause = error.strerror or str(error)
    if error.errno in _TO_CORRECT:
        return kind(f"{what}: {cause}; {correct}" if correct else f"{what}: {cause}")
    return StoreError(f"{what}: {cause}; check this host's disk and limits, and try again")
