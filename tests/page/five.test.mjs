// What a person sees of five nodes, through a split, a heal and a death.

import assert from "node:assert/strict";
import { after, afterEach, before, beforeEach, test } from "node:test";
import { launch, leastContrast, open, texts, until } from "./browser.mjs";
import { Five } from "./five.mjs";

let browser, five, server, page;
before(async () => (browser = await launch()));
after(() => browser.close());
beforeEach(async () => {
  five = new Five();
  server = await five.listen();
});
afterEach(async () => {
  const wrong = page?.wrong;
  await page?.context().close();
  page = null;
  await five.close();
  assert.deepEqual(wrong, []);
});

const show = async (options) => {
  page = await open(browser, server.url, options);
  await until(page, "#summary", /^5 up · leader/);
};

test("five are up, in one group, and the worker has a host and a token", async () => {
  await show();
  assert.equal(await page.locator(".island.side").count(), 1);
  assert.equal(await page.locator(".island.out").count(), 0);
  await until(page, "#sides-text", /^Everybody reaches everybody\.$/);
  await until(page, "#lease-list", /demo\.ledger.*held by node-1token 1763238\.0/);
  await until(page, "#singleton-list", /workeron node 1/);
  await until(page, ".kind", /64 shards on 5 nodes/);
});

test("the bar of a lease runs towards the deadline, and back when it is renewed", async () => {
  await show();
  // Frame by frame, until it has done both.
  const seen = await page.evaluate(() => new Promise((resolve) => {
    const bar = document.querySelectorAll("#lease-list .bar")[2];
    const [began, seen] = [performance.now(), new Set()];
    let before = bar.getBoundingClientRect().width;
    requestAnimationFrame(function look() {
      const now = bar.getBoundingClientRect().width;
      if (now < before) seen.add("runs");
      if (now > before) seen.add("renewed");
      before = now;
      if (seen.size === 2 || performance.now() - began > 5000) resolve([...seen].sort());
      else requestAnimationFrame(look);
    });
  }));
  assert.deepEqual(seen, ["renewed", "runs"]);
});

test("a cut looks like two groups; the smaller is out, with the sentence why; healed, all are up", async () => {
  await show();
  await page.click("text=Cut");
  await page.waitForFunction(() => document.querySelectorAll(".island.side").length === 2);
  await until(page, "#sides-text", /^Split into 2 sides: .*node 1, node 2/);
  const [left, right] = await page.locator(".island rect").evaluateAll((all) => all.map((rect) => rect.getBoundingClientRect()));
  assert.ok(left.right < right.left || right.right < left.left || left.bottom < right.top || right.bottom < left.top, "they overlap");
  assert.notEqual(await page.locator(".cut").getAttribute("d"), "");
  assert.equal(await page.locator("#warnings").isHidden(), true);
  five.warnings = ["no member has the role workers"];
  five.settle();
  await until(page, "#summary", /3 up · 2 outside/);
  await until(page, "#warnings", /no member has the role workers/);
  five.warnings = [];
  assert.equal(await page.locator(".island.out").count(), 1);
  assert.equal(await page.locator(".node.outside").count(), 2);
  await until(page, "#decision", /2 of 5 members cannot be reached, and 3 are the majority.*down: node 1, node 2/);
  await page.click("#nodes-all summary");
  await until(page, "#node-list em", /2 of 5 members cannot be reached/);
  await until(page, "#events", /decision2 of 5 members cannot be reached/);
  await page.click("text=Heal");
  await page.click("text=Restart all");
  await until(page, "#summary", /^5 up · leader/);
  assert.equal(await page.locator(".island").count(), 1);
});

test("a killed holder is succeeded: a new holder, a higher token, and why", async () => {
  await show();
  const token = async () => Number((await page.locator("#lease-list li").nth(2).locator("code").textContent()).split(".")[0]);
  const before = await token();
  await page.click("text=Kill");
  await until(page, "#lease-list", /demo\.ledger.*held by node-2/);
  assert.ok((await token()) > before, `${await token()} after ${before}`);
  await until(page, "#singleton-list", /workeron node 2/);
  await until(page, "#events", /lost demo\.ledger: expired.*expired/);
  assert.deepEqual(server.posts, [{ name: "demo/kill", body: { whom: "holder" } }]);
});

test("a refused fault is told", async () => {
  await show();
  await page.selectOption("#whom", "2");
  await page.click("text=Pause 6 s");
  await until(page, "#answer", /^Not done: node 2 is gone$/);
});

test("the timeline can be paused and searched", async () => {
  await show();
  await page.click("#pause");
  const before = await page.locator("#events li").count();
  server.happened("other", "while somebody reads");
  await until(page, "#found", /paused, 1 new/);
  assert.equal(await page.locator("#events li").count(), before);
  await page.click("#pause");
  await until(page, "#events li:first-child", /while somebody reads/);
  await page.fill("#search", "LEASE node-1");
  await until(page, "#found", /^1 of \d+$/);
  assert.equal((await texts(page, "#events li")).length, 1);
  await page.fill("#search", "");
  await until(page, "#events", /while somebody reads/);
});

test("what a node says is text, whatever it contains", async () => {
  await show();
  server.happened("other", "<img src=x onerror=alert(1)>");
  await until(page, "#events", /<img src=x/);
  assert.equal(await page.locator("#events img").count(), 0);
});

test("when the node stops answering, that is said; and taken back when it answers again", async () => {
  await show();
  server.freeze(true);
  await until(page, "#stale", /^This node has not answered since \d\d:\d\d:\d\d\. What you see is from then\.$/);
  assert.equal(await page.locator("#stale").getAttribute("role"), "alert");
  await until(page, "#link", /no answer/);
  server.freeze(false);
  await until(page, "#stale", /^$/);
  await until(page, "#link", /live/);
});

test("a token is asked for, kept out of the address, and sent", async () => {
  server.readToken = "s3cret";
  page = await open(browser, server.url);
  await page.waitForSelector("#ask[open]");
  await page.fill("#token", "s3cret");
  await page.keyboard.press("Enter");
  await until(page, "#summary", /^5 up/);
  await page.context().close();
  page = await open(browser, `${server.url}#token=s3cret`);
  await until(page, "#summary", /^5 up/);
  assert.equal(page.url(), server.url);
});

test("at phone width nothing is cut off or too small to touch", async () => {
  await show({ viewport: { width: 360, height: 740 }, hasTouch: true });
  await page.click("text=Cut");
  await page.waitForFunction(() => document.querySelectorAll(".island.side").length === 2);
  assert.equal(await page.evaluate(() => document.documentElement.scrollWidth), 360);
  const outside = await page.evaluate(() => [...document.querySelectorAll("main *, #demo *, header *")]
    .filter((e) => e.checkVisibility() && !e.closest(".scroll"))
    .filter((e) => e.getBoundingClientRect().right > 360.5).map((e) => e.outerHTML.slice(0, 80)));
  assert.deepEqual(outside, []);
  const small = await page.evaluate(() => [...document.querySelectorAll("button, input, select, summary")]
    .filter((e) => e.checkVisibility()).filter((e) => e.getBoundingClientRect().height < 24).map((e) => e.id));
  assert.deepEqual(small, []);
});

test("everything can be reached and worked by keyboard, and it shows where one is", async () => {
  await show();
  const order = [];
  for (let i = 0; i < 60; i++) {
    await page.keyboard.press("Tab");
    const at = await page.evaluate(() => {
      const e = document.activeElement, { outlineStyle, outlineWidth } = getComputedStyle(e);
      if (e === document.body) return null;
      const what = e.id || e.dataset.fault || e.tagName.toLowerCase();
      return { what, seen: outlineStyle !== "none" && parseFloat(outlineWidth) >= 2 };
    });
    if (!at) break;
    assert.ok(at.seen, `${at.what} does not show that it is focused`);
    order.push(at.what);
  }
  assert.deepEqual(order, ["a", "theme", "sides", "cut", "heal", "whom", "kill", "pause", "leave", "store-away",
    "store-away", "store-back", "restart", "summary", "lease-list", "select", "canvas", "pause", "search", "events"]);
  await page.focus("canvas");
  await page.keyboard.press("ArrowRight");
  await page.keyboard.press("ArrowRight");
  await until(page, ".read", /^shard 1: node 2$/);
  await page.focus("#pause");
  await page.keyboard.press("Space");
  await until(page, "#found", /paused/);
  await page.focus("#nodes-all summary");
  await page.keyboard.press("Enter");
  await until(page, "#node-list", /node 5up127\.0\.0\.6:7400#/);
});

for (const colorScheme of ["light", "dark"]) {
  test(`text can be read in ${colorScheme}, also of who is out`, async () => {
    await show({ colorScheme });
    await page.click("text=Cut");
    await until(page, "#sides-text", /^Split/);
    five.settle();
    await page.waitForSelector(".island.out");
    await page.click("#nodes-all summary");
    const least = await leastContrast(page);
    assert.ok(least.ratio >= 4.5, JSON.stringify(least));
  });
}

test("the colours are the system’s, or as chosen, and stay so", async () => {
  await show({ colorScheme: "dark" });
  const paper = () => page.evaluate(() => getComputedStyle(document.documentElement).backgroundColor);
  const dark = await paper();
  await page.click("#theme");
  await until(page, "#theme", /light/);
  assert.notEqual(await paper(), dark);
  await page.reload();
  await until(page, "#theme", /light/);
  await page.click("#theme");
  assert.equal(await paper(), dark);
});

test("sides are told apart by who is in touch, not by who complains", async () => {
  await show();
  const sides = (nodes, unreachable) => page.evaluate(async ([nodes, unreachable]) => {
    const { sides } = await import("/nodes.js");
    const found = sides({ nodes: nodes.map(([node, seen = true, status = "up"]) => ({ node, seen, status })),
      unreachable: unreachable.map(([from, to]) => ({ from, to })) });
    return found.sides.map((side) => side.map(({ node }) => node).join(""));
  }, [nodes, unreachable]);
  const four = [["a"], ["b"], ["c"], ["d"]];
  assert.deepEqual(await sides(four, []), ["abcd"]);
  // One link is missing: they are in touch through the others.
  assert.deepEqual(await sides(four, [["a", "b"], ["b", "a"]]), ["abcd"]);
  // One-way is enough, and what a node that is down said does not count.
  assert.deepEqual(await sides(four, [["a", "c"], ["b", "c"], ["a", "d"], ["b", "d"]]), ["ab", "cd"]);
  assert.deepEqual(await sides([["a"], ["b"], ["c", true, "down"]], [["c", "a"], ["a", "c"]]), ["ab"]);
  // Nobody watches everybody: d is missed by a alone, and does not share a's view; then it is beyond the cut.
  assert.deepEqual(await sides([["a"], ["b"], ["c"], ["d", false]], [["a", "d"]]), ["abc", "d"]);
  // It has not heard the latest yet, but nobody misses it.
  assert.deepEqual(await sides([["a"], ["b"], ["c", false]], []), ["abc"]);
});
