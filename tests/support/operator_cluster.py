"""A cluster as strict operators run it: client certificates over TLS, users of an operator.

Owns: the files (authority, certificates, a creds file) and what servers and Spark need of them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from broker.credentials.nkeys import KeyKind
from tests.support.authority import Authority
from tests.support.keys import Key, token

FREE = {"subs": -1, "data": -1, "payload": -1}
OPEN = {**FREE, "conn": -1, "imports": -1, "exports": -1, "wildcards": True}
JETSTREAM = {"mem_storage": -1, "disk_storage": -1, "streams": -1, "consumer": -1}
CREDS = """-----BEGIN NATS USER JWT-----
{}
------END NATS USER JWT------

-----BEGIN USER NKEY SEED-----
{}
------END USER NKEY SEED------
"""


@dataclass(frozen=True, slots=True)
class OperatorFiles:
    """What one folder holds."""

    folder: Path
    config: str  # of every server

    @classmethod
    def write(cls, folder: Path) -> OperatorFiles:
        """New keys and certificates; only the bearer of both gets in."""
        folder.mkdir(parents=True)
        operator, system = Key(KeyKind.OPERATOR), Key(KeyKind.ACCOUNT)
        account, user = Key(KeyKind.ACCOUNT), Key(KeyKind.USER)
        authority = Authority()
        for name in ("server", "client"):
            for suffix, content in authority.sign(name, ["127.0.0.1", "localhost"]).items():
                (folder / f"{name}-{suffix}").write_bytes(content)
        signed = token(account, "user", user.public, name="spark", nats=FREE)
        (folder / "spark.creds").write_text(CREDS.format(signed, user.seed))
        head = token(
            operator, "operator", operator.public, name="O",
            nats={"system_account": system.public},
        )  # fmt: skip
        preload = "\n".join(
            f"{one.public}: "
            + token(operator, "account", one.public, name=name, nats={"limits": limits})
            for one, name, limits in (
                (system, "SYS", OPEN),
                (account, "SPARK", OPEN | JETSTREAM),
            )
        )
        config = f"""operator: {head}
resolver: MEMORY
resolver_preload {{
{preload}
}}
tls {{ cert_file: "{folder}/server-tls.crt", key_file: "{folder}/server-tls.key",
       ca_file: "{folder}/server-ca.crt", verify: true }}"""
        return cls(folder, config)

    @property
    def certificates(self) -> dict[str, str]:
        """Options of Spark's source and sink."""
        return {
            "tlsCa": str(self.folder / "client-ca.crt"),
            "tlsCert": str(self.folder / "client-tls.crt"),
            "tlsKey": str(self.folder / "client-tls.key"),
        }

    @property
    def credentials(self) -> dict[str, str]:
        return {"credentials": str(self.folder / "spark.creds")}
