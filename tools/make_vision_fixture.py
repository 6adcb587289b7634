"""Makes the fixture `qwen2_5_vl` of `tests/reference/fixtures`: a tiny random model that sees, and what
Hugging Face transformers makes of images with it.

Owns its shape, its seeds and its cases. It needs torch, torchvision and transformers 5, which no test does:
run it where they are installed, and commit what it writes. Images are kept as pixels, so that no decoder
matters.

    python tools/make_vision_fixture.py tests/reference/fixtures             # transformers 5
    python tools/make_vision_fixture.py --configs tests/reference/fixtures   # transformers 4

The second form writes only `config-4.json`, the same configuration as transformers 4 spells it.
All parameters are drawn anew, biases and norms included, so that no mistake hides behind a zero or a one.
"""

from __future__ import annotations

import argparse
import copy
import json
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

NAME = "qwen2_5_vl"
#: Tokens that are no text; those below are drawn for texts.
START, END, IMAGE, VIDEO = 60, 61, 62, 63
TEXT = 58
#: Height and width of the images: a whole window, rows and columns that fill none, one that is made smaller,
#: one that is made larger, and a narrow one.
SIZES = ((32, 32), (40, 24), (90, 61), (9, 7), (8, 72))
NEW_TOKENS = 12
BEAMS, BEAM_TOKENS = 3, 8

_TEXT: dict[str, Any] = {
    "vocab_size": 64,
    "hidden_size": 64,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "rms_norm_eps": 1e-6,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [2, 3, 3]},
}
_VISION: dict[str, Any] = {
    "depth": 3,
    "hidden_size": 32,
    "intermediate_size": 40,
    "num_heads": 2,
    "patch_size": 4,
    "spatial_merge_size": 2,
    "temporal_patch_size": 2,
    "window_size": 16,
    "out_hidden_size": 64,
    "fullatt_block_indexes": [1],
}
_PROCESSOR: dict[str, Any] = {
    "min_pixels": 4 * 64,
    "max_pixels": 40 * 64,
    "patch_size": 4,
    "temporal_patch_size": 2,
    "merge_size": 2,
}


@dataclass(frozen=True)
class Case:
    """A prompt: numbers of images among runs of text, as negative lengths."""

    name: str
    parts: tuple[int, ...]


#: Each image is between a start and an end token.
CASES = (
    Case("one", (-5, 0, -4)),
    Case("two", (-3, 1, -2, 2, -6)),
    Case("turns", (-4, 3, -8, 0, -5, 1, -3)),
    Case("long", (-2, 4, -70)),
    Case("first", (2, -1)),
)


def make_config(old: bool = False) -> Any:
    """The configuration, as the installed transformers wants it."""
    from transformers import Qwen2_5_VLConfig

    text = dict(_TEXT)
    if old:
        rope = text.pop("rope_parameters")
        text["rope_theta"] = rope["rope_theta"]
        text["rope_scaling"] = {"type": "mrope", "mrope_section": rope["mrope_section"]}
    config = Qwen2_5_VLConfig(
        text_config=text,
        vision_config=_VISION,
        image_token_id=IMAGE,
        video_token_id=VIDEO,
        vision_start_token_id=START,
        vision_end_token_id=END,
    )
    config.architectures = ["Qwen2_5_VLForConditionalGeneration"]
    return config


def write_old_config(folder: Path) -> None:
    """Writes `config-4.json` next to the checkpoint, as transformers 4 saves it."""
    import torch

    config = make_config(old=True)
    config.dtype = torch.bfloat16
    with tempfile.TemporaryDirectory() as temporary:
        config.save_pretrained(temporary)
        text = (Path(temporary) / "config.json").read_text(encoding="utf-8")
    (folder / "config-4.json").write_text(text, encoding="utf-8")


def make_model(folder: Path) -> Any:
    """The model with drawn parameters, rounded to bfloat16, and its checkpoint in ``folder``."""
    import torch
    from transformers import Qwen2_5_VLForConditionalGeneration

    config = make_config()
    config._attn_implementation = "eager"
    model = Qwen2_5_VLForConditionalGeneration(config).float().eval()
    generator = torch.Generator().manual_seed(77)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            center = 1.0 if ("norm" in name and name.endswith("weight")) or "ln_q" in name else 0.0
            # Of the matrices that look at more, less: activations stay of one size.
            width = 0.2 if "patch_embed" not in name else 0.1
            drawn = center + width * torch.randn(parameter.shape, generator=generator)
            parameter.copy_(drawn.to(torch.bfloat16).float())
    folder.mkdir(parents=True, exist_ok=True)
    # A copy: tables of angles would lose precision on the way.
    copy.deepcopy(model).to(torch.bfloat16).save_pretrained(folder)
    (folder / "generation_config.json").unlink(missing_ok=True)
    (folder / "preprocessor_config.json").write_text(json.dumps(_PROCESSOR, indent=2) + "\n")
    return model


def make_images() -> list[Any]:
    """Smooth shapes with noise: resizing one matters."""
    import numpy as np

    generator = np.random.default_rng(5)
    images = []
    for height, width in SIZES:
        rows, columns = np.mgrid[:height, :width]
        waves = [np.sin(rows / (3 + band) + columns / (5 - band)) for band in range(3)]
        noise = generator.normal(0, 25, (height, width, 3))
        images.append(np.clip(128 + 90 * np.stack(waves, -1) + noise, 0, 255).astype(np.uint8))
    return images


def prompt_of(case: Case, seed: int) -> tuple[list[int], list[int]]:
    """The tokens with one placeholder an image, and the numbers of the images."""
    import numpy as np

    generator = np.random.default_rng(seed)
    tokens: list[int] = []
    for part in case.parts:
        tokens += generator.integers(3, TEXT, -part).tolist() if part < 0 else [START, IMAGE, END]
    return tokens, [part for part in case.parts if part >= 0]


def run_case(model: Any, seen: dict[str, Any], case: Case, seed: int) -> dict[str, Any]:
    """What transformers makes of a case, greedily, each token with the whole text before it."""
    import numpy as np
    import torch

    tokens, numbers = prompt_of(case, seed)
    grids = [seen[f"grid_{number}"] for number in numbers]
    expanded: list[int] = []
    counts = iter(int(np.prod(grid)) // 4 for grid in grids)
    for token in tokens:
        expanded += [token] * (next(counts) if token == IMAGE else 1)
    inputs = {
        "pixel_values": torch.from_numpy(np.concatenate([seen[f"patches_{number}"] for number in numbers])),
        "image_grid_thw": torch.tensor(np.array(grids)),
    }
    own, logits = list(expanded), []
    for _ in range(NEW_TOKENS):
        ids = torch.tensor([own])
        types = (ids == IMAGE).int()
        types[:, len(expanded) :] = 0
        positions, offset = model.model.get_rope_index(ids, types, image_grid_thw=inputs["image_grid_thw"])
        with torch.no_grad():
            last = model(input_ids=ids, position_ids=positions, **inputs).logits[0, -1]
        logits.append(last.numpy())
        own.append(int(last.argmax()))
    ids = torch.tensor([expanded])
    found = model.generate(
        input_ids=ids,
        mm_token_type_ids=(ids == IMAGE).int(),
        **inputs,
        max_new_tokens=BEAM_TOKENS,
        num_beams=BEAMS,
        num_return_sequences=BEAMS,
        do_sample=False,
        length_penalty=0.0,
        early_stopping=True,
        eos_token_id=None,
    )
    log_probs = torch.log_softmax(torch.tensor(np.array(logits)), -1).numpy()
    best = np.sort(log_probs, -1)
    print(case.name, len(expanded), own[len(expanded) :], "margin", (best[:, -1] - best[:, -2]).min())
    return {
        "prompt": tokens,
        "numbers": numbers,
        "expanded": expanded,
        "positions": positions[:, 0, : len(expanded)].numpy(),
        "offset": int(offset),
        "tokens": own[len(expanded) :],
        "log_probs": log_probs,
        "beams": found[:, len(expanded) :].tolist(),
    }


def main() -> None:
    """Writes the fixture."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path, help="where the fixtures lie, e.g. tests/reference/fixtures")
    parser.add_argument("--configs", action="store_true", help="write only config-4.json (transformers 4)")
    arguments = parser.parse_args()
    folder = arguments.folder / NAME
    if arguments.configs:
        write_old_config(folder)
        return
    import numpy as np
    import torch
    from PIL import Image
    from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

    model = make_model(folder)
    process = Qwen2VLImageProcessorPil(**_PROCESSOR)
    seen: dict[str, Any] = {}
    for number, pixels in enumerate(make_images()):
        made = process([Image.fromarray(pixels)], return_tensors="np")
        seen[f"image_{number}"] = pixels
        seen[f"patches_{number}"] = made["pixel_values"].astype(np.float32)
        seen[f"grid_{number}"] = made["image_grid_thw"][0]
        with torch.no_grad():
            features = model.model.get_image_features(
                torch.from_numpy(seen[f"patches_{number}"]), torch.tensor(made["image_grid_thw"])
            ).pooler_output
        seen[f"embeddings_{number}"] = features[0].numpy()
    for seed, case in enumerate(CASES, start=30):
        seen |= {f"{case.name}.{key}": value for key, value in run_case(model, seen, case, seed).items()}
    arrays: Any = {key: np.array(value) for key, value in seen.items()}
    np.savez_compressed(folder / "seen.npz", **arrays)
    token_ids = np.random.default_rng(9).integers(3, TEXT, 24)
    with torch.no_grad():
        logits = model(torch.from_numpy(token_ids)[None]).logits[0]
    np.savez_compressed(folder / "expected.npz", token_ids=token_ids.astype(np.int32), logits=logits.numpy())


if __name__ == "__main__":
    main()
