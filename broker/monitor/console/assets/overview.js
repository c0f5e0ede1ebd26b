// The cluster at a glance: nodes with their roles and lag, traffic, what is stored.
import { bytes, count, duration, element, facts, isBehind, panel, rate, stats } from "./format.js";
import { chart } from "./chart.js";

export function overview(app) {
  const top = element("div");
  const nodes = element("div", { class: "nodes" });
  const charts = [chart(app.traffic, rate, "messages per second"), chart(app.volume, (v) => `${bytes(v)}/s`, "bytes per second", 2),
    chart(app.load, (v) => `${v.toFixed(0)} %`, "CPU of this server")];
  const node = element("div", {}, element("h1", {}, "Overview"), panel("Cluster", nodes), panel("Stored on this node", top),
    element("div", { class: "grid" }, panel("Messages, clients of this server", charts[0]), panel("Bytes, clients of this server", charts[1]),
      panel("CPU of this server", charts[2])));
  return { node, update() {
    charts.forEach((one) => one.draw());
    if (!app.varz) return;
    nodes.replaceChildren(...members(app).map(card));
    const { jsz, varz } = app;
    const js = jsz.disabled ? [["JetStream", "off"]] : [["streams here", count(jsz.streams)], ["consumers here", count(jsz.consumers)],
      ["messages", count(jsz.messages)], ["stored", bytes(jsz.storage)], ["in memory", bytes(jsz.memory)],
      ["API errors", count(jsz.api?.errors), jsz.api?.errors ? "warn" : ""]];
    top.replaceChildren(stats([...js, ["connections", count(varz.connections)], ["subscriptions", count(varz.subscriptions)],
      ["slow consumers", count(varz.slow_consumers), varz.slow_consumers ? "bad" : ""], ["memory", bytes(varz.mem)]]));
  } };
}

// Every server that is a member or answers, with what is known of it.
function members(app) {
  const meta = app.jsz?.meta_cluster;
  const found = new Map();
  for (const { server, statsz } of app.nodes) found.set(server.name, { name: server.name, server, statsz, role: "" });
  const add = (name, more) => found.set(name, { name, ...found.get(name), ...more });
  if (meta?.leader) add(meta.leader, { role: "meta leader" });
  for (const one of meta?.replicas ?? []) add(one.name, { role: "meta follower", replica: one });
  return [...found.values()].sort((a, b) => (a.name < b.name ? -1 : 1));
}

function card({ name, server, statsz, role, replica }) {
  const offline = replica?.offline || (role && !statsz);
  const behind = replica && !offline && isBehind(replica);
  const js = statsz?.jetstream?.stats;
  return element("article", { class: `node ${offline ? "offline" : behind ? "behind" : ""}` },
    element("h3", {}, name, element("span", { class: `pill ${offline ? "bad" : behind ? "warn" : "soft"}` },
      offline ? "offline" : behind ? `behind by ${count(replica.lag ?? 0)}` : role || "member")),
    offline ? facts([["last seen", replica ? `${duration(replica.active)} ago` : "–"]]) : facts([
      ["CPU", statsz ? `${statsz.cpu.toFixed(0)} %` : "–"], ["memory", bytes(statsz?.mem)], ["connections", count(statsz?.connections)],
      ["in", count(statsz?.received?.msgs)], ["out", count(statsz?.sent?.msgs)], ["stored", js ? bytes(js.storage) : undefined],
      ["slow consumers", statsz?.slow_consumers || undefined], ["protocol", server?.ver]]));
}
