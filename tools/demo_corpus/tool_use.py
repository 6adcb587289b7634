"""Conversations with tools: definitions, questions that match them, calls, results and closing answers.

The calls have the Hermes form: a JSON object with name and arguments between <tool_call> tags.
"""

from __future__ import annotations

# Tables stay dense: what belongs together stands together.
# fmt: off
import json
from dataclasses import dataclass
from typing import Any

from .author import Author, casual
from .topics import pseudo_word
from .words import CITIES, NAMES, TOPICS, WORDS

Message = dict[str, Any]


@dataclass(frozen=True)
class ToolKind:
    """One kind of tool and the names it goes by; arguments map a kind of value to its possible names."""

    names: tuple[str, ...]
    descriptions: tuple[str, ...]
    arguments: tuple[tuple[str, tuple[str, ...]], ...]  # kind of value, names
    questions: tuple[str, ...]  # {0}, {1}: the values
    replies: tuple[tuple[str, str], ...]  # result and answer; {0}, {1} values, {n} a number, {w} a word


KINDS: tuple[ToolKind, ...] = (
    ToolKind(("get_weather", "get_current_weather", "weather", "fetch_weather", "weather_lookup",
              "get_forecast"),
             ("Get the weather for a city", "Get the current weather",
              "Returns the weather in a given location", "Current weather for a place", ""),
             (("city", ("city", "location", "place", "town")),),
             ("What is the weather in {0}?", "How is the weather in {0}?", "What's the weather like in {0}?",
              "Weather in {0}?", "Tell me the weather in {0}.",
              "Is it raining in {0}?", "Is it sunny in {0} today?", "How warm is it in {0}?",
              "What is the temperature in {0}?", "Do I need an umbrella in {0}?",
              "What is the weather in {0} today?", "Can you check the weather in {0}?", "Is it cold in {0}?",
              "Get the weather for {0}.", "Will it rain in {0} tomorrow?"),
             (('{{"temperature": {n}, "condition": "{s}"}}', "The weather in {0} is {s} at {n} degrees."),
              ('{{"temp": {n}, "conditions": "{s}"}}', "The weather in {0} is {s} at {n} degrees."),
              ('{{"city": "{0}", "temperature": {n}, "unit": "celsius", "condition": "{s}"}}',
               "The weather in {0} is {s} at {n} degrees."),
              ("{n} degrees and {s}", "The weather in {0} is {s} at {n} degrees."),
              ("{s}, {n} C", "The weather in {0} is {s} at {n} degrees."),
              ("{s}", "The weather in {0} is {s}."), ('{{"temperature": {n}}}',
                                                      "It is {n} degrees in {0}."))),
    ToolKind(("get_time", "current_time", "get_current_time", "time_in_city"),
             ("Get the current time in a city", "Returns the local time", "Current time", ""),
             (("city", ("city", "location", "timezone", "place")),),
             ("What time is it in {0}?", "Tell me the time in {0}.", "What is the local time in {0}?",
              "Time in {0}?", "How late is it in {0}?"),
             (('{{"time": "{h}:{m}"}}', "It is {h}:{m} in {0}."), ("{h}:{m}", "It is {h}:{m} in {0}."))),
    ToolKind(("calculate", "add", "sum", "add_numbers", "calculator"),
             ("Add two numbers", "Adds numbers", "Calculate a sum", ""),
             (("number", ("a", "x", "first")), ("number", ("b", "y", "second"))),
             ("What is {0} plus {1}?", "Add {0} and {1}.", "Calculate {0} + {1}.", "What is {0} + {1}?",
              "How much is {0} plus {1}?"),
             (('{{"result": {n}}}', "The result is {n}."), ("{n}", "The result is {n}."))),
    ToolKind(("search", "web_search", "search_web", "google"),
             ("Search the web", "Searches for a text", "Find pages about a topic", ""),
             (("topic", ("query", "q", "text", "keywords")),),
             ("Search for {0}.", "Search the web for {0}.", "Look up {0}.", "Find information about {0}.",
              "Google {0}."),
             (('{{"result": "{w}"}}', "The search found: {w}."), ("{w}", "The search found: {w}."))),
    ToolKind(("send_email", "send_message", "send_mail", "message"),
             ("Send an email to a person", "Send a message", "Sends mail", ""),
             (("name", ("to", "recipient", "name", "person")),),
             ("Send an email to {0}.", "Write a mail to {0}.", "Send {0} a message.", "Email {0}.",
              "Send a message to {0}."),
             (('{{"status": "sent"}}', "I have sent the message to {0}."),
              ("ok", "I have sent the message to {0}."), ("sent", "I have sent the message to {0}."))),
    ToolKind(("play_music", "play_song", "play"), ("Play music by an artist", "Play a song", ""),
             (("name", ("artist", "singer", "song", "name")),),
             ("Play a song by {0}.", "Play {0}.", "I want to hear {0}.", "Put on music by {0}.",
              "Play music by {0}."),
             (('{{"status": "playing"}}', "I am playing {0} now."), ("ok", "I am playing {0} now."),
              ("playing", "I am playing {0} now."))),
    ToolKind(("set_timer", "start_timer", "timer"), ("Set a timer", "Start a timer in minutes", ""),
             (("number", ("minutes", "duration", "time")),),
             ("Set a timer for {0} minutes.", "Start a timer of {0} minutes.", "Wake me in {0} minutes.",
              "Timer for {0} minutes.", "Remind me in {0} minutes."),
             (('{{"status": "ok"}}', "The timer is set for {0} minutes."),
              ("ok", "The timer is set for {0} minutes."))),
    ToolKind(("get_stock_price", "stock_price", "get_price", "lookup_price"),
             ("Get the price of a product", "Look up a price", ""),
             (("thing", ("product", "item", "symbol", "name")),),
             ("What is the price of {0}?", "How much does {0} cost?", "Get the price of {0}.",
              "Tell me the price of {0}.", "Price of {0}?"),
             (('{{"price": {n}}}', "The price of {0} is {n}."), ("{n}", "The price of {0} is {n}."))),
    ToolKind(("get_user", "find_user", "lookup_user", "get_age"),
             ("Find a user by name", "Look up a person", ""), (("name", ("name", "user", "username")),),
             ("Find the user {0}.", "Look up the user {0}.", "Who is the user {0}?", "Get the user {0}.",
              "How old is {0}?"),
             (('{{"name": "{0}", "age": {n}}}', "{0} is {n} years old."),
              ('{{"age": {n}}}', "{0} is {n} years old."))),
    ToolKind(("book_flight", "find_flights", "search_flights"),
             ("Book a flight between two cities", "Find flights", ""),
             (("city", ("origin", "from", "departure")), ("city", ("destination", "to", "arrival"))),
             ("Book a flight from {0} to {1}.", "Find flights from {0} to {1}.",
              "I want to fly from {0} to {1}.", "Is there a flight from {0} to {1}?"),
             (('{{"flight": "LH{n}"}}', "There is a flight from {0} to {1}: LH{n}."),
              ("LH{n}", "There is a flight from {0} to {1}: LH{n}."))),
    ToolKind(("translate", "translate_text", "translate_word"),
             ("Translate a word to another language", "Translate text", ""),
             (("thing", ("text", "word", "input")), ("language", ("language", "target", "to"))),
             ("Translate {0} to {1}.", "How do you say {0} in {1}?", "What is {0} in {1}?",
              "Translate {0} into {1}."),
             (('{{"translation": "{w}"}}', "In {1} you say \"{w}\"."), ("{w}", "In {1} you say \"{w}\"."))),
    ToolKind(("turn_on_light", "switch_light", "light_on", "lights"),
             ("Turn on the light in a room", "Switch a light", ""),
             (("room", ("room", "location", "where")),),
             ("Turn on the light in the {0}.", "Switch on the {0} light.", "Light in the {0}, please.",
              "Turn the {0} light on."),
             (('{{"status": "on"}}', "The light in the {0} is on."), ("ok", "The light in the {0} is on."))),
)
SKIES = ("sunny", "rainy", "cloudy", "windy", "foggy", "snowy", "clear", "stormy", "partly cloudy", "warm")
ROOMS = ("kitchen", "bedroom", "bathroom", "garage", "garden", "office", "hall", "living room")
LANGUAGES = ("French", "German", "Spanish", "Italian", "Japanese", "Russian", "Chinese")


def value_of(author: Author, kind: str) -> str | int:
    """A value for an argument; names and cities are sometimes invented, so that copying is learned."""
    invented = pseudo_word(author, author.randrange(2, 4)).capitalize()
    if kind == "number":
        return author.randrange(1, author.pick((10, 100, 1000)))
    if kind == "city":
        return invented if author.maybe(0.25) else author.pick(CITIES)
    if kind == "name":
        return invented if author.maybe(0.25) else author.pick(NAMES)
    if kind == "room":
        return author.pick(ROOMS)
    if kind == "language":
        return author.pick(LANGUAGES)
    if kind == "topic":
        return " ".join(author.pick(WORDS + TOPICS) for _ in range(author.randrange(1, 4)))
    return author.pick(WORDS)


def definition(author: Author, kind: ToolKind) -> tuple[Message, list[str]]:
    """A definition in the form of the OpenAI API, and the names of its arguments in order."""
    arguments = [author.pick(names) for _, names in kind.arguments]
    listed = list(arguments)
    if author.maybe(0.2):
        listed.append(author.pick(("unit", "units", "format", "lang")))  # an optional one that stays unused
    types = ["integer" if value == "number" else "string" for value, _ in kind.arguments] + ["string"]
    properties = {name: {"type": types[i]} for i, name in enumerate(listed)}
    if author.maybe(0.3):
        properties = dict(reversed(list(properties.items())))
    function: Message = {"name": author.pick(kind.names),
                         "parameters": {"type": "object", "properties": properties, "required": arguments}}
    if description := author.pick(kind.descriptions):
        function["description"] = description + author.pick(("", "", "."))
    return {"type": "function", "function": function}, arguments


def call_text(name: str, arguments: Message) -> str:
    return "<tool_call>\n" + json.dumps({"name": name, "arguments": arguments},
                                        ensure_ascii=False) + "\n</tool_call>"


def toolbox(author: Author, wanted: ToolKind | None) -> tuple[list[Message], str, list[str]]:
    """Definitions in any order, with distractors; the wanted tool's name and its argument names."""
    others = [kind for kind in KINDS if kind is not wanted]
    count = author.pick((0, 0, 1, 1, 2, 3)) if wanted else author.randrange(1, 4)
    chosen = author.sample(others, count)
    if wanted:
        chosen.append(wanted)
        author.shuffle(chosen)
    tools: list[Message] = []
    name, arguments = "", []
    for kind in chosen:
        tool, names = definition(author, kind)
        tools.append(tool)
        if kind is wanted:
            name, arguments = tool["function"]["name"], names
    return tools, name, arguments


def tool_turns(author: Author, kind: ToolKind, name: str, arguments: list[str],
               question: str | None = None) -> list[Message]:
    """A question, the call, and mostly the result with the closing answer."""
    values = [value_of(author, value_kind) for value_kind, _ in kind.arguments]
    shown = [str(value) for value in values]
    text = author.phrase(kind.questions).format(*shown) if question is None else question
    text = casual(author, text, typos=False)
    if author.maybe(0.15):
        text = text.rstrip("?.")
    call = call_text(name, dict(zip(arguments, values, strict=True)))
    turns: list[Message] = [{"role": "user", "content": text}, {"role": "assistant", "content": call}]
    if author.maybe(0.6):
        result, answer = author.pick(kind.replies)
        facts = {"n": author.randrange(1, 100), "s": author.pick(SKIES), "w": author.pick(WORDS),
                 "h": author.randrange(10, 24), "m": author.randrange(10, 60)}
        if kind.names[0] == "calculate":
            facts["n"] = int(values[0]) + int(values[1])
        turns.append({"role": "tool", "content": result.format(*shown, **facts)})
        turns.append({"role": "assistant", "content": answer.format(*shown, **facts)})
    return turns
