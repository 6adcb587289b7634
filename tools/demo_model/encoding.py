"""From conversations to token ids and loss weights: the chat format, the tokenizer and the packing of rows.

The format here and `chat_template.jinja` beside it say the same thing and change together.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors, trainers

from demo_corpus import Conversation

PAD, BEGIN, END, START_TURN, END_TURN = (
    "<|pad|>",
    "<|begin_of_text|>",
    "<|end_of_text|>",
    "<|im_start|>",
    "<|im_end|>",
)
SPECIAL = (PAD, BEGIN, END, START_TURN, END_TURN)
TAGS = ("<tool_call>", "</tool_call>")  # one token each, but part of the text

PROMPT_WEIGHT = 2  # in hundredths: what a token of a prompt counts beside one of an answer
LONG_PROMPT = 3000  # characters; such a prompt is there to be looked past, and counts nothing
ROW_LENGTHS = (512, 2048, 4096)

Segment = tuple[str, int]  # text and its weight in hundredths


def segments(conversation: Conversation) -> list[Segment]:
    """The conversation as the model sees it, cut where the loss begins and ends."""
    messages = list(conversation.messages)
    parts: list[Segment] = []
    head = BEGIN
    if conversation.tools:
        head += START_TURN + "system\n"
        if messages[0]["role"] in ("system", "developer"):
            head += messages.pop(0)["content"] + "\n"
        head += "Tools:"
        for tool in conversation.tools:
            function = tool["function"]
            head += f"\n- {function['name']}({', '.join(function['parameters']['properties'])})"
            if description := function.get("description"):
                head += f": {description}"
        head += END_TURN + "\n"
    for message in messages:
        if message["role"] == "assistant":
            weight = PROMPT_WEIGHT if len(head) < LONG_PROMPT else 0
            parts.append((f"{head}{START_TURN}assistant\n", weight))
            parts.append((message["content"] + END_TURN, 100))
            head = "\n"
        else:
            role = "system" if message["role"] == "developer" else message["role"]
            head += f"{START_TURN}{role}\n{message['content']}{END_TURN}\n"
    return parts


def prompt(conversation: Conversation) -> str:
    """The text up to the point where the assistant is to speak."""
    following = Conversation(
        [*conversation.messages, {"role": "assistant", "content": ""}], conversation.tools
    )
    return "".join(text for text, _ in segments(following)[:-1])


def token_id(tokenizer: Tokenizer, token: str) -> int:
    """The id of a token that the tokenizer must have."""
    found: int | None = tokenizer.token_to_id(token)
    if found is None:
        raise ValueError(f"the tokenizer has no token `{token}`")
    return found


def train_tokenizer(texts: Iterable[str], vocabulary: int) -> Tokenizer:
    """A byte-level BPE that splits numbers into digits."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary - len(TAGS),
        special_tokens=list(SPECIAL),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.add_tokens([AddedToken(tag, normalized=False, special=False) for tag in TAGS])
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{BEGIN} $A", special_tokens=[(BEGIN, token_id(tokenizer, BEGIN))]
    )
    return tokenizer


@dataclass
class Rows:
    """Packed rows of one length: ids, loss weights in hundredths, and the number of each token's document."""

    ids: np.ndarray
    weights: np.ndarray
    documents: np.ndarray


def pack(
    documents: Sequence[Sequence[Segment]], tokenizer: Tokenizer, lengths: Sequence[int] = ROW_LENGTHS
) -> dict[int, Rows]:
    """Encodes documents and fills rows; each goes whole into the shortest kind of row that holds it."""
    flat = [text for document in documents for text, _ in document]
    encoded = tokenizer.encode_batch(flat, add_special_tokens=False)
    filled: dict[int, list[tuple[list[int], list[int], list[int]]]] = {length: [] for length in lengths}
    at = 0
    for document in documents:
        ids: list[int] = []
        weights: list[int] = []
        for _, weight in document:
            ids += encoded[at].ids
            weights += [weight] * len(encoded[at].ids)
            at += 1
        length = next((size for size in lengths if len(ids) <= size), None)
        if length is None:
            continue
        rows = filled[length]
        if not rows or len(rows[-1][0]) + len(ids) > length:
            rows.append(([], [], []))
        row = rows[-1]
        number = row[2][-1] + 1 if row[2] else 1
        row[0].extend(ids)
        row[1].extend(weights)
        row[2].extend([number] * len(ids))
    pad = token_id(tokenizer, PAD)
    return {
        length: Rows(
            *(
                np.array(
                    [row[part] + [fill] * (length - len(row[part])) for row in rows], dtype=kind
                ).reshape(-1, length)
                for part, fill, kind in ((0, pad, np.int16), (1, 0, np.uint8), (2, 0, np.uint8))
            )
        )
        for length, rows in filled.items()
    }
