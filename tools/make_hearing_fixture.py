"""Makes the fixture `whisper` of `tests/reference/fixtures`: a tiny random model that hears, and what Hugging
Face transformers makes of clips with it.

Owns its shape, its seeds and its cases. It needs torch and transformers 5, which no test does: run it where
they are installed, and commit what it writes.

    python tools/make_hearing_fixture.py tests/reference/fixtures

All parameters are drawn anew, biases and norms included, so that no mistake hides behind a zero or a one.
"""

from __future__ import annotations

import argparse
import copy
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

NAME = "whisper"
#: Tokens of texts, then those that are not text, as Whisper has them: the end, the start, two languages, two
#: tasks, what came before, no speech, no times, and times up to two seconds.
TEXT = 64
END, START, ENGLISH, GERMAN, TRANSLATE, TRANSCRIBE, BEFORE, SILENCE, NO_TIMES = range(TEXT, TEXT + 9)
FIRST_TIME = NO_TIMES + 1
SECONDS = 2
VOCABULARY = FIRST_TIME + SECONDS * 50 + 1
RATE = 16_000
NEW_TOKENS = 16

_CONFIG: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "num_mel_bins": 80,
    "d_model": 32,
    # The decoder differs from the encoder wherever it may.
    "encoder_layers": 3,
    "encoder_attention_heads": 2,
    "encoder_ffn_dim": 48,
    "decoder_layers": 2,
    "decoder_attention_heads": 4,
    "decoder_ffn_dim": 56,
    "max_source_positions": SECONDS * 50,
    "max_target_positions": 64,
    "pad_token_id": END,
    "bos_token_id": END,
    "eos_token_id": END,
    "decoder_start_token_id": START,
    "suppress_tokens": None,
    "begin_suppress_tokens": None,
}
_GENERATION: dict[str, Any] = {
    "decoder_start_token_id": START,
    "eos_token_id": END,
    "pad_token_id": END,
    "bos_token_id": END,
    "is_multilingual": True,
    "lang_to_id": {"<|en|>": ENGLISH, "<|de|>": GERMAN},
    "task_to_id": {"translate": TRANSLATE, "transcribe": TRANSCRIBE},
    "no_timestamps_token_id": NO_TIMES,
    "prev_sot_token_id": BEFORE,
    "max_initial_timestamp_index": 25,
    "max_length": 64,
    "suppress_tokens": [5, 9, START, ENGLISH, GERMAN, TRANSLATE, TRANSCRIBE, BEFORE, SILENCE],
    "begin_suppress_tokens": [7, END],
}


@dataclass(frozen=True)
class Case:
    """A clip and a prompt; ``times``: the transcript has them."""

    name: str
    clip: int
    prompt: tuple[int, ...]
    times: bool = False


CASES = (
    Case("plain", 0, (START, ENGLISH, TRANSCRIBE, NO_TIMES)),
    Case("short", 1, (START, GERMAN, TRANSLATE, NO_TIMES)),
    Case("before", 2, (BEFORE, 3, 4, 11, START, ENGLISH, TRANSCRIBE, NO_TIMES)),
    Case("times", 0, (START, ENGLISH, TRANSCRIBE), True),
    Case("more_times", 2, (START, GERMAN, TRANSCRIBE), True),
)
#: Samples of each clip: all that is heard, less than a frame of the encoder, and most.
SAMPLES = (SECONDS * RATE, 250, 27_111)


def make_model(folder: Path) -> Any:
    """The model with drawn parameters, rounded to bfloat16, and its checkpoint in ``folder``."""
    import torch
    from transformers import WhisperConfig, WhisperForConditionalGeneration

    config = WhisperConfig(**_CONFIG)
    config.architectures = ["WhisperForConditionalGeneration"]
    config._attn_implementation = "eager"
    model = WhisperForConditionalGeneration(config).float().eval()
    generator = torch.Generator().manual_seed(41)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            center = 1.0 if "norm" in name and name.endswith("weight") else 0.0
            drawn = center + 0.25 * torch.randn(parameter.shape, generator=generator)
            if name.endswith("decoder.embed_tokens.weight"):
                # So that text comes as often as times.
                drawn[:TEXT] *= 1.2
            if name.endswith("decoder.embed_positions.weight"):
                # So that tokens do not repeat.
                drawn *= 6.0
            parameter.copy_(drawn.to(torch.bfloat16).float())
    folder.mkdir(parents=True, exist_ok=True)
    copy.deepcopy(model).to(torch.bfloat16).save_pretrained(folder)
    (folder / "generation_config.json").write_text(json.dumps(_GENERATION, indent=2) + "\n")
    return model


def make_clips() -> list[Any]:
    """Tones that rise, with noise."""
    import numpy as np

    generator = np.random.default_rng(8)
    clips = []
    for number, count in enumerate(SAMPLES):
        seconds = np.arange(count) / RATE
        tone = np.sin(2 * np.pi * (200 + 300 * number + 400 * seconds) * seconds)
        clips.append((0.4 * tone + generator.normal(0, 0.05, count)).astype(np.float32))
    return clips


def run_case(model: Any, features: Any, case: Case) -> dict[str, Any]:
    """What transformers makes of a case, greedily, each token with the whole text before it: the model's
    logits, and the tokens under the rules of its generation."""
    import torch
    from transformers import GenerationConfig
    from transformers.generation.logits_process import (
        SuppressTokensAtBeginLogitsProcessor,
        SuppressTokensLogitsProcessor,
        WhisperTimeStampLogitsProcessor,
    )

    begin = len(case.prompt)
    rules: list[Any] = [
        SuppressTokensLogitsProcessor(_GENERATION["suppress_tokens"]),
        SuppressTokensAtBeginLogitsProcessor(_GENERATION["begin_suppress_tokens"], begin),
    ]
    if case.times:
        rules.append(WhisperTimeStampLogitsProcessor(GenerationConfig(**_GENERATION), begin))
    own, logits, margins = list(case.prompt), [], []
    while len(own) < begin + NEW_TOKENS and own[-1] != END:
        ids = torch.tensor([own])
        with torch.no_grad():
            last = model(input_features=features, decoder_input_ids=ids).logits[:, -1]
        logits.append(last[0].numpy())
        scores = last.clone()
        for rule in rules:
            scores = rule(ids, scores)
        best = scores[0].topk(2).values
        margins.append(float(best[0] - best[1]))
        own.append(int(scores[0].argmax()))
    print(case.name, own[begin:], "margin", min(margins))
    return {"prompt": case.prompt, "clip": case.clip, "tokens": own[begin:], "logits": logits}


def run_long(model: Any, extractor: Any, clip: Any) -> dict[str, Any]:
    """What transformers makes of a clip of several windows: its parts, and when they begin and end."""
    from transformers import GenerationConfig

    model.generation_config = GenerationConfig(**_GENERATION)
    inputs = extractor(
        clip,
        sampling_rate=RATE,
        return_tensors="pt",
        truncation=False,
        padding="longest",
        return_attention_mask=True,
    )
    out = model.generate(
        inputs["input_features"],
        attention_mask=inputs["attention_mask"],
        return_timestamps=True,
        return_segments=True,
        language="en",
        task="transcribe",
        do_sample=False,
        num_beams=1,
        temperature=0.0,
    )
    parts = out["segments"][0]
    return {
        "long.starts": [float(part["start"]) for part in parts],
        "long.ends": [float(part["end"]) for part in parts],
        "long.counts": [len(part["tokens"]) for part in parts],
        "long.tokens": [token for part in parts for token in part["tokens"].tolist()],
    }


def main() -> None:
    """Writes the fixture."""
    import numpy as np
    import torch
    from transformers import WhisperFeatureExtractor

    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path, help="where the fixtures lie, e.g. tests/reference/fixtures")
    folder = parser.parse_args().folder / NAME
    model = make_model(folder)
    extractor = WhisperFeatureExtractor(feature_size=80, chunk_length=SECONDS)
    extractor.save_pretrained(folder)
    heard: dict[str, Any] = {}
    spectra = []
    for number, clip in enumerate(make_clips()):
        spectrum = extractor(clip, sampling_rate=RATE, return_tensors="np")["input_features"]
        spectra.append(torch.from_numpy(spectrum))
        heard[f"clip_{number}"] = clip
        heard[f"spectrum_{number}"] = spectrum[0]
        with torch.no_grad():
            encoded = model.model.encoder(spectra[-1]).last_hidden_state[0]
            scores = model(input_features=spectra[-1], decoder_input_ids=torch.tensor([[START]])).logits[
                0, -1
            ]
        heard[f"encoded_{number}"] = encoded.numpy()
        heard[f"language_{number}"] = ENGLISH if scores[ENGLISH] > scores[GERMAN] else GERMAN
    wide = WhisperFeatureExtractor(feature_size=128, chunk_length=SECONDS)
    heard["wide_1"] = wide(heard["clip_1"], sampling_rate=RATE, return_tensors="np")["input_features"][0]
    for case in CASES:
        own = run_case(model, spectra[case.clip], case)
        heard |= {f"{case.name}.{key}": value for key, value in own.items()}
    long = np.concatenate([heard["clip_0"], heard["clip_2"], heard["clip_0"][::-1]])
    heard |= run_long(model, extractor, long)
    arrays: Any = {key: np.array(value) for key, value in heard.items()}
    np.savez_compressed(folder / "heard.npz", **arrays)


if __name__ == "__main__":
    main()
