// Leases for one process among many, held by `tenure with`. README.md has an example, index.d.ts the types.

import { randomUUID } from "node:crypto";
import { readFileSync } from "node:fs";
import { request } from "node:http";

export class TenureError extends Error {
  constructor(code, message, options) {
    super(message, options);
    this.name = new.target.name;
    this.code = code;
  }
}
export class Held extends TenureError {}
export class Lost extends TenureError {}

const KINDS = { held: Held, lost: Lost };
/** How long to pause before events are asked for again after a connection broke. */
const AGAIN_MS = 50;
/** The kernel shows the time since boot in hundredths of a second. */
const TICK_MS = 10;

function socketPath() {
  const path = process.env.TENURE_SOCKET;
  if (path) return path;
  const how = "start this program by `tenure with --store URL -- …`";
  throw new TenureError("no_socket", `TENURE_SOCKET is not set: ${how}`);
}

function open(method, path, body, signal) {
  const text = body === undefined ? "" : JSON.stringify(body);
  const headers = { "content-length": Buffer.byteLength(text) };
  return new Promise((resolve, reject) => {
    const options = { socketPath: socketPath(), method, path, headers, agent: false, signal };
    const asked = request(options, resolve);
    asked.on("error", (cause) => {
      reject(signal?.aborted ? signal.reason : gone(cause));
    });
    asked.end(text);
  });
}

function gone(cause) {
  return new TenureError("no_tenure", `tenure does not answer: ${cause.message}`, { cause });
}

async function read(response) {
  let text = "";
  try {
    for await (const part of response.setEncoding("utf8")) text += part;
  } catch (cause) {
    throw gone(cause);
  }
  const answer = JSON.parse(text);
  if (response.statusCode < 300) return answer;
  const { code, message } = answer.error;
  throw new (KINDS[code] ?? TenureError)(code, message);
}

async function call(method, path, body, signal) {
  return read(await open(method, path, body, signal));
}

/** A moment on the boot clock as one of performance.now(), which is no later. */
function localDeadline(deadlineNs) {
  const before = performance.now();
  const boot = Number.parseFloat(readFileSync("/proc/uptime", "latin1")) * 1000 + TICK_MS;
  return before + (deadlineNs / 1e6 - boot);
}

export class Lease {
  #deadline = 0;
  #isReleased = false;
  #abort = new AbortController();
  #events = null;

  constructor(told) {
    this.id = told.id;
    this.name = told.name;
    this.token = told.token;
    this.note = told.note;
    if (!Number.isSafeInteger(told.token.term) || !Number.isSafeInteger(told.token.step)) {
      throw new TenureError("token", `the token of ${told.name} is beyond what numbers are here`);
    }
    this.signal = this.#abort.signal;
    this.#deadline = localDeadline(told.deadline_ns);
    this.#follow();
  }

  held() {
    return performance.now() < this.#deadline;
  }

  check() {
    if (!this.held()) throw this.#end("expired");
  }

  async writeNote(note) {
    await call("PUT", `/v1/leases/${this.id}/note`, { note });
  }

  async release() {
    if (this.#isReleased) return;
    this.#isReleased = true;
    this.#end("released");
    this.#events?.destroy();
    try {
      await call("DELETE", `/v1/leases/${this.id}`);
    } catch (error) {
      if (!["no_lease", "no_tenure"].includes(error.code)) throw error;
    }
  }

  #end(reason) {
    this.#deadline = 0;
    const message = `the lease ${this.name} is not held any more: ${reason}`;
    if (!this.signal.aborted) this.#abort.abort(new Lost(reason, message));
    return this.signal.reason;
  }

  async #follow() {
    while (!this.signal.aborted) {
      try {
        await this.#readEvents();
      } catch (error) {
        if (error.code === "no_lease") this.#end("released");
      }
      if (!this.held()) this.#end("expired");
      else await new Promise((resolve) => setTimeout(resolve, AGAIN_MS).unref());
    }
  }

  async #readEvents() {
    const response = await open("GET", `/v1/leases/${this.id}/events`);
    if (response.statusCode >= 300) return read(response);
    this.#events = response;
    response.socket.unref();
    // tenure may be stopped, and then says nothing.
    const watch = setInterval(() => this.held() || response.destroy(), AGAIN_MS).unref();
    try {
      let rest = "";
      for await (const part of response.setEncoding("utf8")) {
        const lines = (rest + part).split("\n");
        rest = lines.pop();
        lines.forEach((line) => this.#takeIn(JSON.parse(line)));
      }
    } finally {
      clearInterval(watch);
    }
  }

  #takeIn({ event, lease: told }) {
    if (this.signal.aborted) return;
    if (event === "held" || event === "renewed") this.#deadline = localDeadline(told.deadline_ns);
    else this.#end(told.reason ?? "released");
  }
}

if (Symbol.asyncDispose) {
  Lease.prototype[Symbol.asyncDispose] = Lease.prototype.release;
}

export async function lease(name, { wait, note, signal } = {}) {
  // With its key a request can be repeated if its answer got lost.
  const question = { name, wait_ms: wait ?? null, note: note ?? null, key: randomUUID() };
  const ask = () => call("POST", "/v1/leases", question, signal);
  try {
    return new Lease(await ask());
  } catch (error) {
    if (error.cause?.code !== "ECONNRESET") throw error;
    return new Lease(await ask());
  }
}

export async function withLease(name, work, options) {
  const lead = await lease(name, options);
  try {
    const result = await work(lead);
    lead.check();
    return result;
  } finally {
    await lead.release();
  }
}

export async function leader(name) {
  try {
    return await call("GET", `/v1/leader/${name}`);
  } catch (error) {
    if (error.code === "nobody") return null;
    throw error;
  }
}
