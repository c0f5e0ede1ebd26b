"""default_js_domain, and which activation token an export accepts."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from broker.config.check_accounts import export_of
from broker.config.load import BadSettings, load, parse_flags
from broker.config.options import AccountOptions, Activation, Export, Import, Options
from tests.support.server import RawClient, run, running_broker


def options(tmp_path: Path, text: str) -> Options:
    path = tmp_path / "server.conf"
    path.write_text(text)
    return load(parse_flags(["-c", str(path)])).options


def test_the_api_of_an_account_is_that_of_a_domain_elsewhere(tmp_path: Path) -> None:
    made = options(tmp_path, "accounts { A {}, B {} }\ndefault_js_domain { A: hub }")
    (a, b) = made.accounts
    assert [(one.source, one.destinations[0].subject) for one in a.mappings] == [
        ("$JS.API.>", "$JS.hub.API.>")
    ]
    assert b.mappings == ()


@pytest.mark.parametrize("jetstream", ["", "jetstream {{ store_dir: {0} }}"])
def test_requests_reach_the_domain(tmp_path: Path, jetstream: str) -> None:
    """Also on a server that has JetStream for other accounts."""
    text = (
        f'listen: "127.0.0.1:-1"\n{jetstream.format(tmp_path)}\ndefault_js_domain {{ A: hub }}\n'
        "accounts { A { users [{user: a, password: a}] }, B { jetstream: enabled } }"
    )

    async def test() -> None:
        async with running_broker(options(tmp_path, text)) as broker:
            login = b'CONNECT {"user":"a","pass":"a","verbose":false}\r\n'
            client = await RawClient.open(broker.server, connect=login)
            client.send(b"SUB $JS.hub.API.> 1\r\nPUB $JS.API.INFO R.1 0\r\n\r\n")
            assert await client.flush() == b"MSG $JS.hub.API.INFO 1 R.1 0\r\n\r\n"
            client.close()

    run(test())


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("default_js_domain { A: hub }", 'account "A" does not exist'),
        (
            "jetstream {}\naccounts { A { jetstream: enabled } }\ndefault_js_domain { A: hub }",
            'account "A" has JetStream here',
        ),
        ("accounts { A {} }\ndefault_js_domain { A: a.b }", "not the name of a domain"),
    ],
)
def test_domains_that_cannot_be(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(BadSettings, match=message):
        options(tmp_path, text)


EXPORT = Export(b"closed.>", service=True, token_required=True)
SHOP = AccountOptions("SHOP", exports=(EXPORT,), signing_keys=("SHOP", "SIGNER"))
TOKEN = Activation("SIGNER", "SHOP", "GUEST", b"closed.a", service=True, issued_at=100)


@pytest.mark.parametrize(
    ("changes", "admitted"),
    [
        ({}, True),
        ({"subject": b"closed.>"}, True),
        ({"subject": b"closed.b"}, False),
        ({"importer": "STRANGER"}, False),
        ({"exporter": "STRANGER"}, False),
        ({"issuer": "STRANGER"}, False),
        ({"service": False}, False),
    ],
)
def test_a_token_is_for_one_import_of_one_account(
    changes: dict[str, object],
    admitted: bool,
) -> None:
    wanted = Import("SHOP", b"closed.a", b"closed.a", service=True)
    given = replace(wanted, activation=replace(TOKEN, **changes))
    assert (export_of(SHOP, "GUEST", given) is not None) is admitted
    assert export_of(SHOP, "GUEST", wanted) is None


@pytest.mark.parametrize(("key", "until", "admitted"), [
    ("GUEST", 100, False), ("*", 100, False), ("GUEST", 99, True), ("OTHER", 100, True),
])  # fmt: skip
def test_revoked_tokens(key: str, until: int, admitted: bool) -> None:
    shop = replace(SHOP, exports=(replace(EXPORT, revocations=((key, until),)),))
    wanted = Import("SHOP", b"closed.a", b"closed.a", service=True, activation=TOKEN)
    assert (export_of(shop, "GUEST", wanted) is not None) is admitted
