// The way to the server: one stream that says what changed, and fetches of what did.

const DOCUMENTS = ["cluster", "leases", "singletons", "shards"];

/** Nothing at all for so long means that the server does not answer. It beats every two seconds. */
export const SILENCE_MS = 5000;
const RETRY_MS = [250, 500, 1000, 2000];
const BUFFER_MAX = 4 << 20;

export class Feed {
  #known = {};
  #wanted = {};
  #busy = new Set();
  #last = null;
  #failures = 0;
  #stream = null;
  /** When something was heard last, by this page's clock; and whether a stream is open. */
  heard = null;
  open = false;

  /** `on` has `document(name, doc, received)`, `event(event)`, `missed(count)`, `restarted()`, `denied(text)`. */
  constructor(on) {
    this.on = on;
    this.token = takeToken();
  }

  setToken(token) {
    this.token = token;
    sessionStorage.setItem("token", token);
  }

  /** Reads the stream for as long as the page is there; comes back from every kind of failure. */
  async run() {
    for (;;) {
      try {
        await this.#read();
      } catch (error) {
        if (error instanceof Denied) await this.on.denied(error.message);
      }
      this.open = false;
      const wait = RETRY_MS[Math.min(this.#failures, RETRY_MS.length - 1)];
      this.#failures += 1;
      await new Promise((resolve) => setTimeout(resolve, wait));
    }
  }

  /** Gives up a stream on which nothing comes any more; `run` opens another. */
  check() {
    if (this.open && performance.now() - this.heard > SILENCE_MS + 1000) this.#stream?.abort();
  }

  async post(path, body) {
    const response = await fetch(path, {
      method: "POST", headers: { ...this.#headers(), "Content-Type": "application/json" },
      body: JSON.stringify(body), signal: AbortSignal.timeout(10000),
    });
    const answer = await response.json().catch(() => ({}));
    if (!response.ok) throw new Error(answer.error ?? `the server answered ${response.status}`);
    return answer;
  }

  async #read() {
    this.#stream = new AbortController();
    const give_up = setTimeout(() => this.#stream.abort(), SILENCE_MS);
    const after = this.#last === null ? "" : `?after=${this.#last}`;
    const response = await this.#get(`/api/events${after}`, this.#stream.signal);
    clearTimeout(give_up);
    this.open = true;
    // The server may be another process now, whose versions begin anew.
    this.#known = {};
    let first = this.#last !== null;
    let rest = "";
    const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
    for (;;) {
      const { value, done } = await reader.read();
      if (done) throw new Error("the stream ended");
      this.#hear();
      rest += value;
      if (rest.length > BUFFER_MAX) throw new Error("an event without an end");
      const blocks = rest.split(/\r?\n\r?\n/);
      rest = blocks.pop();
      for (const block of blocks) {
        const { name, data } = parse(block);
        if (name === "changed") this.#changed(data);
        else if (name === "missed") this.on.missed(data.count);
        else if (name === "timeline") {
          if (first && data.id <= this.#last) this.on.restarted();
          first = false;
          this.#last = data.id;
          this.on.event(data);
        }
      }
    }
  }

  #hear() {
    this.heard = performance.now();
  }

  #changed(versions) {
    this.#wanted = versions;
    for (const name of DOCUMENTS) this.#fetch(name);
  }

  #behind(name) {
    return !(this.#wanted[name] <= this.#known[name]);
  }

  /** One fetch of each document at a time: whoever is slow skips versions, and falls behind nothing. */
  async #fetch(name) {
    if (this.#busy.has(name)) return;
    this.#busy.add(name);
    try {
      while (this.#behind(name)) {
        // Of this stream: what an older server answers late must not count for a newer one.
        const known = this.#known;
        const asked = this.#wanted[name];
        const response = await this.#get(`/api/${name}`, AbortSignal.timeout(10000));
        const doc = await response.json();
        known[name] = Math.max(asked, doc.version);
        this.#failures = 0;
        this.on.document(name, doc, performance.now());
      }
    } catch {
      // Whoever opens the next stream is told all versions, and asks again.
      this.#stream.abort();
    } finally {
      this.#busy.delete(name);
    }
  }

  async #get(path, signal) {
    const response = await fetch(path, { headers: this.#headers(), signal, cache: "no-store" });
    this.#hear();
    if (response.status === 401 || response.status === 403) {
      const answer = await response.json().catch(() => ({}));
      throw new Denied(answer.error ?? "this token may not read");
    }
    if (!response.ok) throw new Error(`${path}: ${response.status}`);
    return response;
  }

  #headers() {
    return this.token ? { Authorization: `Bearer ${this.token}` } : {};
  }
}

class Denied extends Error {}

function parse(block) {
  let name = "message", data = "";
  for (const line of block.split(/\r?\n/)) {
    if (line.startsWith("event:")) name = line.slice(6).trim();
    else if (line.startsWith("data:")) data += line.slice(5);
  }
  try {
    return { name, data: JSON.parse(data) };
  } catch {
    return { name: "", data: null };
  }
}

/** From the address's fragment, which never reaches a server; and out of it at once. */
function takeToken() {
  const given = new URLSearchParams(location.hash.slice(1)).get("token");
  if (given) {
    sessionStorage.setItem("token", given);
    history.replaceState(null, "", location.pathname + location.search);
  }
  return sessionStorage.getItem("token");
}
