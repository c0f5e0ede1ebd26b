"""Streams that are created, used and deleted, again and again under the same names.

Owns: the client, and what it knows about the stream.
May not touch: the servers.
Checks: a stream that was created after the deletion of one with the same name begins with sequence
1 and contains only what was sent to it; a stream whose deletion was confirmed does not exist. A
request without an answer may be carried out at any later time, so its name is not used again; nor
after a refusal."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from chaos.campaign.work.campaign_work import ANSWER_WITHIN_S, NO_ANSWER, CampaignWork
from chaos.sim.promises.broken import BrokenPromise
from chaos.sim.promises.journal import Operation, Result

STREAM = "CHAOS_LIFE"
CREATE, DELETE, SEND, LOOK = "create stream", "delete stream", "publish", "look"
MESSAGES = 3
EVERY_S = 0.5
NOT_FOUND = 10059


@dataclass(slots=True)
class LifeCycles(CampaignWork):
    """One life after the other."""

    seed: int
    names: int = field(default=1, init=False)
    name: ClassVar[str] = "stream life cycles"

    @property
    def streams(self) -> Sequence[str]:
        return [f"{STREAM}_{number}" for number in range(1, self.names + 1)]

    async def run(self) -> None:
        dice, life = random.Random(self.seed), 0

        async def step(client: Any) -> None:
            nonlocal life
            life += 1
            await self._live(client, life)

        await self._again_and_again(step, dice, every_s=EVERY_S)

    async def _live(self, client: Any, life: int) -> None:
        stream = f"{STREAM}_{self.names}"
        body = {"name": stream, "subjects": [stream], "num_replicas": self.replicas,
                "description": f"life {life}"}  # fmt: skip
        api = "$JS.API.STREAM"
        steps = [
            (CREATE, f"{api}.CREATE.{stream}", body, life, 0),
            *((SEND, stream, {}, life, number) for number in range(1, MESSAGES + 1)),
            (LOOK, f"{api}.INFO.{stream}", {}, life, 0),
            (DELETE, f"{api}.DELETE.{stream}", {}, life, 0),
            (LOOK, f"{api}.INFO.{stream}", {}, 0, 0),
        ]
        for kind, subject, request, of_life, number in steps:
            operation = self.journal.invoke("life", kind, life=of_life, number=number)
            await self._ask(client, operation, subject, request)
            if operation.result is not Result.OK and kind != LOOK:
                self.names += 1
                return

    async def _ask(
        self, client: Any, operation: Operation, subject: str, body: dict[str, Any]
    ) -> None:
        try:
            answer = await client.request(
                subject, json.dumps(body).encode(), timeout=ANSWER_WITHIN_S
            )
            told = json.loads(answer.data)
        except (*NO_ANSWER, ValueError):
            return
        if "error" in told:
            self.journal.failed(operation, code=told["error"].get("err_code"))
        else:
            self.journal.ok(operation, **_facts(told))

    async def check(self) -> None:
        for one in self.journal.operations:
            if problem := _problem(one):
                raise BrokenPromise(f"{STREAM}, life {one.fields['life']}: {problem}")


def _facts(told: dict[str, Any]) -> dict[str, Any]:
    facts = {"seq": told.get("seq")}
    if "state" in told:
        facts["messages"] = told["state"]["messages"]
        facts["life"] = told["config"].get("description")
    return facts


def _problem(one: Operation) -> str:
    life, answer = one.fields["life"], one.answer
    if one.kind == SEND and one.result is Result.OK and answer["seq"] != one.fields["number"]:
        return f"message {one.fields['number']} was stored at {answer['seq']}"
    if one.kind != LOOK:
        return ""
    if life == 0:
        return "it is there after its deletion" if one.result is Result.OK else ""
    if one.result is Result.FAILED and answer["code"] == NOT_FOUND:
        return "it is not there, but nobody deleted it"
    if one.result is Result.OK and answer["life"] != f"life {life}":
        return f"it is {answer['life']!r}"
    if one.result is Result.OK and answer["messages"] > MESSAGES:
        return f"it has {answer['messages']} messages"
    return ""
