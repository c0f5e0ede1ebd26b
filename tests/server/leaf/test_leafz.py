"""What the monitor shows of leaf nodes; the fields are those of nats-server."""

from __future__ import annotations

from broker.config.options import LeafNodeOptions, LeafRemote
from broker.monitor.documents.accountz import account_info, accstatz
from broker.monitor.documents.leafz import leafz, varz_leaf
from broker.monitor.observed import Observed
from broker.subjects import finish
from tests.support.leaf_peer import RawLeaf
from tests.support.server import run, running, until

REMOTE = LeafRemote(("nats://u:secret@h:1", "i:2"), deny_imports=(b"a",))


def test_leafz_of_both_sides() -> None:
    async def work() -> None:
        async with running(leafnodes=LeafNodeOptions(host="127.0.0.1", port=-1)) as hub:
            leaf = await RawLeaf.join(hub, "edge")
            leaf.send(b"LS+ foo\r\nLS+ bar q 2\r\nLMSG foo 3\r\nabc\r\n")
            await leaf.settled()
            observed = Observed(hub, None)
            shown = leafz(observed, {"subs": "1"})
            [one] = shown["leafs"]
            assert shown["leafnodes"] == 1
            assert one["ip"] == "127.0.0.1"
            assert {key: one[key] for key in ("name", "is_spoke", "account", "subscriptions")} == {
                "name": "edge", "is_spoke": False, "account": "$G", "subscriptions": 2,
            }  # fmt: skip
            assert (one["in_msgs"], one["in_bytes"], one["out_msgs"]) == (1, 3, 0)
            assert sorted(one["subscriptions_list"]) == ["bar", "foo"]
            assert leafz(observed, {"acc": "other"})["leafs"] == []
            assert "subscriptions_list" not in leafz(observed, {})["leafs"][0]
            assert account_info(observed, "$G")["leafnode_connections"] == 1
            [numbers] = finish(accstatz(observed))["account_statz"]
            assert (numbers["acc"], numbers["leafnodes"]) == ("$G", 1)
            assert varz_leaf(observed) == {
                "host": "127.0.0.1", "port": hub.leaf_port, "auth_timeout": 2, "tls_timeout": 2,
            }  # fmt: skip
            url = f"nats://127.0.0.1:{hub.leaf_port}"
            options = LeafNodeOptions(remotes=(LeafRemote((url,)),))
            async with running(leafnodes=options) as server:
                await until(lambda: len(server.leafs) == 1)
                [above] = leafz(Observed(server, None), {})["leafs"]
                assert (above["is_spoke"], above["port"]) == (True, hub.leaf_port)
            leaf.close()

    run(work())


def test_remotes_are_shown_without_passwords() -> None:
    async def work() -> None:
        disabled = LeafRemote(REMOTE.urls, deny_imports=REMOTE.deny_imports, disabled=True)
        async with running(leafnodes=LeafNodeOptions(remotes=(disabled,))) as server:
            assert varz_leaf(Observed(server, None)) == {
                "remotes": [
                    {"local_account": "$G", "urls": ["h:1", "i:2"], "deny": {"imports": ["a"]}}
                ]
            }

    run(work())
