from typing import final

from broker.wire._run import PubRun

def encode_msg(
    subject: bytes, sid: bytes, reply: bytes, headers: bytes, payload: bytes
) -> bytes: ...
def encode_pub_acks(
    replies: ReplyColumn,
    start: int,
    stop: int,
    sid: bytes,
    stream: bytes,
    first_seq: int,
    extra: bytes,
) -> bytes: ...

@final
class ReplyColumn:
    def append_run(self, run: PubRun, start: int, stop: int) -> None: ...
    def append(self, reply: bytes) -> None: ...
    def __len__(self) -> int: ...
    def get(self, i: int) -> bytes: ...
    def prefix(self, start: int, stop: int) -> bytes | None: ...
