// The page Requests: the latest requests that have ended, and the way that one of them went.

import { h, labeled } from "./dom.js";
import { route, time } from "./format.js";
import { askJson } from "./server.js";
import { table } from "./table.js";

/** What was wrong with a worker, by the gateway's words. */
const WHY = {
  unavailable: "was lost, or gave the request up",
  full: "was full",
  silent: "had stopped answering",
  leaving: "was about to end",
};

/** What a status says of a refusal. */
const REFUSED = {
  400: "the request is wrong",
  403: "this key, or this page, may not do that",
  404: "there is no such model or path",
  408: "the body did not come in time",
  413: "the body is too large",
  415: "the body is not JSON",
  429: "a limit is reached: of the gateway, or of this key",
  500: "the server has a fault: its log has the reason",
  501: "the server does not do that",
  503: "no worker could take it",
  504: "it took longer than it may",
  529: "no worker could take it",
};

/** Fills the section of the page. Returns what is to be called when it is shown, with a request's id or without. */
export function requestsPage(section) {
  const input = h("input", { type: "search", class: "mono", spellcheck: false, autocomplete: "off" });
  const find = (event) => {
    event.preventDefault();
    location.hash = `requests/${encodeURIComponent(input.value.trim())}`;
  };
  const shown = h("div");
  const form = h(
    "form",
    { class: "find", onsubmit: find },
    labeled("Request id", input),
    h("button", { type: "submit" }, "Show"),
  );
  section.append(h("div", { class: "live" }, form, shown));

  return async (id) => {
    input.value = id;
    try {
      const { requests } = await askJson(`console/requests${id ? `?id=${encodeURIComponent(id)}` : ""}`);
      shown.replaceChildren(...(id ? one(id, requests) : list(requests)));
    } catch (error) {
      shown.replaceChildren(h("p", { class: "error", role: "alert" }, error.message));
    }
  };
}

function list(requests) {
  const rows = requests.map((request) => [
    h("a", { href: `#requests/${encodeURIComponent(request.id)}` }, request.id),
    new Date(request.ended_s * 1000).toLocaleTimeString([], { hour12: false }),
    request.model || "–",
    route(request),
    request.finish === "refused" ? `refused: ${why(request)}` : request.finish,
    request.prompt_tokens ?? "–",
    request.finish === "refused" ? "–" : (request.completion_tokens ?? "–"),
    time(request.first_token_ms),
    time(request.total_ms),
    request.workers.length > 1 ? `${request.workers.length} workers` : "",
  ]);
  const heads = ["Request", "Ended", "Model", "Sent to", "End", "#Tokens in", "#Tokens out", "#First token", "#In all", "Moved"];
  return [h("h2", {}, "Latest requests"), table(heads, rows, "None has ended yet.")];
}

function one(id, requests) {
  const request = requests[0];
  if (!request) {
    const words = `No request \`${id}\` of this key has ended lately. The gateway keeps the latest few hundred.`;
    return [h("p", { class: "hint" }, words)];
  }
  const { prepared_ms, first_token_ms, total_ms, prompt_tokens, cached_tokens, completion_tokens } = request;
  const each =
    completion_tokens > 1 && first_token_ms !== null ? (total_ms - first_token_ms) / (completion_tokens - 1) : null;
  const facts = [
    ["Model", request.model || "not read"],
    ["Sent to", request.route],
    ["Ended", `${new Date(request.ended_s * 1000).toLocaleString()}: ${end(request)}`],
    ["Prompt", `${prompt_tokens ?? "unknown"} tokens, ${cached_tokens} of them cached`],
    ["Answer", `${completion_tokens ?? "unknown"} tokens${each === null ? "" : `, one every ${time(each)}`}`],
  ].filter(([name]) => request.finish !== "refused" || !["Prompt", "Answer"].includes(name));
  return [
    h("h2", {}, "The way of this request"),
    h("dl", { class: "facts" }, ...facts.flatMap(([name, value]) => [h("dt", {}, name), h("dd", {}, value)])),
    ...(request.finish === "refused" ? [] : [bar(prepared_ms, first_token_ms, total_ms)]),
    table(["When", "What"], steps(request), ""),
  ];
}

/** Why a request was refused, as far as its client's text is not needed for it. */
function why({ status, code, param }) {
  const words = REFUSED[status] ?? `status ${status}`;
  const more = [param && `field ${param}`, code].filter(Boolean).join(", ");
  return more ? `${words} (${more})` : words;
}

function end(request) {
  const { finish, status } = request;
  if (finish === "refused") return `refused with status ${status}: ${why(request)}`;
  if (finish === "error") return `failed with status ${status}`;
  if (finish === "cancelled") return "its client left, or stopped it";
  return finish === "stop" || finish === "answered" ? "whole" : "cut by its limit on tokens";
}

/** Where the time went, as parts of a bar. */
function bar(prepared, first, total) {
  const parts = [
    ["prepared", prepared, "read, rendered, tokenized"],
    ["waited", (first ?? total) - prepared, "queue and prompt, at the worker"],
    ["generated", first === null ? 0 : total - first, "from the first token to the last"],
  ].filter(([, span]) => span > 0);
  const boxes = parts.map(([name, span]) => {
    const box = h("span", { class: `part ${name}` });
    box.style.flexGrow = span;
    return box;
  });
  const legend = parts.map(([name, span, what]) => [
    h("dt", { class: name }, `${name} ${time(span)}`),
    h("dd", {}, what),
  ]);
  return h(
    "div",
    {},
    h("div", { class: "way", "aria-hidden": "true" }, boxes),
    h("dl", { class: "legend" }, ...legend.flat()),
  );
}

function steps(request) {
  const rows = [[0, "arrived"]];
  for (const { address, sent_ms, because } of request.workers) {
    rows.push([
      sent_ms,
      because ? `moved to ${address}: the worker before ${WHY[because] ?? because}` : `sent to ${address}`,
    ]);
  }
  if (request.first_token_ms !== null) rows.push([request.first_token_ms, "first token"]);
  rows.sort(([one], [other]) => one - other);
  rows.push([request.total_ms, `ended: ${end(request)}`]);
  return rows.map(([at, what]) => [time(at), what]);
}
