"""Acks of one batch for many connections: written at once, up to a bound."""

from __future__ import annotations

from broker.accounts import Account
from broker.cluster.publish.pub_acks import AT_ONCE_MAX, PubAcks
from broker.cluster.publish.publish_batch import BatchAnswer, PublishBatch
from broker.server.routing.router import Router
from broker.subjects import Subscription
from broker.wire import ReplyColumn
from tests.support.cluster_fakes import Client

COUNT = AT_ONCE_MAX + 5


def test_acks_for_many_connections_do_not_all_leave_in_one_turn() -> None:
    account = Account("A")
    clients = [Client(account, cid) for cid in range(COUNT)]
    replies = ReplyColumn()
    for client in clients:
        inbox = b"_INBOX.%d." % client.cid
        account.subs.insert(Subscription(client, account, inbox + b"*", b"", b"1"))
        replies.append(inbox + b"x")
    spans = [(row, row + 1, True) for row in range(COUNT)]
    batch = PublishBatch(block=b"", replies=replies, spans=spans, rows=COUNT)
    acks = PubAcks(b"S", account, Router(), extra=b"")
    acks.acknowledge(batch, BatchAnswer(1, 1, 1, 8, []))
    assert [len(client.encoded) for client in clients] == [1] * COUNT
    assert [client.at_once for client in clients] == [1] * AT_ONCE_MAX + [0] * 5
    for client, (_, data, messages, payload) in zip(
        clients, (one.encoded[0] for one in clients), strict=True
    ):
        body = b'{"stream":"S","seq":%d}' % (8 + client.cid)
        assert data.endswith(b"\r\n" + body + b"\r\n")
        assert (messages, payload) == (1, len(body))
