"""Stories and poems by grammar: the long-form part of the demo corpus. Pure: an author in, text out."""

from __future__ import annotations

# Tables stay dense: what belongs together stands together.
# fmt: off
from .author import Author, Exchange, casual
from .words import NAMES, TOPICS

PLACES = ("in a small village by the sea", "at the edge of a deep forest",
          "in a quiet valley between two mountains", "on a little island",
          "in a busy city full of lights", "near an old stone bridge", "in a house with a red door")
MOODS = ("curious", "brave", "kind", "cheerful", "patient", "clever")
WISHES = (("see the ocean", "saw the ocean, wide and blue, and"),
          ("find a true friend", "found a true friend and"),
          ("learn to sing", "sang a song so clear that the birds fell silent, and"),
          ("touch the stars", "climbed so high that the stars seemed near, and"),
          ("build a boat", "finished a small boat with a white sail and"),
          ("find the lost key", "found the lost key under a flat grey stone and"))
HELPERS = ("an old turtle", "a wise owl", "a friendly baker", "a small mouse", "a tired traveller",
           "a silver fish")
GIFTS = ("a warm loaf of bread", "a little lantern", "a map drawn on a leaf", "a blue button",
         "a piece of good advice")
TROUBLES = ("a great storm came and the wind tore at the trees", "thick fog hid the path",
            "the river rose and the bridge was gone",
            "night fell and everything became very dark", "a heavy gate stood in the way")
LESSONS = ("even a long journey begins with one small step", "help often comes from those we helped before",
           "it is good to ask when you do not know the way",
           "being small is no reason to be afraid", "the best things are those we share")
ENDINGS = ("From that day on everyone in the place knew the story and told it with a smile.",
           "And when the evening came, they sat together and were happy.",
           "That night the moon was bright, and all was well.",
           "And if you listen carefully, you can still hear them laugh.")


def story(author: Author, topic: str, paragraphs: int) -> str:
    """A story about `topic` in two paragraphs, or three when it is to be long."""
    name = author.pick(NAMES)
    mood, place = author.pick(MOODS), author.pick(PLACES)
    wish, fulfilment = author.pick(WISHES)
    helper, gift = author.pick(HELPERS), author.pick(GIFTS)
    article = "an" if topic[0] in "aeiou" else "a"
    trouble = author.pick(TROUBLES)
    parts = [
        f"Once upon a time there was {article} {topic} called {name}, who lived {place}. "
        f"{name} was {mood} and had one great wish: to {wish}. "
        f"So one morning {name} packed a small bag and set out.",
        f"On the way {name} met {helper} and stopped to help. In return the {helper.split(' ', 1)[1]} "
        f"gave {name} {gift}. Then {trouble}, but {name} did not give up and went on.",
        f"At last {name} {fulfilment} was the happiest {topic} in the world. "
        f"{name} had learned that {author.pick(LESSONS)}. {author.pick(ENDINGS)}",
    ]
    if paragraphs > 3:
        second = author.pick([other for other in HELPERS if other != helper])
        gift_two = author.pick([other for other in GIFTS if other != gift])
        second_trouble = author.pick([t for t in TROUBLES if t != trouble])
        parts.insert(2, (
            f"After three days {name} came to a crossroads and did not know which way to go. "
            f"There sat {second}, who looked hungry. "
            f"{name} shared everything in the bag and received {gift_two}. "
            f"Soon after, {second_trouble}. {name} waited, sang a quiet song, and walked on in the morning."
        ))
    if paragraphs == 2:
        parts = [parts[0], parts[2]]
    return "\n\n".join(parts)


OPENINGS = ("O little {t}, so {a} and {b},", "There is one {t}, so {a} and {b},",
            "I saw the {t} so {a} and {b},")
COUPLETS = (
    (("bright", "light"), "You dance along the edge of night."),
    (("small", "sweet"), "You walk the world on quiet feet."),
    (("kind", "free"), "You hum a song to the deep blue sea."),
    (("old", "wise"), "You watch the sun begin to rise."),
)
MIDDLES = (
    ("The morning comes, the shadows go,", "And all the gentle breezes blow."),
    ("The rain may fall, the wind may call,", "But you are not afraid at all."),
    ("The stars are high, the moon is near,", "And every sound is soft and clear."),
    ("The leaves are gold, the days grow cold,", "And many stories can be told."),
)
CLOSINGS = (
    ("So stay with me a little while,", "And greet the evening with a smile."),
    ("And when the day is at its end,", "I know that you will be my friend."),
    ("So sleep, dear {t}, the day is done,", "Tomorrow brings another sun."),
)


def poem(author: Author, topic: str, verses: int) -> str:
    """Rhymed couplets about `topic`."""
    (a, b), second = author.pick(COUPLETS)
    opening = author.pick(OPENINGS).format(t=topic, a=a, b=b)
    lines = [opening, second]
    middles = list(MIDDLES)
    author.shuffle(middles)
    for middle in middles[: verses - 2 if verses > 2 else 1]:
        lines += middle
    lines += [line.format(t=topic) for line in author.pick(CLOSINGS)]
    return "\n".join(lines)


STORY_FRAMES = (
    "Write a short story about {x}.", "Tell me a story about {x}.", "Write a story about {x}.",
    "Can you tell me a story about {x}?", "Make up a story about {x}.",
    "Tell a story about {x}.", "I want to hear a story about {x}.", "A story about {x}, please.",
    "Story about {x}", "Please write me a story about {x}.",
    "Invent a short tale about {x}.", "Tell my child a bedtime story about {x}.",
    "Could you write a little story about {x}?", "Write a fairy tale about {x}.",
)
LONG_FRAMES = ("Write a long story about {x}.", "Tell me a long story about {x}.",
               "Write a very long story about {x}.", "Write a longer tale about {x}.")
POEM_FRAMES = (
    "Write a poem about {x}.", "Write a short poem about {x}.", "Can you write a poem about {x}?",
    "Make a poem about {x}.", "Compose a poem about {x}.",
    "Give me a poem about {x}.", "A poem about {x}, please.", "Poem about {x}",
    "Write some verses about {x}.", "Tell me a poem about {x}.", "Write me a rhyme about {x}.",
)
ANY_STORY = ("Tell me a story.", "Write a story.", "Write a short story.", "Can you tell me a story?",
             "A story, please.", "Tell me a bedtime story.", "I want a story.",
             "story", "Once upon a time")
ANY_POEM = ("Write a poem.", "Tell me a poem.", "Can you write a poem?", "A poem, please.",
            "Write me a short poem.", "poem")


def long_form(author: Author) -> Exchange:
    """A request for a story or a poem, and the text."""
    topic = author.pick(TOPICS)
    shown = author.pick((f"a {topic}", f"a {topic}", f"a little {topic}", f"the {topic}", f"{topic}s",
                         f"a {author.pick(MOODS)} {topic}"))
    shown = shown if shown[:2] != "a " or shown[2] not in "aeiou" else "an" + shown[1:]
    kind = author.randrange(10)
    if kind < 4:
        return Exchange(casual(author, author.phrase(STORY_FRAMES, x=shown)),
                        story(author, topic, author.pick((2, 3, 3))))
    if kind < 6:
        return Exchange(casual(author, author.phrase(LONG_FRAMES, x=shown)), story(author, topic, 4))
    if kind == 6:
        return Exchange(casual(author, author.phrase(ANY_STORY)), story(author, topic, 3))
    if kind == 7:
        return Exchange(casual(author, author.phrase(ANY_POEM)), poem(author, topic, 3))
    return Exchange(casual(author, author.phrase(POEM_FRAMES, x=shown)),
                    poem(author, topic, author.randrange(2, 5)))
