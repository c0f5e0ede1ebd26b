// Numbers, times and elements. Text reaches the page as text only: nothing here parses HTML.

export function count(value) {
  if (value === undefined || value === null) return "–";
  if (Math.abs(value) < 10000) return Math.round(value).toLocaleString("en-US");
  const units = ["", "k", "M", "G", "T"];
  let power = 0;
  while (Math.abs(value) >= 1000 && power < units.length - 1) { value /= 1000; power++; }
  return value.toFixed(value < 100 ? 1 : 0) + units[power];
}

// A replica is an entry or two behind whenever something is written; one that is level and not current lost its log or has no vote.
export function isBehind(replica) {
  return replica.lag > 100 || (!replica.current && !replica.lag);
}

export function bytes(value) {
  if (value === undefined || value === null) return "–";
  if (value < 0) return "no limit";
  const units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
  let power = 0;
  while (value >= 1024 && power < units.length - 1) { value /= 1024; power++; }
  return (power === 0 || value >= 100 ? value.toFixed(0) : value.toFixed(1)) + " " + units[power];
}

export function rate(value) {
  return value === undefined ? "–" : value > 0 && value < 10 ? value.toFixed(1) + "/s" : count(value) + "/s";
}

export function duration(ns) {
  if (!ns) return "–";
  const s = ns / 1e9;
  if (s < 1) return Math.round(ns / 1e6) + " ms";
  if (s < 120) return s.toFixed(s < 10 ? 1 : 0) + " s";
  if (s < 7200) return Math.round(s / 60) + " min";
  return s < 172800 ? Math.round(s / 3600) + " h" : Math.round(s / 86400) + " d";
}

export function when(text) {
  if (!text || text.startsWith("0001-")) return "–";
  const date = new Date(text);
  return Number.isNaN(date.getTime()) ? text : date.toLocaleString("en-CA", { hour12: false }).replace(",", "");
}

export function ago(text) {
  if (!text || text.startsWith("0001-")) return "never";
  return duration(Math.max(0, Date.now() - new Date(text).getTime()) * 1e6) + " ago";
}

// element("td", {class: "bad"}, "text", other) makes one element with attributes and children.
export function element(name, attributes = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (key.startsWith("on")) made.addEventListener(key.slice(2), value);
    else if (value !== undefined && value !== false) made.setAttribute(key, value === true ? "" : value);
  }
  made.append(...children.filter((child) => child !== undefined && child !== null));
  return made;
}

export function stats(entries) {
  return element("div", { class: "stats" }, ...entries.map(([label, value, kind]) =>
    element("div", {}, element("b", { class: kind }, String(value)), element("span", {}, label))));
}

export function facts(entries) {
  return element("dl", { class: "facts" }, ...entries.filter((entry) => entry[1] !== undefined && entry[1] !== "").flatMap(
    ([label, value]) => [element("dt", {}, label), element("dd", {}, value instanceof Node ? value : String(value))]));
}

export function panel(title, ...children) {
  return element("section", { class: "panel" }, element("h2", {}, title), ...children);
}
