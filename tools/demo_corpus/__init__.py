"""The text that the embedded model is trained on: templates, grammars and tables, all written here.

Pure and seeded: the same author makes the same text on every machine. Knows no tokenizer and no model.
"""

from .author import Author, Exchange
from .conversation import Conversation, conversation
from .plain import plain_text
from .tasks import word_task
from .topics import concept, fact, inflight, small_talk, unknown

__all__ = [
    "Author",
    "Conversation",
    "Exchange",
    "concept",
    "conversation",
    "fact",
    "inflight",
    "plain_text",
    "small_talk",
    "unknown",
    "word_task",
]
