// The console: which page is shown, the key, and whether the gateway is ready. The address after `#` is the page.

import { chatPage } from "./chat.js";
import { h } from "./dom.js";
import { livePage } from "./live.js";
import { requestsPage } from "./requests.js";
import { ask, getKey, setKey } from "./server.js";

const HEALTH_MS = 5000;

const section = (name) => document.getElementById(name);
const pages = {
  chat: chatPage(section("chat")),
  live: livePage(section("live")),
  requests: requestsPage(section("requests")),
};

/** Shows the page of the address; its part behind a slash is the page's own. */
function show() {
  const [name, rest = ""] = location.hash.slice(1).split(/\/(.*)/s);
  const shown = name in pages ? name : "chat";
  for (const other of Object.keys(pages)) section(other).hidden = other !== shown;
  for (const link of document.querySelectorAll(".bar nav a")) {
    if (link.hash === `#${shown}`) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  void pages[shown](decodeURIComponent(rest));
}

function askForKey(message = "") {
  const dialog = section("key-dialog");
  if (dialog.open) return;
  const error = section("key-error");
  error.textContent = message;
  error.hidden = message === "";
  section("key-input").value = getKey();
  dialog.returnValue = "cancel";
  dialog.showModal();
}

section("key-dialog").addEventListener("close", ({ target }) => {
  if (target.returnValue === "cancel") return;
  setKey(target.returnValue === "save" ? section("key-input").value.trim() : "");
  section("key-input").value = "";
  void health();
  show();
});
section("key-button").addEventListener("click", () => askForKey());
window.addEventListener("key-needed", ({ detail }) => askForKey(detail));
window.addEventListener("hashchange", show);

async function health() {
  let told;
  try {
    const { status, reason } = await (await ask("health/ready", { anyStatus: true })).json();
    told = status === "ready" ? "Ready" : (reason ?? status);
  } catch (error) {
    told = error.message;
  }
  const text = section("server").textContent;
  if (text === told) return;
  section("server").replaceChildren(h("span", { class: told === "Ready" ? "dot good" : "dot" }), told);
}

show();
void health();
setInterval(() => document.hidden || void health(), HEALTH_MS);
