// Vercel AI SDK: the providers for OpenAI (responses and chat), for OpenAI-compatible servers and for Anthropic.
import { createAnthropic } from "@ai-sdk/anthropic";
import { createOpenAI } from "@ai-sdk/openai";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { generateText, Output, stepCountIs, streamText, tool } from "ai";
import { z } from "zod";
import { Calls, FORM, KEY, LIMIT, MODEL, OPENAI, PLAIN, TOOL } from "./asked.mjs";
import { check, checkForm, checkPieces, checkText, checkTold, run } from "./asked.mjs";

globalThis.AI_SDK_LOG_WARNINGS = false;
const Weather = z.object({ city: z.string().max(24), unit: z.enum(["celsius", "fahrenheit"]) });

function row(model) {
  const settings = { model, temperature: 0, maxOutputTokens: LIMIT, maxRetries: 0 };
  // A stream tells its errors as parts.
  const streaming = (fields) => {
    const errors = [];
    const answer = streamText({ ...settings, ...fields, onError: ({ error }) => errors.push(error) });
    return { answer, check: () => check(errors.length === 0, errors.map(String).join()) };
  };
  const agent = (calls) => ({
    prompt: TOOL,
    stopWhen: stepCountIs(3),
    tools: {
      get_weather: tool({
        description: "Get the weather for a city",
        inputSchema: z.object({ city: z.string() }),
        execute: calls.getWeather,
      }),
    },
  });
  const form = { prompt: FORM, output: Output.object({ schema: Weather }) };
  return {
    text: async () => checkText((await generateText({ ...settings, prompt: PLAIN })).text),
    stream: async () => {
      const { answer, check } = streaming({ prompt: PLAIN });
      const pieces = [];
      for await (const piece of answer.textStream) pieces.push(piece);
      check();
      checkPieces(pieces);
    },
    tools: async () => {
      const calls = new Calls();
      const { text } = await generateText({ ...settings, ...agent(calls) });
      calls.check();
      checkTold(text);
    },
    "tools streamed": async () => {
      const calls = new Calls();
      const { answer, check } = streaming(agent(calls));
      await answer.consumeStream();
      check();
      calls.check();
      checkTold(await answer.text);
    },
    structured: async () => checkForm((await generateText({ ...settings, ...form })).output),
    "structured streamed": async () => {
      const { answer, check: checkErrors } = streaming(form);
      const parts = [];
      for await (const part of answer.partialOutputStream) parts.push(part);
      checkErrors();
      check(parts.length > 2, "not in pieces");
      checkForm(await answer.output);
    },
  };
}

const openai = createOpenAI({ baseURL: OPENAI, apiKey: KEY });
const compatible = createOpenAICompatible({
  name: "inflight",
  baseURL: OPENAI,
  apiKey: KEY,
  supportsStructuredOutputs: true,
});
const anthropic = createAnthropic({ baseURL: OPENAI, apiKey: KEY });

await run({
  "AI SDK, openai (responses)": row(openai(MODEL)),
  "AI SDK, openai.chat": row(openai.chat(MODEL)),
  "AI SDK, openai-compatible": row(compatible(MODEL)),
  "AI SDK, anthropic": row(anthropic(MODEL)),
});
