// An answer while it arrives. Owns how the events of a stream add up; knows nothing of the page.

/** What took less has no meaningful rate: the tokens came at once. */
const LEAST_MS = 100;

/** A turn of the assistant of which there is nothing yet. */
export function newAnswer(model) {
  return {
    role: "assistant",
    model,
    text: "",
    reasoning: "",
    calls: [],
    /** Tokens with their log probabilities, where they were asked for. */
    tokens: [],
    finish: null,
    usage: null,
    requestId: null,
    error: null,
    isRunning: true,
    begun: performance.now(),
    firstMs: null,
    totalMs: null,
  };
}

/** Adds an event of the stream. */
export function add(answer, event) {
  if (event.usage) answer.usage = event.usage;
  const choice = event.choices?.[0];
  if (!choice) return;
  const { delta = {}, logprobs, finish_reason: finish } = choice;
  const reasoning = delta.reasoning_content ?? delta.reasoning ?? "";
  if (answer.firstMs === null && (delta.content || reasoning || delta.tool_calls)) {
    answer.firstMs = performance.now() - answer.begun;
  }
  answer.text += delta.content ?? "";
  answer.reasoning += reasoning;
  answer.tokens.push(...(logprobs?.content ?? []));
  for (const piece of delta.tool_calls ?? []) {
    const call = (answer.calls[piece.index] ??= { id: "", name: "", arguments: "" });
    call.id ||= piece.id ?? "";
    call.name += piece.function?.name ?? "";
    call.arguments += piece.function?.arguments ?? "";
  }
  if (finish) answer.finish = finish;
}

/** Notes that nothing more comes. */
export function end(answer, error = null) {
  answer.isRunning = false;
  answer.totalMs = performance.now() - answer.begun;
  answer.error = error;
}

/** What an answer took, in a line. */
export function summary(answer) {
  const parts = [];
  const { usage, firstMs, totalMs, finish } = answer;
  if (usage) {
    const cached = usage.prompt_tokens_details?.cached_tokens;
    parts.push(`${usage.prompt_tokens} tokens in${cached ? `, ${cached} cached` : ""}`);
    parts.push(`${usage.completion_tokens} out`);
  }
  if (firstMs !== null) parts.push(`first after ${Math.round(firstMs)} ms`);
  if (usage && usage.completion_tokens > 1 && firstMs !== null && totalMs - firstMs > LEAST_MS) {
    const rate = (usage.completion_tokens - 1) / ((totalMs - firstMs) / 1000);
    parts.push(`${rate >= 10 ? Math.round(rate) : rate.toFixed(1)} tokens/s`);
  }
  if (finish && finish !== "stop") parts.push(finish.replace("_", " "));
  return parts.join(" · ");
}
