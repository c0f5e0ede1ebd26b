"""The report: its figures, and that its texts stay text."""

from __future__ import annotations

import json
import re
import xml.etree.ElementTree as ET
from pathlib import Path

from chaos.campaign.record import CampaignRecord, Injected, Seen
from chaos.campaign.report import write_report
from chaos.campaign.story import around
from chaos.campaign.work.campaign_work import new_journal
from chaos.checker import check
from chaos.history import History, Outcome, Publish

S = 1_000_000_000


def record(*, lost: bool = False) -> CampaignRecord:
    """Ten seconds with an ack every 100 ms, none between 4.0 and 4.7; a fault at 4."""
    history = History()
    for number in range(100):
        sent = number * S // 10
        if not 4 * S < sent < 4.7 * S:
            acked = Publish(f"m{number}", sent, sent + S // 1000, Outcome.ACKED)
            acked.seq = len(history.publishes) + 1
            history.publishes.append(acked)
    history.publishes.append(Publish("late", 4 * S + 1, 5 * S, Outcome.UNKNOWN))
    stored = [(one.seq, one.ident) for one in history.acked()]
    verdict = check(history, {"a": stored[:-1] if lost else stored}, gapless=True)
    fault = Injected("kill", "kill <a> node", ["n1"], 4 * S, 6 * S)
    return CampaignRecord(
        "Run", "jetraft chaos run kill --seed 1", 1, ["n1", "n2"], history, verdict,
        faults=[fault], seen=[Seen(0, "n1", "leader"), Seen(4 * S, "n1", "down")],
        not_tried=["halves: needs root"], story=["<script>"] if lost else [],
    )  # fmt: skip


def test_a_fault_has_its_gap_and_its_unanswered_publishes() -> None:
    one = record()
    assert round(one.gap_s(one.faults[0]), 3) == 0.7
    assert one.unanswered(one.faults[0]) == (0, 1)


def test_what_the_next_fault_does_is_not_told_of_the_one_before() -> None:
    one = record()
    before = Injected("pause", "pause a node", ["n2"], 2 * S, 3 * S)
    one.faults.insert(0, before)
    assert round(one.gap_s(before), 3) == 0.1
    assert round(one.gap_s(one.faults[1]), 3) == 0.7


def test_the_story_has_the_operations_around_a_violation_and_the_fault() -> None:
    told = around(record(), None, "m45, m47")
    assert any("publish m47: acked" in line for line in told)
    assert any("kill of n1 begins" in line for line in told)
    assert not any("m20" in line for line in told)
    journal = new_journal()
    for number in (1, 2):
        journal.ok(journal.invoke("ids", "publish", id=f"i{number}"), seq=number)
    (line,) = around(record(), journal, "id i2 is stored twice")
    assert "ids publish (id i2): ok" in line


def test_the_page_of_a_good_run(tmp_path: Path) -> None:
    page = write_report(record(), tmp_path).read_text()
    assert "Every promise kept" in page
    assert "kill &lt;a&gt; node" in page
    assert "halves: needs root" in page
    assert not re.search(r"(src|href)=|https?://|<script", page)
    assert len(page) < 60_000
    assert json.loads((tmp_path / "report.json").read_text())["ok"] is True
    suite = ET.parse(tmp_path / "junit.xml").getroot()
    assert [suite.get(name) for name in ("tests", "failures", "skipped")] == ["3", "0", "1"]


def test_the_page_of_a_lost_message(tmp_path: Path) -> None:
    page = write_report(record(lost=True), tmp_path).read_text()
    assert "Promises broken: acked but lost" in page
    assert "m99" in page
    assert "&lt;script&gt;" in page
    assert "jetraft chaos run kill --seed 1" in page
    assert ET.parse(tmp_path / "junit.xml").getroot().get("failures") == "1"
