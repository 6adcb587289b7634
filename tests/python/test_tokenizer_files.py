"""Tokenizers without `tokenizer.json`: the native core makes of difficult text what their own libraries make.

The tokenizers are small and trained here.
"""

from __future__ import annotations

import base64
import json
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from inflight import _native
from inflight.errors import CheckpointError
from inflight.model.tokenizer import check_tokenizer, has_tokenizer, read_assets, tokenizer_json

DIFFICULT = (
    "a",
    " a",
    "a ",
    "  a  b   c    ",
    "hello world",
    "Hello, World!! It's we'll they'd I'M",
    "\n",
    "a\nb\r\nc\n\n\nd",
    "\t\ttab  \t x",
    "  \n  x\n",
    "12345 67 8.9 1,000,000 ٣٤٥ ½ ²",
    "naïve café cafe\u0301 Ångström",
    "東京 日本語 中文 한국어",
    "مرحبا בְּרֵאשִׁית हिन्दी",
    "😀 👩‍👩‍👧‍👦 🇩🇪 ☃️",
    "\u00a0\u3000x\u200bz\u2028b\ufeff",
    "ﬁ ① Ⅳ ａｂｃ",
    "a\x00b\x07c\x7f",
    "▁ a▁b ▁▁",
    "<0x41> <0xFF>",
    "x" * 50,
    "ab" * 40 + " " * 33 + "ba" * 5,
    "𝔘𝔫𝔦𝔠𝔬𝔡𝔢 🄰",
    "def f(x):\n    return  x**2  # done\n",
    "https://example.com/a?b=c&d=%20",
    "!!!???...,,,;;;---___",
    "The quick brown fox jumps over the lazy dog",
    "wordswithoutanyspaceswhatsoeverinthisline",
)


def random_texts() -> list[str]:
    """Mixtures of hard characters; the same in every run."""
    source = random.Random(7)
    alphabet = "ab eé  \n\t.0123東😀▁é<>s/_-\u00a0"
    return ["".join(source.choice(alphabet) for _ in range(source.randint(1, 40))) for _ in range(300)]


TEXTS = [*DIFFICULT, *random_texts()]


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    source = random.Random(1)
    text = (
        "the quick brown fox jumps over lazy dog and then some more words about machine learning 12345 2024 "
        "hello world naïve café 東京 日本語 한국어 مرحبا def return import for while it's we'll aa aaa abab"
    )
    words = text.split()
    lines = [" ".join(source.choice(words) for _ in range(source.randint(3, 12))) for _ in range(1500)]
    path = tmp_path_factory.mktemp("corpus") / "corpus.txt"
    path.write_text("\n".join(lines), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def train(corpus: Path) -> Callable[..., Path]:
    """Trains a SentencePiece model; returns its file."""
    import sentencepiece

    def make(name: str, **options: Any) -> Path:
        prefix = corpus.parent / name
        sentencepiece.SentencePieceTrainer.train(
            input=str(corpus),
            model_prefix=str(prefix),
            hard_vocab_limit=False,
            minloglevel=2,
            num_threads=1,
            **options,
        )
        return prefix.with_suffix(".model")

    return make


def directory_with(path: Path, files: dict[str, Any]) -> Path:
    path.mkdir()
    for name, content in files.items():
        if isinstance(content, Path):
            shutil.copyfile(content, path / name)
        elif isinstance(content, bytes):
            (path / name).write_bytes(content)
        else:
            (path / name).write_text(json.dumps(content), encoding="utf-8")
    return path


LLAMA = {
    "model_type": "bpe",
    "vocab_size": 480,
    "byte_fallback": True,
    "normalization_rule_name": "identity",
    "remove_extra_whitespaces": False,
    "split_digits": True,
    "allow_whitespace_only_pieces": True,
}


@pytest.mark.parametrize(
    ("name", "file", "options", "config"),
    [
        ("llama", "tokenizer.model", LLAMA, {"tokenizer_class": "LlamaTokenizer"}),
        (
            "baichuan",
            "tokenizer.model",
            {**LLAMA, "user_defined_symbols": ["<reserved_106>", "<reserved_107>"]},
            {"tokenizer_class": "BaichuanTokenizer", "add_bos_token": False, "auto_map": {}},
        ),
        (
            "no prefix",
            "tokenizer.model",
            {**LLAMA, "add_dummy_prefix": False, "byte_fallback": False},
            {"tokenizer_class": "GemmaTokenizer"},
        ),
        (
            "unigram",
            "tokenizer.model",
            # A vocabulary without `<` takes `<0x41>` in a text for the byte, unlike SentencePiece.
            {**LLAMA, "model_type": "unigram", "required_chars": "<>x0123456789AF"},
            {"tokenizer_class": "LlamaTokenizer"},
        ),
        (
            "t5",
            "spiece.model",
            {"model_type": "unigram", "vocab_size": 300, "pad_id": 0, "eos_id": 1, "unk_id": 2, "bos_id": -1},
            {"tokenizer_class": "T5Tokenizer", "extra_ids": 10},
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_sentencepiece_models_tokenize_as_sentencepiece_does(
    name: str,
    file: str,
    options: dict[str, Any],
    config: dict[str, Any],
    train: Callable[..., Path],
    tmp_path: Path,
) -> None:
    import sentencepiece

    model = train(name.replace(" ", "_"), **options)
    own = sentencepiece.SentencePieceProcessor(model_file=str(model))
    directory = directory_with(tmp_path / "model", {file: model, "tokenizer_config.json": config})
    assert check_tokenizer(directory) is None
    tokenizer = _native.Tokenizer(read_assets(directory))
    different: list[tuple[Any, ...]] = []
    for text in TEXTS:
        ids, expected = tokenizer.encode(text, add_special_tokens=False), own.encode(text)
        if ids != expected:
            different.append((text, ids, expected))
        # Bytes that are no character have as many marks in one as in the other.
        if tokenizer.decode(expected, skip_special_tokens=False) != own.decode(expected) and (
            own.unk_id() not in expected
        ):
            different.append((text, tokenizer.decode(expected), own.decode(expected)))
    assert different == []


def test_special_tokens_of_sentencepiece_models_are_put_where_the_class_says(
    train: Callable[..., Path], tmp_path: Path
) -> None:
    llama = train("llama_specials", **LLAMA)
    t5 = train("t5_specials", model_type="unigram", vocab_size=300, pad_id=0, eos_id=1, unk_id=2, bos_id=-1)
    plain = _native.Tokenizer(read_assets(directory_with(tmp_path / "0", {"tokenizer.model": llama})))
    hello = plain.encode("hello", add_special_tokens=False)
    cases: list[tuple[dict[str, Any], list[int]]] = [
        ({"tokenizer.model": llama}, [1, *hello]),
        (
            {"tokenizer.model": llama, "tokenizer_config.json": {"tokenizer_class": "LlamaTokenizer"}},
            [1, *hello],
        ),
        (
            {
                "tokenizer.model": llama,
                "tokenizer_config.json": {
                    "tokenizer_class": "LlamaTokenizerFast",
                    "add_bos_token": False,
                },
            },
            hello,
        ),
        (
            {
                "tokenizer.model": llama,
                "tokenizer_config.json": {"tokenizer_class": "LlamaTokenizer", "add_eos_token": True},
            },
            [1, *hello, 2],
        ),
        (
            {"tokenizer.model": llama, "tokenizer_config.json": {"tokenizer_class": "BaichuanTokenizer"}},
            hello,
        ),
    ]
    for number, (files, expected) in enumerate(cases, start=1):
        directory = directory_with(tmp_path / str(number), files)
        assert _native.Tokenizer(read_assets(directory)).encode("hello") == expected, files
    # What a chat template writes is one token each.
    added = {"added_tokens_decoder": {"500": {"content": "<|turn|>", "special": True, "normalized": False}}}
    files = {
        "tokenizer.model": llama,
        "tokenizer_config.json": {"tokenizer_class": "LlamaTokenizer", **added},
    }
    tokenizer = _native.Tokenizer(read_assets(directory_with(tmp_path / "added", files)))
    assert tokenizer.encode("<s><|turn|></s>", add_special_tokens=False) == [1, 500, 2]
    config = {"tokenizer_class": "T5Tokenizer"}
    files = {"spiece.model": t5, "tokenizer_config.json": config}
    tokenizer = _native.Tokenizer(read_assets(directory_with(tmp_path / "t5", files)))
    ids = tokenizer.encode("hello <extra_id_0>")
    assert ids[-1] == 1
    assert tokenizer.vocab_size - 1 in ids


def byte_level(corpus: Path, folder: Path) -> tuple[Any, dict[str, Any]]:
    """A trained tokenizer of GPT-2's kind, and its two files."""
    from tokenizers import ByteLevelBPETokenizer

    trained = ByteLevelBPETokenizer()
    trained.train([str(corpus)], vocab_size=500, special_tokens=["<|endoftext|>"], show_progress=False)
    folder.mkdir()
    trained.save_model(str(folder))
    return trained, {name: folder / name for name in ("vocab.json", "merges.txt")}


def test_vocabularies_with_merges_tokenize_as_gpt2_does(corpus: Path, tmp_path: Path) -> None:
    trained, files = byte_level(corpus, tmp_path / "trained")
    config: dict[str, Any] = {
        "tokenizer_class": "GPT2Tokenizer",
        "eos_token": "<|endoftext|>",
        "bos_token": "<|endoftext|>",
    }
    directory = directory_with(tmp_path / "model", {**files, "tokenizer_config.json": config})
    tokenizer = _native.Tokenizer(read_assets(directory))
    for text in TEXTS:
        ids = trained.encode(text).ids
        assert tokenizer.encode(text) == ids, text
        assert tokenizer.decode(ids) == text
    end = trained.token_to_id("<|endoftext|>")
    assert tokenizer.encode("a<|endoftext|>b")[1] == end
    assert tokenizer.eos_token_ids == [end]
    config["add_bos_token"] = True  # as OPT's says
    directory = directory_with(tmp_path / "bos", {**files, "tokenizer_config.json": config})
    assert _native.Tokenizer(read_assets(directory)).encode("a")[0] == end


def test_ranks_tokenize_as_tiktoken_does(corpus: Path, tmp_path: Path) -> None:
    import tiktoken
    from tokenizers import ByteLevelBPETokenizer

    trained = ByteLevelBPETokenizer()
    trained.train([str(corpus)], vocab_size=500, show_progress=False)
    decoded = {rank: trained.decode([rank]) for rank in range(trained.get_vocab_size())}
    alphabet = {character: byte for byte, character in _byte_characters().items()}
    vocabulary = trained.get_vocab()
    # Single bytes come first, in any order; then the merges in theirs.
    ranks = {bytes(alphabet[one] for one in token): rank for token, rank in vocabulary.items()}
    assert len(decoded) == len(ranks)
    lines = [
        base64.b64encode(token) + f" {rank}\n".encode()
        for token, rank in sorted(ranks.items(), key=lambda x: x[1])
    ]
    pattern = (
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
        r"|\s*[\r\n]+|\s+(?!\S)|\s+"
    )
    specials = {"<|end|>": 1000, "<|eot_id|>": 1001}
    own = tiktoken.Encoding("test", pat_str=pattern, mergeable_ranks=ranks, special_tokens=specials)
    declared = {str(number): {"content": name, "special": True} for name, number in specials.items()}
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "added_tokens_decoder": declared}
    directory = directory_with(
        tmp_path / "model", {"tokenizer.model": b"".join(lines), "tokenizer_config.json": config}
    )
    tokenizer = _native.Tokenizer(read_assets(directory))
    for text in TEXTS:
        ids = own.encode_ordinary(text)
        assert tokenizer.encode(text) == ids, text
        assert tokenizer.decode(ids) == text
    assert tokenizer.encode("a<|eot_id|>") == own.encode("a<|eot_id|>", allowed_special="all")
    # Qwen's takes digits one by one, and has its special tokens behind the ranks.
    directory = directory_with(tmp_path / "qwen", {"qwen.tiktoken": b"".join(lines)})
    qwen = tiktoken.Encoding(
        "qwen",
        pat_str=pattern.replace(r"\p{N}{1,3}", r"\p{N}"),
        mergeable_ranks=ranks,
        special_tokens={"<|im_start|>": len(ranks) + 1},
    )
    tokenizer = _native.Tokenizer(read_assets(directory))
    assert tokenizer.encode("12345 abc") == qwen.encode("12345 abc")
    assert tokenizer.encode("<|im_start|>") == [len(ranks) + 1]


def _byte_characters() -> dict[int, str]:
    visible = [*range(33, 127), *range(161, 173), *range(174, 256)]
    hidden = [byte for byte in range(256) if byte not in visible]
    return {byte: chr(byte) for byte in visible} | {byte: chr(256 + at) for at, byte in enumerate(hidden)}


def test_a_tokenizer_is_converted_once(corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    _, files = byte_level(corpus, tmp_path / "trained")
    directory = directory_with(tmp_path / "model", files)
    first = tokenizer_json(directory)
    (cached,) = (tmp_path / "cache" / "inflight" / "tokenizers").iterdir()
    assert cached.read_bytes() == first
    cached.write_bytes(b"from the cache")
    assert tokenizer_json(directory) == b"from the cache"
    # Another content is another tokenizer.
    (directory / "added_tokens.json").write_text('{"<new>": 777}')
    changed = tokenizer_json(directory)
    assert changed is not None
    assert b"<new>" in changed
    # A cache that cannot be written costs time only.
    monkeypatch.setenv("XDG_CACHE_HOME", str(directory / "merges.txt"))
    assert tokenizer_json(directory) == changed


@pytest.mark.parametrize(
    ("files", "said"),
    [
        ({"tokenizer.model": b"\x00\x01nothing"}, "`tokenizer.model` cannot be converted"),
        ({"tokenizer.model": b""}, "it has no pieces"),
        ({"qwen.tiktoken": b"IQ== 0\nno line\n"}, "line 2"),
        ({"vocab.json": b"[]", "merges.txt": b""}, "`vocab.json` is not valid"),
        ({"vocab.json": b'{"a": 0}', "merges.txt": b"#version\nab\n"}, "line 2 is not a pair"),
        (
            {
                "vocab.json": b'{"a": 0}',
                "merges.txt": b"",
                "tokenizer_config.json": {"tokenizer_class": "CLIPTokenizer"},
            },
            "`CLIPTokenizer`",
        ),
    ],
)
def test_files_that_are_no_tokenizer_are_refused_by_name(
    files: dict[str, Any], said: str, tmp_path: Path
) -> None:
    directory = directory_with(tmp_path / "model", files)
    assert has_tokenizer(directory)
    with pytest.raises(CheckpointError) as caught:
        tokenizer_json(directory)
    assert said in str(caught.value)
    problem = check_tokenizer(directory)
    assert problem is not None
    assert said in problem.what
