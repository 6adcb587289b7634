"""A turn with a tool: the model calls it, the script answers for it, the model uses the answer."""

import json

from openai import OpenAI

client = OpenAI(base_url="http://localhost:8000/v1", api_key="unused")
tools = [
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "description": "Get the weather for a city",
            "parameters": {
                "type": "object",
                "properties": {"city": {"type": "string"}},
                "required": ["city"],
            },
        },
    }
]
messages = [{"role": "user", "content": "What is the weather in Paris?"}]
ask = {"model": "inflight-demo", "tools": tools, "temperature": 0}

turn = client.chat.completions.create(messages=messages, **ask).choices[0].message
messages.append(turn)
for call in turn.tool_calls:
    arguments = json.loads(call.function.arguments)
    print(call.function.name, arguments)
    result = {"city": arguments["city"], "temperature": 21, "condition": "sunny"}
    messages.append({"role": "tool", "tool_call_id": call.id, "content": json.dumps(result)})

print(client.chat.completions.create(messages=messages, **ask).choices[0].message.content)
