// Pictures for the documentation, into the directory that is named.

import { launch, open, until } from "./browser.mjs";
import { Five } from "./five.mjs";
import { Hundred } from "./hundred.mjs";

const directory = process.argv[2];
const browser = await launch();

async function shoot(name, scenario, options, act = async () => {}, whole = true) {
  const server = await scenario.listen();
  const page = await open(browser, server.url, options);
  await until(page, "#summary", /\d up/);
  await page.waitForFunction(() => performance.getEntriesByName("complete").length);
  await act(page, scenario);
  // Until whatever glides has arrived.
  await page.waitForTimeout(700);
  await page.screenshot({ path: `${directory}/${name}.png`, fullPage: whole });
  await page.context().close();
  await scenario.close();
}

const cut = async (page) => {
  await page.click("text=Cut");
  await page.waitForFunction(() => document.querySelectorAll(".island.side").length === 2);
};
const downed = async (page, five) => {
  await cut(page);
  five.settle();
  await page.waitForSelector(".island.out");
};
const split = (page) => page.waitForFunction(() => document.querySelectorAll(".island.side").length === 2);

const wide = { viewport: { width: 1200, height: 900 } };
try {
  await shoot("page-light", new Five(), { ...wide, colorScheme: "light" });
  await shoot("page-split-light", new Five(), { ...wide, colorScheme: "light" }, cut);
  await shoot("page-downed-dark", new Five(), { ...wide, colorScheme: "dark" }, downed);
  await shoot("page-phone", new Five(), { viewport: { width: 360, height: 740 }, deviceScaleFactor: 2, colorScheme: "dark" }, cut);
  await shoot("page-hundred-dark", new Hundred(), { ...wide, colorScheme: "dark" }, split);
} finally {
  await browser.close();
}
