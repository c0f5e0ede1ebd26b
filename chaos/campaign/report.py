"""The report of a run: one HTML page without network, JSON and JUnit for machines.

Owns: what is drawn and written.
May not touch: the run; it reads a finished record."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict
from html import escape
from pathlib import Path
from xml.sax.saxutils import quoteattr

from chaos.campaign.record import CampaignRecord, Seen
from chaos.history import Publish

WIDTH, LEFT, CHART, LANE = 1000, 90, 120, 16  # pixels of the drawing
BUCKETS = 200
COLORS = {"leader": "#2563eb", "follower": "#94a3b8", "unhealthy": "#f59e0b", "down": "#dc2626"}
STYLE = """
:root{color-scheme:light dark;--bg:#fff;--text:#1b2430;--soft:#5a6675;--line:#d9dee5;
--band:#dc262622}
@media(prefers-color-scheme:dark){:root{--bg:#10151c;--text:#e6ebf1;--soft:#9aa7b6;
--line:#2c3846;--band:#f8717133}}
body{margin:0 auto;max-width:1060px;padding:16px;background:var(--bg);color:var(--text);
font:15px/1.5 system-ui,sans-serif}
h1{font-size:20px;margin:0}h2{font-size:15px;margin:22px 0 6px;color:var(--soft)}
.verdict{padding:10px 14px;border-radius:8px;font-weight:600;margin:12px 0}
.ok{background:#15803d;color:#fff}.broken{background:#b91c1c;color:#fff}
.stats{display:flex;flex-wrap:wrap;gap:6px 28px}.stats b{display:block;font-size:18px}
.stats span{color:var(--soft);font-size:13px}
.wide{overflow-x:auto}svg{width:100%;min-width:640px;height:auto;display:block}
table{border-collapse:collapse;width:100%;font-variant-numeric:tabular-nums}
td,th{text-align:left;padding:3px 10px 3px 0;border-bottom:1px solid var(--line);vertical-align:top}
th{color:var(--soft);font-size:13px}.number{text-align:right}
pre{overflow-x:auto;background:#8881;padding:10px;border-radius:6px;font-size:13px}
i{display:inline-block;width:10px;height:10px;border-radius:2px;margin:0 5px 0 12px}
"""


def write_report(record: CampaignRecord, directory: Path) -> Path:
    """report.html, report.json and junit.xml; the path of the page."""
    directory.mkdir(parents=True, exist_ok=True)
    page = directory / "report.html"
    page.write_text(html(record))
    (directory / "report.json").write_text(json.dumps(document(record), indent=1))
    (directory / "junit.xml").write_text(junit(record))
    return page


def document(record: CampaignRecord) -> dict[str, object]:
    verdict = record.verdict
    faults = [
        {
            "kind": one.kind, "nodes": one.nodes, "at_s": (one.begin_ns - record.begin_ns) / 1e9,
            "recovered_after_s": (one.end_ns - one.begin_ns) / 1e9 if one.end_ns else None,
            "longest_gap_s": record.gap_s(one), "failed": one.failed,
        }
        for one in record.faults
    ]  # fmt: skip
    return {
        "title": record.title, "ok": record.ok, "seed": record.seed, "command": record.command,
        "verdict": asdict(verdict), "faults": faults, "not_tried": record.not_tried,
        "facts": dict(record.facts),
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
    failures = sum(bool(why) for _, why in cases)
    head = f'<testsuite name="jetraft chaos" tests="{len(cases)}" failures="{failures}">'
    return f'<?xml version="1.0"?>\n{head}{rows}</testsuite>\n'


def html(record: CampaignRecord) -> str:
    parts = [
        '<!doctype html><html lang="en"><meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width,initial-scale=1">',
        f"<title>{escape(record.title)}</title><style>{STYLE}</style>",
        f"<h1>{escape(record.title)}</h1>",
        *_verdict(record),
        "<h2>Timeline</h2>",
        f'<div class="wide">{_drawing(record)}</div>',
        *_legend(),
        *_faults(record),
        *_violation(record),
        *_rest(record),
        "</html>",
    ]
    return "\n".join(parts)


def _verdict(record: CampaignRecord) -> Iterator[str]:
    verdict, ok = record.verdict, record.ok
    words = "Every promise kept" if ok else "Promises broken: " + ", ".join(verdict.anomalies)
    yield f'<div class="verdict {"ok" if ok else "broken"}">{escape(words)}</div>'
    seconds = (record.end_ns - record.begin_ns) / 1e9
    figures = [
        ("acked", f"{verdict.acked:,}"), ("failed", f"{verdict.failed:,}"),
        ("unanswered", f"{verdict.unknown:,}"), ("stored", f"{verdict.stored:,}"),
        ("longest time without an ack", f"{verdict.longest_gap_s:.2f} s"),
        ("faults", str(len(record.faults))), ("nodes", str(len(record.nodes))),
        ("duration", f"{seconds:.0f} s"), *record.facts,
    ]  # fmt: skip
    cells = "".join(f"<div><b>{escape(v)}</b><span>{escape(k)}</span></div>" for k, v in figures)
    yield f'<div class="stats">{cells}</div>'


# -- the drawing --------------------------------------------------------------------------------


def _drawing(record: CampaignRecord) -> str:
    begin, end = record.begin_ns, max(record.end_ns, record.begin_ns + 1)
    lanes = len(record.nodes)
    height = 2 * (CHART + 30) + lanes * (LANE + 6) + 40

    def x(at_ns: int) -> float:
        return LEFT + (WIDTH - LEFT - 10) * min(max((at_ns - begin) / (end - begin), 0.0), 1.0)

    parts = [f'<svg viewBox="0 0 {WIDTH} {height}" role="img" aria-label="timeline">']
    for number, one in enumerate(record.faults, 1):
        left, right = x(one.begin_ns), x(one.end_ns or one.begin_ns)
        parts.append(
            f'<rect x="{left:.1f}" y="14" width="{max(right - left, 2):.1f}" '
            f'height="{height - 40}" fill="var(--band)"><title>{number}. {escape(one.text)}'
            f'</title></rect><text x="{left:.1f}" y="11" font-size="10" fill="currentColor">'
            f"{number}</text>"
        )
    rates, slow = _buckets(record.history.acked(), begin, end)
    step = (end - begin) / BUCKETS
    parts += _line("acks per second", [count / (step / 1e9) for count in rates], 20, "#2563eb", "")
    parts += _line("slowest ack (ms)", slow, 50 + CHART, "#d97706", " ms")
    top = 2 * (CHART + 30) + 20
    for position, node in enumerate(record.nodes):
        y = top + position * (LANE + 6)
        parts.append(f'<text x="0" y="{y + 12}" font-size="12" fill="currentColor">'
                     f"{escape(node)}</text>")  # fmt: skip
        parts += _lane([one for one in record.seen if one.node == node], x, y, end)
    for share in (0, 0.25, 0.5, 0.75, 1):
        at = LEFT + (WIDTH - LEFT - 10) * share
        seconds = (end - begin) * share / 1e9
        parts.append(
            f'<text x="{at:.0f}" y="{height - 8}" font-size="11" fill="currentColor" '
            f'text-anchor="{"end" if share == 1 else "middle"}">{seconds:.0f} s</text>'
        )
    return "".join([*parts, "</svg>"])


def _buckets(acked: list[Publish], begin: int, end: int) -> tuple[list[int], list[float]]:
    counts, slow = [0] * BUCKETS, [0.0] * BUCKETS
    for one in acked:
        at = min(int((one.done_ns - begin) * BUCKETS / (end - begin)), BUCKETS - 1)
        counts[at] += 1
        slow[at] = max(slow[at], (one.done_ns - one.sent_ns) / 1e6)
    return counts, slow


def _line(label: str, values: list[float], top: int, color: str, unit: str) -> Iterator[str]:
    highest = max(*values, 1.0)
    width = (WIDTH - LEFT - 10) / (BUCKETS - 1)
    points = " ".join(
        f"{LEFT + number * width:.1f},{top + CHART - CHART * value / highest:.1f}"
        for number, value in enumerate(values)
    )
    yield f'<text x="0" y="{top + 12}" font-size="12" fill="currentColor">{label}</text>'
    yield (f'<text x="0" y="{top + 28}" font-size="11" fill="currentColor">'
           f"up to {highest:,.0f}{unit}</text>")  # fmt: skip
    yield (f'<line x1="{LEFT}" x2="{WIDTH - 10}" y1="{top + CHART}" y2="{top + CHART}" '
           'stroke="var(--line)"/>')  # fmt: skip
    yield f'<polyline points="{points}" fill="none" stroke="{color}" stroke-width="1.5"/>'


def _lane(seen: list[Seen], x: object, y: int, end: int) -> Iterator[str]:
    assert callable(x)
    for position, one in enumerate(seen):
        until = seen[position + 1].at_ns if position + 1 < len(seen) else end
        left, right = x(one.at_ns), x(until)
        yield (
            f'<rect x="{left:.1f}" y="{y}" width="{max(right - left, 0.5):.1f}" height="{LANE}" '
            f'fill="{COLORS[one.state]}"/>'
        )


def _legend() -> Iterator[str]:
    marks = "".join(f'<i style="background:{color}"></i>{name}' for name, color in COLORS.items())
    yield f"<p>{marks}<i style='background:var(--band)'></i>fault</p>"


# -- tables -------------------------------------------------------------------------------------


def _faults(record: CampaignRecord) -> Iterator[str]:
    yield "<h2>Faults</h2><div class='wide'><table><tr><th>#<th>at<th>fault<th>nodes"
    yield "<th class=number>without an ack<th class=number>failed<th class=number>unanswered"
    yield "<th class=number>healthy after</tr>"
    for number, one in enumerate(record.faults, 1):
        failed, unknown = record.unanswered(one)
        after = f"{(one.end_ns - one.begin_ns) / 1e9:.1f} s" if one.end_ns else escape(one.failed)
        yield (
            f"<tr><td>{number}<td>{(one.begin_ns - record.begin_ns) / 1e9:.0f} s"
            f"<td>{escape(one.text)}<td>{escape(', '.join(one.nodes))}"
            f"<td class=number>{record.gap_s(one):.2f} s<td class=number>{failed}"
            f"<td class=number>{unknown}<td class=number>{after}</tr>"
        )
    yield "</table></div>"


def _violation(record: CampaignRecord) -> Iterator[str]:
    if record.ok:
        return
    yield "<h2>What was broken</h2>"
    for name, found in record.verdict.anomalies.items():
        yield f"<p><b>{escape(name)}</b>: {len(found):,}</p>"
        yield f"<pre>{escape(chr(10).join(found[:20]))}</pre>"
    if record.story:
        yield f"<h2>Around it</h2><pre>{escape(chr(10).join(record.story))}</pre>"


def _rest(record: CampaignRecord) -> Iterator[str]:
    if record.not_tried:
        yield "<h2>Not tried</h2><ul>"
        yield "".join(f"<li>{escape(one)}</li>" for one in record.not_tried) + "</ul>"
    yield f"<h2>Repeat it</h2><pre>{escape(record.command)}</pre>"
