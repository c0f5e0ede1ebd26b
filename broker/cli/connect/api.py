"""JetStream's API for commands: documents in, documents out.

Owns: requests, pages, errors as one line.
May not touch: what is printed.
Documents stay dictionaries, so that fields that we do not know survive `edit` and `copy`.
Spec: JetStream API, $JS.API.>."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from broker.cli.connect.client_shape import CommandClient
from broker.cli.connect.failures import ApiRefused, CommandFailed, NoAnswerInTime

Document = dict[str, Any]
STREAM_NOT_FOUND = 10059
CONSUMER_NOT_FOUND = 10014


def call(
    client: CommandClient, verb: str, body: object = None, *, timeout_s: float | None = None
) -> Document:
    """The answer to $JS.API.<verb>. Raises ApiRefused for an error."""
    subject = f"{client.to.api_prefix}.{verb}"
    data = b"" if body is None else json.dumps(body).encode()
    try:
        answer = client.request(subject, data, timeout_s=timeout_s)
    except NoAnswerInTime as silence:
        text = f"{silence.message}: is JetStream enabled for this account, and may this user ask?"
        raise NoAnswerInTime(text) from silence
    if answer.status == 503:
        raise CommandFailed("nobody answers: JetStream is not enabled here")
    try:
        document = json.loads(answer.data)
    except ValueError as error:
        raise CommandFailed(f"the answer to {subject} is not JSON") from error
    if not isinstance(document, dict):
        raise CommandFailed(f"the answer to {subject} is not an object")
    if "error" in document:
        raise ApiRefused(document["error"])
    return document


def name(text: str, what: str = "stream") -> str:
    """A name becomes a word of a subject: what is not one word would ask for something else."""
    if not text or any(letter in ".*>/\\" or letter <= " " for letter in text):
        raise CommandFailed(f'"{text}" cannot be the name of a {what}')
    return text


def stream_info(client: CommandClient, stream: str, body: object = None) -> Document:
    return call(client, f"STREAM.INFO.{name(stream)}", body)


def stream_or_none(client: CommandClient, stream: str) -> Document | None:
    try:
        return stream_info(client, stream)
    except ApiRefused as refused:
        if refused.err_code == STREAM_NOT_FOUND:
            return None
        raise


def consumer_info(client: CommandClient, stream: str, consumer: str) -> Document:
    return call(client, f"CONSUMER.INFO.{name(stream)}.{name(consumer, 'consumer')}")


def streams(client: CommandClient, subject: str = "") -> list[Document]:
    """Infos of all streams, by name."""
    more = {"subject": subject} if subject else {}
    found = list(_pages(client, "STREAM.LIST", "streams", more))
    return sorted(found, key=lambda info: str(info["config"]["name"]))


def stream_names(client: CommandClient, subject: str = "") -> list[str]:
    more = {"subject": subject} if subject else {}
    return sorted(map(str, _pages(client, "STREAM.NAMES", "streams", more)))


def consumers(client: CommandClient, stream: str) -> list[Document]:
    found = list(_pages(client, f"CONSUMER.LIST.{name(stream)}", "consumers", {}))
    return sorted(found, key=lambda info: str(info["name"]))


def _pages(client: CommandClient, verb: str, field: str, more: Document) -> Iterator[Any]:
    offset = 0
    while True:
        page = call(client, verb, {"offset": offset, **more})
        items = page.get(field) or []
        yield from items
        offset += len(items)
        if not items or offset >= int(page.get("total", 0)):
            return
