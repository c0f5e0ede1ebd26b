"""Account quotas: what an account may use of JetStream, and what it uses.

Owns: turning the configured limits into the view that requests are checked against, and the
numbers of `$JS.API.INFO`.
May not touch: the rules (broker/jetstream/config/limits.py and the rule modules beside it),
accounts themselves.
Spec: NATS JetStream API, `$JS.API.INFO`; nats-server `jetstream` limits of accounts and server."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Protocol

import msgspec

from broker.cluster.limits.usage import SizedReplica
from broker.cluster.meta.assignments import AssignmentTable
from broker.cluster.peers.rpc import CallFailed, Rpc
from broker.config.options import JetStreamOptions
from broker.jetstream.api.info import AccountInfo, ApiStats
from broker.jetstream.config.limits import AccountLimits, AccountView, ServerLimits, reserved_bytes
from broker.jetstream.config.stream_config import Storage
from raft import NodeId

_encode = msgspec.msgpack.Encoder().encode
_usage = msgspec.msgpack.Decoder(tuple[int, int, int])


class CountedReplica(SizedReplica, Protocol):
    @property
    def consumer_count(self) -> int: ...


@dataclass(slots=True)
class AccountQuotas:
    """One per node. Usage is collected from the leaders, each of which reports its own streams."""

    options: JetStreamOptions
    assignments: AssignmentTable
    clustered: Callable[[], bool]
    leader: Callable[[int], NodeId | None]
    rpc: Rpc
    replicas: Iterable[CountedReplica]  # of this node

    def start(self) -> None:
        self.rpc.register("usage", self._serve_usage)

    def limits(self, account: str) -> AccountLimits:
        granted = self.options.accounts.get(account)
        if granted is None:
            return AccountLimits()
        return AccountLimits(**msgspec.structs.asdict(granted))

    def view(self, account: str) -> AccountView:
        """What a request of the account is checked against."""
        options = self.options
        sums = self.assignments.sums
        own, all_in_all = sums.reserved(account), sums.reserved_in_all()
        return AccountView(
            streams=self.assignments.configs(account),
            limits=self.limits(account),
            server=ServerLimits(
                duplicate_window_ns=options.limits.duplicate_window_ns,
                max_ack_pending=options.limits.max_ack_pending,
                max_request_batch=options.limits.max_request_batch,
                max_memory=options.max_memory_store,
                max_storage=options.max_file_store,
            ),
            clustered=self.clustered(),
            reserved=own,
            reserved_by_others={kind: all_in_all[kind] - own[kind] for kind in Storage},
        )

    async def info(self, account: str, api: ApiStats) -> AccountInfo:
        """Raises CallFailed when a leader does not report the usage of its streams."""
        assignments = self.assignments.of_account(account)
        configs = [assignment.config for assignment in assignments]
        leaders = {self.leader(a.group) for a in assignments} - {None}
        memory = storage = consumers = 0
        for leader in leaders:
            assert leader is not None
            answer = await self.rpc.call(leader, "usage", account.encode())
            try:
                in_memory, in_files, count = _usage.decode(answer)
            except msgspec.DecodeError as problem:
                raise CallFailed("usage in the format of another version") from problem
            memory, storage, consumers = memory + in_memory, storage + in_files, consumers + count
        return AccountInfo(
            memory=memory,
            storage=storage,
            reserved_memory=reserved_bytes(configs, Storage.MEMORY),
            reserved_storage=reserved_bytes(configs, Storage.FILE),
            streams=len(assignments),
            consumers=consumers,
            limits=self.limits(account),
            domain=self.options.domain,
            api=api,
        )

    async def _serve_usage(self, _peer: NodeId, body: bytes) -> bytes:
        account = body.decode()
        memory = storage = consumers = 0
        for replica in self.replicas:
            if not replica.is_leading or replica.assignment.account != account:
                continue
            size = replica.stored_bytes * len(replica.assignment.peers)
            if replica.storage is Storage.MEMORY:
                memory += size
            else:
                storage += size
            consumers += replica.consumer_count
        return _encode((memory, storage, consumers))
