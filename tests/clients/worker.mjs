// As worker.py: holds the lease `job`, and says in a log what it does. In the place of a lock it has an address
// that is free only when whoever listened there has ended or closed it.

import { appendFileSync } from "node:fs";
import { createServer } from "node:net";
import { setTimeout as sleep } from "node:timers/promises";

const { Lost, withLease } = await import(process.env.TENURE_CLIENT);
const behaviour = process.argv[2];
if (behaviour === "deaf") process.on("SIGTERM", () => {});
const say = (text) => appendFileSync("log", `${text}\n`);

const listen = () =>
  new Promise((resolve) => {
    const server = createServer();
    server.on("error", () => resolve(null));
    server.listen(`\0${process.cwd()}`, () => resolve(server));
  });

for (;;) {
  try {
    await withLease("job", async (lead) => {
      const probe = await listen();
      if (!probe) say(`overlap ${lead.token.term}`);
      say(`start ${lead.token.term} ${process.pid}`);
      while (lead.held() || behaviour === "deaf") await sleep(5);
      say(`end ${lead.token.term}`);
      await new Promise((resolve) => (probe ? probe.close(resolve) : resolve()));
    });
  } catch (error) {
    if (error.code === "no_tenure") process.exit(3);
    say(error instanceof Lost ? `lost ${error.code}` : `error ${error.code} ${error.message}`);
    await sleep(50);
  }
}
