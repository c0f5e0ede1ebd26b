"""Permissions of one user: what counts messages counts every message, however they arrive."""

from __future__ import annotations

import pytest

from broker.accounts.permissions import PermissionSet
from broker.config.options import Authorization, Permissions, ResponseRules, SubjectRules, User
from tests.support.server import RawClient, run, running

RESPONDER = Permissions(
    publish=SubjectRules(allow=()), responses=ResponseRules(max_msgs=3, expires_ns=10**10)
)
CONNECT = b'CONNECT {"verbose":false,"pedantic":false,"user":"%b","pass":"pw"}\r\n'
WRITE = 500  # replies in one write


@pytest.mark.parametrize(
    ("asked", "allowed"),
    [([1, 1, 1, 1], [1, 1, 1, 0]), ([500], [3]), ([2, 2, 2], [2, 1, 0]), ([3, 1], [3, 0])],
)
def test_a_grant_is_used_up_message_by_message(asked: list[int], allowed: list[int]) -> None:
    user = PermissionSet(RESPONDER)
    user.grant(b"inbox.1", now_ns=0)
    assert [user.publishable(b"inbox.1", count, now_ns=1) for count in asked] == allowed
    assert user.publishable(b"inbox.2", 5, now_ns=1) == 0


def test_an_unlimited_grant_ends_with_its_time() -> None:
    rules = ResponseRules(max_msgs=-1, expires_ns=100)
    user = PermissionSet(Permissions(publish=SubjectRules(allow=()), responses=rules))
    user.grant(b"inbox", now_ns=0)
    assert user.publishable(b"inbox", 900, now_ns=100) == 900
    assert user.publishable(b"inbox", 1, now_ns=101) == 0


def test_what_a_connection_remembers_of_long_subjects_is_bounded() -> None:
    user = PermissionSet(Permissions(SubjectRules(allow=(b"a.>",)), None, ResponseRules(1, 10**10)))
    for at in range(2000):
        long = b"a.%d." % at + b"x" * 4000
        assert user.may_publish(long, now_ns=0)
        user.grant(b"r.%d." % at + b"x" * 4000, now_ns=0)
    assert sum(map(len, user._published)) < 1024 * 300
    assert sum(map(len, user._grants)) == user._grants_bytes < 1 << 21
    assert user.may_publish(b"r.1999." + b"x" * 4000, now_ns=1)  # the latest ones count
    assert not user.may_publish(b"r.0." + b"x" * 4000, now_ns=1)


def test_replies_in_one_write_are_counted_one_by_one() -> None:
    async def test() -> None:
        users = (User("service", "pw", RESPONDER), User("caller", "pw"))
        async with running(authorization=Authorization(users=users)) as server:
            service = await RawClient.open(server, connect=CONNECT % b"service")
            service.send(b"SUB ask 1\r\n")
            await service.flush()
            caller = await RawClient.open(server, connect=CONNECT % b"caller")
            caller.send(b"SUB inbox 1\r\nPUB ask inbox 0\r\n\r\n")
            await caller.flush()
            assert (await service.flush()).startswith(b"MSG ask 1 inbox 0\r\n")
            service.send(b"PUB inbox 2\r\nhi\r\n" * WRITE)
            refused = await service.flush()
            assert (await caller.flush()) == b"MSG inbox 1 2\r\nhi\r\n" * 3
            line = b"-ERR 'Permissions Violation for Publish to \"inbox\"'\r\n"
            assert refused == line * (WRITE - 3)
            for client in (service, caller):
                client.close()

    run(test())
