"""Completes two prompts in one request, and says why each ended and what it cost."""

from openai import OpenAI

client = OpenAI(base_url="http://localhost:8000/v1", api_key="none")
completion = client.completions.create(
    model="inflight-demo",
    prompt=["Machine learning is", "Once upon a time"],
    max_tokens=24,
    temperature=0.7,
    seed=1,
)
for choice in completion.choices:
    print(f"{choice.index}: {choice.text!r} ({choice.finish_reason})")
if completion.usage:
    print(f"{completion.usage.prompt_tokens} prompt tokens, {completion.usage.completion_tokens} generated")
