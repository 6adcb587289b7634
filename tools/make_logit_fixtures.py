"""Makes the logit fixtures of `tests/reference/fixtures`: tiny random checkpoints with the logits of
Hugging Face transformers.

Owns the shapes and seeds of the fixtures. It needs torch and transformers, which no test does: run it
where they are installed, and commit what it writes.

    python tools/make_logit_fixtures.py tests/reference/fixtures             # transformers 5
    python tools/make_logit_fixtures.py --configs tests/reference/fixtures   # transformers 4

The first form writes checkpoint, `config.json` and `expected.npz` (token ids, logits of every position,
float32). The second writes only `config-4.json`, the same configurations as transformers 4 spells them.
All parameters are drawn anew, biases and norms included, so that no mistake hides behind a zero or a one.
"""

from __future__ import annotations

import argparse
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

_SHAPE: dict[str, Any] = {
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "bos_token_id": 1,
    "eos_token_id": 2,
}


@dataclass(frozen=True)
class Fixture:
    """One checkpoint: the family's class prefix, what differs from `_SHAPE`, and how it is stored."""

    name: str
    family: str
    #: Prompt length; long enough that what the fixture is about changes the logits.
    tokens: int
    storage: str = "bfloat16"
    shard_bytes: int | None = None
    config: dict[str, Any] = field(default_factory=dict)
    rope_theta: float = 10000.0
    rope_scaling: dict[str, Any] | None = None


FIXTURES = (
    Fixture("llama", "Llama", 24),
    Fixture(
        "llama_biased_linear_rope",
        "Llama",
        24,
        shard_bytes=12_000,
        config={"attention_bias": True, "mlp_bias": True},
        rope_scaling={"rope_type": "linear", "factor": 4.0},
    ),
    Fixture(
        "llama3_rope",
        "Llama",
        48,
        rope_theta=1000.0,
        rope_scaling={
            "rope_type": "llama3",
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 16,
        },
    ),
    Fixture("mistral_window", "Mistral", 40, storage="float16", config={"sliding_window": 8}),
    Fixture("qwen2_tied", "Qwen2", 24, storage="float32", config={"tie_word_embeddings": True}),
    Fixture(
        "qwen2_window",
        "Qwen2",
        40,
        config={"use_sliding_window": True, "sliding_window": 8, "max_window_layers": 1},
    ),
    Fixture("qwen3", "Qwen3", 24, config={"head_dim": 16}),
)


def make_config(fixture: Fixture) -> Any:
    """The configuration object, built as the installed transformers wants it."""
    import transformers

    values = {**_SHAPE, **fixture.config}
    if int(transformers.__version__.split(".")[0]) >= 5:
        values["rope_parameters"] = {
            "rope_type": "default",
            "rope_theta": fixture.rope_theta,
            **(fixture.rope_scaling or {}),
        }
    else:
        values["rope_theta"] = fixture.rope_theta
        values["rope_scaling"] = fixture.rope_scaling
    config = getattr(transformers, f"{fixture.family}Config")(**values)
    config.architectures = [f"{fixture.family}ForCausalLM"]
    return config


def write_fixture(fixture: Fixture, folder: Path, seed: int) -> None:
    """Draws the parameters, rounds them to the stored type, and records the float32 logits."""
    import numpy as np
    import torch
    import transformers

    generator = torch.Generator().manual_seed(seed)
    config = make_config(fixture)
    config._attn_implementation = "eager"
    model = getattr(transformers, f"{fixture.family}ForCausalLM")(config).float().eval()
    storage = getattr(torch, fixture.storage)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            center = 1.0 if "norm" in name else 0.0
            drawn = center + 0.2 * torch.randn(parameter.shape, generator=generator)
            parameter.copy_(drawn.to(storage).float())
        token_ids = torch.randint(3, _SHAPE["vocab_size"], (fixture.tokens,), generator=generator)
        logits = model(token_ids[None]).logits[0]
    folder.mkdir(parents=True, exist_ok=True)
    shards = {"max_shard_size": fixture.shard_bytes} if fixture.shard_bytes else {}
    model.to(storage).save_pretrained(folder, **shards)
    (folder / "generation_config.json").unlink(missing_ok=True)
    np.savez_compressed(
        folder / "expected.npz", token_ids=token_ids.numpy().astype(np.int32), logits=logits.float().numpy()
    )


def write_old_config(fixture: Fixture, folder: Path) -> None:
    """Writes `config-4.json` beside the checkpoint, as transformers 4 saves it."""
    import torch

    config = make_config(fixture)
    config.torch_dtype = getattr(torch, fixture.storage)
    with tempfile.TemporaryDirectory() as temporary:
        config.save_pretrained(temporary)
        text = (Path(temporary) / "config.json").read_text(encoding="utf-8")
    (folder / "config-4.json").write_text(text, encoding="utf-8")


def main() -> None:
    """Writes every fixture, or with `--configs` every configuration of transformers 4."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path, help="where the fixtures lie, e.g. tests/reference/fixtures")
    parser.add_argument("--configs", action="store_true", help="write only config-4.json (transformers 4)")
    arguments = parser.parse_args()
    import transformers

    old = transformers.__version__.startswith("4.")
    if old != arguments.configs:
        parser.error(
            f"transformers {transformers.__version__} is installed; see --help for which form wants which"
        )
    for seed, fixture in enumerate(FIXTURES, start=1):
        folder = arguments.folder / fixture.name
        if arguments.configs:
            write_old_config(fixture, folder)
        else:
            write_fixture(fixture, folder, seed)


if __name__ == "__main__":
    main()
