// Checks through openai-node and Anthropic's SDK for Node: `node node.mjs URL MODEL KEY`, run in a folder whose
// node_modules holds both. Writes one JSON object a line: topic, check, state, reason. Knows no server.

import { createRequire } from "node:module";
import { join } from "node:path";

const [url, model, key] = process.argv.slice(2);
const require = createRequire(join(process.cwd(), "any.js"));
const { OpenAI, toFile } = require("openai");
const Anthropic = require("@anthropic-ai/sdk").Anthropic;
const openai = new OpenAI({ baseURL: `${url}/v1`, apiKey: key, maxRetries: 0 });
const anthropic = new Anthropic({ baseURL: url, apiKey: key, maxRetries: 0 });

const question = [{ role: "user", content: "What is machine learning?" }];
const weather = {
  type: "object",
  properties: { city: { type: "string", maxLength: 40 } },
  required: ["city"],
  additionalProperties: false,
};
const ask = [{ role: "user", content: "What is the weather in Paris?" }];

async function until(find, isSo) {
  for (let turn = 0; turn < 600; turn += 1) {
    const found = await find();
    if (isSo(found)) return found;
    await new Promise((resolve) => setTimeout(resolve, 100));
  }
  throw new Error("it did not end in a minute");
}

function expect(holds, otherwise) {
  if (!holds) throw new Error(otherwise);
}

const checks = {
  "answers a chat": async () => {
    const answer = await openai.chat.completions.create({ model, messages: question, max_tokens: 24 });
    expect(answer.choices[0].message.content, "`content` is empty");
  },
  "streams a chat": async () => {
    const stream = await openai.chat.completions.create({
      model,
      messages: question,
      max_tokens: 24,
      stream: true,
      stream_options: { include_usage: true },
    });
    let text = "";
    let usage = null;
    for await (const chunk of stream) {
      text += chunk.choices[0]?.delta?.content ?? "";
      usage = chunk.usage ?? usage;
    }
    expect(text, "the text is empty");
    expect(usage?.completion_tokens > 0, "there is no usage");
  },
  "leaves a stream early": async () => {
    const stream = await openai.chat.completions.create({ model, messages: question, stream: true });
    for await (const _ of stream) break;
    stream.controller.abort();
  },
  "reads an error": async () => {
    try {
      await openai.chat.completions.create({ model: "no-such-model", messages: question });
    } catch (error) {
      expect(error instanceof OpenAI.NotFoundError, `the error is ${error?.constructor?.name}`);
      expect(error.code === "model_not_found", `\`code\` is ${error.code}`);
      return;
    }
    throw new Error("an unknown model answered");
  },
  "runs tools with `runTools`": async () => {
    let called = null;
    const runner = openai.chat.completions.runTools({
      model,
      messages: ask,
      max_tokens: 200,
      tools: [
        {
          type: "function",
          function: {
            name: "get_weather",
            description: "The weather in a city",
            parameters: weather,
            parse: JSON.parse,
            function: (input) => {
              called = input;
              return "Sunny, 21 degrees.";
            },
          },
        },
      ],
    });
    await runner.finalContent();
    // A model may answer by itself; where it called, the call reached the function.
    expect(called === null || typeof called.city === "string", `the call was ${JSON.stringify(called)}`);
  },
  "parses a structured answer": async () => {
    const answer = await openai.chat.completions.parse({
      model,
      messages: [{ role: "user", content: "Describe the weather in Paris as JSON." }],
      max_tokens: 200,
      response_format: { type: "json_schema", json_schema: { name: "w", strict: true, schema: weather } },
    });
    const { content } = answer.choices[0].message;
    expect(typeof JSON.parse(content).city === "string", `the answer is ${content}`);
  },
  "answers and streams `/v1/responses`": async () => {
    const asked = { model, input: "What is machine learning?", max_output_tokens: 24, store: false };
    const answer = await openai.responses.create(asked);
    expect(answer.output_text, "`output_text` is empty");
    const types = [];
    for await (const event of await openai.responses.create({ ...asked, stream: true })) types.push(event.type);
    expect(types[0] === "response.created", `the first event is ${types[0]}`);
    expect(/completed|incomplete/.test(types.at(-1)), `the last event is ${types.at(-1)}`);
  },
  "answers and streams `/v1/messages`": async () => {
    const asked = { model, messages: question, max_tokens: 24 };
    const answer = await anthropic.messages.create(asked);
    expect(answer.content[0]?.text, "`text` is empty");
    const text = await anthropic.messages.stream(asked).finalText();
    expect(text, "the streamed text is empty");
  },
  "uploads a file and runs a batch of it": async () => {
    const body = { model, messages: question, max_tokens: 8 };
    const line = { custom_id: "a", method: "POST", url: "/v1/chat/completions", body };
    const content = `${JSON.stringify(line)}\n`;
    const file = await openai.files.create({ file: await toFile(Buffer.from(content), "in.jsonl"), purpose: "batch" });
    expect((await (await openai.files.content(file.id)).text()) === content, "the file has changed");
    let batch = await openai.batches.create({
      input_file_id: file.id,
      endpoint: "/v1/chat/completions",
      completion_window: "24h",
    });
    batch = await until(() => openai.batches.retrieve(batch.id), (found) => found.status === "completed");
    const answer = JSON.parse(await (await openai.files.content(batch.output_file_id)).text());
    expect(answer.response.body.choices[0].message.content, "`content` is empty");
    for await (const listed of openai.files.list({ limit: 1 })) {
      expect(listed.id === batch.output_file_id, `the latest file is ${listed.id}`);
      break;
    }
    for (const id of [file.id, batch.output_file_id]) {
      expect((await openai.files.delete(id)).deleted, "it was not deleted");
    }
    const second = await openai.files.create({ file: await toFile(Buffer.from(content), "in.jsonl"), purpose: "batch" });
    const other = await openai.batches.create({
      input_file_id: second.id,
      endpoint: "/v1/chat/completions",
      completion_window: "24h",
    });
    try {
      await openai.batches.cancel(other.id);
    } catch (error) {
      // It may have been quicker.
      expect(error.status === 400, `a batch cannot be cancelled: ${error.message}`);
    }
    await openai.files.delete(second.id);
  },
  "runs a batch of messages": async () => {
    const params = { model, messages: question, max_tokens: 8 };
    let batch = await anthropic.messages.batches.create({ requests: [{ custom_id: "a", params }] });
    const { id } = batch;
    batch = await until(() => anthropic.messages.batches.retrieve(id), (found) => found.processing_status === "ended");
    const found = [];
    for await (const one of await anthropic.messages.batches.results(id)) found.push(one);
    expect(found.length === 1 && found[0].result.type === "succeeded", JSON.stringify(found));
    await anthropic.messages.batches.delete(id);
  },
};

for (const [check, run] of Object.entries(checks)) {
  const told = { topic: "Node", check, state: "passed", reason: "" };
  try {
    await run();
  } catch (error) {
    const isAbsent = [400, 404, 405, 422, 501].includes(error?.status) && check !== "answers a chat";
    told.state = isAbsent ? "absent" : "failed";
    told.reason = String(error?.message ?? error);
  }
  console.log(JSON.stringify(told));
}
