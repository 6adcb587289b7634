// Tables. Owns how heads are written: one with `#` in front is of numbers.

import { h } from "./dom.js";

/** A table of these rows, each a list of texts or elements; `empty` where there are none. */
export function table(heads, rows, empty) {
  if (rows.length === 0) return h("p", { class: "hint" }, empty);
  const kinds = heads.map((head) => (head.startsWith("#") ? "number" : null));
  const cells = heads.map((head, at) => h("th", { scope: "col", class: kinds[at] }, head.replace("#", "")));
  const body = rows.map((row) =>
    h(
      "tr",
      {},
      row.map((cell, at) => h("td", { class: kinds[at] }, ...[cell].flat())),
    ),
  );
  // A region that scrolls must be reachable with the keyboard.
  return h(
    "div",
    { class: "scroll", tabindex: "0", role: "region", "aria-label": `Table: ${heads[0]}` },
    h("table", {}, h("thead", {}, h("tr", {}, cells)), h("tbody", {}, body)),
  );
}
