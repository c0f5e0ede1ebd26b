// All streams of the account: names first, then the numbers of what is in sight.
import { bytes, count, element, panel, rate } from "./format.js";
import { Table } from "./table.js";

const REFRESH_MS = 3000;
const NAMES_EVERY_MS = 15000;
const LIST_EVERY_MS_EACH = 30; // all numbers are read after so long, times their number
const PAGE = 256; // as many the server lists at once
const LISTED_MAX = 2048; // more streams than this are read when they come into sight

export function streams(app) {
  const known = new Map(); // name -> {name, info, at, rate}
  let seen = [], names = 0, listed = 0, busy = false, closed = false, wanted = "";
  const note = element("span", { class: "soft" });
  const search = element("input", { type: "search", placeholder: "Search by name or subject  ( / )", "aria-label": "Search streams", oninput: () => {
    wanted = search.value.toLowerCase();
    fill();
  } });
  const columns = [
    { key: "name", label: "Stream", value: (r) => r.name, show: (r) => r.name },
    { key: "messages", label: "Messages", number: true, value: (r) => r.info?.state.messages ?? -1, show: (r) => count(r.info?.state.messages) },
    { key: "rate", label: "In", number: true, value: (r) => r.rate ?? -1, show: (r) => rate(r.rate) },
    { key: "bytes", label: "Bytes", number: true, value: (r) => r.info?.state.bytes ?? -1, show: (r) => bytes(r.info?.state.bytes) },
    { key: "consumers", label: "Consumers", kind: "wide", number: true, value: (r) => r.info?.state.consumer_count ?? -1, show: (r) => count(r.info?.state.consumer_count) },
    { key: "replicas", label: "Replicas", value: (r) => r.info?.config.num_replicas ?? 0, show: replicas },
    { key: "leader", label: "Leader", kind: "wide left", value: (r) => r.info?.cluster?.leader ?? "", show: (r) => r.info?.cluster?.leader ?? "" },
    { key: "lag", label: "Lag", number: true, value: lag, show: (r) => (r.info ? count(lag(r)) : "–") },
  ];
  const table = new Table(columns, { sort: "name", open: (row) => { location.hash = `#/stream/${encodeURIComponent(row.name)}`; }, seen: (rows) => { seen = rows; } });
  const node = element("div", {}, element("h1", {}, "Streams"), element("div", { class: "bar" }, search, note), table.node);

  function fill() {
    const rows = [...known.values()].filter((row) => !wanted || row.name.toLowerCase().includes(wanted) ||
      row.info?.config.subjects?.some((subject) => subject.toLowerCase().includes(wanted)));
    table.fill(rows);
    note.textContent = app.relay.state === "open" ? `${count(rows.length)} of ${count(known.size)}` : "sign in to see the streams of an account";
  }

  function take(info) {
    const row = known.get(info.config.name);
    if (!row) return;
    const now = Date.now();
    if (row.info && row.info.created === info.created) {
      row.rate = Math.max(0, info.state.last_seq - row.info.state.last_seq) / ((now - row.at) / 1000);
    }
    Object.assign(row, { info, at: now });
  }

  async function readNames() {
    const found = [];
    for (let offset = 0, total = 1; offset < total && !closed;) {
      const page = await app.relay.api("STREAM.NAMES", { offset });
      found.push(...(page.streams ?? []));
      total = page.total;
      if (!page.streams?.length) break;
      offset += page.streams.length;
    }
    const fresh = new Set(found);
    for (const name of known.keys()) if (!fresh.has(name)) known.delete(name);
    for (const name of found) if (!known.has(name)) known.set(name, { name });
    names = Date.now();
  }

  async function readAll() {
    for (let offset = 0; offset < known.size && !closed; offset += PAGE) {
      const page = await app.relay.api("STREAM.LIST", { offset });
      page.streams?.forEach(take);
      fill();
    }
    listed = Date.now();
  }

  async function refresh() {
    if (busy || closed || document.hidden || app.relay.state !== "open") return;
    busy = true;
    try {
      if (Date.now() - names > NAMES_EVERY_MS) {
        await readNames();
        fill();
        if (known.size <= LISTED_MAX && Date.now() - listed > LIST_EVERY_MS_EACH * known.size) await readAll();
      }
      const rows = [...seen];
      const infos = await Promise.all(rows.map((row) => app.relay.api(`STREAM.INFO.${row.name}`).catch(() => null)));
      infos.forEach((info) => info && take(info));
      fill();
    } catch (error) {
      note.textContent = error.message;
    } finally {
      busy = false;
    }
  }

  const timer = setInterval(refresh, REFRESH_MS);
  let was = "";
  return { node, table, update() {
    if (app.relay.state !== was) {
      was = app.relay.state;
      fill();
      refresh();
    }
  }, close() {
    closed = true;
    clearInterval(timer);
  } };
}

function lag(row) {
  return Math.max(0, ...(row.info?.cluster?.replicas ?? []).map((one) => one.lag ?? 0));
}

function replicas(row) {
  if (!row.info) return "–";
  const all = row.info.cluster?.replicas ?? [];
  const ok = all.filter((one) => one.current && !one.offline).length + (row.info.cluster?.leader || !row.info.cluster ? 1 : 0);
  const wanted = row.info.config.num_replicas;
  return element("span", { class: ok < wanted ? "bad" : "" }, `${ok}/${wanted}`);
}
