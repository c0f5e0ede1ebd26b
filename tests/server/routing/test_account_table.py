"""The table of accounts: created when first named, and observed."""

from __future__ import annotations

from broker.config.options import AccountOptions
from broker.server.routing.account_table import AccountTable


def test_an_account_is_created_once_with_its_options() -> None:
    table = AccountTable([AccountOptions("A", max_connections=3)])
    assert "A" not in table
    created = table.open("A")
    assert table.open("A") is created is table["A"]
    assert created.options.max_connections == 3
    assert table.open("B").options == AccountOptions("B")
    assert list(table) == ["A", "B"]


def test_a_callback_sees_present_and_later_accounts() -> None:
    table = AccountTable([])
    table.open("A")
    seen: list[str] = []
    table.on_created(lambda account: seen.append(account.name))
    table.open("B")
    table.open("A")
    assert seen == ["A", "B"]
