"""The sections ``[storage.SCHEME]``: options of the stores' clients."""

from __future__ import annotations

#: keys of stores' clients that hold secrets: these belong in the environment, a profile or the instance's role, because
#: a file is copied, shown and sent to tasks
SECRET_KEYS = frozenset(
    {
        "key", "secret", "token", "password", "account_key", "sas_token", "client_secret", "connection_string",
        "aws_access_key_id", "aws_secret_access_key", "aws_session_token",
    }
)  # fmt: skip
