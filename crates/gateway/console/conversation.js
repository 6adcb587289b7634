// A conversation with one model. Owns its turns: what is asked, stopped, asked again and edited. How turns look is
// `message`'s.

import { add, end, newAnswer } from "./answer.js";
import { button, h } from "./dom.js";
import { AnswerMessage, toolMessage, userMessage } from "./message.js";
import { requestBody } from "./request.js";
import { ask, events } from "./server.js";

/** Longest time between two drawings of an answer that arrives, and what it grows by with the text. */
const DRAW_MS = 50;
const DRAW_MS_PER_KB = 5;

/** One column of the page. */
export class Conversation {
  #turns = [];
  #list = h("div", { class: "turns", tabindex: "0", role: "log", "aria-live": "off" });
  #running = null;

  /** `context` has `settings`, `guarded(action)`, `say(text)` for screen readers, and `changed()`. */
  constructor(models, model, context, onRemove) {
    this.context = context;
    this.select = h("select", { "aria-label": "Model" });
    this.setModels(models);
    if (model) this.select.value = model;
    this.remove = button("Remove", () => onRemove(this), { class: "quiet" });
    const clear = button("Clear", () => this.clear(), { class: "quiet" });
    this.element = h("section", { class: "column" }, h("header", {}, this.select, clear, this.remove), this.#list);
    this.#label();
    this.select.addEventListener("change", () => this.#label());
  }

  get model() {
    return this.select.value;
  }

  get isRunning() {
    return this.#running !== null;
  }

  get isEmpty() {
    return this.#turns.length === 0;
  }

  /** Offers these models, and keeps the chosen one if it is among them. */
  setModels(models) {
    const { value } = this.select;
    this.select.replaceChildren(...models.map((id) => h("option", { value: id }, id)));
    if (models.includes(value)) this.select.value = value;
  }

  /** The request that `text` would be; without one, that of the last answer. */
  body(text, images) {
    const isNew = text !== "" || images.length > 0;
    const turns = isNew ? [...this.#turns, { role: "user", text, images }] : [...this.#turns];
    while (turns.at(-1)?.role === "assistant") turns.pop();
    return requestBody(this.model, this.context.settings.system.value, turns, this.context.settings.read());
  }

  /** Asks; the settings can be read. */
  send(text, images) {
    this.#put({ role: "user", text, images });
    void this.#answer();
  }

  stop() {
    this.#running?.abort();
  }

  clear() {
    this.stop();
    this.#cut(0);
  }

  #label() {
    this.element.setAttribute("aria-label", `Conversation with ${this.model}`);
    this.#list.setAttribute("aria-label", `Messages with ${this.model}`);
  }

  #put(turn) {
    const at = this.#turns.push(turn) - 1;
    if (turn.role === "user") {
      turn.element = userMessage(turn, { edit: (text) => this.#again(at, { ...turn, text }) });
    } else if (turn.role === "tool") {
      turn.element = toolMessage(turn);
    } else {
      turn.view = new AnswerMessage(turn, {
        regenerate: () => this.#again(at),
        answerCalls: (results) => this.#answerCalls(turn, results),
      });
      turn.element = turn.view.element;
    }
    this.#list.append(turn.element);
    this.#list.scrollTop = this.#list.scrollHeight;
  }

  /** Forgets the turns from this one on. */
  #cut(at) {
    for (const turn of this.#turns.splice(at)) turn.element.remove();
  }

  /** Asks again from a turn on, with another one in its place. */
  #again(at, turn) {
    this.context.guarded(() => {
      this.context.settings.read();
      this.stop();
      this.#cut(at);
      if (turn) this.#put(turn);
      void this.#answer();
    });
  }

  #answerCalls(turn, results) {
    this.context.guarded(() => {
      this.context.settings.read();
      turn.isAnswered = true;
      turn.view.update();
      for (const [at, { id, name }] of turn.calls.entries()) this.#put({ role: "tool", id, name, text: results[at] });
      void this.#answer();
    });
  }

  /** Asks for the answer to all turns. The settings can be read: the caller has tried. */
  async #answer() {
    const body = this.body("", []);
    const turn = newAnswer(this.model);
    const stopping = new AbortController();
    this.#running = stopping;
    this.#put(turn);
    this.context.changed();
    const draw = this.#drawing(turn);
    try {
      const response = await ask("v1/chat/completions", { body, signal: stopping.signal });
      turn.requestId = response.headers.get("x-request-id");
      for await (const event of events(response)) {
        add(turn, event);
        draw();
      }
      end(turn);
    } catch (error) {
      turn.requestId ??= error.requestId ?? null;
      if (error.name === "AbortError") turn.finish = "stopped";
      end(turn, error.name === "AbortError" ? null : error.message);
    }
    if (this.#running === stopping) this.#running = null;
    this.#show(turn);
    this.context.changed();
    const words = turn.error ?? (turn.finish === "stopped" ? "Stopped." : turn.text || "The model calls a tool.");
    this.context.say(`${turn.model}: ${words}`);
  }

  /** Draws soon, and not more often than the text allows. */
  #drawing(turn) {
    let isDue = false;
    return () => {
      if (isDue) return;
      isDue = true;
      const wait = DRAW_MS + (DRAW_MS_PER_KB * turn.text.length) / 1000;
      setTimeout(() => {
        isDue = false;
        if (turn.isRunning) this.#show(turn);
      }, wait);
    };
  }

  /** Brings a turn up to date; who reads the end stays there. */
  #show(turn) {
    const list = this.#list;
    const isAtEnd = list.scrollHeight - list.scrollTop - list.clientHeight < 40;
    turn.view.update();
    if (isAtEnd) list.scrollTop = list.scrollHeight;
  }
}
