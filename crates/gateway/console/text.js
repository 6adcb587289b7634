// A model's text as elements: a small part of Markdown. Owns which part: paragraphs, headings, lists, quotes,
// code, emphasis and links to the web. Everything else stays as it was written. No HTML is ever parsed.

import { button, h } from "./dom.js";

/** The elements of a text, which may end in the middle of anything. */
export function blocks(text) {
  const lines = text.split("\n");
  const found = [];
  let at = 0;
  while (at < lines.length) {
    const line = lines[at];
    const fence = /^\s*(```+|~~~+)\s*([\w+#.-]*)\s*$/.exec(line);
    const heading = /^(#{1,6})\s+(.*)$/.exec(line);
    if (fence) {
      const end = lines.findIndex((other, index) => index > at && other.trim() === fence[1]);
      const until = end < 0 ? lines.length : end;
      found.push(code(lines.slice(at + 1, until).join("\n"), fence[2]));
      at = until + 1;
    } else if (heading) {
      // Below the page's own headings.
      found.push(h("p", { class: "heading" }, inline(heading[2])));
      at += 1;
    } else if (/^\s*([-*+]|\d+[.)])\s+/.test(line)) {
      const ordered = /^\s*\d/.test(line);
      const item = ordered ? /^\s*\d+[.)]\s+(.*)$/ : /^\s*[-*+]\s+(.*)$/;
      const items = [];
      const start = ordered ? Number.parseInt(line, 10) : undefined;
      for (; at < lines.length && item.test(lines[at]); at += 1) items.push(item.exec(lines[at])[1]);
      const rows = items.map((text) => h("li", {}, inline(text)));
      found.push(ordered ? h("ol", { start }, rows) : h("ul", {}, rows));
    } else if (/^>\s?/.test(line)) {
      const quoted = [];
      for (; at < lines.length && /^>\s?/.test(lines[at]); at += 1) quoted.push(lines[at].replace(/^>\s?/, ""));
      found.push(h("blockquote", {}, inline(quoted.join("\n"))));
    } else if (line.trim() === "") {
      at += 1;
    } else {
      const words = [];
      for (; at < lines.length && !begins(lines[at]); at += 1) words.push(lines[at]);
      found.push(h("p", {}, inline(words.join("\n"))));
    }
  }
  return found;
}

/** Whether a line ends the paragraph before it. */
const begins = (line) => line.trim() === "" || /^\s*(```|~~~)|^#{1,6}\s|^>|^\s*([-*+]|\d+[.)])\s+/.test(line);

function code(text, language) {
  const copy = button("Copy", () => navigator.clipboard.writeText(text), { class: "quiet copy" });
  // A region that scrolls must be reachable with the keyboard.
  const block = h("pre", { tabindex: "0", "aria-label": language ? `Code, ${language}` : "Code", role: "region" });
  block.append(h("code", {}, text));
  return h("div", { class: "code" }, block, copy);
}

const INLINE =
  /(`+)(.+?)\1|\*\*([^*]+)\*\*|(?<![\w*])\*([^*\s][^*]*)\*(?![\w*])|\[([^\]]+)\]\((https?:\/\/[^\s)]+)\)/g;

function inline(text) {
  const found = [];
  let from = 0;
  for (const match of text.matchAll(INLINE)) {
    found.push(text.slice(from, match.index));
    const [all, , literal, strong, emphasis, label, address] = match;
    if (literal !== undefined) found.push(h("code", {}, literal));
    else if (strong !== undefined) found.push(h("strong", {}, strong));
    else if (emphasis !== undefined) found.push(h("em", {}, emphasis));
    else found.push(h("a", { href: address, target: "_blank", rel: "noreferrer noopener" }, label));
    from = match.index + all.length;
  }
  found.push(text.slice(from));
  return found;
}
