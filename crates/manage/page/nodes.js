// The nodes, drawn so that a split looks split: each side is an island of its own.

import { $, IN, clock, isClient, keyed, make, makeSvg, say } from "./common.js";

/**
 * The sides of a cluster: groups of members that are in touch. Two are on one side if neither says
 * that it cannot reach the other. In large clusters nobody watches everybody, so silence about a
 * pair says little: there, a node that somebody misses and that does not share this node's view is
 * beyond the cut for all who do share it.
 */
export function sides(cluster) {
  const members = cluster.nodes.filter((node) => IN.has(node.status));
  const index = new Map(members.map((node, i) => [node.node, i]));
  const cut = new Set();
  const missed = new Set();
  const links = [];
  for (const { from, to } of cluster.unreachable) {
    const a = index.get(from), b = index.get(to);
    if (a === undefined || b === undefined) continue;
    missed.add(b);
    const key = Math.min(a, b) * members.length + Math.max(a, b);
    if (!cut.has(key)) links.push([members[a], members[b]]);
    cut.add(key);
  }
  const apart = (a, b) =>
    cut.has(a * members.length + b) ||
    (members[a].seen !== members[b].seen && missed.has(members[a].seen ? b : a));
  const side = members.map((_, i) => i);
  const root = (i) => {
    while (side[i] !== i) i = side[i] = side[side[i]];
    return i;
  };
  for (let a = 0; a < members.length; a++) {
    for (let b = a + 1; b < members.length; b++) {
      if (!apart(a, b)) side[root(b)] = root(a);
    }
  }
  const groups = new Map();
  members.forEach((node, i) => {
    const group = groups.get(root(i)) ?? [];
    group.push(node);
    groups.set(root(i), group);
  });
  return { sides: [...groups.values()], links };
}

/** A node's size and its distance to the next one, by how many there are on an island. */
const shape = (count) => (count <= 12 ? { radius: 17, cell: 0 } : { radius: 8, cell: 58 });

function island(nodes, width, kind) {
  const { radius, cell } = shape(nodes.length);
  const title = 30;
  if (cell === 0) {
    const ring = nodes.length === 1 ? 0 : Math.max(52, nodes.length * 15);
    const place = (i) => {
      const angle = (2 * Math.PI * i) / nodes.length - Math.PI / 2;
      return [ring * Math.cos(angle), ring * Math.sin(angle)];
    };
    const half = ring + 62;
    const places = nodes.map((_, i) => place(i));
    return { nodes, kind, radius, places: places.map(([x, y]) => [x + half, y + ring + title + 30]),
      width: half * 2, height: ring * 2 + title + 90 };
  }
  const columns = Math.max(3, Math.min(Math.floor((width - 24) / cell), Math.ceil(Math.sqrt(nodes.length * 2.2))));
  const rows = Math.ceil(nodes.length / columns);
  return { nodes, kind, radius, width: columns * cell + 16, height: rows * 42 + title + 16,
    places: nodes.map((_, i) => [(i % columns + 0.5) * cell + 8, Math.floor(i / columns) * 42 + title + 20]) };
}

/** Puts islands side by side as the width allows, with a gap that the cut is drawn in. */
function arrange(islands, width) {
  const gap = 44;
  const rows = [];
  for (const one of islands) {
    const row = rows.at(-1);
    if (row && row.width + gap + one.width <= width) {
      row.width += gap + one.width;
      row.islands.push(one);
    } else {
      rows.push({ width: one.width, islands: [one] });
    }
  }
  let y = 4;
  const cuts = [];
  for (const [i, row] of rows.entries()) {
    const height = Math.max(...row.islands.map((one) => one.height));
    if (i > 0 && row.islands[0].kind === "side") cuts.push(["across", y - gap / 2, width]);
    let x = Math.max(0, (width - row.width) / 2);
    for (const [j, one] of row.islands.entries()) {
      if (j > 0 && one.kind === "side") cuts.push(["down", x - gap / 2, y, height]);
      Object.assign(one, { x, y: y + (height - one.height) / 2 });
      x += one.width + gap;
    }
    y += height + gap;
  }
  return { height: Math.max(60, y - gap + 4), cuts };
}

const SIGNS = { joining: "…", leaving: "→", exiting: "⇥", down: "✕", gone: "✕", outside: "◌" };

export class NodeMap {
  #svg = $("map");
  #islands = this.#svg.appendChild(makeSvg("g"));
  #lines = this.#svg.appendChild(makeSvg("path", { class: "mesh" }));
  #missing = this.#svg.appendChild(makeSvg("path", { class: "missing" }));
  #cuts = this.#svg.appendChild(makeSvg("path", { class: "cut" }));
  #nodes = this.#svg.appendChild(makeSvg("g"));

  draw(cluster, found, names, hosts) {
    const out = cluster.nodes.filter((node) => !IN.has(node.status));
    const width = Math.max(280, this.#svg.clientWidth);
    const islands = found.sides.map((nodes) => island(nodes, width, "side"));
    if (out.length) islands.push(island(out, width, "out"));
    const { height, cuts } = arrange(islands, width);
    this.#svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
    this.#svg.style.height = `${height}px`;
    this.#outlines(islands, found, cluster);
    const at = new Map();
    for (const one of islands) {
      one.nodes.forEach((node, i) => at.set(node.node, [one.x + one.places[i][0], one.y + one.places[i][1]]));
    }
    this.#links(found, at, cuts);
    const drawn = islands.flatMap((one) => one.nodes.map((node) => ({ node, small: one.radius < 12 })));
    keyed(this.#nodes, drawn, ({ node }) => node.node, createNode, (group, { node, small }) => {
      const [x, y] = at.get(node.node);
      group.style.transform = `translate(${x}px, ${y}px)`;
      updateNode(group, node, small, cluster, names, hosts.get(node.node));
    });
    say($("sides-text"), describe(found, out, names));
  }

  #outlines(islands, found, cluster) {
    keyed(this.#islands, islands, (one) => one.nodes[0].node, () => {
      const group = makeSvg("g");
      group.append(makeSvg("rect", { rx: 14 }), makeSvg("text", { class: "side" }));
      return group;
    }, (group, one) => {
      const [rect, text] = group.children;
      group.setAttribute("class", `island ${one.kind}`);
      for (const key of ["x", "y", "width", "height"]) rect.setAttribute(key, one[key]);
      text.setAttribute("x", one.x + one.width / 2);
      text.setAttribute("y", one.y + 20);
      const count = one.nodes.filter((node) => !isClient(node)).length;
      const here = one.nodes.some((node) => node.node === cluster.me) ? ", this node’s" : "";
      const client = count < one.nodes.length ? ", with the client" : "";
      say(text, one.kind === "out" ? "out of the cluster"
        : found.sides.length > 1 ? `side of ${count}${here}${client}` : `${count} in touch${client}`);
    });
  }

  #links(found, at, cuts) {
    const line = ([a, b]) => `M${at.get(a.node).join(" ")}L${at.get(b.node).join(" ")}`;
    const missing = new Set(found.links.map(([a, b]) => a.node + b.node));
    let mesh = "";
    for (const side of found.sides) {
      if (side.length > 12) continue;
      for (const [i, a] of side.entries()) {
        for (const b of side.slice(i + 1)) {
          if (!missing.has(a.node + b.node) && !missing.has(b.node + a.node)) mesh += line([a, b]);
        }
      }
    }
    this.#lines.setAttribute("d", mesh);
    // Between sides the gap says it; a line is drawn where a link is missing inside of one.
    const inside = new Map(found.sides.flatMap((side, i) => side.map((node) => [node.node, i])));
    const within = found.links.filter(([a, b]) => inside.get(a.node) === inside.get(b.node));
    this.#missing.setAttribute("d", within.slice(0, 500).map(line).join(""));
    this.#cuts.setAttribute("d", cuts.map(zigzag).join(""));
  }
}

function zigzag([direction, at, from, length]) {
  const steps = [];
  const end = direction === "down" ? from + length : from;
  for (let i = 0, along = direction === "down" ? from : 0; along <= end; i++, along += 12) {
    const off = at + (i % 2 ? 6 : -6);
    steps.push(direction === "down" ? `${off} ${along}` : `${along} ${off}`);
  }
  return `M${steps.join("L")}`;
}

function createNode() {
  const group = makeSvg("g");
  group.append(makeSvg("title"), makeSvg("circle"), makeSvg("text", { class: "sign" }),
    makeSvg("text", { class: "label" }), makeSvg("text", { class: "badge" }));
  return group;
}

function updateNode(group, node, small, cluster, names, hosted) {
  const [title, circle, sign, label, badge] = group.children;
  const marks = [];
  if (node.node === cluster.leader) marks.push("leader");
  if (hosted) marks.push(hosted);
  const me = node.node === cluster.me ? " me" : "";
  const leads = node.node === cluster.leader ? " leads" : "";
  const className = `node ${node.status}${small ? " small" : ""}${me}${leads}`;
  if (group.getAttribute("class") !== className) group.setAttribute("class", className);
  const radius = small ? 8 : 17;
  const fill = IN.has(node.status) ? names.colour(node.node) : "";
  if (group.shown !== `${radius} ${fill}`) {
    group.shown = `${radius} ${fill}`;
    circle.setAttribute("r", radius);
    circle.style.fill = fill;
    label.setAttribute("y", radius + 13);
    badge.setAttribute("y", radius + 27);
  }
  say(sign, SIGNS[node.status] ?? (small ? "" : String(node.up_number || "")));
  const name = names.of(node.node);
  say(label, small && name.length > 9 ? `…${name.slice(-8)}` : name);
  if (node.status !== "up") marks.unshift(node.status);
  const words = small ? "" : marks.join(", ");
  say(badge, words.length > 22 ? `${words.slice(0, 21)}…` : words);
  say(title, [name, node.node, node.status, ...marks, node.why].filter(Boolean).join("\n"));
}

function describe(found, out, names) {
  const list = (nodes) => (nodes.length > 8 ? `${nodes.length} nodes` : nodes.map((n) => names.of(n.node)).join(", "));
  const parts = [];
  if (found.sides.length > 1) {
    parts.push(`Split into ${found.sides.length} sides: ${found.sides.map(list).join(" | ")}.`);
  } else if (found.links.length) {
    const pairs = found.links.slice(0, 4).map((pair) => list(pair));
    parts.push(`Links missing between ${pairs.join("; ")}${found.links.length > 4 ? " and others" : ""}.`);
  } else if (found.sides.length) {
    parts.push("Everybody reaches everybody.");
  }
  if (out.length) parts.push(`Out: ${list(out)}.`);
  return parts.join(" ") || "Nobody is in a cluster here.";
}

/** Each node in words, for whoever does not see the drawing or wants all of it. */
export function listNodes(cluster, names, hosts) {
  const missedBy = new Map();
  for (const { from, to } of cluster.unreachable) {
    const observers = missedBy.get(to) ?? [];
    observers.push(names.of(from));
    missedBy.set(to, observers);
  }
  keyed($("node-list"), cluster.nodes, (node) => node.node, () => {
    const row = make("li");
    row.append(make("strong"), make("span", "status"), make("span", "facts"), make("em"));
    return row;
  }, (row, node) => {
    const [name, status, facts, why] = row.children;
    const missing = missedBy.get(node.node);
    say(name, names.of(node.node));
    say(status, node.status);
    status.dataset.status = node.status;
    say(facts, [
      node.node,
      node.up_number ? `number ${node.up_number}` : null,
      node.node === cluster.leader ? "leader" : null,
      node.node === cluster.oldest ? "oldest" : null,
      node.node === cluster.me ? "this node" : null,
      hosts.get(node.node) ? `hosts ${hosts.get(node.node)}` : null,
      node.roles.length ? node.roles.join(", ") : null,
      node.version ? `version ${node.version}` : null,
      node.protocol ? `protocol ${node.protocol}` : null,
      `${node.status} since ${clock(node.since_ms)}`,
      missing ? `unreachable from ${missing.length > 5 ? `${missing.length} others` : missing.join(", ")}` : null,
    ].filter(Boolean).join(" · "));
    say(why, node.why ?? "");
  });
}
