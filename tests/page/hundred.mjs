// A hundred nodes and ten thousand shards, of which everything changes five times a second.

import { Mock } from "./mock.mjs";

const NODES = 100;
const SHARDS = 10_000;
const LEASES = 20;
const EVERY_MS = 200;

export class Hundred {
  mock = new Mock();
  #nodes = Array.from({ length: NODES }, (_, i) => {
    const address = `shop-${i}.shop.default.svc:7400`;
    return { node: `${address}#${String(i).padStart(16, "0")}`, address, name: `shop-${i}`, status: "up",
      up_number: i + 1, roles: ["worker"], since_ms: Date.now(), seen: true, why: null };
  });
  #map = Array.from({ length: SHARDS }, (_, shard) => shard % NODES);
  #step = 0;
  #timer = null;

  async listen() {
    this.#advance();
    this.#timer = setInterval(() => this.#advance(), EVERY_MS);
    return this.mock.listen();
  }

  async close() {
    clearInterval(this.#timer);
    await this.mock.close();
  }

  #advance() {
    const step = this.#step++;
    const node = (i) => this.#nodes[i % NODES].node;
    for (let moved = 0; moved < 100; moved++) this.#map[(step * 97 + moved * 31) % SHARDS] = (step + moved) % NODES;
    // Every ten seconds 40 of them are beyond a cut, for five.
    const split = step % 50 >= 25;
    this.#nodes.forEach((one, i) => (one.seen = !split || i < 60));
    const unreachable = [];
    if (split) for (let i = 60; i < NODES; i++) for (let by = 0; by < 9; by++) unreachable.push({ from: node((i + by * 7) % 60), to: node(i) });
    this.mock.docs.cluster = {
      cluster: "shop", id: "1763238500000001", me: node(0), name: "shop-0", ready: true, not_ready: null, warnings: [], leader: node(0),
      oldest: node(0), converged: !split, nodes: this.#nodes, unreachable,
      downing: { strategy: "lease-majority", last: null }, demo: null,
    };
    this.mock.docs.leases = { leases: Array.from({ length: LEASES }, (_, i) => ({
      name: `shop.lease-${i}`, store: "etcd", purpose: null, holder: `shop-${i}#1`, token: `${1000 + step}.0`, ttl_ms: 15000,
      remaining_ms: 15000 - ((step * 200 + i * 500) % 5000), held_here: i === 0, since_ms: Date.now(), error: null,
    })) };
    this.mock.docs.singletons = { singletons: Array.from({ length: 5 }, (_, i) => ({
      name: `single-${i}`, host: node(i * 20), token: "7.0", since_ms: Date.now(), waiting: 0, why_not: null,
    })) };
    this.mock.docs.shards = { kinds: [{ kind: "cart", count: SHARDS, coordinator: node(0), nodes: this.#nodes.map((one) => one.node), map: this.#map }] };
    for (let i = 0; i < 4; i++) this.mock.happened("shard", `cart/${(step * 97 + i * 31) % SHARDS} moved to shop-${(step + i) % NODES}`);
    this.mock.touch("cluster", "leases", "singletons", "shards");
  }
}
