"""The page of the console: its files, its headers, and how it looks in a browser."""

from __future__ import annotations

import asyncio
import json
import re
import shutil
import urllib.request
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import ClientSession, ClientWebSocketResponse

from broker.config.options import JetStreamOptions
from broker.monitor.console import routes
from tests.monitor.documents.test_http import HTTP, document, get, http_port
from tests.support.server import PATIENCE, RawClient, run, running, until

ASSETS = Path(routes.__file__).parent / "assets"
CONFIG = b'{"name":"ORDERS","subjects":["orders.*"]}'
BROWSER = shutil.which("chromium") or shutil.which("google-chrome")


def test_the_page_is_small_and_asks_nobody_else() -> None:
    files = [one for one in ASSETS.iterdir() if one.is_file()]
    assert sum(one.stat().st_size for one in files) < 150_000
    for one in files:
        text = one.read_text().replace("http://www.w3.org/2000/svg", "")
        assert not re.search(r"https?://|innerHTML|eval\(|document\.write", text), one.name


def test_every_file_that_the_page_names_is_served() -> None:
    async def test() -> None:
        async with running(http=HTTP) as server:
            for one in ASSETS.iterdir():
                for name in re.findall(r"(?:console/|\"\./)([\w.]+)", one.read_text()):
                    if name not in ("session", "nodes"):
                        assert (await get(server, f"/console/{name}"))[0] == 200, (one, name)
            assert (await get(server, "/console/routes.py"))[0] == 404
            assert (await get(server, "/console/..%2froutes.py"))[0] == 404

    run(test())


def test_the_browser_is_told_to_load_nothing_from_elsewhere() -> None:
    async def test() -> None:
        async with running(http=HTTP) as server:
            url = f"http://127.0.0.1:{http_port(server)}/"
            answer = await asyncio.to_thread(urllib.request.urlopen, url)
            with answer:
                policy = answer.headers["Content-Security-Policy"]
            assert "default-src 'none'" in policy
            assert "unsafe" not in policy
            assert "Access-Control-Allow-Origin" not in answer.headers

    run(test())


def test_nodes_shows_every_server() -> None:
    async def test() -> None:
        async with running(http=HTTP, server_name="only") as server:
            found = await document(server, "/console/nodes")
            assert [one["server"]["name"] for one in found["servers"]] == ["only"]
            assert found["servers"][0]["statsz"]["mem"] > 0

    run(test())


PAGES = {
    "overview": ["shown", "streams here", "healthy"],
    "streams": ["ORDERS", "1/1"],
    "stream/ORDERS/messages": ["orders.eu", "a <b> message"],  # text stays text
    "connections": ["browsed"],
    "health": ["Everything is fine."],
}


BEHIND = "import('./console/format.js').then((found) => found.isBehind(%s))"
REPLICAS = [  # whether it is shown as behind: not for the few entries that are on their way
    ("{current: true, lag: 0}", False),
    ("{current: false, lag: 1}", False),
    ("{current: false, lag: 101}", True),
    ("{current: false, lag: 0}", True),
]


@pytest.mark.skipif(BROWSER is None, reason="no chromium on the PATH")
def test_in_a_browser(tmp_path: Path) -> None:
    """Every page shows what it is about, without an error of the browser."""

    async def test() -> None:
        jetstream = JetStreamOptions(store_dir=str(tmp_path / "js"))
        async with running(server_name="shown", jetstream=jetstream, http=HTTP) as server:
            client = await RawClient.open(server, connect=b'CONNECT {"name":"browsed"}\r\n')
            client.send(b"SUB answers 1\r\n")
            await request(client, b"$JS.API.STREAM.CREATE.ORDERS", CONFIG)
            await request(client, b"orders.eu", b"a <b> message")
            async with browsing(f"http://127.0.0.1:{http_port(server)}/", tmp_path) as browser:
                for page, expected in PAGES.items():
                    await browser.evaluate(f"location.hash = '#/{page}'")
                    await browser.shows(expected)
                assert [await browser.evaluate(BEHIND % one) for one, _ in REPLICAS] == [
                    wanted for _, wanted in REPLICAS
                ]
                assert browser.complaints == []
            client.close()

    run(test())


async def request(client: RawClient, subject: bytes, payload: bytes) -> None:
    client.send(b"PUB %s answers %d\r\n%s\r\n" % (subject, len(payload), payload))
    while not (await client.line()).startswith(b"MSG answers 1 "):
        pass  # +OK
    assert b"error" not in await client.line()


class Browser:
    """One page of a headless browser, driven over its debugging protocol."""

    def __init__(self, socket: ClientWebSocketResponse) -> None:
        self._socket = socket
        self._last = 0
        self.complaints: list[str] = []  # refused by the content security policy, exceptions

    async def call(self, method: str, **params: object) -> dict[str, Any]:
        self._last += 1
        await self._socket.send_json({"id": self._last, "method": method, "params": params})
        while True:
            found = await self._socket.receive_json(timeout=PATIENCE)
            if found.get("method") in ("Runtime.exceptionThrown", "Log.entryAdded"):
                self.complaints.append(json.dumps(found["params"]))
            if found.get("id") == self._last:
                assert isinstance(found["result"], dict)
                return found["result"]

    async def evaluate(self, expression: str) -> object:
        found = await self.call("Runtime.evaluate", expression=expression, awaitPromise=True)
        return found["result"].get("value")

    async def shows(self, expected: list[str]) -> None:
        text = ""
        for _ in range(200):
            text = str(await self.evaluate("document.body.innerText"))
            if all(one in text for one in expected):
                return
            await asyncio.sleep(0.1)  # the next look
        pytest.fail(f"expected {expected}:\n{text}")


@asynccontextmanager
async def browsing(url: str, profile: Path) -> AsyncIterator[Browser]:
    assert BROWSER is not None
    process = await asyncio.create_subprocess_exec(
        BROWSER, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
        f"--user-data-dir={profile / 'browser'}", "--remote-debugging-port=0", url,
        stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.DEVNULL,
    )  # fmt: skip
    try:
        port_file = profile / "browser" / "DevToolsActivePort"
        await until(lambda: port_file.exists() and "\n" in port_file.read_text())
        where = f"http://127.0.0.1:{port_file.read_text().split()[0]}"
        async with ClientSession() as session:
            async with session.get(f"{where}/json/list") as answer:
                (page,) = [one for one in await answer.json() if one["type"] == "page"]
            async with session.ws_connect(page["webSocketDebuggerUrl"]) as socket:
                browser = Browser(socket)
                await browser.call("Runtime.enable")
                await browser.call("Log.enable")
                yield browser
    finally:
        process.kill()
        await process.wait()
