// The message browser: the messages of a stream by sequence, subject and time.
import { bytes, element, when } from "./format.js";

const PAGE = 25;
const SHOWN_BYTES = 16 * 1024;

export function messages(app, name) {
  const subject = element("input", { type: "search", placeholder: "Subject, e.g. orders.*", "aria-label": "Subject" });
  const from = element("input", { placeholder: "Sequence", size: 10, "aria-label": "From sequence", inputmode: "numeric" });
  const since = element("input", { type: "datetime-local", step: 1, "aria-label": "From time" });
  const list = element("div", { class: "panel" });
  const note = element("span", { class: "soft" });
  const more = element("button", { onclick: () => next(), disabled: true }, "Next messages");
  let at = 0, run = 0;
  const form = element("form", { class: "bar", onsubmit: (event) => {
    event.preventDefault();
    load();
  } }, subject, from, since, element("button", { class: "primary" }, "Show"), note);

  const read = (body) => app.relay.api(`STREAM.MSG.GET.${name}`, body);

  async function load() {
    const mine = ++run;
    list.replaceChildren();
    try {
      const { state } = await app.relay.api(`STREAM.INFO.${name}`);
      if (mine !== run) return;
      if (since.value) at = await firstSince(read, state, new Date(since.value).toISOString());
      else if (from.value) at = Math.max(1, parseInt(from.value, 10) || 1);
      else at = subject.value ? state.first_seq : Math.max(state.first_seq, state.last_seq - PAGE + 1);
      await next();
    } catch (error) {
      note.textContent = error.message;
    }
  }

  async function next() {
    const mine = run;
    note.textContent = "reading …";
    let found = 0;
    for (; found < PAGE && mine === run; found++) {
      const message = await read({ seq: at || 1, next_by_subj: subject.value || ">" }).then((one) => one.message, () => null);
      if (!message || mine !== run) break;
      list.append(card(message));
      at = message.seq + 1;
    }
    if (mine !== run) return;
    more.disabled = found < PAGE;
    note.textContent = list.children.length ? `${list.children.length} messages, next from ${at}` : "no message";
  }

  return { node: element("div", {}, form, list, more), load };
}

// The first sequence at or after a time, by halving: messages are in the order of their times.
async function firstSince(read, state, time) {
  let low = state.first_seq, high = state.last_seq + 1;
  while (low < high) {
    const middle = Math.floor((low + high) / 2);
    const one = await read({ seq: middle, next_by_subj: ">" }).then((found) => found.message, () => null);
    if (!one || one.time >= time) high = middle;
    else low = one.seq + 1;
  }
  return low;
}

function card(message) {
  const raw = Uint8Array.from(atob(message.data ?? ""), (letter) => letter.charCodeAt(0));
  const headers = message.hdrs ? new TextDecoder().decode(Uint8Array.from(atob(message.hdrs), (letter) => letter.charCodeAt(0))) : "";
  return element("article", { class: "message" },
    element("div", { class: "head" }, element("span", {}, `#${message.seq}`), element("b", {}, message.subject),
      element("span", {}, when(message.time)), element("span", {}, bytes(raw.length))),
    headers ? element("pre", { class: "soft" }, headers.trim()) : null,
    element("pre", {}, readable(raw)));
}

// JSON is laid out, text is shown, everything else as hexadecimal numbers.
function readable(raw) {
  const cut = raw.subarray(0, SHOWN_BYTES);
  const rest = raw.length > cut.length ? `\n… ${bytes(raw.length - cut.length)} more` : "";
  try {
    const text = new TextDecoder("utf-8", { fatal: true }).decode(cut);
    if (/[\x00-\x08\x0e-\x1f]/.test(text)) throw new Error("binary");
    try {
      if (text.length > 100 && /^\s*[[{]/.test(text) && !rest) return JSON.stringify(JSON.parse(text), null, 2);
    } catch {
      return text + rest;
    }
    return text + rest;
  } catch {
    return [...cut.subarray(0, 512)].map((byte) => byte.toString(16).padStart(2, "0")).join(" ") + (raw.length > 512 ? " …" : "");
  }
}
