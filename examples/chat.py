"""Asks one question with the OpenAI client."""

from openai import OpenAI

client = OpenAI(base_url="http://localhost:8000/v1", api_key="none")
question = {"role": "user", "content": "What is machine learning?"}
answer = client.chat.completions.create(model="inflight-demo", messages=[question])
print(answer.choices[0].message.content)
