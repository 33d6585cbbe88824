// What every part of the page needs: elements, times, names and colours of nodes.

export const $ = (id) => document.getElementById(id);

/** Makes an element; text is set as text, so that nothing that a node says becomes markup. */
export function make(tag, className, text) {
  const element = document.createElement(tag);
  if (className) element.className = className;
  if (text !== undefined) element.textContent = text;
  return element;
}

const SVG = "http://www.w3.org/2000/svg";

export function makeSvg(tag, attributes = {}) {
  const element = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  return element;
}

/** Sets a text only if it differs: a write costs a layout, and readers announce it again. */
export function say(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

/**
 * Makes the children of `parent` stand for `items`, one each, in order. Children are kept by key, so
 * that what is focused, selected or moving stays what it was.
 */
export function keyed(parent, items, keyOf, create, update) {
  const kept = (parent.kept ??= new Map());
  const seen = new Set();
  let place = parent.firstChild;
  for (const item of items) {
    const key = keyOf(item);
    seen.add(key);
    let child = kept.get(key);
    if (!child) kept.set(key, (child = create(item)));
    update(child, item);
    if (child === place) place = place.nextSibling;
    else parent.insertBefore(child, place);
  }
  for (const [key, child] of kept) {
    if (seen.has(key)) continue;
    child.remove();
    kept.delete(key);
  }
}

const CLOCK = new Intl.DateTimeFormat(undefined, {
  hour: "2-digit", minute: "2-digit", second: "2-digit", hourCycle: "h23",
});

export const clock = (ms) => (ms ? CLOCK.format(ms) : "–");

/** A length of time as people say it. */
export function lasting(ms) {
  const seconds = Math.max(0, Math.round(ms / 1000));
  if (seconds < 100) return `${seconds} s`;
  if (seconds < 6000) return `${Math.round(seconds / 60)} min`;
  if (seconds < 172800) return `${Math.round(seconds / 3600)} h`;
  return `${Math.round(seconds / 86400)} d`;
}

export const addressOf = (node) => (node ?? "").split("#")[0];

/** The demonstration's client is a member that hosts nothing; who counts nodes does not mean it. */
export const isClient = (node) => node.name === "client";

export const IN = new Set(["joining", "up", "leaving", "exiting"]);

/**
 * What nodes are called and coloured. A colour belongs to an address, so that a process that was
 * started again keeps it.
 */
export class Names {
  #slots = new Map();
  #called = new Map();

  learn(cluster) {
    const addresses = cluster.nodes.map((node) => node.address);
    if (this.#slots.size > 2000) this.#slots.clear();
    for (const address of [...addresses].sort()) this.#slot(address);
    const hosts = new Set(addresses.map((address) => split(address)[0]));
    const ports = new Set(addresses.map((address) => split(address)[1]));
    const numbers = new Map((cluster.demo?.processes ?? []).map((p) => [p.address, p.number]));
    this.#called.clear();
    for (const { address, name } of cluster.nodes) {
      const [host, port] = split(address);
      const number = numbers.get(address);
      let called = address;
      if (name) called = name;
      else if (number) called = `node ${number}`;
      else if (hosts.size === 1) called = `:${port}`;
      else if (ports.size === 1) called = host.split(".svc")[0];
      this.#called.set(address, called);
    }
  }

  /** A node (`host:port#incarnation`) or an address, short. */
  of(node) {
    const address = addressOf(node);
    return this.#called.get(address) ?? address;
  }

  /** The same inside of a sentence. */
  inText(text) {
    return text.replace(/\S+:\d+#[0-9a-f…]*/g, (node) => this.of(node));
  }

  colour(node) {
    const slot = this.#slot(addressOf(node));
    // Neighbours in the list are far apart on the wheel; three shades tell further turns apart.
    return `oklch(${[0.52, 0.44, 0.58][Math.floor(slot / 8) % 3]} 0.13 ${(250 + slot * 137.5) % 360})`;
  }

  #slot(address) {
    if (!this.#slots.has(address)) this.#slots.set(address, this.#slots.size);
    return this.#slots.get(address);
  }
}

function split(address) {
  const at = address.lastIndexOf(":");
  return [address.slice(0, at), address.slice(at + 1)];
}
