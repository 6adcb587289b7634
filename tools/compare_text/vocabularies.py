"""Encodes llama.cpp's test texts with its vocabularies, and streams random tokens back into text.

The vocabularies come as GGUF files, without the Hugging Face `tokenizer.json` that the gateway reads. This
module owns that translation, for the families whose published `tokenizer.json` it can write down: what a GGUF
file calls its pre-tokenizer is only a name. The expected ids come with the vocabularies; the expected text of
a stream is that of the package `tokenizers`.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from gguf import GGUFReader
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

from inflight import _native

SEPARATOR = "\n__ggml_vocab_test__\n"
#: GGUF's types of tokens.
_CONTROL, _USER_DEFINED = 3, 4

_LLAMA_3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_QWEN_2 = _LLAMA_3.replace(r"\p{N}{1,3}", r"\p{N}")
_QWEN_3_5 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}"
    r"| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def _split(pattern: str) -> Any:
    return pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(pattern), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )


def _llama_3() -> Any:
    return _split(_LLAMA_3)


def _plain() -> Any:
    return pre_tokenizers.ByteLevel(add_prefix_space=False)


def _digits() -> Any:
    return pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), _plain()])


def _falcon() -> Any:
    return pre_tokenizers.Sequence(
        [
            pre_tokenizers.Punctuation("contiguous"),
            _plain(),
            pre_tokenizers.Digits(individual_digits=False),
            pre_tokenizers.Split(Regex("[0-9][0-9][0-9]"), "isolated"),
        ]
    )


#: By GGUF's name of a pre-tokenizer: what the model's `tokenizer.json` has, and whether it normalizes to NFC.
_BYTE_LEVEL: dict[str, tuple[Callable[[], Any], bool]] = {
    "gpt-2": (_plain, False),
    "mpt": (_plain, True),
    "llama-bpe": (_llama_3, False),
    "qwen2": (lambda: _split(_QWEN_2), True),
    "qwen35": (lambda: _split(_QWEN_3_5), True),
    "starcoder": (_digits, False),
    "refact": (_digits, False),
    "command-r": (_digits, True),
    "falcon": (_falcon, False),
}


@dataclass(frozen=True)
class Result:
    """Of one vocabulary: encodings with the expected ids, streams with the expected text, of how many."""

    encodings: int
    of_encodings: int
    streams: int
    of_streams: int


def compare(files: dict[str, bytes], streams: int) -> Iterator[tuple[str, Result | None]]:
    """Each vocabulary that comes with texts and ids; no result for those that cannot be translated."""
    for path in sorted(files):
        if not path.endswith(".inp"):
            continue
        name = Path(path).name.removeprefix("ggml-vocab-").removesuffix(".gguf.inp")
        reference = _tokenizer(files[path.removesuffix(".inp")])
        if reference is None:
            yield name, None
            continue
        texts = files[path].decode().removesuffix(SEPARATOR).split(SEPARATOR)
        lines = files[path.removesuffix(".inp") + ".out"].decode().splitlines()
        expected = [[int(word) for word in line.split()] for line in lines]
        ours = _native.Tokenizer({"tokenizer.json": reference.to_str().encode()})
        right = sum(
            ours.encode(text, add_special_tokens=False) == ids
            for text, ids in zip(texts, expected, strict=True)
        )
        yield name, Result(right, len(texts), _streams(ours, reference, expected, streams), streams)


def _streams(ours: _native.Tokenizer, reference: Tokenizer, texts: list[list[int]], count: int) -> int:
    """How many streams of tokens, pushed in random portions, add up to the text of all their tokens."""
    chooser = random.Random(20)
    vocabulary = reference.get_vocab_size()
    right = 0
    for number in range(count):
        # Half of them are real texts, cut anywhere; the others random tokens, with characters in pieces.
        ids = chooser.choice(texts) if number % 2 else []
        ids = ids[chooser.randrange(len(ids) + 1) :]
        ids = ids or [chooser.randrange(vocabulary) for _ in range(chooser.randint(1, 40))]
        skip = chooser.random() < 0.5
        stream = _native.Detokenizer(ours, skip_special_tokens=skip)
        text = ""
        rest = ids
        while rest:
            portion = chooser.randint(1, 4)
            text += stream.push(rest[:portion])
            rest = rest[portion:]
        text += stream.finish()
        right += text == reference.decode(ids, skip_special_tokens=skip)
    return right


def _tokenizer(gguf: bytes) -> Tokenizer | None:
    """A GGUF file's vocabulary for the package `tokenizers`; none for families that are not known here."""
    with TemporaryDirectory() as directory:
        path = Path(directory) / "vocabulary.gguf"
        path.write_bytes(gguf)
        reader = GGUFReader(path)
        field = {name: entry.contents for name, entry in reader.fields.items()}
        kind = field["tokenizer.ggml.model"]()
        tokens = field["tokenizer.ggml.tokens"]()
        types = field["tokenizer.ggml.token_type"]()
        if kind == "llama":
            tokenizer = _sentence_piece(tokens, field["tokenizer.ggml.scores"]())
        elif kind == "gpt2" and field["tokenizer.ggml.pre"]() in _BYTE_LEVEL:
            pre_tokenizer, composes = _BYTE_LEVEL[field["tokenizer.ggml.pre"]()]
            merges = [tuple(merge.split(" ")) for merge in field["tokenizer.ggml.merges"]()]
            vocabulary = {token: index for index, token in enumerate(tokens)}
            # Llama 3 takes a whole word from the vocabulary before it looks at merges.
            whole_words = pre_tokenizer is _llama_3
            tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=merges, ignore_merges=whole_words))
            tokenizer.pre_tokenizer = pre_tokenizer()
            tokenizer.decoder = decoders.ByteLevel()
            if composes:
                tokenizer.normalizer = normalizers.NFC()
        else:
            return None
    for token, token_type in zip(tokens, types, strict=True):
        if token_type in (_CONTROL, _USER_DEFINED):
            special = token_type == _CONTROL
            tokenizer.add_tokens([AddedToken(token, special=special, normalized=False)])
    return tokenizer


def _sentence_piece(tokens: list[str], scores: list[float]) -> Tokenizer:
    """As transformers translates SentencePiece: every split of a token into two tokens is a merge."""
    vocabulary = {token: index for index, token in enumerate(tokens)}
    merges = []
    for token, index in vocabulary.items():
        splits = [(token[:cut], token[cut:]) for cut in range(1, len(token))]
        known = [pair for pair in splits if pair[0] in vocabulary and pair[1] in vocabulary]
        known.sort(key=lambda pair: (vocabulary[pair[0]], vocabulary[pair[1]]))
        merges += [(scores[index], pair) for pair in known]
    merges.sort(key=lambda merge: merge[0], reverse=True)
    model = models.BPE(
        vocab=vocabulary,
        merges=[pair for _, pair in merges],
        unk_token="<unk>",
        fuse_unk=True,
        byte_fallback=True,
    )
    tokenizer = Tokenizer(model)
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    return tokenizer
