// The fault controls of the demonstration. Only a server that says that it is one has them.

import { $, say } from "./common.js";

export class Demo {
  #numbers = "";
  #feed;

  constructor(feed) {
    this.#feed = feed;
    $("faults").addEventListener("submit", (event) => event.preventDefault());
    for (const button of $("faults").querySelectorAll("[data-fault]")) {
      button.addEventListener("click", () => this.#inject(button));
    }
  }

  draw(demo) {
    $("demo").hidden = !demo;
    if (!demo) return;
    for (const button of $("faults").querySelectorAll("[data-fault]")) {
      button.hidden = !demo.controls.includes(button.dataset.fault);
    }
    const numbers = demo.processes.map(({ number }) => number).filter((number) => number > 0);
    if (numbers.join() === this.#numbers) return;
    this.#numbers = numbers.join();
    const half = Math.floor(numbers.length / 2);
    $("sides").value = `${numbers.slice(0, half).join(",")} | ${numbers.slice(half).join(",")}`;
    $("whom").replaceChildren(new Option("the worker’s node", "holder"),
      ...numbers.map((number) => new Option(`node ${number}`, String(number))));
  }

  async #inject(button) {
    const { fault } = button.dataset;
    const whom = "all" in button.dataset ? {} : { whom: $("whom").value };
    const bodies = { cut: { sides: $("sides").value }, heal: {}, pause: { ...whom, for: "6s" }, "store-back": {} };
    try {
      const { text } = await this.#feed.post(`/api/demo/${fault}`, bodies[fault] ?? whom);
      say($("answer"), text);
    } catch (error) {
      say($("answer"), `Not done: ${error.message}`);
    }
  }
}
