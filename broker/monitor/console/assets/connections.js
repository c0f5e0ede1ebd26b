// The clients of this server, slow ones first to be seen.
import { bytes, count, element, panel, facts } from "./format.js";
import { Table } from "./table.js";
import { dialog, get } from "./main.js";

const REFRESH_MS = 4000;
const LISTED = 1024;

export function connections(app) {
  let closed = false, rows = [], wanted = "";
  const note = element("span", { class: "soft" });
  const search = element("input", { type: "search", placeholder: "Search by name, user, address  ( / )", "aria-label": "Search connections", oninput: () => {
    wanted = search.value.toLowerCase();
    fill();
  } });
  const columns = [
    { key: "name", label: "Client", value: (r) => r.name ?? "", show: (r) => r.name || `#${r.cid}` },
    { key: "account", label: "Account", kind: "wide left", value: (r) => r.account ?? "", show: (r) => r.account ?? "" },
    { key: "ip", label: "Address", kind: "left", value: (r) => r.ip, show: (r) => `${r.ip}:${r.port}` },
    { key: "lang", label: "Library", kind: "wide left", value: (r) => r.lang ?? "", show: (r) => `${r.lang ?? ""} ${r.version ?? ""}` },
    { key: "pending", label: "Pending", number: true, value: (r) => r.pending_bytes, show: (r) => element("span", { class: r.pending_bytes > 1 << 20 ? "bad" : "" }, bytes(r.pending_bytes)) },
    { key: "in", label: "In", number: true, value: (r) => r.in_msgs, show: (r) => count(r.in_msgs) },
    { key: "out", label: "Out", number: true, value: (r) => r.out_msgs, show: (r) => count(r.out_msgs) },
    { key: "subs", label: "Subscriptions", kind: "wide", number: true, value: (r) => r.subscriptions, show: (r) => count(r.subscriptions) },
    { key: "rtt", label: "RTT", kind: "wide", value: (r) => parseFloat(r.rtt) || 0, show: (r) => r.rtt ?? "–" },
    { key: "uptime", label: "Open for", value: (r) => -new Date(r.start), show: (r) => r.uptime },
  ];
  const table = new Table(columns, { sort: "pending", descending: true, open: (row) => dialog(element("h1", {}, row.name || `client ${row.cid}`),
    facts(Object.entries(row).filter(([, value]) => typeof value !== "object").map(([key, value]) => [key, value])),
    element("div", { class: "bar" }, element("button", { onclick: () => document.getElementById("dialog").close() }, "Close"))) });
  const fill = () => table.fill(rows.filter((row) => !wanted || `${row.name} ${row.account} ${row.authorized_user} ${row.ip}`.toLowerCase().includes(wanted)));

  async function refresh() {
    if (closed || document.hidden) return;
    try {
      const found = await get(`connz?auth=1&limit=${LISTED}&sort=pending`);
      rows = found.connections;
      note.textContent = `${count(rows.length)} of ${count(found.total)} on this server` +
        (app.varz?.slow_consumers ? `, ${count(app.varz.slow_consumers)} slow consumers closed so far` : "");
      fill();
    } catch (error) {
      note.textContent = error.message;
    }
  }
  const timer = setInterval(refresh, REFRESH_MS);
  refresh();
  return { node: element("div", {}, element("h1", {}, "Connections"), element("div", { class: "bar" }, search, note), table.node), table, close() {
    closed = true;
    clearInterval(timer);
  } };
}
