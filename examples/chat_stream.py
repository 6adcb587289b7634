"""Streams a chat answer with the OpenAI client."""

from openai import OpenAI

client = OpenAI(base_url="http://localhost:8000/v1", api_key="none")
for chunk in client.chat.completions.create(
    model="inflight-demo",
    messages=[{"role": "user", "content": "What is machine learning?"}],
    stream=True,
):
    if chunk.choices:
        print(chunk.choices[0].delta.content or "", end="", flush=True)
print()
