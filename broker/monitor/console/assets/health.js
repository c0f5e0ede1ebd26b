// Health with its reasons, and the bulk reads that are under way.
import { bytes, count, duration, element, facts, panel } from "./format.js";

export function health(app) {
  const body = element("div");
  return { node: element("div", {}, element("h1", {}, "Health"), body), update() {
    if (!app.health) return;
    const { health: found, varz, jsz } = app;
    const problems = [app.lost, found.error, ...(found.errors ?? []).map((one) => [one.type, one.account, one.stream, one.consumer, one.error].filter(Boolean).join(" · "))].filter(Boolean);
    const replicas = jsz.meta_cluster?.replicas ?? [];
    for (const one of replicas) if (one.offline) problems.push(`node ${one.name} is offline (last seen ${duration(one.active)} ago)`);
    body.replaceChildren(
      panel("This server", element("p", { class: found.status === "ok" && !problems.length ? "good" : "bad" },
        found.status === "ok" && !problems.length ? "Everything is fine." : `Status: ${found.status}`),
      ...problems.map((text) => element("div", { class: "problem" }, text))),
      element("div", { class: "grid" },
        panel("Process", facts([["name", varz.server_name], ["id", varz.server_id], ["protocol", `nats-server ${varz.version}`], ["up for", varz.uptime],
          ["memory", bytes(varz.mem)], ["cores", varz.cores], ["connections", `${count(varz.connections)} of ${count(varz.max_connections)}`],
          ["largest payload", bytes(varz.max_payload)], ["configured", varz.config_load_time]])),
        jsz.disabled ? null : panel("JetStream", facts([["directory", jsz.config.store_dir], ["stored", bytes(jsz.storage)],
          ["file limit", bytes(jsz.config.max_storage)], ["memory limit", bytes(jsz.config.max_memory)],
          ["API requests", count(jsz.api?.total)], ["API errors", count(jsz.api?.errors)], ["meta leader", jsz.meta_cluster?.leader],
          ["members", jsz.meta_cluster?.cluster_size]]))));
  } };
}

export function scans(app) {
  const body = element("div");
  return { node: element("div", {}, element("h1", {}, "Scans and Spark queries"), body), update() {
    const found = app.varz?.scans;
    if (!found) {
      body.replaceChildren(panel("Bulk reads", element("p", { class: "soft" }, "This server has served no scan yet.")));
      return;
    }
    body.replaceChildren(panel("Bulk reads", facts(Object.entries(found).filter(([, value]) => typeof value === "number").map(
      ([key, value]) => [key.replaceAll("_", " "), key.includes("bytes") ? bytes(value) : count(value)]))));
  } };
}
