// The gateway that served this page. Owns the API key, which is kept in this tab alone, and how answers,
// failures and streams are read. Knows nothing of what is shown.

const KEY = "inflight-api-key";

/** The key of this tab; empty without one. */
export const getKey = () => sessionStorage.getItem(KEY) ?? "";

/** Keeps the key as long as the tab is open; an empty one is forgotten. */
export function setKey(key) {
  if (key) sessionStorage.setItem(KEY, key);
  else sessionStorage.removeItem(KEY);
}

/** What the gateway answered in place of success. */
export class Failure extends Error {
  constructor(status, message, details = {}) {
    super(message);
    this.status = status;
    this.code = details.code ?? null;
    this.param = details.param ?? null;
    this.requestId = details.requestId ?? null;
  }
}

/** Told of each refused or missing key, by `key-needed` on `window`. */
function needKey(message) {
  window.dispatchEvent(new CustomEvent("key-needed", { detail: message }));
}

/**
 * Asks the gateway; `path` is relative to the page, so that a proxy may serve both below a prefix. Throws
 * `Failure`, whose status is 0 where there was no answer.
 */
export async function ask(path, { body, signal, accept = "application/json", anyStatus = false } = {}) {
  const headers = { accept };
  if (getKey()) headers.authorization = `Bearer ${getKey()}`;
  if (body !== undefined) headers["content-type"] = "application/json";
  const method = body === undefined ? "GET" : "POST";
  let response;
  try {
    response = await fetch(path, { method, headers, signal, body: body && JSON.stringify(body) });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Failure(0, "The gateway does not answer.");
  }
  if (response.ok || (anyStatus && response.status !== 401)) return response;
  const requestId = response.headers.get("x-request-id");
  const told = await response.json().catch(() => null);
  const error = told?.error ?? {};
  const message = error.message ?? `The gateway answered with status ${response.status}.`;
  if (response.status === 401) needKey(message);
  throw new Failure(response.status, message, { ...error, requestId });
}

/** The JSON of an answer. */
export const askJson = async (path, options) => (await ask(path, options)).json();

/** The events of a stream as JSON, up to `[DONE]`. Throws `Failure` for an error event and for a stream that was cut. */
export async function* events(response) {
  const requestId = response.headers.get("x-request-id");
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  try {
    for (;;) {
      const { done, value } = await reader.read();
      if (done) throw new Failure(0, "The stream was cut before its end.", { requestId });
      const lines = (rest + value).split("\n");
      rest = lines.pop();
      for (const line of lines) {
        if (!line.startsWith("data:")) continue;
        const data = line.slice(5).trim();
        if (data === "[DONE]") return;
        const event = JSON.parse(data);
        if (event.error)
          throw new Failure(event.error.status ?? 0, event.error.message, { ...event.error, requestId });
        yield event;
      }
    }
  } catch (error) {
    if (error instanceof Failure || error.name === "AbortError") throw error;
    throw new Failure(0, "The connection was lost.", { requestId });
  } finally {
    reader.cancel().catch(() => {});
  }
}
