"""The streams of an account hold a bounded number of bytes together; other accounts do not wait."""

from __future__ import annotations

import asyncio

from broker.cluster.publish import held_bytes
from broker.cluster.publish.held_bytes import HeldPublishes
from tests.support.cluster_fakes import run, turns
from tests.support.outbox_rig import Bench

MB = 1 << 20


def test_publishers_of_an_account_wait_for_all_its_streams() -> None:
    async def test() -> None:
        node = HeldPublishes(account_bytes=5 * MB, shared_bytes=5 * MB)
        benches = [Bench(publishes=node.of("A")) for _ in range(3)]
        clients = [bench.client() for bench in benches]
        for bench, client in zip(benches, clients, strict=True):
            bench.publish(client, 2, payload=bytes(MB))
        await turns()
        assert [client.pauses for client in clients] == [0, 0, 1]
        quiet = Bench(publishes=node.of("B"))
        client = quiet.client()
        quiet.publish(client, 1, payload=bytes(MB))
        assert client.pauses == 0
        for bench in benches[:2]:
            assert clients[2].pauses == 1
            for number in bench.numbers:
                bench.answer(number, number)
        assert clients[2].pauses == 0
        assert node.of("A").held < 3 * MB

    run(test())


def test_publishers_that_waited_are_read_again_some_per_turn() -> None:
    """The sockets of all of them are full: reading three hundred in one turn took 100 ms."""

    async def test() -> None:
        node = HeldPublishes(account_bytes=5 * MB)
        bench = Bench(publishes=node.of("A"))
        clients = [bench.client() for _ in range(30)]
        for client in clients:
            bench.publish(client, 1, payload=bytes(MB))
        waiting = sum(client.pauses for client in clients)
        assert waiting == 26
        bench.outbox.removed()
        read = [waiting - sum(client.pauses for client in clients)]
        while any(client.pauses for client in clients):
            await asyncio.sleep(0)
            read.append(waiting - sum(client.pauses for client in clients))
        assert read == [8, 16, 24, 26]
        assert [client.pauses for client in clients] == [0] * 30

    run(test())


def test_publishers_wait_on_when_those_before_them_fill_the_account_again() -> None:
    async def test() -> None:
        account = HeldPublishes(account_bytes=5 * MB).of("A")
        bench = Bench()
        clients = [bench.client() for _ in range(20)]
        account.changed(6 * MB)
        for client in clients:
            account.wait(client)
        account.changed(-6 * MB)
        account.changed(6 * MB)
        await turns()
        assert sum(client.pauses for client in clients) == 12
        account.changed(-6 * MB)
        await turns()
        assert not any(client.pauses for client in clients)

    run(test())


def test_a_deleted_stream_and_a_closed_outbox_hold_nothing() -> None:
    async def test() -> None:
        node = HeldPublishes(account_bytes=5 * MB)
        for end in ("removed", "close"):
            bench = Bench(publishes=node.of("A"))
            client = bench.client()
            bench.publish(client, 6, payload=bytes(MB))
            assert client.pauses == 1
            getattr(bench.outbox, end)()
            assert client.pauses == 0
            assert node.of("A").held == 0
        assert node.accounts_holding == 0

    run(test())


def test_the_share_shrinks_with_the_accounts_that_hold_something() -> None:
    node = HeldPublishes(account_bytes=40 * MB, shared_bytes=40 * MB, node_bytes=100 * MB)
    accounts = [node.of(f"A{number}") for number in range(50)]
    assert accounts[0].share == 40 * MB
    for account in accounts[:4]:
        account.changed(1)
    assert accounts[0].share == 25 * MB
    for account in accounts[4:]:
        account.changed(1)
    assert accounts[0].share == held_bytes.LEAST_BYTES
    for account in accounts:
        account.changed(-1)
    assert accounts[0].share == 40 * MB


def test_an_account_has_less_while_others_publish() -> None:
    """What it holds is what a publish of the others waits for."""
    now = 100.0
    node = HeldPublishes(account_bytes=40 * MB, shared_bytes=8 * MB, clock=lambda: now)
    busy, quiet = node.of("A"), node.of("B")
    busy.changed(1)
    assert busy.share == 40 * MB
    for _ in range(3):  # now and then
        quiet.changed(1)
        assert busy.share == 8 * MB
        quiet.changed(-1)
        now += held_bytes.RECENTLY_S / 2
        assert busy.share == 8 * MB
        busy.changed(-1)  # what the account does itself does not count
        busy.changed(1)
    now += held_bytes.RECENTLY_S
    assert busy.share == 40 * MB
    assert quiet.share == 8 * MB
