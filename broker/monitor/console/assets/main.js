// The frame around the pages: navigation, polling of this server, sign-in, keys, theme.
import { element } from "./format.js";
import { History } from "./chart.js";
import { Relay } from "./relay.js";
import { overview } from "./overview.js";
import { streams } from "./streams.js";
import { stream } from "./stream.js";
import { connections } from "./connections.js";
import { health, scans } from "./health.js";

const POLL_MS = 3000;
const DOCUMENTS = ["varz", "connz", "routez", "subsz", "leafz", "accountz", "accstatz", "jsz", "raftz", "healthz", "metrics"];
const byId = (id) => document.getElementById(id);

export const app = {
  relay: new Relay(),
  varz: null, jsz: null, health: null, nodes: [],
  traffic: new History(["in", "out"]),
  volume: new History(["in", "out"]),
  load: new History(["CPU %"]),
  page: null,
};

export async function get(path) {
  const answer = await fetch(path, { cache: "no-store" });
  return answer.json();
}

const PAGES = { overview, streams, stream, connections, health, scans };

function show() {
  const [name, ...rest] = location.hash.slice(2).split("/").map(decodeURIComponent);
  const make = PAGES[name] ?? overview;
  app.page?.close?.();
  for (const link of byId("nav").children) {
    if (link.hash === `#/${name === "stream" ? "streams" : name || "overview"}`) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  const view = byId("view");
  app.page = make(app, ...rest);
  view.replaceChildren(app.page.node);
  document.title = [rest[0], name, app.varz?.server_name, "JetRaft"].filter(Boolean).join(" · ");
  app.page.update?.();
}

async function poll() {
  try {
    if (document.hidden) return;
    const [varz, jsz, healthy, nodes] = await Promise.all([get("varz"), get("jsz"), get("healthz?details=true"), get("console/nodes")]);
    remember(varz);
    Object.assign(app, { varz, jsz, health: healthy, nodes: nodes.servers, lost: "" });
    byId("server").textContent = varz.server_name === varz.server_id ? "" : varz.server_name;
  } catch (error) {
    app.lost = `No answer from this server (${error.message})`;
  } finally {
    showHealth();
    app.page?.update?.();
    setTimeout(poll, POLL_MS);
  }
}

function remember(varz) {
  const before = app.varz, now = Date.now();
  if (before && varz.start === before.start) {
    const seconds = (now - app.polled) / 1000;
    const per = (name) => Math.max(0, varz[name] - before[name]) / seconds;
    app.traffic.add([per("in_msgs"), per("out_msgs")]);
    app.volume.add([per("in_bytes"), per("out_bytes")]);
  }
  app.load.add([varz.cpu]);
  app.polled = now;
}

function showHealth() {
  const pill = byId("health");
  const ok = !app.lost && app.health?.status === "ok";
  pill.className = `pill ${ok ? "good" : "bad"}`;
  pill.textContent = app.lost ? "unreachable" : ok ? "healthy" : app.health?.status ?? "unavailable";
  const relay = app.relay;
  const button = byId("account");
  button.textContent = relay.state !== "open" ? "Sign in" : relay.login.user || (relay.login.creds ? "Signed in" : "No login needed");
}

// -- dialogs --------------------------------------------------------------------------------

export function dialog(...children) {
  const box = byId("dialog");
  box.replaceChildren(...children);
  if (!box.open) box.showModal();
  return box;
}

export function confirmed(text, word, act) {
  const typed = element("input", { autocomplete: "off", oninput: () => { go.disabled = typed.value !== word; } });
  const failed = element("p", { class: "bad" });
  const go = element("button", { class: "danger", disabled: true, onclick: async () => {
    try {
      await act();
      byId("dialog").close();
    } catch (error) {
      failed.textContent = error.message;
    }
  } }, "Do it");
  dialog(element("h1", {}, text), element("label", {}, `Type ${word} to confirm`, typed), failed,
    element("div", { class: "bar" }, element("button", { onclick: () => byId("dialog").close() }, "Cancel"), go));
  typed.focus();
}

function signIn() {
  const field = (label, name, type = "text") => element("label", {}, label, element("input", { name, type, autocomplete: "off" }));
  const creds = element("textarea", { name: "creds", rows: 3, placeholder: "the text of a .creds file" });
  const form = element("form", { onsubmit: (event) => {
    event.preventDefault();
    const given = Object.fromEntries([...new FormData(form)].filter(([, value]) => value));
    byId("dialog").close();
    app.relay.connect(given);
  } }, element("h1", {}, "Sign in"), app.relay.reason ? element("p", { class: "bad" }, app.relay.reason) : null,
  element("p", { class: "soft" }, "As a user of this server. What the user may not do on the client port, the console cannot do either."),
  field("User", "user"), field("Password", "pass", "password"), field("Token", "auth_token", "password"),
  element("label", {}, "Credentials", creds),
  element("div", { class: "bar" }, element("button", { type: "button", onclick: () => byId("dialog").close() }, "Cancel"),
    element("button", { class: "primary" }, "Sign in")));
  dialog(form);
}

function help() {
  const keys = [["g o", "overview"], ["g s", "streams"], ["g c", "connections"], ["g h", "health"], ["g q", "scans"], ["/", "search"],
    ["↑ ↓ or k j", "move in a table"], ["Enter", "open"], ["Backspace", "back"], ["t", "dark or light"], ["?", "this list"]];
  dialog(element("h1", {}, "Keys"), element("dl", { class: "facts" }, ...keys.flatMap(([key, text]) =>
    [element("dt", {}, element("kbd", {}, key)), element("dd", {}, text)])),
  element("div", { class: "bar" }, element("button", { onclick: () => byId("dialog").close() }, "Close")));
}

// -- keys and theme -------------------------------------------------------------------------

let leader = false;
addEventListener("keydown", (event) => {
  if (event.target.matches("input, textarea, select") || event.ctrlKey || event.metaKey || event.altKey || byId("dialog").open) return;
  const page = leader && { o: "overview", s: "streams", c: "connections", h: "health", q: "scans" }[event.key];
  leader = event.key === "g";
  if (page) location.hash = `#/${page}`;
  else if (event.key === "?") help();
  else if (event.key === "t") theme();
  else if (event.key === "Backspace") history.back();
  else if (event.key === "/") {
    document.querySelector("input[type=search]")?.focus();
    event.preventDefault();
  } else if (["ArrowDown", "j"].includes(event.key)) {
    document.querySelector("#view .scroll")?.focus();
    app.page?.table?.key(event);
  }
});

function theme() {
  const root = document.documentElement;
  const dark = (root.dataset.theme ?? (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light")) === "dark";
  root.dataset.theme = dark ? "light" : "dark";
  localStorage.setItem("theme", root.dataset.theme);
  app.page?.update?.();
}

if (localStorage.getItem("theme")) document.documentElement.dataset.theme = localStorage.getItem("theme");
byId("theme").onclick = theme;
byId("keys").onclick = help;
byId("account").onclick = signIn;
byId("links").append(...DOCUMENTS.map((name) => element("a", { href: name }, `/${name}`)));
app.relay.onchange = () => {
  showHealth();
  app.page?.update?.();
};
addEventListener("hashchange", show);
app.relay.connect();
show();
poll();
