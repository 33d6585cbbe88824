// The demonstration on its page: five real nodes, cut, healed, and their worker's node killed. With
// TENURE_PAGE_SHOTS it leaves pictures of that in this directory.

import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import { launch, open, until } from "./browser.mjs";
import { start } from "./demo.mjs";

const SHOTS = process.env.TENURE_PAGE_SHOTS;
let browser, demo, page, phone;
before(async () => {
  browser = await launch();
  demo = await start("--nodes", "5", "--sharding", "--rate", "500");
  // Nothing glides, so that a picture can be taken at once.
  page = await open(browser, demo.url, { reducedMotion: "reduce", colorScheme: "light" });
  page.setDefaultTimeout(40_000);
  const small = { viewport: { width: 360, height: 740 }, deviceScaleFactor: 2 };
  if (SHOTS) phone = await open(browser, demo.url, { ...small, reducedMotion: "reduce", colorScheme: "dark" });
});
after(async () => {
  await browser.close();
  await demo?.end();
});

const whole = /^5 up · leader/;
const ledger = () => page.evaluate(() => {
  const row = [...document.querySelectorAll("#lease-list li")].find((row) => row.textContent.startsWith("demo.ledger"));
  return { holder: row.querySelector(".holder").textContent, term: Number(row.querySelector("code").textContent.split(".")[0]) };
});

const shoot = (page, name) => SHOTS && page.screenshot({ path: `${SHOTS}/${name}.png`, fullPage: true });

test("five nodes are up, and one of them works", async () => {
  await until(page, "#summary", whole);
  await until(page, "#singleton-list", /^ledgeron node-\d/);
  await until(page, "#sides-text", /^Everybody reaches everybody\.$/);
  assert.equal(await page.locator(".island").count(), 1);
  await until(page, "#lease-list", /demo\.ledger.*held by node-\d/);
  assert.ok(!page.url().includes("token"), "the token has left the address");
  await shoot(page, "page-light");
});

test("its shards are on all five, and each square says where", async () => {
  await until(page, "#kinds", /^counters64 shards on 5 nodes · 12 to 13 each · coordinator node-\d/);
  await page.focus("#kinds canvas");
  await page.keyboard.press("End");
  await until(page, "#kinds .read", /^shard 63: node-\d$/);
  // Nothing can be broken before every shard was at work.
  await until(page, "#events", /5 nodes are up/);
});

test("a cut looks like two groups, and the smaller one is out, with the sentence why", async () => {
  await page.fill("#sides", "1,2 | 3,4,5");
  await page.click("text=Cut");
  // It is settled soon: what is to be seen of it is looked at in one go.
  await page.waitForFunction(() => document.querySelectorAll(".island.side").length === 2
    && /^Split into 2 sides: .*node-1, node-2/.test(document.getElementById("sides-text").textContent));
  await Promise.all([shoot(page, "page-split-light"), shoot(phone, "page-phone")]);
  await until(page, "#summary", /^3 up · 2 (down|outside|gone)/);
  await page.waitForSelector(".island.out");
  await until(page, "#decision", /down: node-1, node-2/);
  const sentence = (await page.locator("#decision").textContent()).match(/Last decision, [^:]*:[^:]*:[^:]*: (.*?)\. That side/)[1];
  await page.click("#nodes-all summary");
  await until(page, "#node-list em", new RegExp(sentence.replace(/[.*+?^${}()|[\]\\]/g, "\\$&")));
  const out = await page.locator("#node-list li:has(em:not(:empty)) strong").allTextContents();
  assert.deepEqual(out.sort(), ["node-1", "node-2"]);
  await until(page, "#singleton-list", /on node-[345]/);
  await page.click("#nodes-all summary");
  await page.emulateMedia({ colorScheme: "dark" });
  await shoot(page, "page-downed-dark");
});

test("healed, and what is gone started again, all five are up", async () => {
  await page.click("text=Heal");
  await page.click("text=Restart all");
  await until(page, "#summary", whole);
  await page.waitForFunction(() => document.querySelectorAll(".island").length === 1);
});

test("a killed holder is succeeded: another holder, a higher token, and why", async () => {
  await until(page, "#lease-list", /demo\.ledger.*held by node-\d/);
  const before = await ledger();
  await page.fill("#search", "");
  await page.click("text=Kill");
  await page.waitForFunction(({ holder, term }) => {
    const row = [...document.querySelectorAll("#lease-list li")].find((row) => row.textContent.startsWith("demo.ledger"));
    return row.querySelector(".holder").textContent !== holder && /held by/.test(row.textContent)
      && Number(row.querySelector("code").textContent.split(".")[0]) > term;
  }, before);
  const after = await ledger();
  assert.ok(after.term > before.term, `${JSON.stringify(after)} after ${JSON.stringify(before)}`);
  const number = after.holder.match(/node-(\d)/)[1];
  await until(page, "#singleton-list", new RegExp(`on node-${number}`));
  // Newest first: it came after the kill.
  await page.waitForFunction(() => {
    const events = [...document.querySelectorAll("#events li")].map((event) => event.textContent);
    return events.slice(0, events.findIndex((text) => /kill/.test(text))).some((text) => /expired/.test(text));
  });
  await shoot(page, "page-killed-dark");
  assert.deepEqual(page.wrong, []);
});
