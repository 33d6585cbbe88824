// What happened, newest first. It can be paused, so that it can be read, and searched.

import { $, clock, make, say } from "./common.js";

/** Remembered, and shown at once; the oldest go first. */
const KEPT = 2000;
const SHOWN = 300;

export class Timeline {
  #events = [];
  #fresh = [];
  #paused = false;
  #names;

  constructor(names) {
    this.#names = names;
    $("pause").addEventListener("click", () => this.#pause(!this.#paused));
    $("search").addEventListener("input", () => this.#render());
  }

  add(event) {
    this.#fresh.push(event);
    if (this.#fresh.length > KEPT) this.#fresh.shift();
  }

  /** Something about the timeline itself. */
  note(text) {
    this.add({ time_ms: null, kind: "page", text, node: null, reason: null });
  }

  /** Shows what has come since the last call, unless somebody reads. */
  draw() {
    if (this.#fresh.length === 0) return;
    if (this.#paused) {
      this.#count();
      return;
    }
    const fresh = this.#fresh.splice(0);
    this.#events.push(...fresh);
    if (this.#events.length > KEPT) this.#events.splice(0, this.#events.length - KEPT);
    const words = this.#words();
    const rows = fresh.filter((event) => this.#matches(event, words)).slice(-SHOWN).reverse();
    const list = $("events");
    list.prepend(...rows.map((event) => row(event, this.#names)));
    while (list.children.length > SHOWN) list.lastChild.remove();
    this.#count();
  }

  #pause(paused) {
    this.#paused = paused;
    $("pause").setAttribute("aria-pressed", String(paused));
    say($("pause"), paused ? "Go on" : "Pause");
    this.draw();
    this.#count();
  }

  #words() {
    return $("search").value.toLowerCase().split(/\s+/).filter(Boolean);
  }

  #render() {
    const words = this.#words();
    const rows = [];
    for (let i = this.#events.length - 1; i >= 0 && rows.length < SHOWN; i--) {
      if (this.#matches(this.#events[i], words)) rows.push(row(this.#events[i], this.#names));
    }
    $("events").replaceChildren(...rows);
    this.#count();
  }

  /** Whether all words are in it, as it is shown or as it was said. */
  #matches(event, words) {
    if (words.length === 0) return true;
    const parts = [event.kind, event.text, this.#names.inText(event.text), event.reason, event.node];
    const text = parts.join(" ").toLowerCase();
    return words.every((word) => text.includes(word));
  }

  #count() {
    const words = this.#words();
    const parts = [];
    if (words.length) {
      const found = this.#events.reduce((sum, event) => sum + this.#matches(event, words), 0);
      parts.push(`${found} of ${this.#events.length}`);
    }
    if (this.#paused) parts.push(this.#fresh.length ? `paused, ${this.#fresh.length} new` : "paused");
    say($("found"), parts.join(", "));
  }

}

function row(event, names) {
  const element = make("li", event.kind === "fault" ? "fault" : "");
  const time = make("time", "", clock(event.time_ms));
  if (event.time_ms) time.dateTime = new Date(event.time_ms).toISOString();
  element.append(time, make("span", "event-kind", event.kind), make("span", "event-text", names.inText(event.text)));
  if (event.reason) element.append(make("span", "reason", event.reason));
  element.title = event.text;
  return element;
}

