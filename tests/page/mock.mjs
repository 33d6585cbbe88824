// A server that speaks the management API as a node does, with whatever it is told to say. For tests
// of the page alone: quick, and of any size.

import { createServer } from "node:http";
import { readFile } from "node:fs/promises";
import { extname } from "node:path";

const PAGE = new URL("../../crates/manage/page/", import.meta.url);
const TYPES = { ".html": "text/html", ".js": "text/javascript", ".css": "text/css" };
const DOCUMENTS = ["cluster", "leases", "singletons", "shards"];
const BEAT_MS = 2000;
const CHANGED_MS = 200;

export class Mock {
  docs = {
    cluster: {}, leases: { leases: [] }, singletons: { singletons: [] }, shards: { kinds: [] },
  };
  posts = [];
  readToken = null;
  #versions = Object.fromEntries(DOCUMENTS.map((name) => [name, 1]));
  #events = [];
  #streams = new Set();
  #server = createServer((request, response) => this.#serve(request, response).catch((error) => {
    response.writeHead(500).end(JSON.stringify({ error: String(error) }));
  }));
  #frozen = false;
  #due = null;
  #beat = setInterval(() => this.#send("beat", { time_ms: Date.now() }), BEAT_MS);

  /** Answers a POST with a text, or throws; a scenario sets it. */
  onPost = () => {
    throw new Error("not in this scenario");
  };

  async listen(port = 0) {
    await new Promise((resolve) => this.#server.listen(port, "127.0.0.1", resolve));
    this.url = `http://127.0.0.1:${this.#server.address().port}/`;
    return this;
  }

  async close() {
    clearInterval(this.#beat);
    clearTimeout(this.#due);
    this.#server.closeAllConnections();
    await new Promise((resolve) => this.#server.close(resolve));
  }

  /** Connections stay open, and nothing comes: a process that is stopped. */
  freeze(frozen) {
    this.#frozen = frozen;
    if (!frozen) for (const stream of this.#streams) stream.destroy();
  }

  version(name) {
    return this.#versions[name];
  }

  /** Says that documents have changed, five times a second at most. */
  touch(...names) {
    for (const name of names) this.#versions[name] += 1;
    this.#due ??= setTimeout(() => {
      this.#due = null;
      this.#send("changed", this.#versions);
    }, CHANGED_MS);
  }

  happened(kind, text, { node = null, reason = null } = {}) {
    const id = (this.#events.at(-1)?.id ?? 0) + 1;
    const event = { id, time_ms: Date.now(), kind, text, node, reason };
    this.#events.push(event);
    if (this.#events.length > 500) this.#events.shift();
    this.#send("timeline", event);
  }

  #send(name, data) {
    if (this.#frozen) return;
    for (const stream of this.#streams) stream.write(frame(name, data));
  }

  async #serve(request, response) {
    if (this.#frozen) return;
    const { pathname, searchParams } = new URL(request.url, this.url);
    const name = pathname.replace(/^\/api\//, "");
    if (!pathname.startsWith("/api/")) {
      const file = pathname === "/" ? "index.html" : pathname.slice(1);
      const body = await readFile(new URL(file, PAGE)).catch(() => null);
      if (!body || !/^[a-z]+\.[a-z]+$/.test(file)) return void response.writeHead(404).end();
      response.writeHead(200, { "Content-Type": TYPES[extname(file)] ?? "text/plain" }).end(body);
    } else if (this.readToken && request.headers.authorization !== `Bearer ${this.readToken}`) {
      answer(response, 401, { error: "this needs a token that may read" });
    } else if (request.method === "POST") {
      await this.#post(name, request, response);
    } else if (name === "events") {
      this.#stream(response, Number(searchParams.get("after") ?? 0));
    } else if (DOCUMENTS.includes(name)) {
      answer(response, 200, { version: this.#versions[name], time_ms: Date.now(), ...this.docs[name] });
    } else {
      answer(response, 404, { error: "there is no such thing here" });
    }
  }

  async #post(name, request, response) {
    let text = "";
    for await (const chunk of request) text += chunk;
    const body = JSON.parse(text);
    this.posts.push({ name, body });
    try {
      answer(response, 202, { change: name, node: null, text: this.onPost(name, body) });
    } catch (error) {
      answer(response, 409, { error: error.message });
    }
  }

  #stream(response, after) {
    response.writeHead(200, { "Content-Type": "text/event-stream", "Cache-Control": "no-store" });
    response.write(frame("changed", this.#versions));
    for (const event of this.#events) if (event.id > after) response.write(frame("timeline", event));
    this.#streams.add(response);
    response.on("close", () => this.#streams.delete(response));
  }
}

function frame(name, data) {
  return `event: ${name}\ndata: ${JSON.stringify(data)}\n\n`;
}

function answer(response, status, body) {
  response.writeHead(status, { "Content-Type": "application/json" }).end(JSON.stringify(body));
}
