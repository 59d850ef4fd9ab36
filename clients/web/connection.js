// A websocket to streamd that reconnects by itself and resumes where it was.

const FIRST_WAIT_MS = 500;
const MAX_WAIT_MS = 10_000;

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

/** Why this server cannot be reached, or "" if it can. */
export async function unreachable() {
  try {
    await fetch("healthz", { cache: "no-store" });
    return "";
  } catch {
    if (/^(localhost|127\..*|\[::1\])$/.test(location.hostname)) return "streamd is not running any more";
    return navigator.onLine ? "streamd cannot be reached: it has ended, or the network is down" : "this device is offline";
  }
}

/** Why this token may not open a websocket with this query; a browser itself does not tell. */
export async function refusal(query) {
  const answer = await ask(`v1/stream?${new URLSearchParams(query)}`).catch(() => null);
  return answer?.status === 403 ? answer.text() : "";
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
 * after each message, `status(text)` with "connecting", "live", "lost", "ended", "refused" or "absent" (the
 * server has no such session). An error that would only repeat ends it; after any other it reconnects, with growing pauses.
 */
export class Listening {
  #stopped = false;
  #timer = null;
  #socket = null;
  #waitMs = FIRST_WAIT_MS;
  corrects = false; // whether this page may correct words of the session

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

  /** Send a correction (`correct` of docs/protocol.md). */
  correct(message) {
    this.#socket?.send(JSON.stringify(message));
  }

  #connect() {
    this.status("connecting");
    const socket = open({ session: this.session, ...this.transcript.resume });
    this.#socket = socket;
    let refused = null;
    socket.onmessage = ({ data }) => {
      const message = JSON.parse(data);
      if (message.type === "hello") {
        this.#waitMs = FIRST_WAIT_MS;
        this.corrects = message.corrects === true;
        this.status("live");
      }
      if (message.type === "error" && message.fatal) refused = message;
      this.changed(this.transcript.apply(message), message);
    };
    socket.onclose = () => {
      if (this.#stopped) return;
      this.#socket = null;
      this.corrects = false;
      if (refused?.code === "bad_query") return this.status("refused", refused.message);
      if (refused?.code === "no_such_session") this.status("absent");
      else this.status(this.transcript.ended === null ? "lost" : "ended", refused?.message);
      // Also after the end: a session may begin again under the same name. That is not urgent,
      // unless the server is being restarted.
      if (![null, "shutdown"].includes(this.transcript.ended)) this.#waitMs = MAX_WAIT_MS;
      this.#timer = setTimeout(() => this.#connect(), this.#waitMs * (0.75 + Math.random() / 2));
      this.#waitMs = Math.min(2 * this.#waitMs, MAX_WAIT_MS);
    };
  }
}
