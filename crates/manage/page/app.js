// The page of the management API: what a node says, drawn as it comes.

import { $, Names, clock, isClient, say } from "./common.js";
import { Demo } from "./demo.js";
import { Feed, SILENCE_MS } from "./feed.js";
import { Leases, drawSingletons, hostsOf } from "./lists.js";
import { NodeMap, listNodes, sides } from "./nodes.js";
import { Shards } from "./shards.js";
import { Timeline } from "./timeline.js";

/** How long a closed stream may take to be open again before that is worth a warning. */
const RECONNECTING_MS = 2000;

const names = new Names();
const timeline = new Timeline(names);
const nodes = new NodeMap();
const leases = new Leases();
const shards = new Shards();
const docs = {};
const changed = new Set();
let found = null;
let scheduled = false;
let complete = false;

const feed = new Feed({
  document(name, doc, received) {
    docs[name] = { doc, received };
    changed.add(name);
    schedule();
  },
  event(event) {
    timeline.add(event);
    schedule();
  },
  missed(count) {
    timeline.note(`${count} events are missing here: the server does not remember them any more`);
    schedule();
  },
  restarted() {
    timeline.note("the server was started anew; what is older is from before");
  },
  denied: askForToken,
});
const demo = new Demo(feed);

/** However much comes, a frame draws the latest of it once. */
function schedule() {
  if (scheduled) return;
  scheduled = true;
  requestAnimationFrame(() => {
    scheduled = false;
    draw();
  });
}

function draw() {
  const cluster = docs.cluster?.doc;
  if (changed.has("cluster")) {
    names.learn(cluster);
    found = sides(cluster);
    drawHead(cluster, found);
    demo.draw(cluster.demo);
  }
  // What a node is called, and what it hosts, stands in two documents.
  if (cluster && (changed.has("cluster") || changed.has("singletons"))) {
    const hosts = hostsOf(docs.singletons?.doc);
    nodes.draw(cluster, found, names, hosts);
    if ($("nodes-all").open) listNodes(cluster, names, hosts);
  }
  if (changed.has("leases")) leases.draw(docs.leases.doc, docs.leases.received);
  if (docs.singletons && (changed.has("singletons") || changed.has("cluster"))) drawSingletons(docs.singletons.doc, names);
  if (docs.shards && (changed.has("shards") || changed.has("cluster"))) shards.draw(docs.shards.doc, names);
  for (const name of changed) $(name === "cluster" ? "nodes" : name).dataset.version = docs[name].doc.version;
  changed.clear();
  if (cluster) timeline.draw();
  if (!complete && Object.keys(docs).length === 4) {
    complete = true;
    requestAnimationFrame(() => setTimeout(() => performance.mark("complete")));
  }
}

function drawHead(cluster, found) {
  const counted = cluster.nodes.filter((node) => !isClient(node));
  const count = (status) => counted.filter((node) => node.status === status).length;
  const others = ["joining", "leaving", "exiting", "down", "gone", "outside"].filter(count);
  const missed = new Set(cluster.unreachable.map(({ to }) => to)).size;
  const torn = found.sides.length > 1 ? `split into ${found.sides.length} sides` : missed ? `${missed} unreachable` : null;
  say($("cluster"), cluster.cluster);
  document.title = `${count("up")} up${torn ? `, ${torn}` : ""} · ${cluster.cluster} · Tenure`;
  say($("summary"), [
    `${count("up")} up`,
    ...others.map((status) => `${count(status)} ${status}`),
    torn,
    cluster.leader ? `leader ${names.of(cluster.leader)}` : "no leader",
    cluster.name ? `this node is ${cluster.name}${cluster.ready ? "" : `, not ready: ${cluster.not_ready}`}` : null,
    cluster.id ? `id ${cluster.id}` : "in no cluster",
  ].filter(Boolean).join(" · "));
  say($("warnings"), cluster.warnings.join(" "));
  $("warnings").hidden = cluster.warnings.length === 0;
  const { strategy, last } = cluster.downing;
  say($("decision"), [
    strategy ? `Splits are settled by ${strategy}.` : "Nothing settles splits here but operators.",
    last ? `Last decision, ${clock(last.time_ms)}${last.by ? `, by ${names.of(last.by)}` : ""}: ${last.text}. ${outcome(last)}` : null,
  ].filter(Boolean).join(" "));
}

function outcome({ outcome, down }) {
  const who = down.length > 8 ? `${down.length} nodes` : down.map((node) => names.of(node)).join(", ");
  if (outcome === "down_self") return "That side ended itself.";
  return who ? `That side goes on; down: ${who}.` : "That side goes on.";
}

/** Twice a second: whether the node still answers, and what runs towards a deadline. */
function tick() {
  leases.tick();
  feed.check();
  const silent = feed.heard === null ? performance.now() : performance.now() - feed.heard;
  const stale = silent > (feed.open ? SILENCE_MS : RECONNECTING_MS) && !$("ask").open;
  if (stale && !document.body.classList.contains("stale")) {
    // Said once: a text that counts would be read out again each second.
    const since = feed.heard === null ? null : clock(Date.now() - silent);
    say($("stale"), since ? `This node has not answered since ${since}. What you see is from then.` : "This node does not answer.");
  } else if (!stale) {
    say($("stale"), "");
  }
  document.body.classList.toggle("stale", stale);
  say($("link"), stale ? "no answer" : feed.open ? "live" : "connecting");
}

function askForToken(why) {
  const { promise, resolve } = Promise.withResolvers();
  say($("ask-why"), why);
  $("ask").addEventListener("close", resolve, { once: true });
  $("ask-form").onsubmit = (event) => {
    event.preventDefault();
    feed.setToken($("token").value);
    $("token").value = "";
    $("ask").close();
  };
  $("ask").showModal();
  return promise;
}

const THEMES = ["system", "light", "dark"];

function setTheme(theme) {
  document.documentElement.dataset.theme = theme;
  localStorage.setItem("theme", theme);
  say($("theme"), `Colours: ${theme}`);
  shards.repaint();
}

$("theme").addEventListener("click", () => {
  const now = THEMES.indexOf(document.documentElement.dataset.theme);
  setTheme(THEMES[(now + 1) % THEMES.length]);
});
setTheme(THEMES.includes(localStorage.getItem("theme")) ? localStorage.getItem("theme") : "system");
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => shards.repaint());
$("nodes-all").addEventListener("toggle", () => {
  if (docs.cluster && $("nodes-all").open) listNodes(docs.cluster.doc, names, hostsOf(docs.singletons?.doc));
});
new ResizeObserver(() => {
  if (docs.cluster) changed.add("cluster");
  schedule();
}).observe($("main"));

setInterval(tick, 500);
feed.run();
