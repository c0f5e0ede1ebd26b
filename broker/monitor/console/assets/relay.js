// The session of the signed-in user: requests over one WebSocket. Credentials stay in this page.

const API = "$JS.API.";

export class Refused extends Error {}

export class Relay {
  constructor() {
    this.state = "closed"; // closed, wanted (credentials are needed), open
    this.reason = "";
    this.hello = {};
    this.waiting = new Map();
    this.last = 0;
    this.onchange = () => {};
    this.login = {};
  }

  connect(login) {
    if (login) this.login = login;
    this.socket?.close();
    const url = new URL("console/session", document.baseURI);
    url.protocol = url.protocol.replace("http", "ws");
    const socket = this.socket = new WebSocket(url);
    socket.binaryType = "arraybuffer";
    socket.onmessage = (event) => this.socket === socket && this.take(JSON.parse(new TextDecoder().decode(event.data)));
    socket.onclose = () => {
      if (this.socket !== socket) return;
      for (const { fail } of this.waiting.values()) fail(new Error("the connection was lost"));
      this.waiting.clear();
      if (this.state !== "wanted") {
        this.become("closed", this.reason || "not connected");
        setTimeout(() => this.socket === socket && this.connect(), 3000);
      }
    };
  }

  become(state, reason = "") {
    this.state = state;
    this.reason = reason;
    this.onchange();
  }

  async take(frame) {
    if (frame.nonce !== undefined) {
      this.hello = frame;
      if (frame.auth_required && !Object.keys(this.login).length) {
        this.become("wanted", "");
        this.socket.close(); // a new one is opened to sign in
      } else this.socket.send(JSON.stringify({ login: await proven(this.login, frame.nonce) }));
    } else if (frame.signed_in) {
      this.become("open");
    } else if (frame.refused !== undefined) {
      this.login = {};
      this.become("wanted", frame.refused);
    } else {
      const call = this.waiting.get(frame.id);
      this.waiting.delete(frame.id);
      if (frame.error !== undefined) call?.fail(new Error(frame.error));
      else call?.done(frame.answer);
    }
  }

  // One JetStream API request. Raises Refused with the words of the server.
  async api(subject, body) {
    const answer = JSON.parse(await this.request(API + subject, body === undefined ? "" : JSON.stringify(body)));
    if (answer.error) throw new Refused(`${answer.error.description} (${answer.error.err_code})`);
    return answer;
  }

  request(subject, payload) {
    if (this.state !== "open") return Promise.reject(new Error("not signed in"));
    const id = ++this.last;
    return new Promise((done, fail) => {
      this.waiting.set(id, { done, fail });
      this.socket.send(JSON.stringify({ id, subject, payload }));
    });
  }
}

// A credentials file: the nonce of this connection is signed with its seed, which is not sent.
async function proven(login, nonce) {
  if (!login.creds) return login;
  const jwt = /-----BEGIN NATS USER JWT-----\s*(\S+)/.exec(login.creds)?.[1];
  const seed = /(SU[A-Z2-7]{56})/.exec(login.creds)?.[1];
  if (!jwt || !seed) return { user: "", pass: "" };
  const raw = base32(seed).slice(2, 34);
  const head = [0x30, 0x2e, 2, 1, 0, 0x30, 5, 6, 3, 0x2b, 0x65, 0x70, 4, 0x22, 4, 0x20]; // PKCS #8 around 32 bytes
  const key = await crypto.subtle.importKey("pkcs8", new Uint8Array([...head, ...raw]), "Ed25519", false, ["sign"]);
  const signed = new Uint8Array(await crypto.subtle.sign("Ed25519", key, new TextEncoder().encode(nonce)));
  const sig = btoa(String.fromCharCode(...signed)).replaceAll("+", "-").replaceAll("/", "_").replaceAll("=", "");
  return { jwt, sig };
}

function base32(text) {
  const found = [];
  let bits = 0, held = 0;
  for (const letter of text) {
    held = (held << 5) | "ABCDEFGHIJKLMNOPQRSTUVWXYZ234567".indexOf(letter);
    bits += 5;
    if (bits >= 8) {
      bits -= 8;
      found.push((held >> bits) & 255);
      held &= (1 << bits) - 1;
    }
  }
  return found;
}
