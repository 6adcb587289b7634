// Builds elements. Owns that text stays text: nothing in the console parses HTML, and the page's
// Content-Security-Policy (Trusted Types) refuses it.

/**
 * An element with its attributes and children. `on…` adds a listener, `class`, `data-…` and `aria-…` are
 * attributes, a boolean is there or not, anything else that the element has is set as its property.
 */
export function h(name, attributes = {}, ...children) {
  const element = document.createElement(name);
  set(element, attributes);
  element.append(...children.flat().filter((child) => child !== null && child !== undefined && child !== false));
  return element;
}

/** The same for the elements of a drawing. */
export function svg(name, attributes = {}, ...children) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [attribute, value] of Object.entries(attributes)) element.setAttribute(attribute, value);
  element.append(...children);
  return element;
}

/** A button. */
export function button(text, onclick, attributes = {}) {
  return h("button", { type: "button", onclick, ...attributes }, text);
}

let labels = 0;

/** A label and its control, joined by an id. */
export function labeled(text, control, attributes = {}) {
  control.id ||= `field-${++labels}`;
  return h("div", { class: "field", ...attributes }, h("label", { for: control.id }, text), control);
}

function set(element, attributes) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (typeof value === "boolean") element.toggleAttribute(name, value);
    else if (name in element && !/^(class|for|list|role|aria-|data-)/.test(name)) element[name] = value;
    else element.setAttribute(name, value);
  }
}
