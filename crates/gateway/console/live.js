// The page Live: what the gateway and its workers do now. Owns which metrics are shown and how often they are read.

import { h } from "./dom.js";
import { figure, route, time } from "./format.js";
import { by, parse, quantile, rate, total } from "./metrics.js";
import { Plot } from "./plot.js";
import { ask, askJson } from "./server.js";
import { table } from "./table.js";

const EVERY_MS = 1000;
/** Readings that a figure spans: what happens a few times a second would jump. */
const SPAN = 5;
const GATEWAY = "inflight_gateway_";
/** How the routes begin that orchestrators, Prometheus and this page poll. */
const POLLED = ["/metrics", "/health", "/v2/health", "/ping", "/console", "/docs", "/openapi.json", "other"];
const isClients = ({ route = "" }) => route !== "/" && !POLLED.some((polled) => route.startsWith(polled));
const isFailure = (labels) => isClients(labels) && labels.status >= "400";

/** Fills the section of the page. Returns what is to be called when it is shown. */
export function livePage(section) {
  let readings = [];
  let timer = null;
  const tokens = new Plot("Tokens a second", ["generated", "prompt"], figure);
  const requests = new Plot("Requests", ["open", "a second"], figure);
  const first = new Plot("Time to the first token", ["median", "99 %"], time);
  const between = new Plot("Time between tokens", ["median", "99 %"], time);
  const problem = h("p", { class: "error", role: "alert" });
  const open = h("div");
  const workers = h("div");
  const errors = h("div");
  const limits = h("div");
  section.append(
    h(
      "div",
      { class: "live" },
      problem,
      h("h2", { class: "unseen" }, "Now"),
      h(
        "div",
        { class: "plots" },
        [tokens, requests, first, between].map((plot) => plot.element),
      ),
      h("h2", {}, "Open requests"),
      open,
      h("h2", {}, "Workers"),
      workers,
      h("div", { class: "pair" }, h("div", {}, h("h2", {}, "Answers since the start"), errors), limits),
    ),
  );

  return () => {
    clearTimeout(timer);
    readings = [];
    return look();
  };

  async function look() {
    try {
      const [page, status] = await Promise.all([readMetrics(), askJson("console/status")]);
      problem.textContent = "";
      if (readings.length) draw(readings[0], page);
      readings = [...readings, page].slice(-SPAN);
      drawStatus(status);
      errors.replaceChildren(answers(page));
    } catch (error) {
      problem.textContent = error.message;
      readings = [];
      // The key is asked for; its answer shows the page again.
      if (error.status === 401) return;
    }
    clearTimeout(timer);
    if (!section.hidden) timer = setTimeout(() => (document.hidden ? rest() : look()), EVERY_MS);
  }

  /** Nobody looks: goes on when somebody does. */
  function rest() {
    readings = [];
    document.addEventListener("visibilitychange", () => section.hidden || look(), { once: true });
  }

  function draw(old, now) {
    const milliseconds = (name, share) => {
      const seconds = quantile(old, now, GATEWAY + name, share);
      return seconds === null ? null : seconds * 1000;
    };
    const pair = (name) => [milliseconds(name, 0.5), milliseconds(name, 0.99)];
    tokens.push([
      rate(old, now, `${GATEWAY}generated_tokens_total`),
      rate(old, now, `${GATEWAY}prompt_tokens_total`),
    ]);
    requests.push([total(now, `${GATEWAY}active_requests`), rate(old, now, `${GATEWAY}requests_total`, isClients)]);
    first.push(pair("time_to_first_token_seconds"));
    between.push(pair("inter_token_time_seconds"));
  }

  function drawStatus(status) {
    open.replaceChildren(openTable(status.open));
    workers.replaceChildren(workerTable(status.workers));
    limits.replaceChildren(...(status.key ? [h("h2", {}, "Limits of this key"), limitTable(status.key)] : []));
  }
}

async function readMetrics() {
  const response = await ask("metrics", { accept: "text/plain" });
  return parse(await response.text(), performance.now());
}

function openTable({ requests, count, waiting }) {
  const rows = requests.map((one) => [
    h("a", { href: `#requests/${encodeURIComponent(one.id)}` }, one.id),
    one.model,
    route(one),
    one.worker ?? "–",
    one.first_token_ms === null ? "waits for its first token" : "answers",
    time(one.age_ms),
    one.prompt_tokens ?? "–",
    one.completion_tokens ?? "–",
  ]);
  const shown = table(
    ["Request", "Model", "Sent to", "Worker", "State", "#Age", "#Tokens in", "#Tokens out"],
    rows,
    "None is open.",
  );
  const more = count > requests.length ? ` The ${requests.length} oldest are shown.` : "";
  return h(
    "div",
    {},
    shown,
    count ? h("p", { class: "hint" }, `${count} open, ${waiting} without a token.${more}`) : "",
  );
}

function workerTable(workers) {
  const health = ({ ready, reason }) =>
    h("span", {}, h("span", { class: ready ? "dot good" : "dot" }), ready ? "ready" : reason || "not ready");
  const rows = workers.map((worker) => [
    worker.address,
    health(worker),
    worker.active,
    lines(worker.models, (model) => model.name),
    lines(worker.models, (model) => model.executor || "Triton"),
    lines(worker.models, cache),
    lines(worker.models, (model) => model.adapters.join(", ") || "–"),
    lines(worker.models, (model) => model.version.slice(0, 12) || "–"),
  ]);
  const heads = ["Worker", "Health", "#Open", "Models", "Executor", "KV cache", "Adapters", "Version"];
  return table(heads, rows, "No worker is configured, or this key may not see them.");
}

/** How full a model's KV cache is. Plain Triton does not report it, and some executors have none. */
function cache({ cache }) {
  if (!cache) return "unknown";
  return `${figure((100 * cache.used) / cache.blocks)} % of ${figure(cache.blocks)} blocks`;
}

const lines = (items, text) => items.map((item) => h("div", {}, text(item)));

function answers(page) {
  const ends = by(page, `${GATEWAY}generations_total`, "end");
  const failures = by(page, `${GATEWAY}requests_total`, "status", isFailure);
  const moved = total(page, `${GATEWAY}retries_total`) + total(page, `${GATEWAY}resumes_total`);
  const rows = [
    ...[...ends].map(([end, count]) => [`Ended: ${end}`, figure(count)]),
    ...[...failures].map(([status, count]) => [`Status ${status}`, figure(count)]),
    ...(moved ? [["Moved to another worker", figure(moved)]] : []),
  ];
  return table(["Answers", "#Count"], rows, "None yet.");
}

function limitTable({ requests, tokens }) {
  const row = (name, rate) => (rate ? [[name, rate.limit, rate.remaining, time(rate.reset_ms)]] : []);
  const rows = [...row("Requests a minute", requests), ...row("Tokens a minute", tokens)];
  return table(["Limit", "#Most", "#Left", "#All back in"], rows, "It has none.");
}
