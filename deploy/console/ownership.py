"""The owner of the folders into which a command writes the files of services."""

from __future__ import annotations

import os
import pwd
from pathlib import Path

from forebay.model.errors import UsageError
from forebay.settings.stores import local_path


def refuse_as_root(stream: str, *places: str) -> None:
    """Refuse to write as root into a folder of ``stream`` that belongs to another user.

    ``places``: paths or URLs of stores; only local folders are checked. Files are readable for their creator alone, so a
    service that runs as the folder's owner could not read what root writes there. Raises UsageError.
    """
    if os.geteuid() != 0:
        return  # the file system refuses other users
    for place in places:
        path = local_path(place) if "://" in place else place
        if path is None:
            continue
        folder = Path(path, stream)
        while not folder.exists():
            folder = folder.parent
        owner = folder.stat().st_uid
        if owner != 0:
            raise UsageError(
                f"{folder} belongs to user {_name(owner)}, whose services could not read the files that root writes there. "
                f"Nothing was changed. Run the command as that user, with `sudo -u {_name(owner)}`"
            )


def _name(uid: int) -> str:
    """Return the name of a user as sudo takes it."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"'#{uid}'"
