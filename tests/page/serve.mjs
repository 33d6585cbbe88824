// Serves the page on loopback with one of the scripts, until it is interrupted.

import { Five } from "./five.mjs";
import { Hundred } from "./hundred.mjs";

const scenarios = { five: Five, hundred: Hundred };
const Scenario = scenarios[process.argv[2]];
if (!Scenario) {
  console.error(`there are: ${Object.keys(scenarios).join(", ")}`);
  process.exit(64);
}
const { url } = await new Scenario().listen();
console.log(url);
