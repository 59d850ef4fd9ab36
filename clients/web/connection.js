// A websocket to streamd that reconnects by itself and resumes where it was.

const FIRST_WAIT_MS = 500;
const MAX_WAIT_MS = 10_000;
export const N_TRIES = 3; // after which a websocket that never opens is refused, rather than unlucky

/** The server's token, if it requires one: from #token=... of the address, stored for this tab. */
export function token() {
  const given = new URLSearchParams(location.hash.slice(1)).get("token");
  if (given !== null) {
    sessionStorage.setItem("streamd.token", given);
    history.replaceState(null, "", location.pathname + location.search); // keep it out of the history
  }
  return sessionStorage.getItem("streamd.token");
}

/** Store a token that the user typed. */
export function storeToken(text) {
  sessionStorage.setItem("streamd.token", text);
}

/** Fetch a path of this server, with the token: GET, unless the `options` of fetch say otherwise. */
export function ask(path, options = {}) {
  const secret = token();
  return fetch(path, secret === null ? options : { ...options, headers: { Authorization: `Bearer ${secret}` } });
}

/** Whether the page is of this machine. */
export const isLocal = () => /^(localhost|127\..*|\[::1\])$/.test(location.hostname);

/** Why this server cannot be reached, or "" if it can. */
export async function unreachable() {
  try {
    await fetch("healthz", { cache: "no-store" });
    return "";
  } catch {
    if (isLocal()) return "streamd is not running any more";
    return navigator.onLine ? "streamd cannot be reached: it has ended, or the network is down" : "this device is offline";
  }
}

/**
 * Why a websocket with this query fails, or "" if nothing answers; a browser itself does not tell.
 *
 * With POST, unlike GET, it sends the `Origin` that it sends with a websocket. 426 is right for what is none.
 */
export async function refusal(query) {
  const answer = await ask(`v1/stream?${new URLSearchParams(query)}`, { method: "POST" }).catch(() => null);
  if (answer === null) return { status: 0, why: "" };
  const type = answer.headers.get("Content-Type") ?? "";
  const said = answer.status === 426 ? "the proxy does not pass on Upgrade and Connection" : type.startsWith("text/plain") ? (await answer.text()).trim() : answer.statusText;
  return { status: answer.status, why: `the server or a proxy refuses the websocket (${answer.status}: ${said})` };
}

/** A new websocket with these query parameters. */
export function open(query) {
  const url = new URL("v1/stream", location.href);
  url.protocol = location.protocol === "https:" ? "wss:" : "ws:";
  url.search = new URLSearchParams(query).toString();
  url.hash = "";
  const secret = token();
  const socket = new WebSocket(url, secret === null ? ["streamd.v1"] : ["streamd.v1", `streamd.bearer.${secret}`]);
  socket.binaryType = "arraybuffer";
  return socket;
}

/**
 * Listens to a session until `stop`.
 *
 * `transcript` receives the messages and knows where to resume. `changed(kind, message)` is called
 * after each message, `status(text)` with "connecting", "live", "lost", "ended", "refused", "barred"
 * (no websocket opens) or "absent" (the server has no such session). An error that would only repeat ends it; after any other it reconnects, with growing pauses.
 */
export class Listening {
  #stopped = false;
  #timer = null;
  #socket = null;
  #waitMs = FIRST_WAIT_MS;
  #nMute = 0; // connections in which the server said nothing
  corrects = false; // whether this page may correct words of the session, and name speakers
  keepsVoices = false; // and whether voices of those are kept, if it wants that

  constructor(session, transcript, { changed, status }) {
    this.session = session;
    this.transcript = transcript;
    this.changed = changed;
    this.status = status;
    this.#connect();
  }

  stop() {
    this.#stopped = true;
    clearTimeout(this.#timer);
    const socket = this.#socket;
    // The browser logs an error for a socket that is closed before it is open.
    if (socket?.readyState === WebSocket.CONNECTING) socket.onopen = () => socket.close();
    else socket?.close();
  }

  /** Send a message of a client: `correct`, `name` or `translate` (docs/protocol.md). */
  say(message) {
    if (this.#socket?.readyState !== WebSocket.OPEN) return;
    this.#socket.send(JSON.stringify(message));
  }

  #connect() {
    this.status("connecting");
    const socket = open({ session: this.session, stats: 1, ...this.transcript.resume });
    this.#socket = socket;
    let refused = null;
    socket.onmessage = ({ data }) => {
      const message = JSON.parse(data);
      this.#nMute = -1;
      if (message.type === "hello") {
        this.#waitMs = FIRST_WAIT_MS;
        this.corrects = message.corrects === true;
        this.keepsVoices = message.keeps_voices === true;
        this.status("live");
      }
      if (message.type === "error" && message.fatal) refused = message;
      this.changed(this.transcript.apply(message), message);
    };
    socket.onclose = async () => {
      if (this.#stopped) return;
      this.#socket = null;
      const why = ++this.#nMute < N_TRIES ? "" : (await refusal({ session: this.session })).why;
      if (this.#stopped) return;
      this.corrects = false;
      if (refused?.code === "bad_query") return this.status("refused", refused.message);
      if (refused?.code === "no_such_session") this.status("absent");
      else if (why) this.status("barred", why);
      else this.status(this.transcript.ended === null ? "lost" : "ended", refused?.message);
      // Also after the end: a session may begin again under the same name. That is not urgent,
      // unless the server is being restarted.
      if (![null, "shutdown"].includes(this.transcript.ended)) this.#waitMs = MAX_WAIT_MS;
      this.#timer = setTimeout(() => this.#connect(), this.#waitMs * (0.75 + Math.random() / 2));
      this.#waitMs = Math.min(2 * this.#waitMs, MAX_WAIT_MS);
    };
  }
}
