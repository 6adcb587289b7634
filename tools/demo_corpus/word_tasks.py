"""Simple tasks on words, letters and small numbers, with answers computed here.

Answers spell before they reverse or count: a model of this size needs to write the letters down first.
"""

from __future__ import annotations

# Tables stay dense: what belongs together stands together.
# fmt: off
from collections.abc import Sequence

from .author import Author, Exchange, capitalized, casual
from .knowledge import LISTS
from .topics import pseudo_word
from .words import NAMES, OPPOSITES, PLURALS, RHYMES, TOPICS, WORDS

NUMBERS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven",
           "twelve")


# Words that people like to try.
FAMOUS = ("strawberry", "hello", "inflight", "mississippi", "banana", "world", "raspberry", "blueberry",
          "apple", "language")
OTHER_WORDS = FAMOUS * 8 + tuple(word for word in (
    *TOPICS, *PLURALS, *PLURALS.values(), *OPPOSITES,
    *(item.lower() for items in LISTS.values() for item in items),
    *(rhyme for group in RHYMES for rhyme in group),
    "strawberry", "blueberry", "raspberry", "pineapple", "watermelon", "butterfly", "sunshine", "rainbow",
    "football",
    "notebook", "airplane", "birthday", "breakfast", "chocolate", "dinosaur", "hospital", "internet",
    "mississippi", "university", "hello", "goodbye", "inflight", "tensor", "transformer", "language",
    "computer", "learning", "machine", "attention",
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
    return author.pick((word, word, f"'{word}'", f'"{word}"', f"the word {word}", f"the word '{word}'",
                        f'the word "{word}"'))


def joined(words: Sequence[str]) -> str:
    """`a, b and c`."""
    return words[0] if len(words) == 1 else ", ".join(words[:-1]) + " and " + words[-1]


def ask(author: Author, frames: Sequence[str], answer: str, short: str | None = None,
        **slots: str) -> Exchange:
    """An exchange whose question keeps its letters: no typos inside."""
    question = capitalized(author.phrase(frames, **slots))
    if author.maybe(0.2):
        question = question.rstrip(".?")
    return Exchange(casual(author, question, typos=False), answer, short=short)


def spell(author: Author) -> Exchange:
    word = some_word(author)
    frames = ("Spell {x}.", "How do you spell {x}?", "Spell {x} for me.", "Can you spell {x}?",
              "What are the letters of {x}?", "Please spell {x}.")
    return ask(author, frames, f"{capitalized(word)} is spelled {'-'.join(word)}.", x=quoted(author, word))


def reverse(author: Author) -> Exchange:
    word = some_word(author)
    frames = ("Reverse {x}.", "Reverse {x}", "What is {x} backwards?", "Write {x} backwards.",
              "Spell {x} backwards.", "Say {x} backwards.",
              "Can you reverse {x}?", "How do you write {x} in reverse?", "What is {x} reversed?",
              "Turn {x} around.", "Please reverse {x}.")
    letters, back = "-".join(word), "-".join(reversed(word))
    return ask(author, frames,
               f"{capitalized(word)} is spelled {letters}. Backwards that is {back}: {word[::-1]}.",
               x=quoted(author, word))


def count_letters(author: Author) -> Exchange:
    word = some_word(author)
    frames = ("How many letters does {x} have?", "How many letters are in {x}?", "Count the letters in {x}.",
              "How long is {x}?",
              "What is the number of letters in {x}?", "Count the letters of {x}.",
              "How many letters are there in {x}?")
    numbered = ", ".join(f"{letter} {i}" for i, letter in enumerate(word, 1))
    return ask(author, frames,
               f"Let me count: {numbered}. {capitalized(word)} has {number_word(len(word))} letters.",
               x=quoted(author, word))


def count_one_letter(author: Author) -> Exchange:
    word = some_word(author)
    letter = author.pick(word) if author.maybe(0.85) else author.pick("abcdefghijklmnopqrstuvwxyz")
    frames = ("How many times does {c} occur in {x}?", "How many {c}'s are in {x}?",
              "How many {c}s are in {x}?",
              "How many {c} are in {x}?", "Count the letter {c} in {x}.", "How often does {c} occur in {x}?",
              "How many times is the letter {c} in {x}?", "How many {c}'s are there in {x}?",
              "How many {c}s does {x} have?",
              "How often is {c} in {x}?", "Number of {c} in {x}?")
    seen, parts = 0, []
    for each in word:
        seen += each == letter
        parts.append(f"{each} {seen}" if each == letter else each)
    times = {0: "does not occur", 1: "occurs once", 2: "occurs twice"}
    verb = times.get(seen, f"occurs {number_word(seen)} times")
    answer = f"Let me see: {', '.join(parts)}. The letter {letter} {verb} in {word}."
    return ask(author, frames, answer, c=author.pick((letter, letter, letter.upper(), f"'{letter}'")),
               x=quoted(author, word))


def first_or_last_letter(author: Author) -> Exchange:
    word = some_word(author)
    which, letter = ("first", word[0]) if author.maybe(0.5) else ("last", word[-1])
    frames = ("What is the {w} letter of {x}?", "Which letter is the {w} of {x}?",
              "Tell me the {w} letter of {x}.", "What's the {w} letter in {x}?",
              "Name the {w} letter of {x}.", "{w} letter of {x}?")
    return ask(author, frames, f"The {which} letter of {word} is {letter.upper()}.",
               short=f"{letter.upper()}.", w=which, x=quoted(author, word))


def change_case(author: Author) -> Exchange:
    frames: Sequence[str]
    words = [some_word(author) for _ in range(author.randrange(1, 4))]
    text = " ".join(words)
    shown = author.pick((text, f"'{text}'", f'"{text}"'))
    if author.maybe(0.8):
        frames = ("Write {x} in upper case.", "Make {x} uppercase.", "Uppercase {x}.",
                  "Write {x} in capital letters.", "Put {x} in capitals.",
                  "Convert {x} to uppercase.", "Say {x} in all caps.", "{x} in capital letters",
                  "Change {x} to upper case.")
        return ask(author, frames, text.upper(), x=shown)
    frames = ("Write {x} in lower case.", "Make {x} lowercase.", "Lowercase {x}.",
              "Write {x} in small letters.", "Convert {x} to lowercase.")
    return ask(author, frames, text, x=shown.upper())


def count_words(author: Author) -> Exchange:
    words = [author.pick(WORDS) for _ in range(author.randrange(2, 9))]
    text = " ".join(words)
    frames = ('How many words are in "{x}"?', "How many words are in this sentence: {x}",
              "Count the words: {x}", "Count the words in '{x}'.",
              "How many words does '{x}' have?")
    numbered = ", ".join(f"{word} {i}" for i, word in enumerate(words, 1))
    return ask(author, frames, f"Let me count: {numbered}. There are {number_word(len(words))} words.",
               x=text)


def opposite(author: Author) -> Exchange:
    word = author.pick(tuple(OPPOSITES))
    frames = ("What is the opposite of {x}?", "Opposite of {x}?", "Tell me the opposite of {x}.",
              "What's the opposite of {x}?", "Give me the antonym of {x}.",
              "Name the opposite of {x}.", "Which word is the opposite of {x}?", "What is an antonym of {x}?",
              "The opposite of {x} is")
    return ask(author, frames, f"The opposite of {word} is {OPPOSITES[word]}.",
               f"{capitalized(OPPOSITES[word])}.", x=author.pick((word, f"'{word}'", f'"{word}"')))


def plural(author: Author) -> Exchange:
    word = author.pick(tuple(PLURALS))
    frames = ("What is the plural of {x}?", "Plural of {x}?", "Tell me the plural of {x}.",
              "What's the plural of {x}?", "Give me the plural of {x}.",
              "How do you write the plural of {x}?", "What is the plural form of {x}?", "Make {x} plural.",
              "More than one {x} is called what?")
    return ask(author, frames, f"The plural of {word} is {PLURALS[word]}.", f"{capitalized(PLURALS[word])}.",
               x=author.pick((word, f"'{word}'", f'"{word}"')))


def rhyme(author: Author) -> Exchange:
    group = author.pick(RHYMES)
    word = author.pick(group)
    others = [other for other in group if other != word]
    frames = ("What rhymes with {x}?", "Give me a rhyme for {x}.", "Find a word that rhymes with {x}.",
              "Which words rhyme with {x}?", "Tell me a rhyme for {x}.",
              "Name a word that rhymes with {x}.", "Rhyme with {x}", "Do you know a rhyme for {x}?")
    return ask(author, frames, f"{capitalized(others[0])} and {others[1]} rhyme with {word}.",
               f"{capitalized(others[0])}.", x=author.pick((word, f"'{word}'")))


LITTLE = ("this", "is", "a", "test", "it", "was", "the", "an", "of", "and", "to", "in", "that", "for",
                "on", "with", "I", "you", "he", "she", "we", "they", "are", "be", "have", "not", "do", "say",
                "can", "my", "your", "what", "all", "one") * 4


SUBJECTS = ("this", "it", "that", "he", "she", "the dog", "my friend", "everything", "the test", "today",
            "the sun", "your answer", "nothing")
VERBS = ("is", "was", "will be", "is not", "must be", "seems to be", "may be")
RESTS = ("a test", "good", "very good", "a nice day", "here", "fine", "ready", "a short sentence", "over",
         "done", "just a test", "working", "a secret", "the end", "red")


def repeat(author: Author) -> Exchange:
    if author.maybe(0.3):
        subject, verb, rest = author.pick(SUBJECTS), author.pick(VERBS), author.pick(RESTS)
        return repeat_text(author, f"{subject} {verb} {rest}")
    count = author.randrange(1, 9)
    words = [author.pick(WORDS + NAMES + LITTLE) if author.maybe(0.8) else pseudo_word(author,
        author.randrange(1, 4)) for _ in range(count)]
    return repeat_text(author, " ".join(words))


def repeat_text(author: Author, plain: str) -> Exchange:
    """Saying exactly what the user wants to be said."""
    text = capitalized(plain) + author.pick(("", ".", "!"))
    frames = ("Repeat after me: {x}", "Say: {x}", "Repeat: {x}", "Please repeat this: {x}",
              "Say the following: {x}", "Repeat this sentence: {x}",
              "Echo: {x}", "Say exactly this: {x}", "Write this: {x}", "Copy this text: {x}", 'Say "{x}"',
              "Say '{x}'", "Say {x}", "Please say {x}", "Just say {x}",
              'Repeat "{x}"', "Can you say {x}", "Answer with: {x}", "Reply with: {x}", "Respond with {x}",
              "Only reply with {x}", "Type {x}")
    question = author.phrase(frames, x=text[:1].lower() + text[1:] if author.maybe(0.3) else text)
    text = text if text in question else text[:1].lower() + text[1:]
    return Exchange(question, text)


def alphabetical(author: Author) -> Exchange:
    words: list[str] = []
    while len(words) < author.randrange(2, 6) or len(words) < 2:
        word = author.pick(WORDS)
        if word not in words:
            words.append(word)
    frames = ("Sort these words: {x}", "Sort alphabetically: {x}",
              "Put these words in alphabetical order: {x}", "Order these words alphabetically: {x}",
              "Sort {x} alphabetically.", "Arrange in alphabetical order: {x}")
    shown = ", ".join(words) if author.maybe(0.8) else joined(words)
    return ask(author, frames, f"In alphabetical order: {', '.join(sorted(words))}.", x=shown)
