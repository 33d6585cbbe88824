// The demonstration itself: real processes, whose page it is.

import { spawn } from "node:child_process";
import { createInterface } from "node:readline";

/** Starts it; `url` is the page's, with the token for its buttons. */
export async function start(...args) {
  const tenure = process.env.TENURE_PROGRAM;
  if (!tenure) throw new Error("TENURE_PROGRAM is the program to show");
  const demo = spawn(tenure, ["demo", "--json", "--page", "127.0.0.1:0", ...args], { stdio: ["ignore", "ignore", "pipe"] });
  const ended = new Promise((resolve) => demo.once("exit", resolve));
  const said = [];
  const url = await new Promise((resolve, reject) => {
    createInterface({ input: demo.stderr }).on("line", (line) => {
      said.push(line);
      if (line.startsWith("page: ")) resolve(line.slice("page: ".length));
    });
    ended.then((code) => reject(new Error(`it ended with ${code}: ${said.join("\n")}`)));
  });
  const end = async () => {
    demo.kill("SIGTERM");
    await ended;
  };
  return { url, said, end };
}
