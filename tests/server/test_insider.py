"""The server's own connections to itself: whoever may connect, they may, and nobody as them."""

from __future__ import annotations

import pytest

from broker.accounts import insider
from broker.accounts.authentication import Authenticator
from broker.accounts.identity import Credentials
from broker.config.options import Authorization, User

WAYS = {
    "open": Authorization(),
    "token": Authorization(token="t"),
    "user": Authorization(user="u", password="p"),
    "users": Authorization(users=(User(name="u", password="p", account="A"),)),
}


@pytest.mark.parametrize("auth", WAYS.values(), ids=list(WAYS))
def test_the_server_gets_into_every_account(auth: Authorization) -> None:
    ours = Authenticator(auth).identify(insider.credentials("B"))
    assert ours is not None
    assert (ours.account, ours.permissions) == ("B", None)


@pytest.mark.parametrize("way", ["token", "user", "users"])
@pytest.mark.parametrize("password", ["", "p", "t", "$insider.B"])
def test_nobody_else_gets_in_by_its_name(way: str, password: str) -> None:
    name = insider.credentials("B").user
    given = Credentials(user=name, password=password)
    assert Authenticator(WAYS[way]).identify(given) is None
