"""Which requests the console may send on behalf of its user.

Owns: the tables of subjects, for read-only requests and for administration.
May not touch: permissions. What is allowed here is checked again by the rules of the user, like any
publish of a client."""

from __future__ import annotations

from broker.subjects import matches, valid_subject

# Read-only requests. `STREAM.LIST` and the like take their arguments in the body.
READING = (
    "$JS.API.INFO",
    "$JS.API.STREAM.NAMES",
    "$JS.API.STREAM.LIST",
    "$JS.API.STREAM.INFO.*",
    "$JS.API.STREAM.MSG.GET.*",
    "$JS.API.CONSUMER.NAMES.*",
    "$JS.API.CONSUMER.LIST.*",
    "$JS.API.CONSUMER.INFO.*.*",
    "$SYS.REQ.USER.INFO",
)
# Changes: only with `console { admin: true }`.
CHANGING = (
    "$JS.API.META.LEADER.STEPDOWN",
    "$JS.API.STREAM.LEADER.STEPDOWN.*",
    "$JS.API.STREAM.PURGE.*",
    "$JS.API.STREAM.DELETE.*",
    "$JS.API.STREAM.MSG.DELETE.*",
    "$JS.API.CONSUMER.PAUSE.*.*",
    "$JS.API.CONSUMER.RESET.*.*",
    "$JS.API.CONSUMER.DELETE.*.*",
)


def may_request(subject: str, *, admin: bool) -> bool:
    """Whether the console relays a request with this subject."""
    if not valid_subject(subject.encode(), wildcards=False):
        return False
    patterns = READING + CHANGING if admin else READING
    return any(matches(subject.encode(), pattern.encode()) for pattern in patterns)
