// The shard map: one small square for each shard, coloured by its node. On a canvas, on which only
// squares that changed are painted again.

import { $, keyed, make, say } from "./common.js";

export class Shards {
  draw(doc, names) {
    keyed($("kinds"), doc.kinds, (kind) => kind.kind, (kind) => new Kind(kind.kind).element,
      (element, kind) => element.kind.draw(kind, names));
    say($("shards-note"), doc.kinds.length ? "" : "None that this node knows of.");
  }

  /** After a change of width or colours. */
  repaint() {
    for (const element of $("kinds").children) element.kind.repaint();
  }
}

/** How high a map may become before its squares get smaller. */
const HEIGHT = 260;
const NOWHERE = "nowhere";

class Kind {
  #canvas = make("canvas");
  #text = make("p");
  #read = make("p", "read");
  #only = make("select");
  #legend = make("ul", "legend");
  #doc = null;
  #names = null;
  #colours = new Map();
  #painted = [];
  #cell = 0;
  #columns = 0;
  #chosen = -1;
  #nodesKey = "";

  constructor(name) {
    this.element = make("div", "kind");
    this.element.kind = this;
    const label = make("label", "", "Only ");
    label.append(this.#only);
    this.#canvas.tabIndex = 0;
    this.#canvas.setAttribute("role", "img");
    this.#canvas.setAttribute("aria-label", `Shards of ${name}. The arrow keys go from one to the next.`);
    this.#read.setAttribute("role", "status");
    const tools = make("p", "tools");
    tools.append(label);
    this.element.append(make("h3", "", name), this.#text, tools, this.#canvas, this.#read, this.#legend);
    this.#only.addEventListener("change", () => this.repaint());
    this.#canvas.addEventListener("keydown", (event) => this.#key(event));
    this.#canvas.addEventListener("pointermove", (event) => this.#point(event));
    this.#canvas.addEventListener("pointerdown", (event) => this.#point(event));
  }

  draw(doc, names) {
    const counts = new Array(doc.nodes.length).fill(0);
    let nowhere = 0;
    for (const at of doc.map) {
      if (at >= 0 && at < counts.length) counts[at] += 1;
      else nowhere += 1;
    }
    this.#doc = doc;
    this.#names = names;
    this.#choices(doc, names);
    const least = Math.min(...counts), most = Math.max(...counts);
    say(this.#text, [
      `${doc.count.toLocaleString("en")} shards on ${doc.nodes.length} nodes`,
      counts.length === 0 ? null : least === most ? `${least} each` : `${least} to ${most} each`,
      nowhere ? `${nowhere} nowhere` : null,
      doc.coordinator ? `coordinator ${names.of(doc.coordinator)}` : "no coordinator",
      doc.hosted ? `${doc.hosted} here, with ${doc.entities.toLocaleString("en")} entities` : null,
      doc.waiting ? `messages that wait here: ${doc.waiting}` : null,
      doc.why_not ? `not here: ${doc.why_not}` : null,
    ].filter(Boolean).join(" · "));
    const shown = doc.nodes.length > 12 ? [] : doc.nodes.map((node, i) => ({ node, count: counts[i] }));
    keyed(this.#legend, shown, ({ node }) => node, () => {
      const row = make("li");
      row.append(make("span", "swatch"), make("span"));
      return row;
    }, (row, { node, count }) => {
      row.firstChild.style.background = names.colour(node);
      say(row.lastChild, `${names.of(node)}: ${count}`);
    });
    this.#paint();
    this.#tell();
  }

  repaint() {
    this.#cell = 0;
    if (this.#doc) this.#paint();
  }

  #choices(doc, names) {
    const called = doc.nodes.map((node) => names.of(node));
    const key = called.join("\n");
    if (key === this.#nodesKey) return;
    this.#nodesKey = key;
    const before = this.#only.value;
    this.#only.replaceChildren(new Option("all nodes", ""), new Option("nowhere", NOWHERE),
      ...doc.nodes.map((node, i) => new Option(called[i], node)));
    this.#only.value = before;
    if (this.#only.selectedIndex < 0) this.#only.value = "";
    this.#cell = 0;
  }

  #paint() {
    const { count, nodes } = this.#doc;
    this.#colours = new Map(nodes.map((node) => [node, this.#names.colour(node)]));
    const width = this.#canvas.parentElement.clientWidth;
    const cell = Math.max(3, Math.min(18, Math.floor(Math.sqrt((width * HEIGHT) / Math.max(1, count)))));
    const columns = Math.max(1, Math.floor(width / cell));
    const scale = window.devicePixelRatio || 1;
    const all = cell !== this.#cell || columns !== this.#columns || this.#painted.length !== count;
    if (all) {
      Object.assign(this.#canvas.style, { width: `${columns * cell}px`, height: `${Math.ceil(count / columns) * cell}px` });
      this.#canvas.width = columns * cell * scale;
      this.#canvas.height = Math.ceil(count / columns) * cell * scale;
      this.#cell = cell;
      this.#columns = columns;
      this.#painted = new Array(count).fill("");
    }
    // By colour, since to change it costs more than to paint a square.
    const stale = new Map();
    for (let shard = 0; shard < count; shard++) {
      const look = this.#look(shard);
      if (look === this.#painted[shard]) continue;
      this.#painted[shard] = look;
      if (stale.has(look)) stale.get(look).push(shard);
      else stale.set(look, [shard]);
    }
    const context = this.#canvas.getContext("2d");
    context.setTransform(scale, 0, 0, scale, 0, 0);
    const style = getComputedStyle(this.element);
    const paper = { faint: style.getPropertyValue("--faint"), line: style.getPropertyValue("--text") };
    const inner = cell > 4 ? cell - 1 : cell;
    for (const [look, shards] of stale) {
      const [colour, mark] = look.split("/");
      context.fillStyle = context.strokeStyle = paper[colour] ?? colour;
      for (const shard of shards) {
        const x = (shard % columns) * cell, y = Math.floor(shard / columns) * cell;
        if (!all) context.clearRect(x, y, cell, cell);
        // An empty square is nowhere: told from the others without its colour.
        if (mark.includes("empty")) context.strokeRect(x + 0.5, y + 0.5, inner - 1, inner - 1);
        else context.fillRect(x, y, inner, inner);
        if (!mark.includes("chosen")) continue;
        context.save();
        context.strokeStyle = paper.line;
        context.lineWidth = 2;
        context.strokeRect(x + 1, y + 1, inner - 2, inner - 2);
        context.restore();
      }
    }
  }

  /** How a shard's square looks: its colour, and its marks after a slash. */
  #look(shard) {
    const { map, nodes } = this.#doc;
    const node = nodes[map[shard]];
    const only = this.#only.value;
    const dim = only !== "" && only !== (node ?? NOWHERE);
    const colour = dim ? "faint" : node ? this.#colours.get(node) : "line";
    return `${colour}/${node ? "" : "empty"}${shard === this.#chosen ? "chosen" : ""}`;
  }

  #choose(shard) {
    if (shard < 0 || shard >= this.#doc.count || shard === this.#chosen) return;
    this.#chosen = shard;
    this.#paint();
    this.#tell();
  }

  #tell() {
    if (this.#chosen < 0) {
      say(this.#read, "Point at a square, or use the arrow keys, to see which shard it is.");
      return;
    }
    const node = this.#doc.nodes[this.#doc.map[this.#chosen]];
    say(this.#read, `shard ${this.#chosen}: ${node ? this.#names.of(node) : "nowhere"}`);
  }

  #key(event) {
    const steps = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: this.#columns, ArrowUp: -this.#columns };
    const ends = { Home: 0, End: this.#doc.count - 1 };
    if (event.key in steps) this.#choose(Math.max(0, this.#chosen) + (this.#chosen < 0 ? 0 : steps[event.key]));
    else if (event.key in ends) this.#choose(ends[event.key]);
    else return;
    event.preventDefault();
  }

  #point(event) {
    if (!this.#doc || !this.#cell) return;
    const column = Math.floor(event.offsetX / this.#cell);
    if (column >= this.#columns) return;
    this.#choose(Math.floor(event.offsetY / this.#cell) * this.#columns + column);
  }
}
