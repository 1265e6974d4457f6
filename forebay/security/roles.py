"""Who may do what: tokens, the roles that they stand for, and the one decision about a request. Knows no file and no socket.

A token file has a line for each token, ``role[:name] token``, or the token alone, which then stands for all roles. Empty lines
and lines that begin with ``#`` count for nothing. A service accepts every line, so that a token is replaced by two lines of a
role for a while; a client sends the first line that fits it.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal, get_args

from forebay.model.errors import AccessError, SettingsError
from forebay.model.values import check_name

Role = Literal["receiver", "agent", "task", "query", "reader", "operator"]
#: receiver: takes records in. agent: a host's block store. task: a Spark task of the batch job. query: a query over the intake.
#: reader: dashboards, which read status and lag alone. operator: people and their tools (docs/SECURITY.md)
ROLES: tuple[Role, ...] = get_args(Role)
ANY_ROLE = frozenset(ROLES)

TOKEN_LENGTH_MIN, TOKEN_LENGTH_MAX = 16, 512
#: lines of a file
TOKENS_MAX = 10_000
_TOKEN = re.compile(r"[!-~]+")
_MAKE_ONE = "make a line with `forebay token new ROLE`"


@dataclass(frozen=True, slots=True)
class Grant:
    """What one line allows: ``roles``, and of a receiver or agent which one (``name``; None: any)."""

    roles: frozenset[Role]
    name: str | None
    token: str = field(repr=False)
    digest: bytes = field(repr=False)

    def fits(self, role: Role, name: str | None) -> bool:
        return role in self.roles and (name is None or self.name is None or self.name == name)


@dataclass(frozen=True, slots=True)
class Tokens:
    """The lines of a token file, in their order. Shows nothing of a token."""

    grants: tuple[Grant, ...]

    def caller(self, token: str) -> Caller | None:
        """Who sends ``token``; None if no line has it. Takes as long for a wrong one as for a right one."""
        digest = _digest(token)
        found = tuple(grant for grant in self.grants if hmac.compare_digest(grant.digest, digest))
        return Caller(tuple((grant.roles, grant.name) for grant in found)) if found else None

    def first(self, role: Role, name: str | None = None) -> str | None:
        """What a client of ``role`` sends, that is called ``name`` if its role is bound to one; None if no line fits."""
        return next((grant.token for grant in self.grants if grant.fits(role, name)), None)

    @property
    def summary(self) -> str:
        """How many lines there are of each role, in words."""
        return ", ".join(f"{role} {sum(role in grant.roles for grant in self.grants)}" for role in ROLES)


@dataclass(frozen=True, slots=True)
class Caller:
    """Who sends a request: for each line that has its token the roles and the name. Without any: nobody known."""

    grants: tuple[tuple[frozenset[Role], str | None], ...] = ()

    @property
    def known(self) -> bool:
        return bool(self.grants)

    def has(self, roles: Iterable[Role]) -> bool:
        wanted = frozenset(roles)
        return any(wanted & granted for granted, _ in self.grants)

    def require(self, role: Role, name: str) -> None:
        """Raises AccessError unless the caller may act as ``role`` under ``name``, a receiver's id or an agent's host."""
        names = [bound for roles, bound in self.grants if role in roles]
        if not any(bound is None or bound == name for bound in names):
            bound_to = ", ".join(repr(bound) for bound in names) or "nobody"
            raise AccessError(f"this token is of {role} {bound_to}: it can't act for {role} {name!r}", "forbidden")


ANONYMOUS = Caller()
#: whoever asks a service that has no tokens
EVERYBODY = Caller(((ANY_ROLE, None),))


def authorize(tokens: Tokens | None, authorization: str | None, roles: frozenset[Role]) -> Caller:
    """Who sends a request with that ``Authorization`` header (None: without) to a route that ``roles`` may use.

    ``tokens``: None where a service has none. Raises AccessError: ``unauthenticated`` without a token that is known here,
    ``forbidden`` for one of another role. A route without a role refuses nobody.
    """
    if tokens is None:
        return EVERYBODY
    scheme, _, token = (authorization or "").partition(" ")
    caller = tokens.caller(token.strip()) if scheme.lower() == "bearer" else None
    if not roles:
        return caller or ANONYMOUS
    if caller is None:
        words = "the token sent is not known here" if authorization else "no token was sent"
        raise AccessError(f"{words}: name a file with one in security.token_file", "unauthenticated")
    if not caller.has(roles):
        raise AccessError(_wrong_role(caller, roles), "forbidden")
    return caller


def _wrong_role(caller: Caller, roles: frozenset[Role]) -> str:
    """In words, with the command that makes a token of the role with the fewest rights."""
    own = frozenset().union(*(granted for granted, _ in caller.grants))
    wanted = [role for role in ROLES if role in roles]
    return (
        f"the token sent is not of role {' or '.join(wanted)} but of role {' and '.join(r for r in ROLES if r in own)}: add the "
        f"line that `forebay token new {wanted[0]}` prints to the token files of this service and of its client"
    )


def parse_tokens(text: str, source: str) -> Tokens:
    """The lines of ``text``, which came from ``source``. Raises SettingsError, which never shows a token."""
    grants: list[Grant] = []
    for number, line in enumerate(text.splitlines(), start=1):
        words = line.split()
        if not words or words[0].startswith("#"):
            continue
        where = f"{source}, line {number}"
        if len(words) > 2:
            raise SettingsError(f"{where}: write role[:name] token, nothing after it")
        roles, name = (ANY_ROLE, None) if len(words) == 1 else _who(words[0], where)
        token = words[-1]
        if len(words) == 1 and token.partition(":")[0] in ROLES:
            raise SettingsError(f"{where}: the token is missing: {_MAKE_ONE}")
        if not _TOKEN.fullmatch(token):
            raise SettingsError(f"{where}: a token has ASCII letters, digits and signs alone: {_MAKE_ONE}")
        if not TOKEN_LENGTH_MIN <= len(token) <= TOKEN_LENGTH_MAX:
            raise SettingsError(
                f"{where}: the token has {len(token)} characters, allowed are {TOKEN_LENGTH_MIN} to {TOKEN_LENGTH_MAX}: "
                f"{_MAKE_ONE}"
            )
        grants.append(Grant(roles, name, token, _digest(token)))
        if len(grants) > TOKENS_MAX:
            raise SettingsError(f"{source}: more than {TOKENS_MAX} tokens: remove those that nobody sends any more")
    if not grants:
        raise SettingsError(f"{source}: there is no token in it: {_MAKE_ONE}")
    return Tokens(tuple(grants))


def _who(written: str, where: str) -> tuple[frozenset[Role], str | None]:
    role, colon, name = written.partition(":")
    if role not in ROLES:
        # not shown: who wrote the line the other way round has the token here
        raise SettingsError(f"{where}: begins with no role; roles are {', '.join(ROLES)}, as in `reader TOKEN`")
    if colon:
        try:
            check_name("name", name)
        except ValueError as error:
            raise SettingsError(f"{where}: {error}") from None
    return frozenset({role}), name if colon else None


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode("utf-8", "surrogateescape")).digest()
