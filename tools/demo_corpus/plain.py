"""Text without a conversation, for the completions endpoint: stories, poems and short articles."""

from __future__ import annotations

from .author import Author, capitalized
from .inflight_facts import INFLIGHT
from .stories import poem, story
from .topics import CONCEPTS
from .words import TOPICS


def plain_text(author: Author) -> str:
    """A text that begins as texts begin, so that a model can continue it from its first words."""
    roll = author.random()
    if roll < 0.35:
        return story(author, author.pick(TOPICS), author.pick((2, 3, 4)))
    if roll < 0.45:
        topic = author.pick(TOPICS)
        return f"{capitalized(topic)}\n\n{poem(author, topic, 3)}"
    if roll < 0.6:
        _, answer, more = author.pick(
            [fact for fact in INFLIGHT if not fact[1].startswith(("Yes", "No", "I "))]
        )
        return f"{answer} {more}"
    _, definition, details, more = author.pick(CONCEPTS)
    return f"{definition} {details} {more}"
