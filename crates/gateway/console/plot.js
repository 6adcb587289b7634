// A small plot of the last two minutes that moves. Owns its drawing; what is drawn comes from outside.

import { h, svg } from "./dom.js";

/** Points of each line: two minutes at one a second. */
const POINTS = 120;
const HEIGHT = 100;

/** Lines of `names` over time; `format` writes a value. */
export class Plot {
  #rows = [];
  #lines;
  #values;
  #most = h("span", { class: "most" });
  #drawing;
  #title;
  #names;
  #format;

  constructor(title, names, format) {
    this.#title = title;
    this.#names = names;
    this.#format = format;
    this.#lines = names.map((_, at) =>
      svg("path", { class: `line series-${at + 1}`, "vector-effect": "non-scaling-stroke" }),
    );
    this.#values = names.map(() => h("dd", {}, "–"));
    const legend = names.map((name, at) => [h("dt", { class: `series-${at + 1}` }, name), this.#values[at]]);
    const box = { viewBox: `0 0 ${POINTS - 1} ${HEIGHT}`, preserveAspectRatio: "none", role: "img" };
    this.#drawing = svg("svg", box, ...this.#lines);
    this.element = h(
      "figure",
      { class: "plot" },
      h("figcaption", {}, h("h3", {}, title), h("dl", {}, ...legend.flat())),
      h("div", { class: "canvas" }, this.#most, this.#drawing),
    );
  }

  /** Adds a value of each line; null leaves a gap. */
  push(values) {
    this.#rows.push(values);
    if (this.#rows.length > POINTS) this.#rows.shift();
    const most = Math.max(...this.#rows.flat().map((value) => value ?? 0));
    const from = POINTS - this.#rows.length;
    this.#lines.forEach((line, at) => {
      let d = "";
      let isDrawn = false;
      this.#rows.forEach((row, index) => {
        const value = row[at];
        if (value !== null) {
          const y = HEIGHT - 2 - (most > 0 ? (value / most) * (HEIGHT - 6) : 0);
          d += `${isDrawn ? "L" : "M"}${from + index} ${y.toFixed(1)}`;
          // One point alone is seen as a dot.
          if (!isDrawn) d += "h0";
        }
        isDrawn = value !== null;
      });
      line.setAttribute("d", d);
    });
    const shown = this.#names.map((name, at) => {
      const text = this.#format(values[at]);
      this.#values[at].textContent = text;
      return `${name} ${text}`;
    });
    this.#most.textContent = most > 0 ? this.#format(most) : "";
    this.#drawing.setAttribute("aria-label", `${this.#title}: ${shown.join(", ")}`);
  }
}
