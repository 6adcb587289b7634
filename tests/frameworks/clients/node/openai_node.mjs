// openai-node: chat with `runTools`, the stream helper and the zod helpers; responses with `parse` and `stream`.
import OpenAI from "openai";
import { zodFunction, zodResponseFormat, zodResponsesFunction, zodTextFormat } from "openai/helpers/zod";
import { z } from "zod";
import { Calls, FORM, KEY, LIMIT, MODEL, OPENAI, PLAIN, TOOL } from "./asked.mjs";
import { checkForm, checkPieces, checkText, checkTold, run } from "./asked.mjs";

const client = new OpenAI({ baseURL: OPENAI, apiKey: KEY, maxRetries: 0 });
const Weather = z.object({ city: z.string().max(24), unit: z.enum(["celsius", "fahrenheit"]) });
const City = z.object({ city: z.string() });
const chat = { model: MODEL, temperature: 0, max_tokens: LIMIT };
const user = (content) => ({ role: "user", content });
const format = zodResponseFormat(Weather, "weather");
const weather = (calls) =>
  zodFunction({
    name: "get_weather",
    description: "Get the weather for a city",
    parameters: City,
    function: calls.getWeather,
  });

async function tools(stream) {
  const calls = new Calls();
  const fields = { ...chat, messages: [user(TOOL)], tools: [weather(calls)], stream };
  checkTold(await client.chat.completions.runTools(fields).finalContent());
  calls.check();
}

const responses = { model: MODEL, temperature: 0, max_output_tokens: LIMIT };
const flat = [
  zodResponsesFunction({ name: "get_weather", description: "Get the weather for a city", parameters: City }),
];

async function responseTurns(ask) {
  const calls = new Calls();
  const input = [user(TOOL)];
  for (const item of (await ask({ ...responses, input, tools: flat })).output) {
    if (item.type === "function_call") {
      const output = JSON.stringify(calls.getWeather(item.parsed_arguments));
      input.push(item, { type: "function_call_output", call_id: item.call_id, output });
    }
  }
  calls.check();
  checkTold((await ask({ ...responses, input, tools: flat })).output_text);
}

const parse = (fields) => client.responses.parse(fields);
const stream = (fields) => client.responses.stream(fields).finalResponse();
const text = { format: zodTextFormat(Weather, "weather") };

await run({
  "openai-node, chat": {
    text: async () => {
      const answer = await client.chat.completions.create({ ...chat, messages: [user(PLAIN)] });
      checkText(answer.choices[0].message.content);
    },
    stream: async () => {
      const pieces = [];
      const events = client.chat.completions.stream({ ...chat, messages: [user(PLAIN)] });
      events.on("content.delta", ({ delta }) => pieces.push(delta));
      await events.done();
      checkPieces(pieces);
    },
    tools: () => tools(false),
    "tools streamed": () => tools(true),
    structured: async () => {
      const fields = { ...chat, messages: [user(FORM)], response_format: format };
      checkForm((await client.chat.completions.parse(fields)).choices[0].message.parsed);
    },
    "structured streamed": async () => {
      const fields = { ...chat, messages: [user(FORM)], response_format: format };
      const whole = await client.chat.completions.stream(fields).finalChatCompletion();
      checkForm(whole.choices[0].message.parsed);
    },
  },
  "openai-node, responses": {
    text: async () => checkText((await client.responses.create({ ...responses, input: PLAIN })).output_text),
    stream: async () => {
      const pieces = [];
      for await (const event of client.responses.stream({ ...responses, input: PLAIN })) {
        if (event.type === "response.output_text.delta") pieces.push(event.delta);
      }
      checkPieces(pieces);
    },
    tools: () => responseTurns(parse),
    "tools streamed": () => responseTurns(stream),
    structured: async () => checkForm((await parse({ ...responses, input: FORM, text })).output_parsed),
    "structured streamed": async () => checkForm((await stream({ ...responses, input: FORM, text })).output_parsed),
  },
});
