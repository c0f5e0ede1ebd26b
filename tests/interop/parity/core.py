"""The client protocol, byte by byte: what is sent to a fresh connection, and what comes back.

Owns: the tables of raw exchanges. Each ends with an operation that does not exist, so that both
servers close the connection; the answer is everything up to that."""

from __future__ import annotations

import asyncio
import itertools
import json
import re
from dataclasses import dataclass

from broker.local import LocalNode

PATIENT_S = 20.0
# A server that closes before it has read everything resets the connection, and what it wrote may be
# lost: such an answer is only known to end.
RESET = "(reset)"
LOGIN = {"user": "core", "pass": "pw", "verbose": False, "pedantic": False, "headers": True,
         "no_responders": True, "lang": "parity", "version": "1", "protocol": 1}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Raw:
    name: str
    sent: bytes
    options: tuple[tuple[str, object], ...] = ()

    def __str__(self) -> str:
        return f"{dict(self.options)} {self.sent[:160]!r}"

    @property
    def connect(self) -> bytes:
        return b"CONNECT " + json.dumps({**LOGIN, **dict(self.options)}).encode() + b"\r\n"


OPERATIONS = (
    b"PING", b"PONG", b"ping", b"  PING", b"PING  ", b"+OK", b"-ERR 'x'", b"INFO {}", b"XYZ", b"",
    b"SUB", b"SUB a", b"SUB a 1", b"SUB a q 1", b"SUB a b c d", b"SUB a..b 1", b"SUB a.> 1",
    b"SUB a.>.b 1", b"SUB a* 1", b"sub a 1", b"SUB\ta\t1", b"SUB  a   1", b"SUB $SYS.> 1",
    b"SUB a 1\r\nSUB a 1", b"UNSUB", b"UNSUB 1", b"UNSUB 1 2", b"UNSUB 1 x", b"UNSUB 1 2 3",
    b"PUB", b"PUB a", b"PUB a 0\r\n", b"PUB a 1\r\nx", b"PUB a b 1\r\nx", b"PUB a b c 1\r\nx",
    b"PUB a x\r\n", b"PUB a -1\r\n", b"PUB a.* 1\r\nx", b"PUB a..b 1\r\nx", b"PUB a. 1\r\nx",
    b"PUB > 1\r\nx", b"PUB a 2\r\nx", b"PUB a 1\r\nxy", b"PUB a 99999999", b"PUB a 1048577",
    b"PUB a 00000000001\r\nx", b"pub a 1\r\nx", b"PUB\ta\t1\r\nx", b"PUB  a  1\r\nx",
    b"SUB a 1\r\nPUB a 1\r\nx", b"SUB a 1\r\nPUB a reply 2\r\nxy", b"SUB a 1\r\nPUB a 0\r\n",
    b"SUB a q 1\r\nPUB a 1\r\nx", b"SUB * 1\r\nPUB a 1\r\nx",
    b"SUB > 1\r\nPUB a.b.c 1\r\nx", b"SUB a.* 1\r\nPUB a 1\r\nx", b"SUB a 1\r\nPUB A 1\r\nx",
    b"SUB a 1\r\nUNSUB 1 1\r\nPUB a 1\r\nx\r\nPUB a 1\r\ny", b"SUB a 1\r\nUNSUB 1\r\nPUB a 1\r\nx",
    b"SUB a 1\r\nPUB a 1\r\nx\r\nUNSUB 1 1\r\nPUB a 1\r\ny", b"SUB a 1\r\nUNSUB 1 0\r\nPUB a 1\r\nx",
    b"HPUB", b"HPUB a 1 1\r\nx", b"HPUB a 12 12\r\nNATS/1.0\r\n\r\n",
    b"SUB a 1\r\nHPUB a 12 12\r\nNATS/1.0\r\n\r\n",
    b"SUB a 1\r\nHPUB a 18 19\r\nNATS/1.0\r\nA: b\r\n\r\nx",
    b"SUB a 1\r\nHPUB a r 18 19\r\nNATS/1.0\r\nA: b\r\n\r\nx", b"HPUB a 5 3\r\nxyz",
    b"HPUB a 20 12\r\nNATS/1.0\r\n\r\n", b"HPUB a x 12\r\n", b"HPUB a -1 12\r\n",
    b"SUB a 1\r\nHPUB a 4 5\r\nxxxxy", b"SUB r 1\r\nPUB nobody r 1\r\nx",
    b"SUB r 1\r\nHPUB nobody r 12 12\r\nNATS/1.0\r\n\r\n", b"PUB $SYS.x 1\r\nx",
    b"SUB _INBOX.x 1\r\nPUB _INBOX.x 1\r\nx", b"CONNECT {}", b"CONNECT {\"verbose\":true}",
    b"CONNECT", b"CONNECT x", b"CONNECT {", b"RS+ a", b"RMSG a", b"LS+ a", b"A+ a", b"MSG a 1 1\r\nx",
    b"HMSG a 1 1 1\r\nx", b"SUB " + b"a" * 300 + b" 1", b"SUB " + b"a." * 3000 + b"a 1",
    b"SUB " + b"a" * 5000 + b" 1", b"PUB " + b"a" * 5000 + b" 1\r\nx", b"SUB \xc3\xbc 1",
    b"SUB \xff 1", b"SUB a\x00b 1\r\nPUB a\x00b 1\r\nx", b"PING\nPING", b"PUB a 1\nx",
)  # fmt: skip
OPTIONS: tuple[dict[str, object], ...] = (
    {}, {"verbose": True}, {"pedantic": True}, {"echo": False}, {"headers": False},
    {"no_responders": False}, {"verbose": True, "pedantic": True},
)  # fmt: skip
LOGINS: tuple[dict[str, object], ...] = (
    {"user": "nobody"}, {"pass": "wrong"}, {"user": ""}, {"user": None}, {"pass": None},
    {"auth_token": "x"}, {"user": "", "auth_token": "x"}, {"jwt": "x"}, {"nkey": "x"},
    {"nkey": "UAAAAAAA", "sig": "x"}, {"user": 1}, {"verbose": "yes"}, {"protocol": 9},
    {"protocol": -1}, {"protocol": "1"}, {"tls_required": True}, {"name": "n" * 300},
    {"lang": 1}, {"headers": False, "no_responders": True}, {"unknown_field": 1},
    {"account": "OTHER"}, {"user": "core\n"},
)  # fmt: skip

Options = tuple[tuple[str, object], ...]
OPTION_SETS: list[Options] = [tuple(one.items()) for one in (*OPTIONS, *LOGINS)]
TABLE = [
    *(
        Raw(f"operation {number}", operation + b"\r\n", tuple(options.items()))
        for options, (number, operation) in itertools.product(OPTIONS, enumerate(OPERATIONS))
    ),
    *(Raw(f"login {number}", b"", tuple(one.items())) for number, one in enumerate(LOGINS)),
]


async def answer(node: LocalNode, raw: Raw) -> str:
    """Everything the server sends after its INFO, until it closes the connection."""
    reader, writer = await asyncio.open_connection("127.0.0.1", node.client_port)
    found = b""
    try:
        async with asyncio.timeout(PATIENT_S):
            await reader.readline()
            writer.write(raw.connect + raw.sent + b"QUIT\r\nQUIT\r\n")
            writer.write_eof()
            while chunk := await reader.read(65_536):
                found += chunk
    except (ConnectionError, OSError):
        return RESET
    except TimeoutError:
        return f"open after {PATIENT_S} s: {found!r}"
    finally:
        writer.close()
        await asyncio.gather(writer.wait_closed(), return_exceptions=True)
    text = found.decode(errors="replace")
    return re.sub(r"INFO \{.*?\}\s*\r\n", "INFO\r\n", text)
