#!/usr/bin/env node
// Print the captions of a running streamd: subscribe.mjs [ws://HOST:PORT [SESSION]].
//
// Finals go to stdout, one per line; partials go to stderr if that is a terminal. After a lost
// connection it reconnects, and no final is lost or repeated. The token comes from STREAMD_TOKEN.
// Needs only Node 22, or Node 20 with --experimental-websocket. docs/protocol.md describes all
// messages.

const [url = "ws://127.0.0.1:8765", session = "live"] = process.argv.slice(2);
if (!/^wss?:/.test(url)) {
  console.error("subscribe.mjs [ws://HOST:PORT [SESSION]]");
  process.exit(1);
}
const token = process.env.STREAMD_TOKEN;
const liveLine = process.stderr.isTTY ? "\r\x1b[K" : "";
const query = { session };

/** Print until the connection ends and update `query` to resume; resolve to the end reason. */
function follow() {
  const protocols = token ? ["streamd.v1", `streamd.bearer.${token}`] : ["streamd.v1"];
  const socket = new WebSocket(`${url}/v1/stream?${new URLSearchParams(query)}`, protocols);
  return new Promise((resolve) => {
    let over;
    socket.onmessage = ({ data }) => {
      const message = JSON.parse(data); // ignore unknown types
      if (message.type === "hello") {
        if (query.epoch && query.epoch !== message.epoch) query.after = "0"; // a new run
        query.after ??= String(message.seq);
        query.epoch = message.epoch;
      } else if (message.type === "partial" && liveLine) {
        process.stderr.write(liveLine + message.text.slice(-70));
      } else if (message.type === "final") {
        query.after = String(message.seq);
        process.stderr.write(liveLine);
        console.log(message.text);
      } else if (message.type === "eos" || (message.type === "error" && message.fatal)) {
        if (message.code !== "slow") over ??= message.message ?? "";
      }
    };
    let opened = false;
    socket.onopen = () => (opened = true);
    socket.onclose = () => opened && resolve(over);
    socket.onerror = async () => {
      if (opened) return;
      // A websocket does not report why it was refused; a plain request to its address does.
      const headers = token ? { authorization: `Bearer ${token}` } : {};
      const http = `${url.replace(/^ws/, "http")}/v1/stream`;
      const answer = await fetch(http, { headers }).catch(() => undefined);
      const status = answer?.status ?? 0;
      const why = status && status !== 426 ? (await answer.text()).trim() : "no connection";
      console.error(`${url}: ${why || `HTTP ${status}`}`);
      resolve(status >= 400 && status < 500 && status !== 426 ? "refused" : undefined);
    };
  });
}

let over;
while ((over = await follow()) === undefined) await new Promise((next) => setTimeout(next, 500));
if (over) console.error(over);
process.exitCode = over ? 1 : 0;
