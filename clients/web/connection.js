// One websocket to streamd that comes back by itself, and goes on where it was.

const FIRST_WAIT_MS = 500;
const LONGEST_WAIT_MS = 10_000;

/** The token of the server, if it wants one: from #token=... of the address, kept for this tab. */
export function token() {
  const given = new URLSearchParams(location.hash.slice(1)).get("token");
  if (given !== null) {
    sessionStorage.setItem("streamd.token", given);
    history.replaceState(null, "", location.pathname + location.search); // not in the history
  }
  return sessionStorage.getItem("streamd.token");
}

/** Keep a token that the user typed. */
export function keepToken(text) {
  sessionStorage.setItem("streamd.token", text);
}

/** GET a path of this server, with the token. */
export function ask(path) {
  const secret = token();
  return fetch(path, secret === null ? {} : { headers: { Authorization: `Bearer ${secret}` } });
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
 * Listen to a session for as long as the page lives.
 *
 * `transcript` is fed and asked where to resume; `changed(kind, message)` is called behind each
 * message, `status(text)` with "connecting", "live", "lost", "ended" or "refused". Errors of the
 * server that repeating cannot cure end it; anything else is tried again, ever more slowly.
 */
export class Listening {
  #stopped = false;
  #timer = null;
  #socket = null;
  #waitMs = FIRST_WAIT_MS;

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

  #connect() {
    this.status("connecting");
    const socket = open({ session: this.session, ...this.transcript.resume });
    this.#socket = socket;
    let refused = null;
    socket.onmessage = ({ data }) => {
      const message = JSON.parse(data);
      if (message.type === "hello") {
        this.#waitMs = FIRST_WAIT_MS;
        this.status("live");
      }
      if (message.type === "error" && message.fatal) refused = message;
      this.changed(this.transcript.apply(message), message);
    };
    socket.onclose = () => {
      if (this.#stopped) return;
      this.#socket = null;
      if (refused?.code === "bad_query") return this.status("refused", refused.message);
      this.status(this.transcript.ended === null ? "lost" : "ended", refused?.message);
      // Also behind an end: the session may be begun again under the same name. No hurry then, unless
      // it is the server that is begun again.
      if (![null, "shutdown"].includes(this.transcript.ended)) this.#waitMs = LONGEST_WAIT_MS;
      this.#timer = setTimeout(() => this.#connect(), this.#waitMs * (0.75 + Math.random() / 2));
      this.#waitMs = Math.min(2 * this.#waitMs, LONGEST_WAIT_MS);
    };
  }
}
