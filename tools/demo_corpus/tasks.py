"""The mix of simple tasks; a task that stands here several times is asked as many times as often."""

from __future__ import annotations

from collections.abc import Callable

from .author import Author, Exchange
from .number_tasks import arithmetic, calendar, counting, list_items, list_some
from .word_tasks import (
    alphabetical,
    change_case,
    count_letters,
    count_one_letter,
    count_words,
    first_or_last_letter,
    opposite,
    plural,
    repeat,
    reverse,
    rhyme,
    spell,
)

TASKS: tuple[Callable[[Author], Exchange], ...] = (
    spell,
    reverse,
    reverse,
    reverse,
    count_letters,
    count_letters,
    count_one_letter,
    count_one_letter,
    first_or_last_letter,
    change_case,
    change_case,
    count_words,
    opposite,
    plural,
    rhyme,
    repeat,
    repeat,
    alphabetical,
    arithmetic,
    arithmetic,
    arithmetic,
    list_items,
    list_items,
    list_some,
    calendar,
    counting,
)


def word_task(author: Author) -> Exchange:
    return author.pick(TASKS)(author)
