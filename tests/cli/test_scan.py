"""`jetraft scan ls` shows the numbers of the monitoring port."""

from __future__ import annotations

import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

from click.testing import CliRunner

from broker.cli.scan import scan

TEXT = b"""# TYPE jetraft_scans_open gauge
jetraft_scans_open 2
# TYPE jetraft_scans_total counter
jetraft_scans_total 1234
# TYPE jetraft_scan_sent_bytes_total counter
jetraft_scan_sent_bytes_total 5.6e+06
# TYPE jetraft_reader_lag gauge
jetraft_reader_lag{account="A",stream="ORDERS",reader="totals"} 17
"""


class Monitor(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(TEXT)

    def log_message(self, format: str, *args: object) -> None:
        """Nothing is printed."""


def test_readers_and_nodes_are_listed() -> None:
    with HTTPServer(("127.0.0.1", 0), Monitor) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        address = f"http://127.0.0.1:{server.server_port}"
        found = CliRunner().invoke(scan, ["ls", "--monitor", f"{address}/"])
        server.shutdown()
        thread.join()
    assert found.exit_code == 0, found.output
    rows = [line.split() for line in found.output.splitlines()]
    assert ["A", "ORDERS", "totals", "17"] in rows
    assert [address, "2", "1,234", "0", "5,600,000"] in rows


def test_a_node_that_does_not_answer_is_named() -> None:
    found = CliRunner().invoke(scan, ["ls", "--monitor", "http://127.0.0.1:1"])
    assert found.exit_code == 1
    assert "--monitor http://127.0.0.1:1" in found.output
