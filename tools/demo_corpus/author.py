"""The author of the demo corpus: seeded choices, phrasings kept out of training, and human sloppiness.

Owns how a text is chosen and roughened. Knows no topic, no tokenizer and no model.
"""

from __future__ import annotations

# Tables stay dense: what belongs together stands together.
# fmt: off
import random
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TypeVar

T = TypeVar("T")

HELD_OUT_SHARE = 14  # one phrasing in so many never appears in training


@dataclass(frozen=True)
class Exchange:
    """One question and its answer, with what a follow-up may ask for."""

    question: str
    answer: str
    short: str | None = None  # the answer when brevity is asked for
    more: str | None = None  # what is added when asked for more
    accept: tuple[str, ...] = field(default=())  # other answers that are as good (evaluation only)

    def is_correct(self, reply: str) -> bool:
        """Whether `reply` is one of the answers this question has."""
        return reply.strip() in (self.answer, *self.accept)


def is_held_out(phrasing: str) -> bool:
    """Whether a phrasing belongs to the evaluation: decided by its letters, the same on every machine."""
    return zlib.crc32(phrasing.lower().encode()) % HELD_OUT_SHARE == 0


class Author(random.Random):
    """A seeded source of choices.

    With `evaluating`, phrasings come from those kept out of training; with `everything`, none is kept out.
    """

    def __init__(self, seed: int, evaluating: bool = False, everything: bool = False) -> None:
        super().__init__(seed)
        self.evaluating = evaluating
        self.everything = everything
        self.fell_back = False  # whether the last phrase was a trained one although a held-out one was wanted

    def pick(self, options: Sequence[T]) -> T:
        return options[int(self.random() * len(options))]

    def maybe(self, probability: float) -> bool:
        return self.random() < probability

    def phrase(self, frames: Sequence[str], **slots: str) -> str:
        """Fills one of `frames`; in training only phrasings that are not held out.

        The first frame is the plainest one and always belongs to the training.
        """
        for _ in range(40):
            index = int(self.random() * len(frames))
            text = frames[index].format(**slots) if slots else frames[index]
            if self.everything or (index > 0 and is_held_out(text)) == self.evaluating:
                self.fell_back = False
                return text
        self.fell_back = self.evaluating
        return frames[0].format(**slots) if slots else frames[0]


OPENERS = (
    "Hey, ", "Hi, ", "Hello, ", "Hi! ", "Hello! ", "Please, ", "So, ", "Ok, ", "Okay, ", "Well, ",
    "Quick question: ",
    "Question: ", "I have a question. ", "Tell me, ", "Um, ", "Now, ", "And ", "Excuse me, ",
    "I was wondering, ",
    "Just curious: ", "One more question: ", "Next question: ", "Hey there, ", "Can you help me? ",
)
CLOSERS = (" Please.", " Thanks.", " Thank you!", " Thanks!", ", please", ", please?", " pls", " thx", " :)",
           " please")
TAILS = ("", "", ".", "?", "??", "!", " ?", "...", "?!")


def capitalized(text: str) -> str:
    """`text` with its first letter in upper case."""
    return text[:1].upper() + text[1:]


def with_typo(author: Author, text: str) -> str:
    """One slip of the finger inside a word of at least five letters; the word's first letter stays."""
    words = text.split(" ")
    places = [i for i, word in enumerate(words) if len(word) >= 5 and word.isalpha()]
    if not places:
        return text
    place = author.pick(places)
    word = words[place]
    at = author.randrange(1, len(word) - 1)
    kind = author.randrange(3)
    if kind == 0:
        word = word[:at] + word[at + 1 :]
    elif kind == 1:
        word = word[:at] + word[at + 1] + word[at] + word[at + 2 :]
    else:
        word = word[:at] + word[at] + word[at:]
    words[place] = word
    return " ".join(words)


REWORDINGS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("How do I ", ("How can I ", "How to ", "How would I ", "Tell me how to ", "How should I ",
                   "Show me how to ", "Explain how to ", "I want to know how to ", "What must I do to ",
                   "Can you tell me how to ", "Please tell me how to ", "how does one ",
                   "What do I have to do to ", "Is there a way to ", "I would like to ", "I need to ")),
    ("How can I ", ("How do I ", "How to ", "Tell me how to ", "What is the best way to ", "I want to ",
                    "How could I ", "Can you show me how to ")),
    ("Which ", ("What ", "Tell me which ", "Do you know which ", "Can you tell me which ")),
    ("What is ", ("What's ", "Tell me what is ", "Do you know what is ", "Can you tell me what is ",
                  "Could you tell me what is ", "I want to know what is ")),
    ("What are ", ("Which are ", "Tell me what are ", "What's ", "Do you know what are ")),
    ("Where is ", ("Where's ", "Tell me where is ", "Where can I find ", "Do you know where is ")),
    ("Can you ", ("Could you ", "Would you ", "Will you ", "Can you please ", "Please can you ",
                  "Could you please ", "Are you able to ", "I want you to ")),
    ("Tell me ", ("Please tell me ", "Can you tell me ", "Could you tell me ", "I want to hear ", "Give me ",
                  "Just tell me ")),
    ("Write ", ("Please write ", "Can you write ", "Could you write ", "Write me ", "I need you to write ")),
    ("Give me ", ("Please give me ", "Can you give me ", "I want ", "I need ", "Show me ")),
    ("Do you ", ("Say, do you ", "Tell me, do you ", "Don't you ", "I wonder, do you ", "And do you ",
                 "But do you ")),
    ("Are you ", ("Say, are you ", "Tell me, are you ", "So are you ", "I wonder, are you ", "Aren't you ",
                  "But are you ")),
    ("Name ", ("Please name ", "Can you name ", "Tell me ", "List ")),
    ("Does ", ("Say, does ", "I wonder, does ", "Can you tell me, does ", "Do you know, does ")),
    ("Why ", ("Tell me why ", "Do you know why ", "Can you explain why ", "I wonder why ")),
)


def reworded(author: Author, text: str) -> str:
    """The same question with another beginning, where it begins in one of the usual ways."""
    for start, others in REWORDINGS:
        if text.startswith(start):
            return author.pick(others) + text[len(start):]
    return text


def casual(author: Author, text: str, typos: bool = True) -> str:
    """`text` as people type it: openers, casing, punctuation, and now and then a typo.

    With `typos` false only the frame changes: the letters of the text are the point of the question.
    """
    if author.maybe(0.22):
        text = reworded(author, text)
    if author.maybe(0.12):
        opener = author.pick(OPENERS)
        text = opener + (text[:1].lower() + text[1:] if opener[-2] in ",:" and text[:2] not in ("I ",
            "I'") else text)
    if author.maybe(0.07):
        text = text.rstrip("?.!") + author.pick(CLOSERS)
    if not typos:
        return text
    roll = author.random()
    if roll < 0.22:
        text = text.rstrip("?.!") + author.pick(TAILS)
    if author.maybe(0.2):
        text = text.lower()
    elif author.maybe(0.02):
        text = text.upper()
    if author.maybe(0.08):
        text = with_typo(author, text)
    if author.maybe(0.06):
        text = text.replace("'", "").replace(",", "")
    if author.maybe(0.1):
        text = text.replace("What is", "What's").replace("what is", "what's").replace("do not", "don't")
    return text
