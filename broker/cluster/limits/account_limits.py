"""Account quotas: what an account may use of JetStream, and what it uses.

Owns: turning the configured limits into the view that requests are checked against, and the
numbers of `$JS.API.INFO`.
May not touch: the rules (broker/jetstream/config/limits.py and the rule modules beside it),
accounts themselves.
Spec: NATS JetStream API, `$JS.API.INFO`; nats-server `jetstream` limits of accounts and server."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

import msgspec
from msgspec import structs

from broker.cluster.limits.usage import SizedReplica
from broker.cluster.meta.assignments import Assignment, AssignmentTable
from broker.cluster.peers.rpc import CallFailed, Rpc
from broker.config.options import AccountStore, JetStreamOptions
from broker.jetstream.api.info import AccountInfo, ApiStats, Tier
from broker.jetstream.config.limits import (
    NO_FLAT_LIMITS,
    AccountLimits,
    AccountView,
    ServerLimits,
    reserved_bytes,
    tier_name,
)
from broker.jetstream.config.stream_config import Storage, StreamConfig
from raft import NodeId

PER_STEP: Final = 256  # streams per step; each takes a few microseconds
_encode = msgspec.msgpack.Encoder().encode
_Used = tuple[int, int, int]  # bytes in memory and in files of all replicas; consumers
_usage = msgspec.msgpack.Decoder(_Used)
_tier_usage = msgspec.msgpack.Decoder(dict[int, _Used])


class CountedReplica(SizedReplica, Protocol):
    @property
    def consumer_count(self) -> int: ...


@dataclass(slots=True)
class _Turn:
    """Requests of one account: one of them collects the usage, and answers all that arrived before
    it began."""

    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    users: int = 0
    begun: int = 0  # how often numbers were collected
    made: AccountInfo | None = None
    made_as: int = 0


@dataclass(slots=True)
class AccountQuotas:
    """One per node. Usage is collected from the leaders, each of which reports its own streams.

    That visits all streams of the account, and on a leader all streams of the node. It is done in
    steps, and once for all waiting requests of an account."""

    options: JetStreamOptions
    assignments: AssignmentTable
    clustered: Callable[[], bool]
    leader: Callable[[int], NodeId | None]
    rpc: Rpc
    replicas: Iterable[CountedReplica]  # of this node
    _turns: dict[str, _Turn] = field(default_factory=dict)  # of accounts that ask

    def start(self) -> None:
        self.rpc.register("usage", self._serve_usage)
        self.rpc.register("tier_usage", self._serve_tier_usage)

    def limits(self, account: str) -> AccountLimits:
        granted = self.options.accounts.get(account)
        if granted is None:
            return AccountLimits()
        return NO_FLAT_LIMITS if granted.tiers else _limits(granted)

    def tiers(self, account: str) -> dict[str, AccountLimits]:
        granted = self.options.accounts.get(account)
        tiers = {} if granted is None else granted.tiers
        return {name: _limits(tier) for name, tier in tiers.items()}

    def view(self, account: str) -> AccountView:
        """The limits and usage that a request of the account is checked against."""
        options = self.options
        sums = self.assignments.sums
        own, all_in_all = sums.reserved(account), sums.reserved_in_all()
        return AccountView(
            streams=self.assignments.configs(account),
            limits=self.limits(account),
            tiers=self.tiers(account),
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
        turn = self._turns.setdefault(account, _Turn())
        arrived = turn.begun
        turn.users += 1
        try:
            async with turn.lock:
                if turn.made is None or turn.made_as <= arrived:
                    turn.begun += 1
                    number = turn.begun
                    turn.made, turn.made_as = await self._made(account), number
                return structs.replace(turn.made, api=api)
        finally:
            turn.users -= 1
            if not turn.users:
                del self._turns[account]

    async def _made(self, account: str) -> AccountInfo:
        assignments = self.assignments.of_account(account)
        tiers = self.tiers(account)
        used = await self._used(account, assignments, "tier_usage" if tiers else "usage")
        configs = [assignment.config for assignment in assignments]
        shown = {name: _tier_info(name, limits, configs, used) for name, limits in tiers.items()}
        memory, storage, consumers = (sum(one[at] for one in used.values()) for at in range(3))
        if tiers:  # limits of a tier apply to one replica
            configs = [structs.replace(config, num_replicas=1) for config in configs]
        return AccountInfo(
            memory=memory,
            storage=storage,
            reserved_memory=reserved_bytes(configs, Storage.MEMORY),
            reserved_storage=reserved_bytes(configs, Storage.FILE),
            streams=len(assignments),
            consumers=consumers,
            limits=self.limits(account),
            domain=self.options.domain,
            tiers=shown,
        )

    async def _used(
        self, account: str, assignments: Sequence[Assignment], call: str
    ) -> dict[int, _Used]:
        """Usage by number of replicas; under 0 the total."""
        found: dict[int, _Used] = {}
        leaders: set[NodeId | None] = set()
        for at in range(0, len(assignments), PER_STEP):
            leaders.update(self.leader(a.group) for a in assignments[at : at + PER_STEP])
            await asyncio.sleep(0)
        for leader in leaders - {None}:
            assert leader is not None
            answer = await self.rpc.call(leader, call, account.encode())
            try:
                tiered = call == "tier_usage"
                part = _tier_usage.decode(answer) if tiered else {0: _usage.decode(answer)}
            except msgspec.DecodeError as problem:
                raise CallFailed("usage in the format of another version") from problem
            for replicas, used in part.items():
                found[replicas] = _sum(found.get(replicas, (0, 0, 0)), used)
        return found

    async def _serve_usage(self, _peer: NodeId, body: bytes) -> bytes:
        total = (0, 0, 0)
        for used in (await self._led(body.decode())).values():
            total = _sum(total, used)
        return _encode(total)

    async def _serve_tier_usage(self, _peer: NodeId, body: bytes) -> bytes:
        return _encode(await self._led(body.decode()))

    async def _led(self, account: str) -> dict[int, _Used]:
        """Usage of the account's streams that this node leads, by number of replicas."""
        found: dict[int, _Used] = {}
        for at, replica in enumerate(list(self.replicas), 1):
            if at % PER_STEP == 0:
                await asyncio.sleep(0)
            assignment = replica.assignment
            if not replica.is_leading or assignment.account != account:
                continue
            size = replica.stored_bytes * len(assignment.peers)
            in_memory = replica.storage is Storage.MEMORY
            used = (size, 0) if in_memory else (0, size)
            tier = assignment.config.num_replicas
            found[tier] = _sum(found.get(tier, (0, 0, 0)), (*used, replica.consumer_count))
        return found


def _sum(one: _Used, other: _Used) -> _Used:
    return one[0] + other[0], one[1] + other[1], one[2] + other[2]


def _limits(granted: AccountStore) -> AccountLimits:
    fields = {name: getattr(granted, name) for name in AccountLimits.__struct_fields__}
    return AccountLimits(**fields)


def _tier_info(
    name: str, limits: AccountLimits, streams: Iterable[StreamConfig], used: Mapping[int, _Used]
) -> Tier:
    own = [s for s in streams if tier_name(s.num_replicas) == name]
    one_copy = [structs.replace(s, num_replicas=1) for s in own]
    total = (0, 0, 0)
    for replicas, part in used.items():
        if tier_name(replicas) == name:
            total = _sum(total, part)
    memory, storage, consumers = total
    return Tier(
        memory=memory,
        storage=storage,
        reserved_memory=reserved_bytes(one_copy, Storage.MEMORY),
        reserved_storage=reserved_bytes(one_copy, Storage.FILE),
        streams=len(own),
        consumers=consumers,
        limits=limits,
    )
