// One turn of a conversation as people see it. Owns the elements of a turn and its buttons; what they do is the
// conversation's.

import { summary } from "./answer.js";
import { button, h, labeled } from "./dom.js";
import { blocks } from "./text.js";
import { tokenView } from "./tokens.js";

/** The element of a turn of the user. `act` has `edit(text)`. */
export function userMessage(turn, act) {
  const body = h("div", { class: "body plain" }, turn.text);
  const images = turn.images.map((src, index) => h("img", { src, alt: `Image ${index + 1} of the message` }));
  const article = h("article", { class: "message user", "aria-label": "You" });
  const show = () =>
    article.replaceChildren(head("You", [button("Edit", edit, { class: "quiet" })]), ...images, body);
  const edit = () => {
    const input = h("textarea", { rows: Math.min(12, turn.text.split("\n").length + 1), value: turn.text });
    const save = button("Send again", () => act.edit(input.value), { class: "primary" });
    const cancel = button("Cancel", show);
    article.replaceChildren(head("You", []), labeled("Message", input), h("p", { class: "buttons" }, save, cancel));
    input.focus();
  };
  show();
  return article;
}

/** The element of a tool's result. */
export function toolMessage(turn) {
  const text = h("div", { class: "body plain mono" }, turn.text);
  return h("article", { class: "message tool", "aria-label": "Result" }, head(`Result of ${turn.name}`, []), text);
}

/** The element of an answer, which `update()` brings up to date. `act` has `regenerate()` and `answerCalls(results)`. */
export class AnswerMessage {
  #turn;
  #act;
  #reasoning = h("div", { class: "plain" });
  #thought;
  #body = h("div", { class: "body" });
  #calls = h("div", { class: "calls" });
  #foot = h("p", { class: "foot" });
  #buttons = h("span", { class: "actions" });

  constructor(turn, act) {
    this.#turn = turn;
    this.#act = act;
    this.#thought = h(
      "details",
      { class: "reasoning", hidden: true },
      h("summary", {}, "Reasoning"),
      this.#reasoning,
    );
    const head = h("header", {}, h("h3", {}, turn.model), this.#buttons);
    const parts = [head, this.#thought, this.#body, this.#calls, this.#foot];
    this.element = h("article", { class: "message assistant", "aria-label": `Answer of ${turn.model}` }, parts);
    this.update();
  }

  update() {
    const turn = this.#turn;
    this.element.setAttribute("aria-busy", String(turn.isRunning));
    this.#thought.hidden = turn.reasoning === "";
    this.#reasoning.textContent = turn.reasoning;
    if (turn.tokens.length > 0 && !turn.isRunning) this.#body.replaceChildren(tokenView(turn.tokens));
    else this.#body.replaceChildren(...blocks(turn.text));
    if (turn.isRunning) {
      this.#body.classList.toggle("waiting", turn.text === "" && turn.calls.length === 0);
      this.#calls.replaceChildren(...turn.calls.map((call) => callHead(call)));
      return;
    }
    this.#body.classList.remove("waiting");
    this.#calls.replaceChildren(...(turn.calls.length ? [this.#callForm()] : []));
    this.#foot.replaceChildren(summary(turn));
    if (turn.error) this.#foot.prepend(h("span", { class: "error", role: "alert" }, `${turn.error} `));
    this.#buttons.replaceChildren(
      turn.requestId ? h("a", { href: `#requests/${encodeURIComponent(turn.requestId)}` }, "Why") : "",
      button("Copy", () => navigator.clipboard.writeText(turn.text), { class: "quiet" }),
      button("Regenerate", () => this.#act.regenerate(), { class: "quiet" }),
    );
  }

  /** The calls, with a place for each result until they have been answered. */
  #callForm() {
    const turn = this.#turn;
    if (turn.isAnswered) return h("div", {}, turn.calls.map(callHead));
    const inputs = turn.calls.map((call) => h("textarea", { rows: 3, class: "mono", placeholder: '{"result": …}' }));
    const rows = turn.calls.map((call, at) =>
      h("div", {}, callHead(call), labeled(`Result of ${call.name}`, inputs[at])),
    );
    const send = (event) => {
      event.preventDefault();
      this.#act.answerCalls(inputs.map((input) => input.value));
    };
    return h("form", { onsubmit: send }, rows, h("button", { type: "submit", class: "primary" }, "Send results"));
  }
}

const head = (title, actions) => h("header", {}, h("h3", {}, title), h("span", { class: "actions" }, actions));

function callHead(call) {
  let given = call.arguments;
  try {
    given = JSON.stringify(JSON.parse(call.arguments), null, 2);
  } catch {
    // Not complete yet, or not JSON: shown as it came.
  }
  return h(
    "div",
    { class: "call" },
    h("h3", {}, "Calls ", h("code", {}, call.name)),
    h("pre", { tabindex: "0" }, given),
  );
}
