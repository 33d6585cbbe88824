// Pictures for the documentation of what the demonstration cannot show, into the directory that is named; the
// others are taken by demo.test.mjs.

import { launch, open, until } from "./browser.mjs";
import { Hundred } from "./hundred.mjs";

const directory = process.argv[2];
const browser = await launch();
const scenario = new Hundred();
try {
  const server = await scenario.listen();
  const page = await open(browser, server.url, { colorScheme: "dark" });
  await until(page, "#summary", /\d up/);
  await page.waitForFunction(() => performance.getEntriesByName("complete").length);
  await page.waitForFunction(() => document.querySelectorAll(".island.side").length === 2);
  // Until whatever glides has arrived.
  await page.waitForTimeout(700);
  await page.screenshot({ path: `${directory}/page-hundred-dark.png`, fullPage: true });
} finally {
  await browser.close();
  await scenario.close();
}
