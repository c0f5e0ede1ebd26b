"""The streams of an account hold a bounded number of bytes together; other accounts do not wait."""

from __future__ import annotations

from broker.cluster.publish import held_bytes
from broker.cluster.publish.held_bytes import HeldPublishes
from tests.support.cluster_fakes import run, turns
from tests.support.outbox_rig import Bench

MB = 1 << 20


def test_publishers_of_an_account_wait_for_all_its_streams() -> None:
    async def test() -> None:
        node = HeldPublishes(account_bytes=5 * MB)
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
    node = HeldPublishes(account_bytes=40 * MB, node_bytes=100 * MB)
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
