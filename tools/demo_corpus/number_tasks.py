"""Simple tasks with numbers, lists and the calendar, with answers computed here."""

from __future__ import annotations

# Tables stay dense: what belongs together stands together.
# fmt: off
from collections.abc import Sequence

from .author import Author, Exchange, capitalized
from .knowledge import DAYS, LISTS, MONTHS, SEASONS
from .word_tasks import ask, joined, number_word

SYMBOLS = {"+": ("{a} + {b}", "{a}+{b}", "{a} plus {b}", "the sum of {a} and {b}"),
           "-": ("{a} - {b}", "{a}-{b}", "{a} minus {b}"),
           "*": ("{a} * {b}", "{a} x {b}", "{a} times {b}", "{a}*{b}", "{a} multiplied by {b}")}


def arithmetic(author: Author) -> Exchange:
    sign = author.pick("++-*")
    if sign == "*":
        a, b = author.randrange(0, 13), author.randrange(0, 11)
        result = a * b
    else:
        limit = author.pick((10, 20, 20, 100))
        a, b = author.randrange(0, limit), author.randrange(0, limit)
        if sign == "-" and a < b:
            a, b = b, a
        result = a + b if sign == "+" else a - b
    shown = author.pick(SYMBOLS[sign]).format(a=a, b=b)
    frames = ("What is {e}?", "{e}", "{e}?", "{e} =", "{e} = ?", "How much is {e}?", "Calculate {e}.",
              "Compute {e}.", "What's {e}?", "What does {e} equal?",
              "Can you calculate {e}?", "Tell me what {e} is.", "Solve {e}.", "What do you get for {e}?")
    word = {"+": "plus", "-": "minus", "*": "times"}[sign]
    return ask(author, frames, f"{a} {word} {b} is {result}.", f"{result}.", e=shown)


def list_items(author: Author) -> Exchange:
    kind = author.pick(tuple(LISTS))
    count = author.randrange(2, 9) if author.maybe(0.85) else author.randrange(9, 11)
    items = LISTS[kind][:count]
    count = len(items)
    number = number_word(count) if author.maybe(0.5) else str(count)
    frames = ("Name {n} {k}.", "List {n} {k}.", "Give me {n} {k}.", "Can you name {n} {k}?",
              "Tell me {n} {k}.", "Name me {n} {k}, please.",
              "What are {n} {k}?", "Give me a list of {n} {k}.", "Write down {n} {k}.", "I need {n} {k}.",
              "Name {n} different {k}.")
    return ask(author, frames, f"Here are {number_word(count)} {kind}: {joined(items)}.",
               joined(list(items)) + ".", n=number, k=kind)


def list_some(author: Author) -> Exchange:
    frames: Sequence[str]
    kind = author.pick(tuple(LISTS))
    if author.maybe(0.25):
        item = LISTS[kind][0]
        single = {"countries": "country", "cities": "city", "colours": "colour", "colors": "color"}.get(kind,
            kind[:-1])
        frames = ("Name a {k}.", "Tell me a {k}.", "Name one {k}.", "Give me a {k}.", "Name any {k}.",
                  "Say a {k}.")
        return ask(author, frames, f"{capitalized(item)}.", k=single)
    items = LISTS[kind][:5]
    if author.maybe(0.5):
        frames = ("Name some {k}.", "List some {k}.", "Which {k} do you know?", "Tell me some {k}.",
                  "Give me some {k}.", "What {k} do you know?")
        return ask(author, frames, f"Here are five {kind}: {joined(items)}.", k=kind)
    frames = ("Make a numbered list of {k}.", "Write a numbered list of {k}.",
              "Give me a numbered list of {k}.", "List {k} with numbers.")
    return ask(author, frames, "\n".join(f"{i}. {capitalized(item)}" for i, item in enumerate(items, 1)),
               k=kind)


def calendar(author: Author) -> Exchange:
    frames: Sequence[str]
    cycle, noun = author.pick(((DAYS, "day"), (MONTHS, "month"), (SEASONS, "season")))
    if author.maybe(0.2):
        frames = ("What are the {k}s?", "Name the {k}s.", "List the {k}s.", "List all {k}s.",
                  "Tell me all the {k}s.", "Which {k}s are there?")
        kind = {"day": "days of the week", "month": "months of the year",
                "season": "seasons of the year"}[noun]
        return ask(author, [f.replace("{k}s", "{k}") for f in frames], f"The {kind} are {joined(cycle)}.",
                   k=author.pick((kind, kind, noun + "s")))
    i = author.randrange(len(cycle))
    if author.maybe(0.6):
        frames = ("What {k} comes after {x}?", "Which {k} is after {x}?", "What comes after {x}?",
                  "Which {k} follows {x}?", "What is the next {k} after {x}?",
                  "What {k} is it after {x}?")
        after = cycle[(i + 1) % len(cycle)]
        return ask(author, frames, f"After {cycle[i]} comes {after}.", f"{capitalized(after)}.", k=noun,
                   x=cycle[i])
    frames = ("What {k} comes before {x}?", "Which {k} is before {x}?", "What comes before {x}?",
              "What {k} is it before {x}?")
    before = cycle[i - 1]
    return ask(author, frames, f"Before {cycle[i]} comes {before}.", f"{capitalized(before)}.", k=noun,
               x=cycle[i])


def counting(author: Author) -> Exchange:
    frames: Sequence[str]
    end = author.pick((3, 5, 5, 10, 10, 10, 12, 15, 20, 20, 25, 30, 50, 100))
    start = 1 if author.maybe(0.85) else author.randrange(2, end + 1)
    if author.maybe(0.75):
        frames = ("Count from {a} to {b}.", "Count from {a} to {b}", "Count to {b} from {a}.",
                  "Write the numbers from {a} to {b}.", "List the numbers from {a} to {b}.")
        if start == 1 and author.maybe(0.5):
            frames = ("Count to {b}.", "Can you count to {b}?", "Please count to {b}.", "Count up to {b}.",
                      "Count until {b}.")
        return ask(author, frames, ", ".join(str(i) for i in range(start, end + 1)) + ".", a=str(start),
                   b=str(end))
    end = min(end, 20)
    frames = ("Count down from {b}.", "Count backwards from {b}.", "Count down from {b} to 1.",
              "Do a countdown from {b}.", "Count from {b} to 1.")
    return ask(author, frames, ", ".join(str(i) for i in range(end, 0, -1)) + ".", b=str(end))
