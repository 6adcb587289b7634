"""Makes the fixtures of crates/text from the Python packages whose behaviour it must equal.

Owns what is compared: tiny tokenizers of every decoder shape, texts with their ids and ids with their
texts (package `tokenizers`), and conversations with their prompts (package `transformers`, which
brings the Jinja environment that chat templates are written for). The templates themselves are
written by hand in fixtures/templates.

Run it in an environment of its own and commit what changes:

    pip install tokenizers transformers jinja2
    python crates/text/tests/make_fixtures.py

To train a tokenizer anew, delete its file first.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import tokenizers
import transformers
from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)
from transformers.utils.chat_template_utils import render_jinja_template

FIXTURES = Path(__file__).parent / "fixtures"

SUBJECTS = ["the engine", "a worker", "my friend", "the gateway", "one token", "every request"]
VERBS = ["streams", "doesn't stop", "answers", "is learning", "they've measured", "won't split"]
OBJECTS = ["the text", "naïve résumés", "über Größe", "日本語の文", "привет мир", "12 345 numbers"]
ENDS = [".", "!", "?", " :)", " 🎉", "\n", "\n\n", ";  ok"]

TEXTS = [
    "",
    " ",
    "   leading and trailing   ",
    "Hello, world! It's a test; they've won't doesn't.",
    "tabs\tand\nnewlines\r\n\n\n  indented",
    "naïve café résumé Größe",
    "e\u0301 combining, ﬁ ligature, Å Å",
    "日本語のテキストと中文和한국어",
    "Привет, мир! שלום עולם مرحبا",
    "emoji 🎉🚀 family 👨\u200d👩\u200d👧\u200d👦 flag 🇩🇪 skin 👍🏽",
    "numbers 1234567890 3.14159 1e-10 0xFF",
    'code: fn main() { println!("{}", x >> 2); }',
    "<|user|>special<|end|> and <keep>added</keep> and <naïve tag>",
    "\u0000\u0001\u007f\u0085\u00a0\u00ad\u200b\ufeff\ufffd",
    "math ∑∏∫ ≤≥ 𝔘𝔫𝔦 ½",
    "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
    "▁already▁there <0x41> ## </w>",
]

ADDED = [
    AddedToken("<|user|>", special=True),
    AddedToken("<|end|>", special=True),
    AddedToken("<keep>", special=False, normalized=False),
    AddedToken("</keep>", special=False, normalized=True),
    # Holds a space and a letter outside the byte alphabet's printable part: decoded as it stands.
    AddedToken("<naïve tag>", special=False, normalized=False),
]


def corpus() -> Iterator[str]:
    """A few thousand sentences, always the same."""
    chooser = random.Random(20)
    for _ in range(3000):
        parts = [chooser.choice(words) for words in (SUBJECTS, VERBS, OBJECTS)]
        yield " ".join(parts) + chooser.choice(ENDS)


def byte_level() -> Tokenizer:
    """GPT-2, Qwen."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=420,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(corpus(), trainer)
    tokenizer.add_tokens(ADDED)
    return tokenizer


def byte_level_split() -> Tokenizer:
    """Llama 3: a regex of its own, and a post-processor that adds a first token."""
    tokenizer = byte_level()
    pattern = (
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
        r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    )
    tokenizer.normalizer = None
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(pattern), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    first = tokenizer.token_to_id("<|user|>")
    tokenizer.post_processor = processors.Sequence(
        [
            processors.ByteLevel(trim_offsets=False),
            processors.TemplateProcessing(
                single="<|user|> $A", pair="<|user|> $A $B", special_tokens=[("<|user|>", first)]
            ),
        ]
    )
    return tokenizer


def byte_fallback(strip: bool) -> Tokenizer:
    """Llama 2 and Mistral (strip), Gemma (no strip)."""
    trained = Tokenizer(models.BPE())
    trained.pre_tokenizer = pre_tokenizers.Metaspace()
    trainer = trainers.BpeTrainer(vocab_size=300, limit_alphabet=60, show_progress=False)
    trained.train_from_iterator(corpus(), trainer)
    model = json.loads(trained.to_str())["model"]
    tokens = ["<unk>", *(f"<0x{byte:02X}>" for byte in range(256))]
    tokens += sorted(model["vocab"], key=model["vocab"].__getitem__)
    tokenizer = Tokenizer(
        models.BPE(
            vocab={token: index for index, token in enumerate(tokens)},
            merges=[tuple(pair) for pair in model["merges"]],
            unk_token="<unk>",
            byte_fallback=True,
            fuse_unk=True,
        )
    )
    steps: list[Any] = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    if strip:
        tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
        steps.append(decoders.Strip(" ", 1, 0))
    else:
        tokenizer.normalizer = normalizers.Replace(" ", "▁")
    tokenizer.decoder = decoders.Sequence(steps)
    tokenizer.add_tokens(ADDED)
    return tokenizer


def metaspace_unigram() -> Tokenizer:
    """T5, XLM-R."""
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.normalizer = normalizers.NFKC()
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    trainer = trainers.UnigramTrainer(
        vocab_size=250, unk_token="<unk>", special_tokens=["<unk>"], show_progress=False
    )
    tokenizer.train_from_iterator(corpus(), trainer)
    tokenizer.add_tokens(ADDED)
    return tokenizer


def wordpiece() -> Tokenizer:
    """BERT."""
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    trainer = trainers.WordPieceTrainer(
        vocab_size=250, special_tokens=["[UNK]", "[CLS]", "[SEP]"], show_progress=False
    )
    tokenizer.train_from_iterator(corpus(), trainer)
    tokenizer.post_processor = processors.BertProcessing(("[SEP]", 2), ("[CLS]", 1))
    tokenizer.add_tokens(ADDED)
    return tokenizer


def word_level() -> Tokenizer:
    """No decoder at all."""
    tokenizer = Tokenizer(models.WordLevel(unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    trainer = trainers.WordLevelTrainer(vocab_size=60, special_tokens=["<unk>"], show_progress=False)
    tokenizer.train_from_iterator(corpus(), trainer)
    tokenizer.add_tokens(ADDED)
    return tokenizer


def suffix_bpe() -> Tokenizer:
    """CLIP, old GPT: the last token decodes differently."""
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", end_of_word_suffix="</w>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.decoder = decoders.BPEDecoder(suffix="</w>")
    trainer = trainers.BpeTrainer(
        vocab_size=200,
        special_tokens=["<unk>"],
        end_of_word_suffix="</w>",
        show_progress=False,
    )
    tokenizer.train_from_iterator(corpus(), trainer)
    tokenizer.add_tokens(ADDED)
    return tokenizer


def ctc() -> Tokenizer:
    """A decoder that cannot be taken apart."""
    tokenizer = word_level()
    tokenizer.decoder = decoders.CTC(pad_token="<keep>", word_delimiter_token="the")
    return tokenizer


TOKENIZERS = {
    "byte_level": byte_level,
    "byte_level_split": byte_level_split,
    "byte_fallback_strip": lambda: byte_fallback(strip=True),
    "byte_fallback": lambda: byte_fallback(strip=False),
    "metaspace_unigram": metaspace_unigram,
    "wordpiece": wordpiece,
    "word_level": word_level,
    "suffix_bpe": suffix_bpe,
    "ctc": ctc,
}


def tokenizer_cases(tokenizer: Tokenizer) -> dict[str, Any]:
    """Texts to ids, and random ids to text."""
    chooser = random.Random(7)
    long_text = " ".join(corpus())[:4000]
    texts = [
        {
            "text": text,
            "ids": tokenizer.encode(text, add_special_tokens=False).ids,
            "special": tokenizer.encode(text, add_special_tokens=True).ids,
        }
        for text in [*TEXTS, long_text]
    ]
    size = tokenizer.get_vocab_size()
    decodes = []
    for length in [1, 1, 1, 2, 2, 3, 3, 5, 8, 13, 21, 34]:
        ids = [chooser.randrange(size) for _ in range(length)]
        decodes.append(
            {
                "ids": ids,
                "kept": tokenizer.decode(ids, skip_special_tokens=False),
                "skipped": tokenizer.decode(ids, skip_special_tokens=True),
            }
        )
    return {"size": size, "texts": texts, "decodes": decodes}


WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": 'Weather in a <city> & "place", e.g. Köln',
        "parameters": {
            "type": "object",
            "properties": {
                "city": {"type": "string", "description": "Where"},
                "days": {"type": "integer", "enum": [1, 3], "default": 1},
                "tags": {"type": "array", "items": {"type": "string"}},
            },
            "required": ["city"],
        },
    },
}


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def assistant(text: str | None, **fields: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": text, **fields}


def system(text: str) -> dict[str, Any]:
    return {"role": "system", "content": text}


CALL = {
    "id": "call12345",
    "type": "function",
    "function": {"name": "get_weather", "arguments": {"city": "Köln", "days": 3}},
}

CONVERSATIONS: dict[str, dict[str, Any]] = {
    "one": {"messages": [user('Hello <there> & "you"\n')]},
    "no_prompt": {"messages": [user("Hi")], "add_generation_prompt": False},
    "turns": {"messages": [system("Be brief. "), user(" a "), assistant("b\n"), user("c 🎉")]},
    "wrong_order": {"messages": [user("a"), user("b")]},
    "system_late": {"messages": [user("a"), system("b"), assistant("c"), user("d")]},
    "empty": {"messages": []},
    "tools": {"messages": [system("S"), user("Weather?")], "tools": [WEATHER]},
    "tool_round": {
        "messages": [
            user("Weather?"),
            assistant(None, tool_calls=[CALL]),
            {"role": "tool", "tool_call_id": "call12345", "content": '{"sun": true}'},
            {"role": "tool", "tool_call_id": "call12345", "content": "rain"},
            assistant("Sunny."),
            user("Thanks"),
        ],
        "tools": [WEATHER],
    },
    "thinking": {
        "messages": [
            user("Why?"),
            assistant("<think>\nBecause.\n</think>\n\nSo."),
            user("Sure?"),
            assistant("Yes.", reasoning_content="Let me see"),
            user("ok"),
        ],
        "enable_thinking": False,
    },
    "parts": {
        "messages": [
            {
                "role": "user",
                "content": [{"type": "text", "text": "one"}, {"type": "text", "text": " two"}],
            }
        ]
    },
}

SPECIAL_TOKENS = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>"}

DATA: dict[str, Any] = {
    "text": "  Hello, World of words  ",
    "lines": "a\nb\r\nc\n",
    "numbers": [3, 1, 2, 3],
    "items_": [{"n": "x", "v": 1, "on": True}, {"n": "y", "v": 2, "on": False}, {"n": "z", "v": 3}],
    "mapping": {"b": 1, "a": [1, 2.5, None, True, 'é"\n'], "c": {}},
    "empty_list": [],
    "nothing": None,
    "quote": 'it\'s "quoted" <b>&amp;</b>\t\u0007é𝔘\u007f',
}

# One construct each; what jinja2 prints for it is the expectation.
EXPRESSIONS = [
    "{{ text.strip() }}|{{ text.lstrip() }}|{{ text.rstrip() }}|{{ text.strip(' Hs') }}",
    "{{ text | trim }}|{{ text.upper() }}|{{ text.title() }}|{{ text.strip().capitalize() }}",
    "{{ text.split() }}|{{ text.strip().split(' ') }}|{{ text.strip().split(' ', 1) }}",
    "{{ 'a,b,,c'.split(',')[-1] }}|{{ 'a</t>b</t>c'.split('</t>')[0] }}|{{ ''.split(',') }}",
    "{{ 'a b  c'.rsplit(' ', 1) }}|{{ 'a b  c'.rsplit() }}|{{ 'a,b'.rsplit(',') }}",
    "{{ 'a=b=c'.partition('=') }}|{{ 'a=b=c'.rpartition('=') }}|{{ 'abc'.partition('=') }}",
    "{{ 'prefix-x'.removeprefix('prefix-') }}|{{ 'x.py'.removesuffix('.py') }}",
    "{{ 'abc'.startswith('ab') }}|{{ 'abc'.endswith(('x', 'c')) }}|{{ 'abc'.find('c') }}",
    "{{ 'abc'.replace('b', 'x') }}|{{ 'aaa'.replace('a', 'b', 2) }}|{{ 'aXbX'.count('X') }}",
    "{{ lines.splitlines() }}|{{ 'x'.join(['a', 'b']) }}|{{ '%s-%s' | format('a', 1) }}",
    "{{ 'abc'[1:] }}|{{ 'abc'[::-1] }}|{{ 'abc'[-1] }}|{{ numbers[::-1] }}|{{ numbers[1:3] }}",
    "{{ numbers | length }}|{{ numbers | sum }}|{{ numbers | max }}|{{ numbers | sort }}",
    "{{ numbers | unique | list }}|{{ numbers | first }}|{{ numbers | last }}|{{ numbers[-1] }}",
    "{{ items_ | map(attribute='n') | join(', ') }}|{{ items_ | selectattr('on') | list | length }}",
    "{{ items_ | selectattr('v', 'equalto', 2) | map(attribute='n') | list }}",
    "{{ items_ | rejectattr('v', 'gt', 1) | map(attribute='n') | list }}",
    "{{ items_ | selectattr('on', 'defined') | list | length }}",
    "{{ mapping.items() | list | length }}|{{ mapping.keys() | list }}|{{ mapping.get('zz', 7) }}",
    "{% for key, value in mapping.items() %}{{ key }}={{ value }};{% endfor %}",
    "{% for key, value in mapping | dictsort %}{{ key }};{% endfor %}",
    "{% for key in mapping %}{{ key }}{% if not loop.last %}, {% endif %}{% endfor %}",
    "{{ mapping }}|{{ nothing }}|{{ true }}|{{ [1, 'a', none] }}|{{ 1.0 }}|{{ 7 / 2 }}|{{ 7 // 2 }}",
    "{{ mapping | tojson }}",
    "{{ mapping | tojson(indent=2) }}",
    "{{ mapping | tojson(indent=4, sort_keys=true) }}",
    "{{ mapping | tojson(separators=(',', ':')) }}|{{ mapping | tojson(ensure_ascii=true) }}",
    "{{ quote | tojson }}|{{ quote | tojson(ensure_ascii=true) }}|{{ quote }}",
    "{{ [1.0, 1e20, 1e-7, 0.1, -2.5e10, 123456789012345678] | tojson }}|{{ [] | tojson(indent=2) }}",
    "{{ text is string }}|{{ numbers is string }}|{{ text is sequence }}|{{ mapping is sequence }}",
    "{{ mapping is mapping }}|{{ numbers is iterable }}|{{ text is iterable }}|{{ 1 is iterable }}",
    "{{ missing is defined }}|{{ missing is none }}|{{ nothing is none }}|{{ 1 is number }}",
    "{{ 1 is integer }}|{{ 1.5 is float }}|{{ true is boolean }}|{{ true is true }}",
    "{{ missing }}|{{ missing | default('d') }}|{{ nothing | default('d', true) }}|{{ missing or 'x' }}",
    "{{ 'x' if missing else 'y' }}|{{ 'x' if missing }}|{{ missing | length }}",
    "{{ 'a' ~ 1 ~ none ~ true }}|{{ 'a' + 'b' }}|{{ [1] + [2] }}|{{ 'ab' * 2 }}|{{ 7 % 3 }}",
    "{{ 'a' in 'abc' }}|{{ 3 in numbers }}|{{ 'b' in mapping }}|{{ 'zz' not in mapping }}",
    "{{ 1 == 1.0 }}|{{ 1 < 2 < 3 }}|{{ not empty_list }}|{{ (1, 2) }}|{{ 2 ** 3 }}",
    "{% set ns = namespace(x=0, found=false) %}{% for n in numbers %}{% set ns.x = ns.x + n %}"
    "{% endfor %}{{ ns.x }}|{{ ns.found }}",
    "{% for n in numbers %}{% if n == 1 %}{% continue %}{% endif %}{% if n == 2 %}{% break %}"
    "{% endif %}{{ n }}{% endfor %}",
    "{% for n in numbers %}{{ loop.index0 }}{{ loop.first }}{{ loop.revindex }}{{ loop.length }}"
    "{{ loop.previtem }}{{ loop.nextitem }}{{ loop.cycle('a', 'b') }};{% endfor %}",
    "{% for n in numbers if n > 1 %}{{ loop.index }}:{{ n }} {% else %}none{% endfor %}",
    "{% for n in [] %}x{% else %}none{% endfor %}",
    "{% macro show(value, suffix='!') %}<{{ value }}{{ suffix }}>{% endmacro %}"
    "{{ show('a') }}{{ show('b', suffix='?') }}",
    "{% macro walk(v) %}{% if v is mapping %}{ {%- for k, x in v.items() %}{{ k }}:{{ walk(x) }},"
    "{% endfor %}}{% else %}{{ v | string }}{% endif %}{% endmacro %}{{ walk(mapping) }}",
    "{% macro wrap() %}[{{ caller() }}]{% endmacro %}{% call wrap() %}in{% endcall %}",
    "{% set block %}one {{ 1 }}{% endset %}{{ block | upper }}|{% filter upper %}x{% endfilter %}",
    "{% with a = 1, b = 2 %}{{ a + b }}{% endwith %}|{{ a is defined }}",
    "  {%- if true %}  x  {%- endif %}\n  {% if true %}\n  y\n  {% endif %}\nz\n",
    "a\n    {% set x = 1 %}\n    {{ x }}\n\t{# note #}\nb\n",
    "{% generation %}said {{ 1 }}{% endgeneration %}|\n{%- generation -%}\n x \n{%- endgeneration %} y",
    "{% raw %}{{ not }}{% endraw %}|{{ '{{' }}|{{ \"it's\" }}|{{ 'tab\\t' }}|{{ '\\n' | length }}",
    "{{ dict(a=1, b='x') }}|{{ range(3) | list }}|{{ range(1, 6, 2) | list }}|{{ dict(a=1).a }}",
    "{{ '5' | int + 1 }}|{{ 'x' | int(3) }}|{{ '1.5' | float }}|{{ 2.567 | round(1) }}|{{ -3 | abs }}",
    "{{ text | replace('World', 'W') | trim }}|{{ 'a b' | title }}|{{ 'ABC' | lower }}|{{ 'x' | safe }}",
    "{{ [['a', 1], ['b', 2]] | map('first') | join }}|{{ ['a', 'b'] | map('upper') | list }}",
    "{{ numbers | reverse | list }}|{{ 'abc' | reverse }}|{{ numbers | batch(2) | list }}",
    "{{ 'line one\\nline two' | indent(4) }}|{{ 'a' | indent(2, first=true) }}",
    "{{ items_[0].n }}|{{ items_[0]['n'] }}|{{ items_[0].missing }}|{{ items_[0].missing is defined }}",
    "{{ (items_ | last).v }}|{{ items_ | length - 1 }}|{{ (numbers | length) * 2 }}",
    "{{ mapping['a'][1] }}|{{ mapping.a | length }}|{{ mapping.a[4] }}|{{ 'é' | length }}",
    "{{ 'abc'.isdigit() }}|{{ '12'.isdigit() }}|{{ 'ab'.isalpha() }}|{{ 'A'.isupper() }}",
    "{{ '{}-{}'.format('a', 2) }}|{{ 'a'.lower() == 'a' }}|{{ 'x' is eq 'x' }}|{{ 3 is odd }}",
    "{{ numbers | select('odd') | list }}|{{ numbers | reject('equalto', 3) | list }}",
    "{{ 'a' 'b' }}|{{ 'a' \n 'b' }}|{{ '<｜User｜>' ~ '\\u2028' | length }}",
    "{{ True }}{{ False }}{{ None }}|{{ 1 if True else 2 }}|{{ none is none }}|{{ [True, None] }}",
    "{{ text is not string }}|{{ not text is string }}|{{ items_[0].n is defined and true }}",
    "{{ 'a' if missing else ('b' if nothing else 'c') }}|{{ (nothing or 'x') ~ 'y' }}",
    "{{ 2 is in [1, 2] }}|{{ true is sameas true }}|{{ 'x' in ['x', 'y'] }}|{{ 'a' is ne 'b' }}",
    "{% set ns = namespace(seen=[]) %}{% for n in numbers %}{% set ns.seen = ns.seen + [n * 2] %}"
    "{% endfor %}{{ ns.seen }}|{{ ns.none_yet is defined }}|{{ ns.seen | length }}",
    "{% for i in range(numbers | length - 1, -1, -1) %}{{ numbers[i] }}{% endfor %}",
    "{% set a, b = 1, 2 %}{{ a }}{{ b }}|{% set t = (1, 2) %}{{ t[0] }}{{ t | length }}",
    "{% for k, v in [('a', 1), ('b', 2)] %}{{ k }}{{ v }}{% endfor %}|{{ {'a': 1, 'b': [2]} }}",
    "{{ numbers[:-1] }}|{{ numbers[0:1] }}|{{ numbers[-2:] }}|{{ numbers[1:][0] }}|{{ text[:4] }}",
    "{{ numbers[1:] is sequence }}|{{ numbers[1:] | length }}|{{ numbers[::-1][0] }}|{{ numbers[5:] }}",
    "{{ mapping.keys() | list }}|{{ mapping.items() | list }}|{{ mapping | length }}|{{ mapping | list }}",
    "{{ mapping | items | list }}|{{ mapping.values() | list | length }}|{{ mapping['c'] | length }}",
    "{{ mapping.get('b') }}|{{ mapping.get('zz') }}|{{ mapping.get('zz', {}) }}|{{ mapping.zz }}",
    "{{ numbers | map('string') | join('+') }}|{{ [1, 'a', none] | join('-') }}|{{ 5 | string ~ 'x' }}",
    "{{ items_ | map(attribute='on', default='?') | join(',') }}|{{ items_ | first | tojson }}",
    "{{ items_ | selectattr('n', 'in', ['x', 'z']) | map(attribute='v') | list }}",
    "{{ items_ | sort(attribute='v', reverse=true) | map(attribute='n') | join }}",
    "{{ (items_ | selectattr('n', 'ne', 'x') | first).n }}|{{ items_ | rejectattr('on') | list | length }}",
    "{{ numbers | min }}|{{ numbers | join('\n') }}|{{ numbers | tojson }}|{{ (1, 'a') | tojson }}",
    "{{ [{'a': {'b': 1}}] | tojson }}|{{ {'k': numbers[1:]} | tojson }}|{{ 'é' | tojson | safe }}",
    "{{ true | tojson }}|{{ none | tojson }}|{{ 1.5 | tojson }}|{{ '' | tojson }}|{{ {} | tojson }}",
    "{%- for item in items_ %}\n    {%- if item.on %}\n        {{- item.n }}\n    {%- elif not loop.last %}\n"
    "        {{- '-' }}\n    {%- else %}\n        {{- '.' }}\n    {%- endif %}\n{%- endfor %}\n",
    "{#- note -#}\n x {# a #}{#b#} y\n{# c #}\nz",
    "{% if true -%}\n  a\n{%- endif +%}\n b {%+ if true %} c {% endif %}\n",
    "{{ 'x' -}}  \n  {{- 'y' }}\n\n",
    "\n\nfirst\n{% set x = 1 %}\n\nsecond\n\n",
    "{{ 10 // 3 }}|{{ -7 // 2 }}|{{ -7 % 3 }}|{{ 1e3 }}|{{ 0.1 + 0.2 }}|{{ 3 * 1.0 }}|{{ 10 / 5 }}",
    "{{ 'a\nb' }}|{{ 'a\\tb' }}|{{ \"\\\"\" }}|{{ '\\\\' }}|{{ 'it\\'s' }}",
    "{{ text.strip().lower().replace('world', '').split() | join('_') }}",
    "{{ 'a,b'.split(',') | length }}|{{ 'a.b.c'.rsplit('.', 1)[0] }}|{{ 'a-b'.split('-', 1)[1] }}",
    "{{ ' a '.strip() == 'a' }}|{{ 'aab'.lstrip('a') }}|{{ 'baa'.rstrip('a') }}|{{ 'x'.join('abc') }}",
    "{{ 'AbC'.swapcase() if false else 'n' }}|{{ 'abc'.index('b') if false else 'n' }}",
    "{% for n in numbers %}{{ loop.depth }}{{ loop.index }}{{ loop.last }} {% endfor %}",
    "{% for n in numbers recursive %}{{ n }}{% endfor %}|{% for a in [[1, [2]], 3] %}{{ a }};{% endfor %}",
    "{% macro m(a, b=[], c=none) %}{{ a }}{{ b }}{{ c }}{% endmacro %}{{ m(1) }}",
    "{% set x = 1 %}{% for n in numbers %}{% set x = n %}{% endfor %}{{ x }}|{% if true %}{% set x = 5 %}"
    "{% endif %}{{ x }}",
    "{% set m = numbers %}{% if true %}{% set m = m[1:] %}{% endif %}{{ m[0] }}{{ m | length }}",
    "{{ add_generation_prompt }}|{{ messages }}|{{ tools is none }}|{{ documents is none }}|{{ bos_token }}",
    "{{ 123456789 | string | length }}|{{ '%05d' | format(42) }}|{{ 'ab' | list }}",
    "{{ [3, 1] | sort | first }}|{{ 'b' < 'c' }}|{{ [1, 2] == [1, 2] }}",
    "{{ 'x' | upper | lower }}|{{ ['b', 'A'] | sort }}",
    "{{ '<a>' | e }}|{{ '<a>' | escape }}|{{ 'a' | d('b') }}",
    "a{% raw %}\nb {{ x }}\n{% endraw %}\nc",
    "a\n  {%- raw -%}  \n {% if %}\n  {%- endraw -%}  \n c",
    "  {% raw\n%}\n\n{% generation %}{# #}{% endraw %}\n\nc",
    "{{ '{% raw %}\n{# ' }}|{# {% raw %}\n' #}{{ {'a': {'%}': \"}}{% raw %}\\\"\"}} }}\n"
    "{% if '{% raw %}' %}x{% endif %}",
    "a\r\nb\r{% if true %}\r\nc{% endif %}\r\n{% raw %}\r\n{% endraw %}|{{ 'd\r\ne' }}",
    "{{ not }}",
    "{{ numbers.append(1) }}",
    "{{ undefined_function() }}",
    "{{ 'a' | no_such_filter }}",
    "{{ raise_exception('stop: ' ~ numbers[0]) }}",
    "{{ missing.field }}",
    "{{ 'a' + 1 }}",
    "{{ nothing.strip() }}",
]


def render(source: str, variables: dict[str, Any]) -> dict[str, str]:
    """What transformers makes of a conversation, or the kind of its failure."""
    variables = {"add_generation_prompt": True, **SPECIAL_TOKENS, **variables}
    messages = variables.pop("messages")
    try:
        rendered, _ = render_jinja_template([messages], chat_template=source, **variables)
    except Exception as error:
        if type(error).__name__ == "TemplateError":
            return {"raised": str(error)}
        return {"failed": type(error).__name__}
    return {"text": rendered[0]}


def write(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")


def main() -> None:
    origin = {
        "tokenizers": tokenizers.__version__,
        "transformers": transformers.__version__,
        "made_by": "crates/text/tests/make_fixtures.py",
    }
    cases: dict[str, Any] = {"origin": origin}
    for name, make in TOKENIZERS.items():
        path = FIXTURES / "tokenizers" / f"{name}.json"
        if not path.exists():
            # Some trainers break ties by hash order, so a tokenizer that is there stays.
            compact = json.dumps(json.loads(make().to_str()), ensure_ascii=False)
            path.write_text(compact + "\n", encoding="utf-8")
        tokenizer = Tokenizer.from_file(str(path))
        cases[name] = tokenizer_cases(tokenizer)
    (FIXTURES / "tokens.json").write_text(json.dumps(cases, ensure_ascii=False) + "\n", encoding="utf-8")

    prompts: dict[str, Any] = {"origin": origin, "special_tokens": SPECIAL_TOKENS}
    prompts["conversations"] = CONVERSATIONS
    prompts["templates"] = {
        path.stem: {
            name: render(path.read_text(encoding="utf-8"), conversation)
            for name, conversation in CONVERSATIONS.items()
        }
        for path in sorted((FIXTURES / "templates").glob("*.jinja"))
    }
    prompts["data"] = DATA
    prompts["expressions"] = [
        {"template": source, "expected": render(source, {"messages": [], **DATA})} for source in EXPRESSIONS
    ]
    write(FIXTURES / "prompts.json", prompts)


if __name__ == "__main__":
    main()
