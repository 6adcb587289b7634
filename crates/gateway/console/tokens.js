// Tokens in colors by how likely they were. Owns the colors' steps and the line about one token.

import { h } from "./dom.js";

/** Probabilities below which a token has the next stronger color. */
const STEPS = [0.9, 0.6, 0.3, 0.1, 0.02];

/** The tokens of an answer. Arrow keys move through them; the line below is about the chosen one. */
export function tokenView(tokens) {
  const about = h("p", { class: "about-token", "aria-live": "polite" }, "Point at a token, or use the arrow keys.");
  const spans = tokens.map((token, index) => {
    const step = STEPS.filter((bound) => Math.exp(token.logprob) < bound).length;
    return h("span", { class: `token p${step}`, "data-index": index }, shown(token.token));
  });
  let chosen = -1;
  const choose = (index) => {
    if (index === chosen || index < 0 || index >= tokens.length) return;
    spans[chosen]?.classList.remove("chosen");
    spans[index].classList.add("chosen");
    chosen = index;
    about.replaceChildren(...description(tokens[index]));
  };
  const point = (event) => {
    if (event.target.dataset.index !== undefined) choose(Number(event.target.dataset.index));
  };
  const press = (event) => {
    const move = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
    if (!move) return;
    event.preventDefault();
    choose(chosen < 0 ? 0 : chosen + move);
  };
  const list = h(
    "div",
    { class: "tokens", tabindex: "0", role: "group", "aria-label": "Tokens", onpointermove: point, onkeydown: press },
    spans,
  );
  return h("div", {}, list, about);
}

function description({ token, logprob, top_logprobs: top = [] }) {
  const others = top.filter((other) => other.token !== token);
  const likely = others.map((other) =>
    h("span", { class: "other" }, name(other.token), ` ${percent(other.logprob)}`),
  );
  return [h("strong", {}, name(token)), ` ${percent(logprob)}`, ...likely];
}

const name = (token) => h("code", {}, JSON.stringify(token).slice(1, -1) || "(nothing)");
const percent = (logprob) => `${(Math.exp(logprob) * 100).toFixed(1)} %`;
/** A line break is seen and is one. */
const shown = (token) => token.replaceAll("\n", "↵\n");
