// A conversation as a request of `/v1/chat/completions`, and that request as commands to paste. Pure.

/** The body that asks for the answer to these turns. */
export function requestBody(model, system, turns, fields) {
  const instructions = system.trim() === "" ? [] : [{ role: "system", content: system }];
  return {
    model,
    messages: [...instructions, ...turns.filter(says).map(message)],
    ...fields,
    stream: true,
    stream_options: { include_usage: true },
  };
}

/** Whether a turn says anything: an answer that was stopped at once does not. */
const says = (turn) => turn.role !== "assistant" || turn.text !== "" || turn.calls.length > 0;

function message(turn) {
  if (turn.role === "tool") return { role: "tool", tool_call_id: turn.id, content: turn.text };
  if (turn.role === "user") {
    if (turn.images.length === 0) return { role: "user", content: turn.text };
    const images = turn.images.map((url) => ({ type: "image_url", image_url: { url } }));
    return { role: "user", content: [...images, { type: "text", text: turn.text }] };
  }
  const calls = turn.calls.map(({ id, name, arguments: given }) => ({
    id,
    type: "function",
    function: { name, arguments: given },
  }));
  return { role: "assistant", content: turn.text || null, ...(calls.length ? { tool_calls: calls } : {}) };
}

/** The request for a shell. The key is the environment's, so that it is not in anybody's history. */
export function curl(body, base, hasKey) {
  const quoted = JSON.stringify(body, null, 2).replaceAll("'", String.raw`'\''`);
  const key = hasKey ? ` \\\n  -H "Authorization: Bearer $INFLIGHT_API_KEY"` : "";
  return `curl -N ${base}v1/chat/completions \\\n  -H 'Content-Type: application/json'${key} \\\n  -d '${quoted}'`;
}

/** Fields that OpenAI's client has arguments for; it sends others as `extra_body`. */
const OPENAI = new Set([
  ...["model", "messages", "stream", "stream_options", "temperature", "max_tokens", "top_p", "seed", "stop"],
  ...["presence_penalty", "frequency_penalty", "reasoning_effort", "logprobs", "top_logprobs", "tools"],
  ...["tool_choice", "response_format", "n", "logit_bias", "max_completion_tokens", "parallel_tool_calls", "user"],
]);

/** The request for OpenAI's Python client. */
export function python(body, base, hasKey) {
  const entries = Object.entries(body).filter(([name]) => name !== "stream_options");
  const own = entries.filter(([name]) => OPENAI.has(name));
  const extra = entries.filter(([name]) => !OPENAI.has(name));
  if (extra.length) own.push(["extra_body", Object.fromEntries(extra)]);
  const fields = own.map(([name, value]) => `    ${name}=${literal(value, 1)},\n`).join("");
  const key = hasKey ? 'os.environ["INFLIGHT_API_KEY"]' : '"unused"';
  return `${hasKey ? "import os\n\n" : ""}import openai

client = openai.OpenAI(base_url=${literal(`${base}v1`, 0)}, api_key=${key})
stream = client.chat.completions.create(
${fields})
for chunk in stream:
    for choice in chunk.choices:
        print(choice.delta.content or "", end="", flush=True)
`;
}

/** A JSON value as Python writes it. JSON's strings are Python's. */
function literal(value, depth) {
  const inner = "    ".repeat(depth + 1);
  const end = `\n${"    ".repeat(depth)}`;
  if (value === null) return "None";
  if (value === true) return "True";
  if (value === false) return "False";
  if (typeof value !== "object") return JSON.stringify(value);
  const rows = Array.isArray(value)
    ? value.map((item) => literal(item, depth + 1))
    : Object.entries(value).map(([name, item]) => `${JSON.stringify(name)}: ${literal(item, depth + 1)}`);
  const [open, close] = Array.isArray(value) ? "[]" : "{}";
  if (rows.length === 0) return open + close;
  const short = rows.join(", ");
  if (short.length < 60 && !short.includes("\n")) return open + short + close;
  return `${open}\n${rows.map((row) => `${inner}${row},`).join("\n")}${end}${close}`;
}
