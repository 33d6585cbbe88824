// Chromium, and how tests wait for what it shows.

import { chromium } from "playwright-core";

export const launch = () => chromium.launch({
  executablePath: process.env.TENURE_CHROMIUM ?? "/usr/bin/chromium",
  // Its sandbox cannot be had as root; a graphics card there is none.
  args: ["--disable-gpu", ...(process.getuid() === 0 ? ["--no-sandbox"] : [])],
});

/** A page in a context of its own; anything that goes wrong in it, or leaves its server, is noted. */
export async function open(browser, url, options = {}) {
  const context = await browser.newContext({ viewport: { width: 1200, height: 900 }, ...options });
  const page = await context.newPage();
  page.setDefaultTimeout(20_000);
  page.wrong = [];
  page.on("pageerror", (error) => page.wrong.push(String(error)));
  page.on("console", (message) => {
    // What the browser itself says about an answer such as 401, or none, is no fault of the page.
    if (message.type() === "error" && !/Failed to load resource/.test(message.text())) page.wrong.push(message.text());
  });
  page.on("request", (request) => {
    const to = request.url();
    if (!to.startsWith(new URL(url).origin) && !to.startsWith("data:")) page.wrong.push(`asked ${to}`);
  });
  await page.goto(url);
  return page;
}

/** Waits until the text of what `selector` finds matches; says what it was otherwise. */
export async function until(page, selector, pattern) {
  const wanted = { selector, source: pattern.source, flags: pattern.flags };
  const found = ({ selector, source, flags }) =>
    new RegExp(source, flags).test([...document.querySelectorAll(selector)].map((e) => e.textContent).join("\n"));
  await page.waitForFunction(found, wanted).catch(async () => {
    throw new Error(`${selector} is not ${pattern}, but: ${await texts(page, selector)}`);
  });
}

export const texts = (page, selector) => page.locator(selector).allTextContents();

/** The least contrast of any text that is shown, and whose it is. WCAG's formula. */
export const leastContrast = (page) => page.evaluate(() => {
  const canvas = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
  const rgb = (colour) => {
    canvas.clearRect(0, 0, 1, 1);
    canvas.fillStyle = colour;
    canvas.fillRect(0, 0, 1, 1);
    return [...canvas.getImageData(0, 0, 1, 1).data];
  };
  const luminance = ([r, g, b]) => [r, g, b].map((v) => v / 255)
    .map((v) => (v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4))
    .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
  const ratio = (a, b) => {
    const [low, high] = [luminance(a), luminance(b)].sort((x, y) => x - y);
    return (high + 0.05) / (low + 0.05);
  };
  const behind = (element) => {
    const circle = element.classList.contains("sign") && element.parentNode.querySelector("circle");
    if (circle && getComputedStyle(circle).fillOpacity === "1") return rgb(getComputedStyle(circle).fill);
    for (let at = element; at; at = at.parentElement) {
      const colour = rgb(getComputedStyle(at).backgroundColor);
      if (colour[3] === 255) return colour;
    }
    return rgb("white");
  };
  let least = { ratio: 21, text: "" };
  const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (texts.nextNode()) {
    const text = texts.currentNode.data.trim(), element = texts.currentNode.parentElement;
    if (!text || element.closest("noscript, title, option") || !element.checkVisibility()) continue;
    const style = getComputedStyle(element);
    const colour = element instanceof SVGElement ? style.fill : style.color;
    const found = ratio(rgb(colour), behind(element));
    if (found < least.ratio) least = { ratio: found, text, colour };
  }
  return least;
});
