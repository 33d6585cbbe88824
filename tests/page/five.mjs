// Five nodes and a client, as the demonstration has them, which can be cut, healed, killed and
// started again. It is a script, not a cluster: what follows from what stands here.

import { Mock } from "./mock.mjs";

const NOTICED_MS = 400;
const DECIDED_MS = 1200;
const TTL_MS = 3000;
const RENEWED_MS = 700;
const CONTROLS = ["cut", "heal", "kill", "pause", "leave", "restart", "store-away", "store-back"];

export class Five {
  mock = new Mock();
  warnings = [];
  #incarnation = 1;
  #token = 1763238;
  #nodes = [0, 1, 2, 3, 4, 5].map((number) => this.#fresh(number, number + 1));
  #ups = 6;
  #sides = [];
  #timers = new Set();
  #holder = 1;
  #renewed = Date.now();
  #held = Date.now();
  #last = null;
  #renewing = setInterval(() => this.#renew(), RENEWED_MS);

  /** Settles the split that there is; it waits for that, so that a test can look at it before. */
  settle = () => {};

  async listen() {
    this.mock.onPost = (name, body) => this.#fault(name, body);
    for (const { node } of this.#nodes) this.mock.happened("member", `${node} is up`, { node });
    this.mock.happened("lease", `demo.ledger won by node-1 with token ${this.#token}.0`);
    this.mock.happened("singleton", "worker began on node 1");
    this.#publish();
    return this.mock.listen();
  }

  async close() {
    clearInterval(this.#renewing);
    for (const timer of this.#timers) clearTimeout(timer);
    await this.mock.close();
  }

  #fresh(number, up_number) {
    const address = `127.0.0.${number + 1}:7400`;
    const incarnation = String(this.#incarnation++).padStart(16, "0");
    return {
      number, node: `${address}#${incarnation}`, address, name: number ? null : "client", status: "up", up_number,
      roles: number ? ["worker"] : [], since_ms: Date.now(), seen: true, why: null, state: "runs",
    };
  }

  #later(ms, act) {
    const timer = setTimeout(() => {
      this.#timers.delete(timer);
      act();
      this.#publish();
    }, ms);
    this.#timers.add(timer);
  }

  #renew() {
    if (this.#nodes[this.#holder].state !== "runs") return;
    this.#renewed = Date.now();
    this.#publish();
  }

  #fault(name, { sides, whom }) {
    const fault = name.replace("demo/", "");
    const who = whom === "holder" ? this.#holder : Number(whom);
    this.mock.happened("fault", [fault, sides ?? whom].filter(Boolean).join(" "));
    if (fault === "cut") this.#cut(sides.split("|").map((side) => side.split(",").map(Number)));
    else if (fault === "heal") this.#sides = [];
    else if (fault === "kill") this.#kill(who);
    else if (fault === "restart") this.#restart();
    else if (fault === "pause") throw new Error(`node ${who} is gone`);
    this.#publish();
    return `${fault}: done`;
  }

  #cut(sides) {
    // The client goes with the larger side.
    const [small, large] = sides.sort((a, b) => a.length - b.length);
    this.#later(NOTICED_MS, () => {
      this.#sides = [small, [0, ...large]];
      for (const number of small) this.mock.happened("reachability", `${this.#nodes[number].node} is unreachable`);
    });
    this.settle = () => {
      const why = `${small.length} of 5 members cannot be reached, and ${large.length} are the majority`;
      this.#last = { time_ms: Date.now(), by: this.#nodes[large[0]].node, outcome: "survive",
        down: small.map((number) => this.#nodes[number].node), text: why };
      this.mock.happened("decision", why, { reason: "survive" });
      for (const number of small) this.#out(number, "outside", why);
      if (small.includes(this.#holder)) this.#hold(large[0], `node-${this.#holder} gave demo.ledger back`, "released");
      this.#publish();
    };
  }

  #kill(number) {
    this.#nodes[number].state = "gone";
    this.#later(NOTICED_MS, () => {
      this.#sides = [[number], [0, 1, 2, 3, 4, 5].filter((other) => other !== number && this.#nodes[other].status === "up")];
    });
    this.#later(DECIDED_MS, () => {
      this.#sides = [];
      this.#out(number, "gone", "1 of 5 members cannot be reached, and 4 are the majority");
    });
    if (number !== this.#holder) return;
    this.#later(TTL_MS, () => {
      const next = this.#nodes.find((node) => node.number && node.state === "runs").number;
      this.#hold(next, `node-${number} lost demo.ledger: expired`, "expired");
    });
  }

  #out(number, status, why) {
    Object.assign(this.#nodes[number], { status, why, since_ms: Date.now() });
    this.mock.happened("member", `${this.#nodes[number].node} is out: ${why}`);
    this.#sides = [];
  }

  #hold(number, text, reason) {
    this.mock.happened("lease", text, { reason });
    this.#holder = number;
    this.#token += 1;
    this.#renewed = this.#held = Date.now();
    this.mock.happened("lease", `demo.ledger won by node-${number} with token ${this.#token}.0`);
    this.mock.happened("singleton", `worker began on node ${number}`);
  }

  #restart() {
    for (const { number, status } of this.#nodes) {
      if (status !== "up") this.#later(NOTICED_MS, () => {
        this.#nodes[number] = this.#fresh(number, ++this.#ups);
        this.mock.happened("member", `${this.#nodes[number].node} is up`);
      });
    }
  }

  #publish() {
    const at = (number) => this.#nodes[number].node;
    const unreachable = [];
    for (const side of this.#sides) {
      for (const other of this.#sides) {
        if (side === other) continue;
        for (const from of side) for (const to of other) unreachable.push({ from: at(from), to: at(to) });
      }
    }
    const up = this.#nodes.filter(({ status }) => status === "up");
    const holder = this.#nodes[this.#holder];
    this.mock.docs.cluster = {
      cluster: "demo", id: "1763238500000001", me: null, name: null, ready: true, not_ready: null, warnings: this.warnings,
      leader: up[0]?.node ?? null, oldest: up[0]?.node ?? null, converged: unreachable.length === 0,
      nodes: this.#nodes.map(({ number, state, ...node }) => node), unreachable,
      downing: { strategy: "lease-majority", last: this.#last },
      demo: {
        sides: this.#sides.map((side) => side.map((number) => this.#nodes[number].address)), without_store: [],
        processes: this.#nodes.map(({ number, address, state }) => ({ number, address, state, why: null })),
        holder: holder.state === "runs" ? this.#holder : null, jobs: { sent: 1200, acknowledged: 1190 }, controls: CONTROLS,
      },
    };
    const left = Math.max(0, TTL_MS - (Date.now() - this.#renewed));
    const lease = (name, purpose, who, token) => ({
      name, store: "file", purpose, holder: who && `node-${who.number}#${who.node.split("#")[1]}`, token, ttl_ms: TTL_MS,
      remaining_ms: who ? left : null, held_here: false, since_ms: this.#held, error: null,
    });
    this.mock.docs.leases = { leases: [
      lease("demo.arbitration", "arbitration", null, "1763201.0"),
      lease("demo.formation", "formation", up[1] ?? null, "1763100.0"),
      lease("demo.ledger", "singleton worker", holder, `${this.#token}.0`),
    ] };
    this.mock.docs.singletons = { singletons: [{
      name: "worker", host: holder.state === "runs" ? holder.node : null, token: `${this.#token}.0`,
      since_ms: this.#held, waiting: holder.state === "runs" ? 0 : 12, why_not: "another node holds its lease",
    }] };
    const hosts = up.filter(({ number }) => number).map(({ node }) => node);
    this.mock.docs.shards = { kinds: [{
      kind: "cart", count: 64, coordinator: hosts[0] ?? null, nodes: hosts,
      map: Array.from({ length: 64 }, (_, shard) => shard % hosts.length),
      hosted: 0, entities: 0, waiting: 0, why_not: null,
    }] };
    this.mock.touch("cluster", "leases", "singletons", "shards");
  }
}
