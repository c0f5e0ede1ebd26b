"""An object store: files are put by one client and fetched by another.

Owns: the clients, and the contents that they put.
May not touch: the servers.
Checks: an object whose put was confirmed is found afterwards, whole and unchanged; a get during
the run gives the content of the put, or no answer."""

from __future__ import annotations

import asyncio
import hashlib
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import nats.js.errors
from nats.js.api import ObjectStoreConfig

from chaos.campaign.work.campaign_work import NO_ANSWER, READ_WITHIN_S, CampaignWork
from chaos.sim.promises.broken import BrokenPromise
from chaos.sim.promises.journal import Result
from chaos.workload import connect

BUCKET = "chaos"
PUT, GET = "put object", "get object"
EVERY_S = 0.5
SIZES = (0, 100, 130_000, 300_000)  # a chunk has 128 KB
WITHIN_S = 15.0
AT_ONCE = 16


@dataclass(slots=True)
class Objects(CampaignWork):
    seed: int
    name: ClassVar[str] = "objects"

    @property
    def streams(self) -> Sequence[str]:
        return (f"OBJ_{BUCKET}",)

    async def create(self) -> None:
        client = await connect(self.urls)
        try:
            config = ObjectStoreConfig(bucket=BUCKET, replicas=self.replicas)
            await client.jetstream(timeout=30).create_object_store(BUCKET, config=config)
        finally:
            await client.close()

    async def run(self) -> None:
        dice, count, known = random.Random(self.seed), 0, list[str]()

        async def step(client: Any) -> None:
            nonlocal count
            count += 1
            if await self._put(client, f"o{count}", dice.randbytes(dice.choice(SIZES))):
                known.append(f"o{count}")
            if known:
                await self._get(client, dice.choice(known))

        await self._again_and_again(step, dice, every_s=EVERY_S)

    async def _put(self, client: Any, name: str, content: bytes) -> bool:
        digest = hashlib.sha256(content).hexdigest()
        operation = self.journal.invoke("objects", PUT, object=name, digest=digest)
        try:
            async with asyncio.timeout(WITHIN_S):
                bucket = await client.jetstream(timeout=5).object_store(BUCKET)
                await bucket.put(name, content)
        except NO_ANSWER:
            return False
        self.journal.ok(operation)
        return True

    async def _get(self, client: Any, name: str) -> None:
        operation = self.journal.invoke("objects", GET, object=name)
        try:
            async with asyncio.timeout(WITHIN_S):
                bucket = await client.jetstream(timeout=5).object_store(BUCKET)
                found = await bucket.get(name)
        except nats.js.errors.ObjectNotFoundError:
            self.journal.ok(operation, digest="")
        except NO_ANSWER:
            return
        else:
            data = found.data or b""
            if len(data) == found.info.size:  # the client stops early when its connection ends
                self.journal.ok(operation, digest=hashlib.sha256(data).hexdigest())

    async def check(self) -> None:
        put = {
            one.fields["object"]: one.fields["digest"]
            for one in self.journal.of_kind(PUT)
            if one.result is Result.OK
        }
        for one in self.journal.of_kind(GET):
            if one.result is Result.OK and one.answer["digest"] != put[one.fields["object"]]:
                raise BrokenPromise(f"a get of {one.fields['object']} gave {_what(one.answer)}")
        client = await connect(self.urls)
        try:
            bucket = await client.jetstream(timeout=READ_WITHIN_S).object_store(BUCKET)
            names = list(put)
            for start in range(0, len(names), AT_ONCE):  # every get makes a consumer of its own
                some = names[start : start + AT_ONCE]
                digests = await asyncio.gather(*(_digest(bucket, name) for name in some))
                for name, digest in zip(some, digests, strict=True):
                    if digest != put[name]:
                        what = "has another content than was put" if digest else "is lost"
                        raise BrokenPromise(f"{name} {what}")
        finally:
            await client.close()


async def _digest(bucket: Any, name: str) -> str:
    """Empty: there is no such object."""
    try:
        return hashlib.sha256((await bucket.get(name)).data or b"").hexdigest()
    except nats.js.errors.ObjectNotFoundError:
        return ""


def _what(answer: dict[str, Any]) -> str:
    return "another content" if answer["digest"] else "no object, although its put was confirmed"
