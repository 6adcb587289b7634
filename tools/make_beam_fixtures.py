"""Makes the beam fixtures of `tests/reference/fixtures`: what Hugging Face transformers finds by beam search
and by greedy search, constrained or not, on the tiny random checkpoints that are there.

Owns the cases. It needs torch and transformers, which no test does: run it where they are installed, and
commit what it writes.

    python tools/make_beam_fixtures.py tests/reference/fixtures
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

FAMILIES = (
    "llama",
    "mistral_window",
    "qwen2_tied",
    "qwen3",
    "gpt2",
    "mixtral",
    "phi3_window",
    "gemma",
    "baichuan2_rotary",
    "baichuan2_alibi",
    "gemma2",
    "gemma3",
    "gpt_oss",
    "deepseek_v2",
    "deepseek_v3",
)
PROMPTS = ([3, 4, 5, 6], [(7 * token) % 61 + 3 for token in range(18)])
#: Tokens of the output, the longest.
MAX_TOKENS = 14
SEARCHES: tuple[dict[str, Any], ...] = (
    {"num_beams": 4, "length_penalty": 0.0, "early_stopping": True},
    {"num_beams": 4, "length_penalty": 1.0, "early_stopping": False},
    {"num_beams": 4, "length_penalty": 2.0, "early_stopping": "never"},
    {"num_beams": 4, "length_penalty": -0.5, "early_stopping": False},
    {"num_beams": 2, "length_penalty": 1.0, "early_stopping": True},
    {"num_beams": 1, "no_repeat_ngram_size": 2},
    {"num_beams": 1, "no_repeat_ngram_size": 3},
    {"num_beams": 1},
    {"num_beams": 1, "repetition_penalty": 1.7},
)


def search(model: Any, prompt: list[int], options: dict[str, Any], end: int | None) -> dict[str, Any]:
    """One search's answers, best first, without prompt, end and padding."""
    import torch

    beams = options["num_beams"]
    found = model.generate(
        torch.tensor([prompt]),
        attention_mask=torch.ones(1, len(prompt), dtype=torch.long),
        max_new_tokens=MAX_TOKENS,
        do_sample=False,
        num_return_sequences=beams,
        eos_token_id=end,
        pad_token_id=0,
        return_dict_in_generate=True,
        output_scores=True,
        **options,
    )
    answers = []
    for sequence in found.sequences.tolist():
        tokens = sequence[len(prompt) :]
        if end is not None and end in tokens:
            tokens = tokens[: tokens.index(end)]
        answers.append(tokens)
    scores = found.sequences_scores.tolist() if beams > 1 else []
    return {"prompt": prompt, "end_id": end, **options, "answers": answers, "scores": scores}


def main() -> None:
    """Writes `searches.json` next to each checkpoint."""
    import torch
    from transformers import AutoModelForCausalLM

    from make_logit_fixtures import load_baichuan

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, help="where the fixtures lie")
    parser.add_argument("names", nargs="*", help="which fixtures; all, if none is named")
    arguments = parser.parse_args()
    folder = arguments.folder
    for family in arguments.names or FAMILIES:
        if family.startswith("baichuan"):
            model = load_baichuan(folder / family)
        else:
            model = AutoModelForCausalLM.from_pretrained(
                folder / family, dtype=torch.float32, attn_implementation="eager"
            ).eval()
        model.generation_config.eos_token_id = None
        cases = []
        for prompt in PROMPTS:
            greedy = search(model, prompt, {"num_beams": 1}, None)["answers"][0]
            # An end that lies on the greedy path ends some beams in the middle.
            for end in (None, greedy[4]):
                cases += [search(model, prompt, options, end) for options in SEARCHES]
        (folder / family / "searches.json").write_text(
            json.dumps(cases, indent=None, separators=(",", ":")).replace("},{", "},\n{") + "\n"
        )


if __name__ == "__main__":
    main()
