// What is sent with each request besides its messages. Owns the fields that the page offers, their controls and
// how a control's value becomes JSON; an empty control sends nothing, so that the model's own defaults apply.

import { button, h, labeled } from "./dom.js";

const EXAMPLE_TOOLS = [
  {
    type: "function",
    function: {
      name: "get_weather",
      description: "Get the weather for a city",
      parameters: {
        type: "object",
        properties: { city: { type: "string", maxLength: 24 } },
        required: ["city"],
        additionalProperties: false,
      },
    },
  },
];
const EXAMPLE_SCHEMA = {
  type: "object",
  properties: { answer: { type: "string", maxLength: 80 }, sure: { type: "boolean" } },
  required: ["answer", "sure"],
};

/** Names as the API has them, and as the page shows them. */
const GROUPS = [
  {
    title: "Sampling",
    isOpen: true,
    fields: [
      { name: "temperature", kind: number, label: "Temperature", min: 0, max: 2, step: 0.1 },
      { name: "max_tokens", kind: number, label: "Most tokens", min: 1, step: 1 },
      { name: "top_p", kind: number, label: "Top p", min: 0, max: 1, step: 0.05 },
      { name: "top_k", kind: number, label: "Top k", min: 0, step: 1 },
      { name: "min_p", kind: number, label: "Min p", min: 0, max: 1, step: 0.05 },
      { name: "seed", kind: number, label: "Seed", step: 1 },
      { name: "presence_penalty", kind: number, label: "Presence penalty", min: -2, max: 2, step: 0.1 },
      { name: "frequency_penalty", kind: number, label: "Frequency penalty", min: -2, max: 2, step: 0.1 },
      { name: "repetition_penalty", kind: number, label: "Repetition penalty", min: 0, step: 0.05 },
      { name: "reasoning_effort", kind: choice, label: "Reasoning", values: ["none", "low", "medium", "high"] },
      { name: "stop", kind: lines, label: "Stop strings, one a line", wide: true },
      { name: "logprobs", kind: logProbs, label: "Show log probabilities", wide: true },
    ],
  },
  {
    title: "Tools",
    fields: [
      { name: "tools", kind: json, label: "Functions, as a JSON array", example: EXAMPLE_TOOLS, wide: true },
      { name: "tool_choice", kind: choice, label: "Choice", values: ["auto", "none", "required"] },
    ],
  },
  {
    title: "JSON schema",
    fields: [
      { name: "response_format", kind: schema, label: "The answer follows it", example: EXAMPLE_SCHEMA, wide: true },
    ],
  },
  {
    title: "More fields",
    fields: [{ name: "", kind: json, label: "Merged into the request, as a JSON object", wide: true }],
  },
];

/** A control cannot be read. */
export class SettingError extends Error {}

/** The panel of settings. */
export class Settings {
  #controls = [];

  constructor() {
    this.system = h("textarea", { rows: 3, placeholder: "None" });
    const groups = GROUPS.map((group) => this.#group(group));
    this.element = h("div", { class: "settings" }, labeled("System prompt", this.system), groups);
  }

  /** The fields to send. Throws `SettingError`, with the control marked and shown. */
  read() {
    const fields = {};
    for (const control of this.#controls) {
      control.input.removeAttribute("aria-invalid");
      try {
        Object.assign(fields, control.read());
      } catch (error) {
        control.input.setAttribute("aria-invalid", "true");
        control.input.closest("details").open = true;
        control.input.focus();
        throw new SettingError(`${control.label}: ${error.message}`);
      }
    }
    return fields;
  }

  #group({ title, isOpen, fields }) {
    const grid = h("div", { class: "fields" });
    for (const field of fields) {
      const { element, input, read } = field.kind(field);
      element.classList.toggle("wide", Boolean(field.wide));
      grid.append(element);
      this.#controls.push({ input, label: field.label, read });
    }
    return h("details", { open: Boolean(isOpen) }, h("summary", {}, title), grid);
  }
}

function number({ name, label, ...bounds }) {
  const input = h("input", { type: "number", placeholder: "default", name, ...bounds });
  const read = () => {
    if (!input.checkValidity()) throw new Error(input.validationMessage);
    return input.value === "" ? {} : { [name]: input.valueAsNumber };
  };
  return { element: labeled(label, input), input, read };
}

function choice({ name, label, values }) {
  const options = values.map((value) => h("option", { value }, value));
  const input = h("select", { name }, h("option", { value: "" }, "default"), options);
  return { element: labeled(label, input), input, read: () => (input.value ? { [name]: input.value } : {}) };
}

function lines({ name, label }) {
  const input = h("textarea", { rows: 2, class: "mono", name });
  const read = () => {
    const given = input.value.split("\n").filter((line) => line !== "");
    return given.length ? { [name]: given } : {};
  };
  return { element: labeled(label, input), input, read };
}

function logProbs({ name, label }) {
  const input = h("input", { type: "checkbox", name });
  const element = labeled(label, input, { class: "field check" });
  return { element, input, read: () => (input.checked ? { logprobs: true, top_logprobs: 5 } : {}) };
}

/** A JSON value; one without a name is merged into the request. */
function json({ name, label, example }) {
  const input = h("textarea", { rows: 4, class: "mono", spellcheck: false, name });
  const element = labeled(label, input);
  if (example) {
    const fill = () => {
      input.value = JSON.stringify(example, null, 2);
      input.rows = 12;
    };
    element.append(button("Insert an example", fill, { class: "quiet" }));
  }
  const read = () => {
    if (input.value.trim() === "") return {};
    const value = JSON.parse(input.value);
    if (name) return { [name]: value };
    if (value === null || typeof value !== "object" || Array.isArray(value)) throw new Error("must be a JSON object");
    return value;
  };
  return { element, input, read };
}

function schema({ name, label, example }) {
  const { element, input, read } = json({ name, label, example });
  const wrapped = () => {
    const { [name]: given } = read();
    return given === undefined
      ? {}
      : { [name]: { type: "json_schema", json_schema: { name: "answer", schema: given, strict: true } } };
  };
  return { element, input, read: wrapped };
}
