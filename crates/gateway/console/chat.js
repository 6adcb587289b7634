// The page Chat: conversations next to each other, one place to write, and the settings of all. Owns what is
// common to the columns.

import { Conversation } from "./conversation.js";
import { button, h, labeled } from "./dom.js";
import { curl, python } from "./request.js";
import { SettingError, Settings } from "./settings.js";
import { askJson, getKey } from "./server.js";

/** Columns that fit a screen. */
const MOST_COLUMNS = 4;

/** Fills the section of the page. Returns what is to be called when it is shown. */
export function chatPage(section) {
  let models = [];
  let images = [];
  const columns = [];
  const settings = new Settings();

  const row = h("div", { class: "columns" });
  const input = h("textarea", { rows: 2, placeholder: "Write a message; Enter sends, Shift+Enter breaks the line" });
  const problem = h("p", { class: "error", role: "alert" });
  const said = h("p", { class: "unseen", role: "status" });
  const thumbnails = h("div", { class: "thumbnails" });
  const file = h("input", { type: "file", accept: "image/*", multiple: true, hidden: true, "aria-label": "Images" });
  const send = h("button", { type: "submit", class: "primary" }, "Send");
  const stop = button("Stop", () => columns.forEach((column) => column.stop()), { hidden: true });
  const add = button("Compare", () => addColumn(), { title: "Ask another model the same" });
  const form = h(
    "form",
    { class: "composer", onsubmit: submit },
    problem,
    thumbnails,
    labeled("Message", input, { class: "field message-field" }),
    h(
      "div",
      { class: "controls" },
      button("Add images", () => file.click()),
      file,
      add,
      button("As code", showCode),
      h("span", { class: "space" }),
      stop,
      send,
    ),
  );
  const panel = h("section", { class: "panel", "aria-label": "Settings" }, settings.element);
  section.append(
    h("h2", { class: "unseen" }, "Chat"),
    h("div", { class: "chat" }, h("div", { class: "talk" }, row, form), panel),
    said,
  );

  const context = { settings, guarded, say: (text) => (said.textContent = text), changed };
  addColumn();

  input.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && !event.shiftKey && !event.isComposing) submit(event);
  });
  input.addEventListener("paste", (event) => void addImages(event.clipboardData.files));
  file.addEventListener("change", async () => {
    await addImages(file.files);
    file.value = "";
  });

  // A browser may keep a page that was left, with its requests.
  window.addEventListener("pagehide", () => columns.forEach((column) => column.stop()));

  return async () => {
    try {
      const { data } = await askJson("v1/models");
      models = data.map((model) => model.id);
      columns.forEach((column) => column.setModels(models));
      problem.textContent = models.length ? "" : "No model is served yet.";
    } catch (error) {
      problem.textContent = error.message;
    }
  };

  function addColumn() {
    if (columns.length >= MOST_COLUMNS) return;
    const taken = columns.map((column) => column.model);
    const model = models.find((id) => !taken.includes(id)) ?? models[0];
    const column = new Conversation(models, model, context, removeColumn);
    columns.push(column);
    row.append(column.element);
    changed();
  }

  function removeColumn(column) {
    column.stop();
    columns.splice(columns.indexOf(column), 1);
    column.element.remove();
    changed();
  }

  function changed() {
    const isRunning = columns.some((column) => column.isRunning);
    stop.hidden = !isRunning;
    send.disabled = isRunning;
    add.disabled = columns.length >= MOST_COLUMNS;
    columns.forEach((column) => (column.remove.hidden = columns.length === 1));
  }

  function submit(event) {
    event.preventDefault();
    const text = input.value;
    if (send.disabled || (text.trim() === "" && images.length === 0)) return;
    guarded(() => {
      settings.read();
      const sent = images;
      columns.forEach((column) => column.send(text, sent));
      input.value = "";
      showImages([]);
    });
  }

  /** Shows what is wrong with a setting in place of doing it. */
  function guarded(action) {
    try {
      problem.textContent = "";
      action();
    } catch (error) {
      if (!(error instanceof SettingError)) throw error;
      problem.textContent = error.message;
    }
  }

  async function addImages(files) {
    const read = [...files].filter((one) => one.type.startsWith("image/")).map(dataUrl);
    if (read.length) showImages([...images, ...(await Promise.all(read))]);
  }

  function showImages(now) {
    images = now;
    const shown = images.map((src, at) => {
      const remove = () => showImages(images.filter((_, other) => other !== at));
      const drop = button("Remove", remove, { class: "quiet", "aria-label": `Remove image ${at + 1}` });
      return h("figure", {}, h("img", { src, alt: `Image ${at + 1}` }), drop);
    });
    thumbnails.replaceChildren(...shown);
  }

  function showCode() {
    guarded(() => codeDialog(columns[0].body(input.value, images)));
  }
}

const dataUrl = (file) =>
  new Promise((resolve, reject) => {
    const reader = new FileReader();
    reader.onload = () => resolve(reader.result);
    reader.onerror = () => reject(reader.error);
    reader.readAsDataURL(file);
  });

/** The next request as commands. */
function codeDialog(body) {
  const base = new URL(".", document.baseURI).href;
  const hasKey = getKey() !== "";
  const block = (title, text) => [
    h(
      "div",
      { class: "title" },
      h("h3", {}, title),
      button("Copy", () => navigator.clipboard.writeText(text), { class: "quiet" }),
    ),
    h("pre", { tabindex: "0", role: "region", "aria-label": title }, h("code", {}, text)),
  ];
  const close = button("Close", () => dialog.close());
  const dialog = h(
    "dialog",
    { class: "as-code", "aria-label": "The request as code", onclose: () => dialog.remove() },
    h("h2", {}, "The request as code"),
    block("curl", curl(body, base, hasKey)),
    block("Python", python(body, base, hasKey)),
    h("p", { class: "buttons" }, close),
  );
  document.body.append(dialog);
  dialog.showModal();
}
