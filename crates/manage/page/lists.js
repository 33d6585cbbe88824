// Leases and singletons.

import { $, clock, keyed, lasting, make, say } from "./common.js";

/** More than a person reads; the API has them all. */
const SHOWN = 200;

export class Leases {
  #doc = null;
  #received = 0;

  draw(doc, received) {
    this.#doc = doc;
    this.#received = received;
    const shown = doc.leases.slice(0, SHOWN);
    keyed($("lease-list"), shown, (lease) => lease.name, createLease, (row, lease) => this.#update(row, lease));
    const more = doc.leases.length - shown.length;
    say($("leases-note"), doc.leases.length === 0 ? "None that this node knows of."
      : more > 0 ? `and ${more} more, which /api/leases lists` : "");
    this.tick();
  }

  #update(row, lease) {
    const { parts } = row;
    say(parts.name, lease.name);
    say(parts.purpose, [lease.purpose, lease.store].filter(Boolean).join(" · "));
    say(parts.holder, lease.holder ? `held by ${lease.holder.split("#")[0]}${lease.held_here ? " (this node)" : ""}` : "free");
    parts.holder.title = lease.holder ?? "";
    say(parts.token, lease.token ?? "none");
    say(parts.since, lease.holder && lease.since_ms ? `since ${clock(lease.since_ms)}` : "");
    say(parts.error, lease.error ?? "");
    row.dataset.held = lease.holder ? "yes" : "no";
    this.#run(parts.bar, lease);
  }

  /** Lets the bar run to the deadline; the browser moves it, not a script. */
  #run(bar, lease) {
    bar.running?.cancel();
    const left = lease.holder ? (lease.remaining_ms ?? 0) : 0;
    const share = Math.min(1, left / Math.max(1, lease.ttl_ms));
    bar.style.transform = `scaleX(${share})`;
    if (left <= 0) return;
    bar.running = bar.animate([{ transform: `scaleX(${share})` }, { transform: "scaleX(0)" }],
      { duration: left, fill: "forwards" });
    bar.running.currentTime = Math.max(0, performance.now() - this.#received);
  }

  /** The same in words, now and then. */
  tick() {
    if (!this.#doc) return;
    const passed = performance.now() - this.#received;
    for (const lease of this.#doc.leases.slice(0, SHOWN)) {
      const row = $("lease-list").kept.get(lease.name);
      if (!row) continue;
      const left = lease.remaining_ms === null ? null : lease.remaining_ms - passed;
      say(row.parts.left, !lease.holder ? "" : left === null ? "deadline not known"
        : left > 0 ? `${(left / 1000).toFixed(1)} of ${lasting(lease.ttl_ms)} left` : "overdue");
      row.dataset.overdue = lease.holder && left !== null && left <= 0 ? "yes" : "no";
    }
  }
}

function createLease() {
  const row = make("li", "lease");
  const parts = {
    name: make("strong"), purpose: make("span", "facts"), holder: make("span", "holder"),
    token: make("code"), since: make("span", "facts"), left: make("span", "left"),
    bar: make("span", "bar"), error: make("em"),
  };
  const token = make("span", "token", "token ");
  token.append(parts.token);
  const track = make("span", "track");
  track.setAttribute("aria-hidden", "true");
  track.append(parts.bar);
  row.append(parts.name, parts.purpose, parts.holder, token, parts.since, track, parts.left, parts.error);
  row.parts = parts;
  return row;
}

export function drawSingletons(doc, names) {
  keyed($("singleton-list"), doc.singletons, (one) => one.name, () => {
    const row = make("li", "singleton");
    row.append(make("strong"), make("span", "holder"), make("span", "token"), make("span", "facts"), make("em"));
    return row;
  }, (row, one) => {
    const [name, host, token, facts, why] = row.children;
    row.dataset.held = one.host ? "yes" : "no";
    say(name, one.name);
    say(host, one.host ? `on ${names.of(one.host)}` : "nobody hosts it");
    host.title = one.host ?? "";
    say(token, one.token ? `token ${one.token}` : "");
    say(facts, [
      one.since_ms ? `since ${clock(one.since_ms)}` : null,
      one.waiting ? `${one.waiting} messages wait` : null,
    ].filter(Boolean).join(" · "));
    say(why, one.host ? "" : (one.why_not ?? ""));
  });
  say($("singletons-note"), doc.singletons.length ? "" : "None that this node knows of.");
}

/** Which node hosts which singletons, in a word for the drawing. */
export function hostsOf(doc) {
  const hosts = new Map();
  for (const { name, host } of doc?.singletons ?? []) {
    if (host) hosts.set(host, hosts.has(host) ? `${hosts.get(host)}, ${name}` : name);
  }
  return hosts;
}
