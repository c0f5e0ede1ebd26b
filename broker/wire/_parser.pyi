from typing import Literal, final

from broker.wire._run import PubRun
from broker.wire.ops import Op

_Event = (
    tuple[Literal[Op.PUB], PubRun]
    | tuple[Literal[Op.SUB], bytes, bytes | None, bytes]
    | tuple[Literal[Op.UNSUB], bytes, int]
    | tuple[Literal[Op.CONNECT], bytes]
    | tuple[Literal[Op.INFO], bytes]
    | tuple[Literal[Op.ERR], bytes]
    | tuple[Literal[Op.SCAN], bytes]
    | tuple[Literal[Op.PING]]
    | tuple[Literal[Op.PONG]]
    | tuple[Literal[Op.OK]]
    | tuple[Literal[Op.LMSG], PubRun, bytes]
    | tuple[Literal[Op.LSUB], bytes, bytes, int]
    | tuple[Literal[Op.LUNSUB], bytes, bytes]
)

@final
class ClientParser:
    max_control_line: int
    max_payload: int
    def __init__(self, *, max_control_line: int, max_payload: int, leaf: bool = False) -> None: ...
    @property
    def unparsed(self) -> bytes: ...
    def receive(self, chunk: bytes) -> list[_Event]: ...
