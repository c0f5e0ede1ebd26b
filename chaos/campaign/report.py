"""The report of a run: one HTML page without network, JSON and JUnit for machines.

Owns: what is written. The timeline is drawn by drawing.py.
May not touch: the run; it reads a finished record."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict
from html import escape
from pathlib import Path
from statistics import median
from xml.sax.saxutils import quoteattr

from chaos.campaign.drawing import COLORS, drawing
from chaos.campaign.record import CampaignRecord, Injected
from chaos.sim.promises.journal import Operation

SHOWN_MAX = 20  # cases of an anomaly
OPEN_MAX = 60  # rows of a table; a longer one is opened by the reader
LONG_S = 600  # told in minutes
SHORT = 30  # letters of a case that shares its line with others
STYLE = """
:root{color-scheme:light dark;--bg:#fff;--text:#1b2430;--soft:#5a6675;--line:#d9dee5;
--band:#dc262622;--hit:#b91c1c;--leader:#2563eb;--follower:#b6c2d1;--unhealthy:#f59e0b;
--silent:#a16207;--down:#dc2626;--slow:#d97706;--good:#15803d;--bad:#b91c1c}
@media(prefers-color-scheme:dark){:root{--bg:#10151c;--text:#e6ebf1;--soft:#9aa7b6;
--line:#2c3846;--band:#f8717126;--hit:#fca5a5;--leader:#60a5fa;--follower:#3d4c5e;
--slow:#fbbf24}}
body{margin:0 auto;max-width:1060px;padding:16px;background:var(--bg);color:var(--text);
font:15px/1.5 system-ui,sans-serif}
h1{font-size:20px;margin:0}
h2,summary{font-size:15px;margin:26px 0 6px;color:var(--soft);font-weight:bold}
summary{cursor:pointer}
.verdict{padding:10px 14px;border-radius:8px;font-weight:600;margin:12px 0;color:#fff}
.verdict small{display:block;font-weight:400;overflow-wrap:anywhere}
.ok{background:var(--good)}.broken{background:var(--bad)}
.stats{display:grid;grid-template-columns:repeat(auto-fill,minmax(130px,1fr));gap:10px 16px}
.stats b{display:block;font-size:18px;font-variant-numeric:tabular-nums}
.stats span{color:var(--soft);font-size:13px}
.wide{overflow-x:auto}svg{width:100%;min-width:640px;height:auto;display:block}
svg text{fill:var(--text)}svg .soft{fill:var(--soft)}
table{border-collapse:collapse;width:100%;font-variant-numeric:tabular-nums}
td,th{text-align:left;padding:4px 10px 4px 0;border-bottom:1px solid var(--line);vertical-align:top}
th{color:var(--soft);font-size:13px;font-weight:600}.number{text-align:right;white-space:nowrap}
pre{overflow-x:auto;background:#8881;padding:10px;border-radius:6px;font-size:13px}
.cases{white-space:pre-wrap;overflow-wrap:anywhere}
.legend span{display:inline-block;margin:0 14px 0 0;white-space:nowrap}
.legend i{display:inline-block;width:10px;height:10px;border-radius:2px;margin-right:5px}
.bad{color:var(--bad);font-weight:600}
@media(max-width:640px){.blocks thead{display:none}.blocks tr{display:block;padding:8px 0;
border-bottom:1px solid var(--line)}.blocks td{display:flex;justify-content:space-between;gap:16px;
border:0;padding:1px 0;text-align:right}.blocks td::before{color:var(--soft);
text-align:left;white-space:nowrap}.blocks td:first-child{font-weight:600}
.narrow td,.narrow th{font-size:13px;padding-right:6px}.narrow th{white-space:normal}}
"""


def write_report(record: CampaignRecord, directory: Path) -> Path:
    """report.html, report.json, junit.xml and operations.jsonl; the path of the page."""
    directory.mkdir(parents=True, exist_ok=True)
    page = directory / "report.html"
    page.write_text(html(record))
    (directory / "report.json").write_text(json.dumps(document(record), indent=1))
    (directory / "junit.xml").write_text(junit(record))
    with (directory / "operations.jsonl").open("w") as file:
        file.writelines(f"{json.dumps(one, default=repr)}\n" for one in operations(record))
    return page


def operations(record: CampaignRecord) -> Iterator[dict[str, object]]:
    """Everything that any client asked, and what it was told: ok (acked), failed or unknown."""
    for one in record.history.publishes:
        yield {"work": "publishers", **asdict(one), "outcome": one.outcome.value}
    for work in record.works:
        for operation in work.journal.operations:
            yield {"work": work.name, **_operation(operation)}


def _operation(one: Operation) -> dict[str, object]:
    answer = {name: value for name, value in one.answer.items() if name != "rows"}
    return {
        "client": one.client, "kind": one.kind, **one.fields, "invoked_ns": one.invoked_ns,
        "completed_ns": one.completed_ns, "result": one.result.value, "answer": answer,
    }  # fmt: skip


def document(record: CampaignRecord) -> dict[str, object]:
    faults = [
        {
            "kind": one.kind, "nodes": one.nodes, "at_s": (one.begin_ns - record.begin_ns) / 1e9,
            "recovered_after_s": (one.end_ns - one.begin_ns) / 1e9 if one.end_ns else None,
            "longest_gap_s": record.gap_s(one), "failed": one.failed,
            "failed_publishes": record.unanswered(one)[0],
            "unanswered_publishes": record.unanswered(one)[1],
        }
        for one in record.faults
    ]  # fmt: skip
    works = {
        name: {"ok": ok, "failed": failed, "unknown": unknown}
        for name, ok, failed, unknown in record.counts()
    }
    return {
        "title": record.title, "ok": record.ok, "seed": record.seed, "command": record.command,
        "verdict": asdict(record.verdict), "faults": faults, "not_tried": record.not_tried,
        "operations": works, "facts": dict(record.facts),
    }  # fmt: skip


def junit(record: CampaignRecord) -> str:
    cases = [
        *((f"{number}. {one.kind}", one.failed) for number, one in enumerate(record.faults, 1)),
        *((name, ", ".join(found[:5])) for name, found in record.verdict.anomalies.items()),
    ]
    if record.ok:
        cases.append(("every promise kept", ""))
    rows = "".join(
        f'<testcase classname="chaos" name={quoteattr(name)}>'
        + (f"<failure message={quoteattr(why)}/>" if why else "")
        + "</testcase>"
        for name, why in cases
    )
    rows += "".join(
        f'<testcase classname="chaos" name={quoteattr(one)}><skipped/></testcase>'
        for one in record.not_tried
    )
    failures = sum(bool(why) for _, why in cases)
    count = len(cases) + len(record.not_tried)
    head = (
        f'<testsuite name="jetraft chaos" tests="{count}" failures="{failures}" '
        f'skipped="{len(record.not_tried)}">'
    )
    return f'<?xml version="1.0"?>\n{head}{rows}</testsuite>\n'


def html(record: CampaignRecord) -> str:
    parts = [
        '<!doctype html><html lang="en"><meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width,initial-scale=1">',
        f"<title>{escape(record.title)}</title><style>{STYLE}</style>",
        f"<h1>{escape(record.title)}</h1>",
        *_verdict(record),
        "<h2>Timeline</h2>",
        f'<div class="wide">{drawing(record)}</div>',
        *_legend(),
        *_violation(record),
        *_by_kind(record),
        *_faults(record),
        *_works(record),
        *_rest(record),
        "</html>",
    ]
    return "\n".join(parts)


def _verdict(record: CampaignRecord) -> Iterator[str]:
    verdict, ok = record.verdict, record.ok
    words = "Every promise kept" if ok else "Promises broken: " + ", ".join(verdict.anomalies)
    first = ""
    if not ok:
        name, found = next(iter(verdict.anomalies.items()))
        first = f"<small>{escape(name)}: {len(found):,}, the first one {escape(found[0])}</small>"
    yield f'<div class="verdict {"ok" if ok else "broken"}">{escape(words)}{first}</div>'
    seconds = (record.end_ns - record.begin_ns) / 1e9
    others = sum(sum(counts) for _, *counts in record.counts())
    figures = [
        ("publishes acked", f"{verdict.acked:,}"), ("refused", f"{verdict.failed:,}"),
        ("unanswered", f"{verdict.unknown:,}"), ("messages stored", f"{verdict.stored:,}"),
        ("other operations", f"{others:,}"),
        ("longest without an ack", f"{verdict.longest_gap_s:.2f} s"),
        ("faults", str(len(record.faults))), ("nodes", str(len(record.nodes))),
        ("duration", _duration(seconds)), ("seed", str(record.seed)), *record.facts,
    ]  # fmt: skip
    cells = "".join(f"<div><b>{escape(v)}</b><span>{escape(k)}</span></div>" for k, v in figures)
    yield f'<div class="stats">{cells}</div>'


def _duration(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < LONG_S else f"{seconds / 60:.0f} min"


def _legend() -> Iterator[str]:
    marks = "".join(
        f'<span><i style="background:{color}"></i>{name}</span>' for name, color in COLORS.items()
    )
    yield f'<p class="legend">{marks}<span><i style="background:var(--band)"></i>fault</span>'
    frame = "border:2px solid var(--hit);width:6px;height:6px"
    yield f'<span><i style="{frame}"></i>hit by it</span></p>'


# -- tables -------------------------------------------------------------------------------------

Cell = tuple[str, str]  # text or HTML, and its class


def _table(names: list[str], rows: list[list[Cell]], *, blocks: str = "") -> Iterator[str]:
    """`blocks`, the name of the table: on a narrow screen a row becomes a block, and every cell
    says its name (by a rule of the table: it is the same in hundreds of rows)."""
    rules = "".join(
        f'.{blocks} td:nth-child({number})::before{{content:"{name}"}}'
        for number, name in enumerate(names, 1)
    )
    right = [cell[1] for cell in rows[0]] if rows else [""] * len(names)
    heads = "".join(
        f'<th class="{one}">{escape(name)}' for name, one in zip(names, right, strict=True)
    )
    if blocks:
        yield f"<style>@media(max-width:640px){{{rules}}}</style>"
    yield f'<table class="{f"blocks {blocks}" if blocks else "narrow"}"><thead><tr>{heads}</thead>'
    for row in rows:
        cells = "".join(f"<td class={kind}>{text}" if kind else f"<td>{text}" for text, kind in row)
        yield f"<tr>{cells}"
    yield "</table>"


def _by_kind(record: CampaignRecord) -> Iterator[str]:
    kinds: dict[str, list[Injected]] = {}
    for one in record.faults:
        kinds.setdefault(one.kind, []).append(one)
    if not kinds:
        return
    rows: list[list[Cell]] = []
    for kind, found in sorted(kinds.items()):
        gaps = sorted(record.gap_s(one) for one in found)
        back = sorted((one.end_ns - one.begin_ns) / 1e9 for one in found if one.end_ns)
        failed, unknown = (sum(pair) for pair in zip(*map(record.unanswered, found), strict=True))
        rows.append([
            (kind, ""), (str(len(found)), "number"),
            (f"{median(gaps):.2f} s", "number"), (f"{gaps[-1]:.2f} s", "number"),
            (f"{back[-1]:.1f} s" if back else "never", "number"),
            (f"{failed} + {unknown}", "number"),
        ])  # fmt: skip
    yield "<h2>By kind of fault</h2>"
    names = ["fault", "times", "no ack for: median", "worst", "all healthy after (worst)",
             "refused + unan\u00adswered"]  # fmt: skip
    yield '<div class="wide">'
    yield from _table(names, rows)
    yield "</div>"


def _faults(record: CampaignRecord) -> Iterator[str]:
    rows: list[list[Cell]] = []
    for number, one in enumerate(record.faults, 1):
        failed, unknown = record.unanswered(one)
        after = f"{(one.end_ns - one.begin_ns) / 1e9:.1f} s" if one.end_ns else "never"
        if one.failed:
            after = f'<span class="bad">{escape(one.failed.splitlines()[0])}</span>'
        rows.append([
            (str(number), ""), (f"{(one.begin_ns - record.begin_ns) / 1e9:.0f} s", "number"),
            (f"{escape(one.kind)}: {escape(one.text)}", ""), (escape(", ".join(one.nodes)), ""),
            (f"{record.gap_s(one):.2f} s", "number"), (str(failed), "number"),
            (str(unknown), "number"), (after, "number" if one.end_ns else ""),
        ])  # fmt: skip
    opened = " open" if len(rows) <= OPEN_MAX else ""
    yield f"<details{opened}><summary>Every fault ({len(rows)})</summary>"
    names = ["#", "at", "fault", "nodes", "without an ack", "refused", "unanswered",
             "healthy after"]  # fmt: skip
    yield from _table(names, rows, blocks="faults")
    yield "</details>"


def _works(record: CampaignRecord) -> Iterator[str]:
    verdict = record.verdict
    retried = sum(one.attempts > 1 for one in record.history.publishes)
    counts = [("publishers", verdict.acked, verdict.failed, verdict.unknown), *record.counts()]
    rows: list[list[Cell]] = [
        [(escape(name), ""), *((f"{count:,}", "number") for count in results)]
        for name, *results in counts
    ]
    yield "<h2>What clients asked</h2>"
    yield from _table(["workload", "ok", "failed for certain", "unknown"], rows)
    yield f"<p>Publishes that were sent more than once: {retried:,}.</p>"


def _violation(record: CampaignRecord) -> Iterator[str]:
    if record.ok:
        return
    yield "<h2>What was broken</h2>"
    for name, found in record.verdict.anomalies.items():
        short = all(len(one) <= SHORT for one in found)
        shown = (", " if short else "\n").join(found[:SHOWN_MAX])
        more = ", ..." if len(found) > SHOWN_MAX else ""
        yield f"<p><b>{escape(name)}</b>: {len(found):,}</p>"
        yield f'<pre class="cases">{escape(shown)}{more}</pre>'
    if record.story:
        yield f"<h2>Around it</h2><pre>{escape(chr(10).join(record.story))}</pre>"
    if record.command:
        yield f"<h2>Repeat it</h2><pre>{escape(record.command)}</pre>"


def _rest(record: CampaignRecord) -> Iterator[str]:
    if record.not_tried:
        yield "<h2>Not tried</h2><ul>"
        yield "".join(f"<li>{escape(one)}</li>" for one in record.not_tried) + "</ul>"
    if record.ok and record.command:
        yield f"<h2>Repeat it</h2><pre>{escape(record.command)}</pre>"
