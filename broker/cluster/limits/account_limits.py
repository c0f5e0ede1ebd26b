"""What an account may use of JetStream, and what it uses.

Owns: the one place where limits of the configuration become the view that requests are judged in,
and the numbers of `$JS.API.INFO`.
May not touch: the rules (jetstream/limits.py and the rules modules), accounts themselves.
Spec: JetStream sheet 1.9; `limits` of an account and of the server."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import msgspec

from broker.cluster.limits.usage import Usage
from broker.cluster.peers.rpc import CallFailed
from broker.jetstream.api.info import AccountInfo, ApiStats
from broker.jetstream.config.consumer_update import is_internal
from broker.jetstream.config.limits import AccountLimits, AccountView, ServerLimits, reserved_bytes
from broker.jetstream.config.stream_config import Storage
from raft import NodeId

if TYPE_CHECKING:
    from broker.cluster.node import JetStreamNode

_encode = msgspec.msgpack.Encoder().encode
_usage = msgspec.msgpack.Decoder(tuple[int, int, int])


@dataclass(slots=True)
class AccountQuotas:
    """One per node. Usage is asked of the leaders: each knows its streams best."""

    node: JetStreamNode
    usage: Usage = field(init=False)

    def __post_init__(self) -> None:
        self.usage = Usage(self.node)

    def start(self) -> None:
        self.usage.start()
        self.node.mesh.rpc.register("usage", self._serve_usage)

    def limits(self, account: str) -> AccountLimits:
        granted = self.node.options.accounts.get(account)
        if granted is None:
            return AccountLimits()
        return AccountLimits(**msgspec.structs.asdict(granted))

    def view(self, account: str) -> AccountView:
        """What a request of the account is judged in."""
        options = self.node.options
        others = [a.config for a in self.node.meta if a.account != account]
        return AccountView(
            streams={a.name: a.config for a in self.node.meta.of_account(account)},
            limits=self.limits(account),
            server=ServerLimits(
                duplicate_window_ns=options.limits.duplicate_window_ns,
                max_ack_pending=options.limits.max_ack_pending,
                max_request_batch=options.limits.max_request_batch,
                max_memory=options.max_memory_store or 0,
                max_storage=options.max_file_store or 0,
            ),
            clustered=len(self.node.members) > 1,
            reserved_by_others={kind: reserved_bytes(others, kind) for kind in Storage},
        )

    async def info(self, account: str, api: ApiStats) -> AccountInfo:
        """Raises CallFailed when a leader does not tell what its streams use."""
        assignments = self.node.meta.of_account(account)
        configs = [assignment.config for assignment in assignments]
        leaders = {self.node.leader(a.group) for a in assignments} - {None}
        memory = storage = consumers = 0
        for leader in leaders:
            assert leader is not None
            answer = await self.node.mesh.rpc.call(leader, "usage", account.encode())
            try:
                in_memory, in_files, count = _usage.decode(answer)
            except msgspec.DecodeError as problem:
                raise CallFailed("usage in a form of another version") from problem
            memory, storage, consumers = memory + in_memory, storage + in_files, consumers + count
        return AccountInfo(
            memory=memory,
            storage=storage,
            reserved_memory=reserved_bytes(configs, Storage.MEMORY),
            reserved_storage=reserved_bytes(configs, Storage.FILE),
            streams=len(assignments),
            consumers=consumers,
            limits=self.limits(account),
            domain=self.node.options.domain,
            api=api,
        )

    async def _serve_usage(self, _peer: NodeId, body: bytes) -> bytes:
        account = body.decode()
        memory = storage = consumers = 0
        for replica in self.node.replicas.values():
            if replica.leading is None or replica.assignment.account != account:
                continue
            size = replica.stream.store.bytes * len(replica.assignment.peers)
            if replica.stream.config.storage is Storage.MEMORY:
                memory += size
            else:
                storage += size
            consumers += sum(not is_internal(c.config) for c in replica.stream.consumers.values())
        return _encode((memory, storage, consumers))
