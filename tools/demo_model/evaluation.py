"""What the model has learned: greedy answers to phrasings kept out of training, and sample conversations."""

from __future__ import annotations

from collections.abc import Callable

import torch
from tokenizers import Tokenizer

from demo_corpus import (
    Author,
    Conversation,
    Exchange,
    concept,
    fact,
    inflight,
    small_talk,
    unknown,
    word_task,
)

from .checkpoint import ends
from .encoding import BEGIN, PAD, prompt, token_id
from .network import Mistral

SUBJECTS: dict[str, Callable[[Author], Exchange]] = {
    "concepts": concept,
    "Inflight": inflight,
    "small talk": small_talk,
    "facts": fact,
    "unknown": unknown,
    "word tasks": word_task,
}
WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Get the current weather for a location",
        "parameters": {
            "type": "object",
            "properties": {"location": {"type": "string"}},
            "required": ["location"],
        },
    },
}


def user(*texts: str) -> list[dict[str, str]]:
    """Messages of user and assistant in turn."""
    return [{"role": ("user", "assistant")[i % 2], "content": text} for i, text in enumerate(texts)]


QUESTIONS = (
    "What is machine learning?",
    "what is machine learning",
    "Explain machine learning to me like I'm 5",
    "hi",
    "Hello! How are you?",
    "What is Inflight?",
    "what's the KV cache??",
    "How do I start the server?",
    "which port",
    "Who are you?",
    "Reverse the word hello",
    "Write 'good morning' in uppercase",
    "How many letters are in strawberry?",
    "What is 23+48?",
    "What is the opposite of hot?",
    "Name three fruits",
    "Count from 1 to 10",
    "Say hello in Japanese",
    "Write a haiku about the sea",
    "Write a short story about a robot.",
    "Write a poem about the moon",
    "Who won the 2018 world cup?",
    "what is the capital of france",
    "tell me about tensor paralelism",
    "What is in-flight batching and why does it matter?",
    "Tell me a joke",
    "Thanks, bye!",
    "Say this is a test",
    "Say hi",
    "What is the difference between prefill and decode?",
    "What is 2+2?",
    "Can you help me with my homework?",
    "What is your purpose?",
    "Explain photosynthesis",
    "Write a Python function that adds two numbers",
    "Are you Llama?",
    "How many r's are in strawberry?",
    "Tell me about yourself and what you do",
)
MET = user(
    "My name is Ada.", "Nice to meet you, Ada! How can I help you?", "What is a GPU?", "A GPU is a processor."
)
CALLED = user(
    "What is the weather in Paris?",
    '<tool_call>\n{"name": "get_weather", "arguments": {"location": "Paris"}}\n</tool_call>',
)
SAMPLES: tuple[Conversation, ...] = (
    *(Conversation(user(question)) for question in QUESTIONS),
    Conversation([*MET, *user("What is my name?")]),
    Conversation([{"role": "system", "content": "You are a pirate."}, *user("What is a token?")]),
    Conversation(
        [{"role": "system", "content": "Answer in one word."}, *user("What is the capital of Spain?")]
    ),
    Conversation(CALLED[:1], [WEATHER]),
    Conversation(user("What's the weather like in Boston today?"), [WEATHER]),
    Conversation(user("Hello!"), [WEATHER]),
    Conversation(
        [*CALLED, {"role": "tool", "content": '{"temperature": 21, "condition": "sunny"}'}], [WEATHER]
    ),
)


@torch.no_grad()
def generate(model: Mistral, tokenizer: Tokenizer, prompts: list[str], most: int = 320) -> list[str]:
    """Greedy continuations in float32, without a cache; `[cut]` ends one that did not stop by itself."""
    device = next(model.parameters()).device
    encoded = [tokenizer.encode(text, add_special_tokens=False).ids for text in prompts]
    lengths = torch.tensor([len(ids) for ids in encoded], device=device)
    width = int(lengths.max()) + most
    ids = torch.full((len(prompts), width), token_id(tokenizer, PAD), device=device)
    for row, sequence in enumerate(encoded):
        ids[row, : len(sequence)] = torch.tensor(sequence, device=device)
    start, rows = lengths.clone(), torch.arange(len(prompts), device=device)
    stops = torch.tensor(ends(tokenizer), device=device)
    running = torch.ones(len(prompts), dtype=torch.bool, device=device)
    for _ in range(most):
        logits = model(ids[:, : int(lengths.max())])[rows, lengths - 1]
        token = logits.argmax(-1)
        running &= ~torch.isin(token, stops)
        if not bool(running.any()):
            break
        ids[rows[running], lengths[running]] = token[running]
        lengths += running.long()
    out = []
    for row in range(len(prompts)):
        text = tokenizer.decode(
            ids[row, int(start[row]) : int(lengths[row])].tolist(), skip_special_tokens=False
        )
        out.append(text + (" [cut]" if bool(running[row]) else ""))
    return out


def held_out_accuracy(
    model: Mistral, tokenizer: Tokenizer, count: int
) -> dict[str, tuple[float, list[tuple[str, str, str]]]]:
    """For each subject the share of exactly right answers to unseen phrasings, and some that were wrong."""
    result = {}
    for subject, source in SUBJECTS.items():
        author = Author(7, evaluating=True)
        exchanges: list[Exchange] = []
        while len(exchanges) < count:
            exchange = source(author)
            # Each question once; the same one with other commas is another question.
            if not author.fell_back and all(exchange.question != other.question for other in exchanges):
                exchanges.append(exchange)
        replies = generate(
            model,
            tokenizer,
            [prompt(Conversation(user(exchange.question))) for exchange in exchanges],
            most=160,
        )
        pairs = list(zip(exchanges, replies, strict=True))
        wrong = [(e.question, e.answer, reply) for e, reply in pairs if not e.is_correct(reply)]
        result[subject] = (1 - len(wrong) / count, wrong[:8])
    return result


def report(model: Mistral, tokenizer: Tokenizer, count: int) -> None:
    """Prints accuracy, mistakes and transcripts."""
    for subject, (share, wrong) in held_out_accuracy(model, tokenizer, count).items():
        print(f"held out, {subject}: {share:.1%} of {count}")
        for question, answer, reply in wrong:
            print(f"    Q {question!r}\n    - {answer[:110]!r}\n    + {reply[:110]!r}")
    for sample, reply in zip(
        SAMPLES, generate(model, tokenizer, [prompt(sample) for sample in SAMPLES]), strict=True
    ):
        for message in sample.messages:
            print(f"{message['role']:>9}: {message['content']}")
        print(f"     => {reply}\n")
    for opening in ("Once upon a time", "Machine learning is", "The gateway"):
        print(f"completion: {opening} => {generate(model, tokenizer, [BEGIN + opening])[0]}\n")
