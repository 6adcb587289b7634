"""Simple tasks on words, letters and small numbers, with answers computed here.

Spelling comes before reversing and counting in the answers: a model of this size needs to write the letters down first.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from .author import Author, Exchange, capitalized, casual
from .knowledge import DAYS, LISTS, MONTHS, SEASONS
from .topics import pseudo_word
from .words import NAMES, OPPOSITES, PLURALS, RHYMES, TOPICS, WORDS

NUMBERS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve")


OTHER_WORDS = tuple(word for word in (
    *TOPICS, *PLURALS, *PLURALS.values(), *OPPOSITES, *(item.lower() for items in LISTS.values() for item in items), *(rhyme for group in RHYMES for rhyme in group),
    "strawberry", "blueberry", "raspberry", "hello", "goodbye", "inflight", "tensor", "transformer", "language", "computer", "learning", "machine", "attention",
) if word.isascii() and word.isalpha())


def number_word(number: int) -> str:
    return NUMBERS[number] if number < len(NUMBERS) else str(number)


def some_word(author: Author) -> str:
    """Mostly an everyday word; otherwise one that the model cannot know by heart."""
    roll = author.random()
    if roll < 0.4:
        return author.pick(WORDS)
    if roll < 0.6:
        return author.pick(OTHER_WORDS)
    if roll < 0.75:
        # Compounds teach that the letters of a word are those of its pieces.
        return author.pick(WORDS) + author.pick(WORDS)[: author.randrange(2, 7)]
    return pseudo_word(author, author.randrange(1, 4))


def quoted(author: Author, word: str) -> str:
    return author.pick((word, word, f"'{word}'", f'"{word}"', f"the word {word}", f"the word '{word}'", f'the word "{word}"'))


def joined(words: Sequence[str]) -> str:
    """`a, b and c`."""
    return words[0] if len(words) == 1 else ", ".join(words[:-1]) + " and " + words[-1]


def ask(author: Author, frames: Sequence[str], answer: str, short: str | None = None, **slots: str) -> Exchange:
    """An exchange whose question keeps its letters: no typos inside."""
    question = capitalized(author.phrase(frames, **slots))
    if author.maybe(0.2):
        question = question.rstrip(".?")
    return Exchange(casual(author, question, typos=False), answer, short=short)


def spell(author: Author) -> Exchange:
    word = some_word(author)
    frames = ("Spell {x}.", "How do you spell {x}?", "Spell {x} for me.", "Can you spell {x}?", "What are the letters of {x}?", "Please spell {x}.")
    return ask(author, frames, f"{capitalized(word)} is spelled {'-'.join(word)}.", x=quoted(author, word))


def reverse(author: Author) -> Exchange:
    word = some_word(author)
    frames = ("Reverse {x}.", "Reverse {x}", "What is {x} backwards?", "Write {x} backwards.", "Spell {x} backwards.", "Say {x} backwards.",
              "Can you reverse {x}?", "How do you write {x} in reverse?", "What is {x} reversed?", "Turn {x} around.", "Please reverse {x}.")
    letters, back = "-".join(word), "-".join(reversed(word))
    return ask(author, frames, f"{capitalized(word)} is spelled {letters}. Backwards that is {back}: {word[::-1]}.", x=quoted(author, word))


def count_letters(author: Author) -> Exchange:
    word = some_word(author)
    frames = ("How many letters does {x} have?", "How many letters are in {x}?", "Count the letters in {x}.", "How long is {x}?",
              "What is the number of letters in {x}?", "Count the letters of {x}.", "How many letters are there in {x}?")
    numbered = ", ".join(f"{letter} {i}" for i, letter in enumerate(word, 1))
    return ask(author, frames, f"Let me count: {numbered}. {capitalized(word)} has {number_word(len(word))} letters.", x=quoted(author, word))


def first_or_last_letter(author: Author) -> Exchange:
    word = some_word(author)
    which, letter = ("first", word[0]) if author.maybe(0.5) else ("last", word[-1])
    frames = ("What is the {w} letter of {x}?", "Which letter is the {w} of {x}?", "Tell me the {w} letter of {x}.", "What's the {w} letter in {x}?",
              "Name the {w} letter of {x}.", "{w} letter of {x}?")
    return ask(author, frames, f"The {which} letter of {word} is {letter.upper()}.", short=f"{letter.upper()}.", w=which, x=quoted(author, word))


def change_case(author: Author) -> Exchange:
    words = [some_word(author) for _ in range(author.randrange(1, 4))]
    text = " ".join(words)
    shown = author.pick((text, f"'{text}'", f'"{text}"'))
    if author.maybe(0.8):
        frames = ("Write {x} in upper case.", "Make {x} uppercase.", "Uppercase {x}.", "Write {x} in capital letters.", "Put {x} in capitals.",
                  "Convert {x} to uppercase.", "Say {x} in all caps.", "{x} in capital letters", "Change {x} to upper case.")
        return ask(author, frames, text.upper(), x=shown)
    frames = ("Write {x} in lower case.", "Make {x} lowercase.", "Lowercase {x}.", "Write {x} in small letters.", "Convert {x} to lowercase.")
    return ask(author, frames, text, x=shown.upper())


def count_words(author: Author) -> Exchange:
    words = [author.pick(WORDS) for _ in range(author.randrange(2, 9))]
    text = " ".join(words)
    frames = ('How many words are in "{x}"?', "How many words are in this sentence: {x}", "Count the words: {x}", "Count the words in '{x}'.",
              "How many words does '{x}' have?")
    numbered = ", ".join(f"{word} {i}" for i, word in enumerate(words, 1))
    return ask(author, frames, f"Let me count: {numbered}. There are {number_word(len(words))} words.", x=text)


def opposite(author: Author) -> Exchange:
    word = author.pick(tuple(OPPOSITES))
    frames = ("What is the opposite of {x}?", "Opposite of {x}?", "Tell me the opposite of {x}.", "What's the opposite of {x}?", "Give me the antonym of {x}.",
              "Name the opposite of {x}.", "Which word is the opposite of {x}?", "What is an antonym of {x}?", "The opposite of {x} is")
    return ask(author, frames, f"The opposite of {word} is {OPPOSITES[word]}.", f"{capitalized(OPPOSITES[word])}.", x=author.pick((word, f"'{word}'", f'"{word}"')))


def plural(author: Author) -> Exchange:
    word = author.pick(tuple(PLURALS))
    frames = ("What is the plural of {x}?", "Plural of {x}?", "Tell me the plural of {x}.", "What's the plural of {x}?", "Give me the plural of {x}.",
              "How do you write the plural of {x}?", "What is the plural form of {x}?", "Make {x} plural.", "More than one {x} is called what?")
    return ask(author, frames, f"The plural of {word} is {PLURALS[word]}.", f"{capitalized(PLURALS[word])}.", x=author.pick((word, f"'{word}'", f'"{word}"')))


def rhyme(author: Author) -> Exchange:
    group = author.pick(RHYMES)
    word = author.pick(group)
    others = [other for other in group if other != word]
    frames = ("What rhymes with {x}?", "Give me a rhyme for {x}.", "Find a word that rhymes with {x}.", "Which words rhyme with {x}?", "Tell me a rhyme for {x}.",
              "Name a word that rhymes with {x}.", "Rhyme with {x}", "Do you know a rhyme for {x}?")
    return ask(author, frames, f"{capitalized(others[0])} and {others[1]} rhyme with {word}.", f"{capitalized(others[0])}.", x=author.pick((word, f"'{word}'")))


LITTLE = tuple("this is a test it was the an of and to in that for on with I you he she we they are be have not do say can my your what all one".split()) * 4


def repeat(author: Author) -> Exchange:
    count = author.randrange(1, 9)
    words = [author.pick(WORDS + NAMES + LITTLE) if author.maybe(0.8) else pseudo_word(author, author.randrange(1, 4)) for _ in range(count)]
    text = capitalized(" ".join(words)) + author.pick(("", ".", "!"))
    frames = ("Repeat after me: {x}", "Say: {x}", "Repeat: {x}", "Please repeat this: {x}", "Say the following: {x}", "Repeat this sentence: {x}",
              "Echo: {x}", "Say exactly this: {x}", "Write this: {x}", "Copy this text: {x}", 'Say "{x}"', "Say '{x}'", "Say {x}", "Please say {x}", "Just say {x}",
              'Repeat "{x}"', "Can you say {x}", "Answer with: {x}", "Reply with: {x}", "Respond with {x}", "Only reply with {x}", "Type {x}")
    question = author.phrase(frames, x=text[:1].lower() + text[1:] if author.maybe(0.3) else text)
    text = text if text in question else text[:1].lower() + text[1:]
    return Exchange(question, text)


def alphabetical(author: Author) -> Exchange:
    words: list[str] = []
    while len(words) < author.randrange(2, 6) or len(words) < 2:
        word = author.pick(WORDS)
        if word not in words:
            words.append(word)
    frames = ("Sort these words: {x}", "Sort alphabetically: {x}", "Put these words in alphabetical order: {x}", "Order these words alphabetically: {x}",
              "Sort {x} alphabetically.", "Arrange in alphabetical order: {x}")
    shown = ", ".join(words) if author.maybe(0.8) else joined(words)
    return ask(author, frames, f"In alphabetical order: {', '.join(sorted(words))}.", x=shown)


SYMBOLS = {"+": ("{a} + {b}", "{a}+{b}", "{a} plus {b}", "the sum of {a} and {b}"), "-": ("{a} - {b}", "{a}-{b}", "{a} minus {b}"),
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
    frames = ("What is {e}?", "{e}", "{e}?", "{e} =", "{e} = ?", "How much is {e}?", "Calculate {e}.", "Compute {e}.", "What's {e}?", "What does {e} equal?",
              "Can you calculate {e}?", "Tell me what {e} is.", "Solve {e}.", "What do you get for {e}?")
    word = {"+": "plus", "-": "minus", "*": "times"}[sign]
    return ask(author, frames, f"{a} {word} {b} is {result}.", f"{result}.", e=shown)


def list_items(author: Author) -> Exchange:
    kind = author.pick(tuple(LISTS))
    count = author.randrange(2, 9) if author.maybe(0.85) else author.randrange(9, 11)
    items = LISTS[kind][:count]
    count = len(items)
    number = number_word(count) if author.maybe(0.5) else str(count)
    frames = ("Name {n} {k}.", "List {n} {k}.", "Give me {n} {k}.", "Can you name {n} {k}?", "Tell me {n} {k}.", "Name me {n} {k}, please.",
              "What are {n} {k}?", "Give me a list of {n} {k}.", "Write down {n} {k}.", "I need {n} {k}.", "Name {n} different {k}.")
    return ask(author, frames, f"Here are {number_word(count)} {kind}: {joined(items)}.", joined([i for i in items]) + ".", n=number, k=kind)


def list_some(author: Author) -> Exchange:
    kind = author.pick(tuple(LISTS))
    if author.maybe(0.25):
        item = LISTS[kind][0]
        single = {"countries": "country", "cities": "city", "colours": "colour", "colors": "color"}.get(kind, kind[:-1])
        frames = ("Name a {k}.", "Tell me a {k}.", "Name one {k}.", "Give me a {k}.", "Name any {k}.", "Say a {k}.")
        return ask(author, frames, f"{capitalized(item)}.", k=single)
    items = LISTS[kind][:5]
    if author.maybe(0.5):
        frames = ("Name some {k}.", "List some {k}.", "Which {k} do you know?", "Tell me some {k}.", "Give me some {k}.", "What {k} do you know?")
        return ask(author, frames, f"Here are five {kind}: {joined(items)}.", k=kind)
    frames = ("Make a numbered list of {k}.", "Write a numbered list of {k}.", "Give me a numbered list of {k}.", "List {k} with numbers.")
    return ask(author, frames, "\n".join(f"{i}. {capitalized(item)}" for i, item in enumerate(items, 1)), k=kind)


def calendar(author: Author) -> Exchange:
    cycle, noun = author.pick(((DAYS, "day"), (MONTHS, "month"), (SEASONS, "season")))
    if author.maybe(0.2):
        frames = ("What are the {k}s?", "Name the {k}s.", "List the {k}s.", "List all {k}s.", "Tell me all the {k}s.", "Which {k}s are there?")
        kind = {"day": "days of the week", "month": "months of the year", "season": "seasons of the year"}[noun]
        return ask(author, [f.replace("{k}s", "{k}") for f in frames], f"The {kind} are {joined(cycle)}.", k=author.pick((kind, kind, noun + "s")))
    i = author.randrange(len(cycle))
    if author.maybe(0.6):
        frames = ("What {k} comes after {x}?", "Which {k} is after {x}?", "What comes after {x}?", "Which {k} follows {x}?", "What is the next {k} after {x}?",
                  "What {k} is it after {x}?")
        after = cycle[(i + 1) % len(cycle)]
        return ask(author, frames, f"After {cycle[i]} comes {after}.", f"{capitalized(after)}.", k=noun, x=cycle[i])
    frames = ("What {k} comes before {x}?", "Which {k} is before {x}?", "What comes before {x}?", "What {k} is it before {x}?")
    before = cycle[i - 1]
    return ask(author, frames, f"Before {cycle[i]} comes {before}.", f"{capitalized(before)}.", k=noun, x=cycle[i])


def counting(author: Author) -> Exchange:
    end = author.pick((3, 5, 5, 10, 10, 10, 12, 15, 20, 20, 25, 30, 50, 100))
    start = 1 if author.maybe(0.85) else author.randrange(2, end + 1)
    if author.maybe(0.75):
        frames = ("Count from {a} to {b}.", "Count from {a} to {b}", "Count to {b} from {a}.", "Write the numbers from {a} to {b}.", "List the numbers from {a} to {b}.")
        if start == 1 and author.maybe(0.5):
            frames = ("Count to {b}.", "Can you count to {b}?", "Please count to {b}.", "Count up to {b}.", "Count until {b}.")
        return ask(author, frames, ", ".join(str(i) for i in range(start, end + 1)) + ".", a=str(start), b=str(end))
    end = min(end, 20)
    frames = ("Count down from {b}.", "Count backwards from {b}.", "Count down from {b} to 1.", "Do a countdown from {b}.", "Count from {b} to 1.")
    return ask(author, frames, ", ".join(str(i) for i in range(end, 0, -1)) + ".", b=str(end))


TASKS: tuple[Callable[[Author], Exchange], ...] = (
    spell, reverse, reverse, reverse, count_letters, count_letters, first_or_last_letter, change_case, change_case, count_words, opposite, plural,
    rhyme, repeat, repeat, alphabetical, arithmetic, arithmetic, arithmetic, list_items, list_items, list_some, calendar, counting,
)


def word_task(author: Author) -> Exchange:
    return author.pick(TASKS)(author)
