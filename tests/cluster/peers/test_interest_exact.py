"""Whether clients of another node subscribe to a very subject, not only to a pattern."""

from __future__ import annotations

from tests.support.cluster_fakes import Net, run


def test_an_exact_subscription_at_a_peer_is_seen_beside_its_patterns() -> None:
    """Only an exact subscription to its deliver subject makes a push consumer bound."""

    async def test() -> None:
        net = Net(3)
        net.connect()
        here, there, _ = net.nodes
        account = here.account()
        client = there.client()
        there.subscribe(client, b"deliver.>", b"1")
        there.subscribe(client, b"deliver.group", b"2", queue=b"q")
        await net.settle()

        def exact(subject: bytes, queue: bytes = b"") -> bool:
            return here.interest.exact_at_peer(account, subject, queue=queue)

        assert not exact(b"deliver.one")
        one = there.subscribe(client, b"deliver.one", b"3")
        await net.settle()
        assert exact(b"deliver.one")
        assert not exact(b"deliver.two")
        assert exact(b"deliver.group", b"q")
        assert not exact(b"deliver.group")
        assert not exact(b"deliver.group", b"other")
        assert not exact(b"deliver.one", b"q")
        assert not here.interest.exact_at_peer(here.account("other"), b"deliver.one")
        assert not here.interest.exact_here(account, b"deliver.one"), (
            "the client is on the other node"
        )
        assert there.interest.exact_here(there.account(), b"deliver.one")
        assert not there.interest.exact_here(there.account(), b"deliver.two")
        there.unsubscribe(one)
        await net.settle()
        assert not exact(b"deliver.one")
        net.link_down(here, there)
        assert not exact(b"deliver.group", b"q")

    run(test())
