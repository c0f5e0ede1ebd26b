// One stream: its state, replicas, consumers and messages; with administration, what changes them.
import { ago, bytes, count, duration, element, facts, isBehind, panel, rate, stats, when } from "./format.js";
import { History, chart } from "./chart.js";
import { Table } from "./table.js";
import { confirmed } from "./main.js";
import { messages } from "./messages.js";

const REFRESH_MS = 3000;

export function stream(app, name, tab = "state") {
  let closed = false, before = null, busy = false;
  const history = new History(["stored per second"]);
  const line = chart(history, rate, "messages stored per second");
  const body = element("div");
  const failed = element("p", { class: "bad" });
  const tabs = element("div", { class: "tabs" }, ...[["state", "State"], ["consumers", "Consumers"], ["messages", "Messages"]].map(([key, label]) =>
    element("a", { href: `#/stream/${encodeURIComponent(name)}/${key}`, "aria-current": key === tab ? "page" : undefined }, label)));
  const admin = element("div", { class: "bar" });
  const node = element("div", {}, element("h1", {}, name), tabs, failed, body, admin);
  const parts = { state: element("div"), consumers: null, messages: null };
  const consumers = consumerTable(app, name);
  const browser = tab === "messages" ? messages(app, name) : null;
  body.append(tab === "consumers" ? consumers.node : tab === "messages" ? browser.node : parts.state);

  async function refresh() {
    if (closed || busy || document.hidden || app.relay.state !== "open") return;
    busy = true;
    try {
      const info = await app.relay.api(`STREAM.INFO.${name}`);
      if (before) history.add([Math.max(0, info.state.last_seq - before.info.state.last_seq) / ((Date.now() - before.at) / 1000)]);
      before = { info, at: Date.now() };
      if (tab === "state") showState(parts.state, info, line);
      if (tab === "consumers") await consumers.refresh();
      failed.textContent = "";
      if (app.relay.hello.admin && !admin.children.length) admin.append(...actions(app, name, refresh));
    } catch (error) {
      failed.textContent = error.message;
    } finally {
      busy = false;
    }
  }

  const timer = setInterval(refresh, REFRESH_MS);
  let was = "";
  return { node, table: tab === "consumers" ? consumers.table : undefined, update() {
    line.draw();
    if (was !== app.relay.state) {
      was = app.relay.state;
      if (was !== "open") failed.textContent = app.relay.reason || "sign in to see this stream";
      refresh();
      if (was === "open") browser?.load();
    }
  }, close() {
    closed = true;
    clearInterval(timer);
  } };
}

function showState(where, info, line) {
  const { config, state, cluster } = info;
  const limit = (value, show) => (value > 0 ? show(value) : "no limit");
  const nodes = [cluster?.leader ? { name: cluster.leader, leader: true, current: true } : null, ...(cluster?.replicas ?? [])].filter(Boolean);
  where.replaceChildren(
    panel("Now", stats([["messages", count(state.messages)], ["bytes", bytes(state.bytes)], ["subjects", count(state.num_subjects)],
      ["consumers", count(state.consumer_count)], ["first", count(state.first_seq)], ["last", count(state.last_seq)],
      ["deleted", count(state.num_deleted ?? 0)], ["last stored", ago(state.last_ts)]]), line),
    element("div", { class: "grid" },
      panel("Replicas", element("div", { class: "nodes" }, ...nodes.map((one) => element("article", {
        class: `node ${one.offline ? "offline" : isBehind(one) ? "behind" : ""}` },
      element("h3", {}, one.name, element("span", { class: "pill soft" }, one.leader ? "leader" : one.offline ? "offline" : isBehind(one) ? "behind" : "current")),
      one.leader ? null : facts([["lag", count(one.lag ?? 0)], ["heard", `${duration(one.active)} ago`]]))))),
      panel("Configuration", facts([["subjects", (config.subjects ?? []).join(", ")], ["storage", config.storage], ["retention", config.retention],
        ["discard", config.discard], ["max messages", limit(config.max_msgs, count)], ["max bytes", limit(config.max_bytes, bytes)],
        ["max age", limit(config.max_age, duration)], ["per subject", limit(config.max_msgs_per_subject, count)],
        ["duplicate window", duration(config.duplicate_window)], ["compression", config.compression], ["created", when(info.created)],
        ["description", config.description]])),
      info.mirror || info.sources ? panel("Origins", ...[info.mirror, ...(info.sources ?? [])].filter(Boolean).map((one) =>
        facts([["stream", one.name], ["lag", count(one.lag)], ["heard", one.active < 0 ? "never" : `${duration(one.active)} ago`],
          ["error", one.error?.description]]))) : null));
  line.draw();
}

function consumerTable(app, name) {
  const known = new Map();
  let wanted = "";
  const rates = (row) => row.rate;
  const columns = [
    { key: "name", label: "Consumer", value: (r) => r.name, show: (r) => r.name },
    { key: "kind", label: "Kind", kind: "wide left", value: kind, show: kind },
    { key: "pending", label: "Pending", number: true, value: (r) => r.num_pending, show: (r) => count(r.num_pending) },
    { key: "unacked", label: "Ack pending", number: true, value: (r) => r.num_ack_pending, show: (r) => count(r.num_ack_pending) },
    { key: "redelivered", label: "Redelivered", kind: "wide", number: true, value: (r) => r.num_redelivered,
      show: (r) => element("span", { class: r.num_redelivered ? "warn" : "" }, count(r.num_redelivered)) },
    { key: "waiting", label: "Waiting", kind: "wide", number: true, value: (r) => r.num_waiting, show: (r) => count(r.num_waiting) },
    { key: "delivered", label: "Delivered", number: true, value: rates, show: (r) => rate(r.rate) },
    { key: "floor", label: "Ack floor", number: true, value: (r) => r.ack_floor.stream_seq, show: (r) => count(r.ack_floor.stream_seq) },
    { key: "active", label: "Last active", kind: "wide", value: (r) => r.delivered.last_active ?? "", show: (r) => ago(r.delivered.last_active) },
  ];
  const table = new Table(columns, { sort: "name", open: (row) => openConsumer(app, name, row) });
  const note = element("span", { class: "soft" });
  const search = element("input", { type: "search", placeholder: "Search consumers  ( / )", "aria-label": "Search consumers", oninput: () => {
    wanted = search.value.toLowerCase();
    fill();
  } });
  const fill = () => table.fill([...known.values()].filter((row) => row.name.toLowerCase().includes(wanted)));
  return { table, node: element("div", {}, element("div", { class: "bar" }, search, note), table.node), async refresh() {
    const found = new Map();
    for (let offset = 0, total = 1; offset < total;) {
      const page = await app.relay.api(`CONSUMER.LIST.${name}`, { offset });
      for (const one of page.consumers ?? []) found.set(one.name, one);
      total = page.total;
      if (!page.consumers?.length) break;
      offset += page.consumers.length;
    }
    const now = Date.now();
    for (const [key, row] of found) {
      const old = known.get(key);
      row.at = now;
      row.rate = old ? Math.max(0, row.delivered.consumer_seq - old.delivered.consumer_seq) / ((now - old.at) / 1000) : undefined;
    }
    known.clear();
    for (const [key, row] of found) known.set(key, row);
    note.textContent = `${count(known.size)} consumers`;
    fill();
  } };
}

function kind(row) {
  const { config } = row;
  const words = [config.deliver_subject ? "push" : "pull", config.durable_name ? "durable" : "ephemeral", config.ack_policy];
  if (row.paused) words.push("paused");
  return words.join(", ");
}

function openConsumer(app, name, row) {
  import("./main.js").then(({ dialog }) => {
    const box = document.getElementById("dialog");
    const filters = row.config.filter_subjects ?? (row.config.filter_subject ? [row.config.filter_subject] : []);
    const buttons = app.relay.hello.admin ? consumerActions(app, name, row) : [];
    dialog(element("h1", {}, row.name), facts([["kind", kind(row)], ["filter", filters.join(", ")], ["pending", count(row.num_pending)],
      ["ack pending", count(row.num_ack_pending)], ["redelivered", count(row.num_redelivered)], ["waiting pulls", count(row.num_waiting)],
      ["delivered", `stream ${row.delivered.stream_seq}, consumer ${row.delivered.consumer_seq}`],
      ["ack floor", `stream ${row.ack_floor.stream_seq}, consumer ${row.ack_floor.consumer_seq}`],
      ["ack wait", duration(row.config.ack_wait)], ["max deliver", row.config.max_deliver], ["max ack pending", row.config.max_ack_pending],
      ["created", when(row.created)], ["leader", row.cluster?.leader]]),
    element("div", { class: "bar" }, ...buttons, element("button", { onclick: () => box.close() }, "Close")));
  });
}

function actions(app, name, refresh) {
  const act = (label, text, subject, body, danger) => element("button", { class: danger ? "danger" : "", onclick: () =>
    confirmed(text, name, async () => {
      await app.relay.api(`${subject}.${name}`, body);
      if (subject === "STREAM.DELETE") location.hash = "#/streams";
      else refresh();
    }) }, label);
  return [act("Step down", `Move the leadership of ${name} to another node`, "STREAM.LEADER.STEPDOWN"),
    act("Purge", `Delete all messages of ${name}`, "STREAM.PURGE", {}, true),
    act("Delete", `Delete the stream ${name} with its messages and consumers`, "STREAM.DELETE", undefined, true)];
}

function consumerActions(app, name, row) {
  const act = (label, text, subject, body, danger) => element("button", { class: danger ? "danger" : "", onclick: () =>
    confirmed(text, row.name, () => app.relay.api(`${subject}.${name}.${row.name}`, body)) }, label);
  const until = new Date(Date.now() + 3600e3).toISOString();
  return [row.paused ? act("Resume", `Resume ${row.name}`, "CONSUMER.PAUSE", {})
    : act("Pause 1 h", `Pause ${row.name} for one hour`, "CONSUMER.PAUSE", { pause_until: until }),
  act("Redrive", `Deliver everything after the ack floor (${row.ack_floor.stream_seq}) again`, "CONSUMER.RESET", { seq: row.ack_floor.stream_seq + 1 }, true),
  act("Delete", `Delete the consumer ${row.name}`, "CONSUMER.DELETE", undefined, true)];
}
