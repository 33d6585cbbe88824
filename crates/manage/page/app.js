"use strict";
// Shows the cluster's document as it is.
async function show() {
  const token = new URLSearchParams(location.hash.slice(1)).get("token");
  const headers = token ? { Authorization: `Bearer ${token}` } : {};
  const answer = await fetch("/api/cluster", { headers });
  document.getElementById("cluster").textContent = JSON.stringify(await answer.json(), null, 2);
}
show();
setInterval(show, 1000);
