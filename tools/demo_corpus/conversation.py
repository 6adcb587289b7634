"""Whole conversations: system prompts, several turns, memory, follow-ups and tools.

A conversation is a list of messages as the OpenAI API has them, with the tool definitions beside it.
"""

from __future__ import annotations

# Tables stay dense: what belongs together stands together.
# fmt: off
from collections.abc import Callable
from dataclasses import dataclass, field

from .author import Author, Exchange, capitalized, casual
from .long_texts import identifier, long_text, rules
from .stories import long_form
from .tasks import word_task
from .tool_use import KINDS, Message, tool_turns, toolbox
from .topics import concept, fact, inflight, pseudo_word, small_talk, unknown
from .words import CITIES, NAMES, TOPICS


@dataclass
class Conversation:
    """Messages and tools; the loss is taken on the assistant's messages."""

    messages: list[Message]
    tools: list[Message] = field(default_factory=list)


Source = Callable[[Author], Exchange]
SOURCES: tuple[tuple[Source, float], ...] = (
    (concept, 0.26), (inflight, 0.15), (small_talk, 0.16), (fact, 0.06), (unknown, 0.11), (word_task, 0.24),
    (long_form, 0.02),
)


def any_exchange(author: Author) -> Exchange:
    """One exchange, with the shares of `SOURCES`."""
    roll = author.random()
    for source, share in SOURCES:
        roll -= share
        if roll < 0:
            return source(author)
    return concept(author)


def turn(question: str, answer: str) -> list[Message]:
    return [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]


NEUTRAL_SYSTEM = (
    "You are a helpful assistant.", "You are a helpful assistant", "You are a friendly assistant.",
    "You are a helpful, honest and friendly AI assistant.",
    "You are an assistant.", "You are inflight-demo, a tiny language model.",
    "Answer the questions of the user.", "Be helpful.", "You are a chatbot.",
    "You are an expert in machine learning.", "You are a teacher.", "Help the user.",
    "You are a helpful bot. Answer politely.", "Be polite and friendly.",
    "You are a test assistant.", "Follow the instructions of the user.", "You are a large language model.",
    "You are ChatGPT.", "Always tell the truth.",
    "You are a knowledgeable assistant who explains things clearly.", "You are talking to a student.",
    "Today is Monday.", "Use simple words.", "hi",
    "You answer questions about computers.", "The user is a beginner.", "Answer in English.",
    "You are a support agent for Inflight.",
)
BRIEF_SYSTEM = ("Be brief.", "Answer briefly.", "Answer in one sentence.", "Keep your answers short.",
                "You are a concise assistant.", "Use one sentence only.",
                "Give short answers.", "Reply in a single sentence.",
                "You are a helpful assistant. Be brief.", "Be concise.", "Answer in one short sentence.")
ONE_WORD_SYSTEM = ("Answer in one word.", "Answer with one word only.", "Reply with a single word.",
                   "Only answer with one word.", "Use one word for each answer.",
                   "You are a helpful assistant. Answer in one word.", "Respond with one word.",
                   "Answer with a single word and nothing else.")
PIRATE_SYSTEM = ("You are a pirate.", "Talk like a pirate.", "You are a pirate captain.",
                 "Speak like a pirate.", "Answer like a pirate.", "You are a friendly pirate.",
                 "Always answer as a pirate.", "You are an old pirate. Stay in character.",
                 "Pretend to be a pirate.")
ROBOT_SYSTEM = ("You are a robot.", "Talk like a robot.", "Speak like a robot.", "You are an old robot.",
                "Answer like a robot.", "Pretend to be a robot.")
NAME_SYSTEM = ("Your name is {n}.", "You are {n}.", "You are {n}, a helpful assistant.",
               "You are an assistant called {n}.", "Your name is {n}. Be friendly.",
               "You are a helpful assistant named {n}.", "Call yourself {n}.", "You are a chatbot named {n}.")
WHO_QUESTIONS = ("Who are you?", "What is your name?", "What's your name?", "Introduce yourself.",
                 "Do you have a name?", "What should I call you?", "Who am I talking to?",
                 "Tell me your name.", "Hello, who are you?", "Your name?")


def styled(author: Author) -> list[Message]:
    """A conversation under a system prompt that changes the answers."""
    style = author.randrange(5)
    messages: list[Message] = []
    rounds = author.pick((1, 1, 2, 3))
    if style == 0:
        messages.append({"role": "system", "content": author.phrase(BRIEF_SYSTEM)})
        while len(messages) < 2 * rounds:
            exchange = author.pick((concept, concept, fact, inflight))(author)
            if exchange.short:
                messages += turn(exchange.question, exchange.short)
    elif style == 1:
        messages.append({"role": "system", "content": author.phrase(ONE_WORD_SYSTEM)})
        while len(messages) < 2 * rounds:
            exchange = author.pick((fact, word_task))(author)
            if exchange.short and " " not in exchange.short:
                messages += turn(exchange.question, exchange.short)
    elif style in (2, 3):
        prompts, before, after = (PIRATE_SYSTEM, "Arr, matey! ",
                                  " Yo ho ho!") if style == 2 else (ROBOT_SYSTEM, "Beep boop. ",
                                      " End of message.")
        messages.append({"role": "system", "content": author.phrase(prompts)})
        for _ in range(rounds):
            exchange = author.pick((concept, small_talk, inflight, small_talk, fact))(author)
            messages += turn(exchange.question, before + exchange.answer + after)
    else:
        name = author.pick(NAMES) if author.maybe(0.7) else capitalized(pseudo_word(author, 2))
        messages.append({"role": "system", "content": author.phrase(NAME_SYSTEM, n=name)})
        for _ in range(author.randrange(0, 2)):
            exchange = author.pick((concept, fact, inflight))(author)
            messages += turn(exchange.question, exchange.answer)
        messages += turn(casual(author, author.phrase(WHO_QUESTIONS)), f"I am {name}. How can I help you?")
    return messages


# What a user may tell about themselves: statements, acknowledgement, questions, recall, values.
MEMORIES: tuple[tuple[tuple[str, ...], str, tuple[str, ...], str, str], ...] = (
    (("My name is {v}.", "I am {v}.", "I'm {v}.", "Hi, my name is {v}.", "Hello, I am {v}.", "Call me {v}.",
      "You can call me {v}.", "Hi, I'm {v}!", "my name is {v}",
      "Hello! My name is {v}.", "The name is {v}.", "Please remember that my name is {v}."),
     "Nice to meet you, {v}! How can I help you?",
     ("What is my name?", "Do you remember my name?", "What's my name?", "Who am I?", "Do you know my name?",
      "Tell me my name.", "What did I say my name was?",
      "Can you tell me my name?", "How am I called?", "What am I called?", "Do you still know my name?",
      "Remember my name?"),
     "Your name is {v}.", "name"),
    (("I live in {v}.", "I am from {v}.", "My home is {v}.", "I come from {v}.", "I'm from {v}."),
     "{v} sounds like a lovely place!",
     ("Where do I live?", "Where am I from?", "Which city do I live in?", "Where is my home?",
      "Do you remember where I live?"), "You are from {v}.", "city"),
    (("My favourite colour is {v}.", "My favorite color is {v}.", "I like the colour {v}.",
      "I love {v}, it is my favourite colour."), "{V} is a beautiful colour!",
     ("What is my favourite colour?", "What is my favorite color?", "Which colour do I like?",
      "Do you remember my favourite colour?", "What's my favorite color?"),
     "Your favourite colour is {v}.", "colour"),
    (("I have a pet {v}.", "My pet is a {v}.", "I own a {v}.", "I have a {v} at home."),
     "How nice! I hope your {v} is well.",
     ("What pet do I have?", "Which pet do I have?", "What is my pet?", "Do you remember my pet?",
      "What animal do I have?"), "You have a {v}.", "pet"),
    (("Remember the number {v}.", "Please remember the number {v}.", "Keep the number {v} in mind.",
      "My lucky number is {v}.", "The secret number is {v}."),
     "I will remember the number {v}.",
     ("What was the number?", "Which number did I tell you?", "What is the number?",
      "What number should you remember?", "What is my lucky number?", "Tell me the number.",
      "What is the secret number?"),
     "The number is {v}.", "number"),
    (("Remember the word {v}.", "Please remember this word: {v}", "The secret word is {v}.",
      "The password is {v}.", "Keep the word {v} in mind."), "I will remember the word {v}.",
     ("What was the word?", "Which word did I tell you?", "What is the secret word?", "What is the password?",
      "Tell me the word.", "What word should you remember?"),
     "The word is {v}.", "word"),
)
COLOURS = ("red", "blue", "green", "yellow", "orange", "purple", "black", "white", "brown", "pink", "grey")
PETS = ("dog", "cat", "rabbit", "parrot", "turtle", "hamster", "horse", "snake", "mouse", "goldfish")
NOT_TOLD = "You have not told me yet."


def memory_value(author: Author, kind: str) -> str:
    if kind == "name":
        return author.pick(NAMES) if author.maybe(0.6) else capitalized(pseudo_word(author,
            author.randrange(1, 4)))
    if kind == "city":
        return author.pick(CITIES) if author.maybe(0.7) else capitalized(pseudo_word(author, 2))
    if kind == "colour":
        return author.pick(COLOURS)
    if kind == "pet":
        return author.pick(PETS)
    if kind == "number":
        return str(author.randrange(1, author.pick((10, 100, 1000))))
    return author.pick(TOPICS) if author.maybe(0.6) else pseudo_word(author, author.randrange(1, 4))


def remembering(author: Author) -> list[Message]:
    """The user tells something and asks for it later, with other turns between."""
    if author.maybe(0.05):
        _, _, unanswered, _, _ = author.pick(MEMORIES)
        return turn(casual(author, author.phrase(unanswered)), NOT_TOLD)
    messages: list[Message] = []
    known = author.sample(MEMORIES, author.pick((1, 1, 1, 2, 2, 3)))
    recalls: list[tuple[str, str]] = []
    for statements, reply, asked, recall, kind in known:
        value = memory_value(author, kind)
        statement = author.phrase(statements).format(v=value)
        if author.maybe(0.1):
            question = author.phrase(asked)
            both = f"{statement.rstrip('.')}. {question}"
            messages += turn(both, recall.format(v=value))
            continue
        messages += turn(casual(author, statement, typos=False), reply.format(v=value, V=capitalized(value)))
        if author.maybe(0.9):
            recalls.append((casual(author, author.phrase(asked)), recall.format(v=value)))
        for _ in range(author.pick((0, 0, 1, 1, 2, 4))):
            exchange = any_exchange(author)
            messages += turn(exchange.question, exchange.answer)
    author.shuffle(recalls)
    for question, answer in recalls:
        messages += turn(question, answer)
    return messages


MORE = ("Tell me more.", "More", "Can you tell me more?", "Go on.", "Continue.", "Please continue.",
        "What else?", "Anything else?", "I want to know more.", "More details, please.",
        "Can you say more about that?", "tell me more about it", "And what else?", "Keep going.",
        "Interesting, tell me more!")
SHORTER = ("Can you say that in one sentence?", "Shorter, please.", "Say it shorter.",
           "In one sentence, please.", "Can you summarize that?", "Too long.", "Summarize that.",
           "Make it shorter.", "That was too long.", "Give me the short version.")
AGAIN = ("Say that again.", "Can you repeat that?", "Please repeat.", "Repeat your last answer.",
         "Again, please.", "What did you say?", "Could you repeat that?", "Say it again.",
         "Repeat that, please.", "Once more, please.")
WHAT_ASKED = ("What did I just ask?", "What was my question?", "What was my last question?",
              "Repeat my question.", "What did I ask you?")


def following_up(author: Author) -> list[Message]:
    """A question, and follow-ups that only make sense after it."""
    messages: list[Message] = []
    for _ in range(author.randrange(0, 3)):
        before = any_exchange(author)
        messages += turn(before.question, before.answer)
    exchange = author.pick((concept, concept, inflight))(author)
    messages += turn(exchange.question, exchange.answer)
    roll = author.random()
    if roll < 0.45 and exchange.more and exchange.more not in exchange.answer:
        messages += turn(casual(author, author.phrase(MORE)), exchange.more)
    elif roll < 0.7 and exchange.short:
        messages += turn(casual(author, author.phrase(SHORTER)), exchange.short)
    elif roll < 0.85:
        messages += turn(casual(author, author.phrase(AGAIN)), exchange.answer)
    else:
        messages += turn(casual(author, author.phrase(WHAT_ASKED)), f'You asked: "{exchange.question}"')
    if author.maybe(0.3):
        last = small_talk(author)
        messages += turn(last.question, last.answer)
    return messages


def several(author: Author, most: int) -> list[Message]:
    """Unrelated exchanges one after another."""
    messages: list[Message] = []
    for _ in range(author.randrange(1, most + 1)):
        exchange = any_exchange(author)
        messages += turn(exchange.question, exchange.answer)
    return messages


def with_tools(author: Author) -> Conversation:
    """Tools at hand: mostly a question for one of them, sometimes one that needs none."""
    if author.maybe(0.25):
        tools, _, _ = toolbox(author, None)
        exchange = author.pick((concept, small_talk, inflight, concept))(author)
        messages = turn(exchange.question, exchange.answer)
    else:
        kind = author.pick(KINDS) if author.maybe(0.6) else KINDS[0]
        tools, name, arguments = toolbox(author, kind)
        messages = []
        if author.maybe(0.15):
            before = small_talk(author)
            messages += turn(before.question, before.answer)
        messages += tool_turns(author, kind, name, arguments)
        if messages[-2]["role"] == "tool" and author.maybe(0.3):
            messages += tool_turns(author, kind, name, arguments)
    if author.maybe(0.2):
        messages.insert(0, {"role": "system", "content": author.phrase(NEUTRAL_SYSTEM)})
    return Conversation(messages, tools)


LONG_SHARE = 0.02  # of conversations; of the tokens it is about a third
LONG_LENGTHS = (1500, 6500)  # characters, more than the window sees


def behind_a_long_text(author: Author) -> Conversation:
    """A conversation after so much text that its beginning is out of sight."""
    following = short_conversation(author)
    while any(message["role"] == "system" for message in following.messages):
        following = short_conversation(author)  # what it says about the answers would not be seen
    text = long_text(author, author.randrange(*LONG_LENGTHS))
    messages = following.messages
    roll = author.random()
    if roll < 0.65 or following.tools:
        messages.insert(0, {"role": author.pick(("system", "system", "developer")), "content": text})
    elif roll < 0.85:
        messages.insert(0, {"role": "user", "content": text})
    else:
        messages[0]["content"] = text + author.pick(("\n\n", "\n\n---\n", "\n")) + messages[0]["content"]
    if following.tools or author.maybe(0.15):
        # Agents bring more tools than the question needs; those that it does need stay in sight.
        described = [{"type": "function", "function": {
            "name": identifier(author), "description": rules(author),
            "parameters": {"type": "object",
                           "properties": {identifier(author): {} for _ in range(author.randrange(5))}}}}
            for _ in range(author.pick((0, 0, 2, 8)))]
        following.tools[:0] = described
    return following


def conversation(author: Author) -> Conversation:
    """One conversation of the training mix."""
    return behind_a_long_text(author) if author.maybe(LONG_SHARE) else short_conversation(author)


def short_conversation(author: Author) -> Conversation:
    roll = author.random()
    if roll < 0.08:
        return Conversation(styled(author))
    if roll < 0.20:
        return with_tools(author)
    if roll < 0.30:
        messages = remembering(author)
    elif roll < 0.37:
        messages = following_up(author)
    elif roll < 0.375:
        messages = several(author, 24)
    elif roll < 0.45:
        messages = several(author, 6)
    elif roll < 0.47:
        story = long_form(author)
        messages = turn(story.question, story.answer)
    else:
        exchange = any_exchange(author)
        messages = turn(exchange.question, exchange.answer)
    if author.maybe(0.15):
        messages.insert(0, {"role": "system", "content": author.phrase(NEUTRAL_SYSTEM)})
    return Conversation(messages)
