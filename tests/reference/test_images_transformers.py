"""A model that sees, made here by transformers' classes in another shape than the fixture's: the executor
says what `generate` says. Skipped without transformers; `test_images.py` compares with what it said once.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from inflight.executors.reference import create

from . import seen
from .support import AllTold, collect, request, unpack

torch = pytest.importorskip("torch", reason="PyTorch is not installed: pip install 'inflight-llm[torch]'")
transformers = pytest.importorskip("transformers", reason="transformers is not installed")
processing = pytest.importorskip("transformers.models.qwen2_vl.image_processing_pil_qwen2_vl")
pytestmark = pytest.mark.filterwarnings("ignore")

PLACEHOLDER, TOKENS = 97, 10
SIZES = ((70, 120), (301, 200), (20, 20))
#: Numbers of images among runs of text, as negative lengths.
PROMPTS: list[list[int]] = [[-4, 0, -3], [-2, 1, -5, 2, -2], [0, -1, 2, -40]]


def make(folder: Path) -> Any:
    """A checkpoint with tied embeddings, three key heads and the published tower's patches and windows."""
    config = transformers.Qwen2_5_VLConfig(
        text_config={
            "vocab_size": 98,
            "hidden_size": 96,
            "intermediate_size": 64,
            "num_hidden_layers": 3,
            "num_attention_heads": 6,
            "num_key_value_heads": 3,
            "max_position_embeddings": 512,
            "rope_parameters": {"rope_type": "default", "rope_theta": 1e6, "mrope_section": [2, 4, 2]},
        },
        vision_config={
            "depth": 3,
            "hidden_size": 64,
            "intermediate_size": 48,
            "num_heads": 4,
            "out_hidden_size": 96,
            "fullatt_block_indexes": [0, 2],
        },
        image_token_id=PLACEHOLDER,
        video_token_id=96,
        vision_start_token_id=95,
        vision_end_token_id=94,
        tie_word_embeddings=True,
    )
    config._attn_implementation = "eager"
    model = transformers.Qwen2_5_VLForConditionalGeneration(config).float().eval()
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            center = 1.0 if parameter.ndim == 1 and name.endswith("weight") else 0.0
            parameter.copy_(center + 0.15 * torch.randn(parameter.shape, generator=generator))
    model.save_pretrained(folder)
    (folder / "preprocessor_config.json").write_text('{"max_pixels": 60000}')
    return model


def test_what_transformers_generates_is_generated(tmp_path: Path) -> None:
    model = make(tmp_path)
    draw = np.random.default_rng(4)
    pixels = [draw.integers(0, 255, (*size, 3), dtype=np.uint8) for size in SIZES]
    process = processing.Qwen2VLImageProcessorPil(max_pixels=60000)
    made = [process([Image.fromarray(one)], return_tensors="pt") for one in pixels]
    expected, requests = {}, []
    for at, parts in enumerate(PROMPTS):
        prompt: list[int] = []
        expanded: list[int] = []
        for part in parts:
            text = draw.integers(3, 90, -part).tolist() if part < 0 else []
            count = 0 if part < 0 else int(made[part]["image_grid_thw"].prod()) // 4
            prompt += text or [PLACEHOLDER]
            expanded += text or [PLACEHOLDER] * count
        numbers = [part for part in parts if part >= 0]
        ids = torch.tensor([expanded])
        with torch.no_grad():
            found = model.generate(
                input_ids=ids,
                mm_token_type_ids=(ids == PLACEHOLDER).int(),
                pixel_values=torch.cat([made[one]["pixel_values"] for one in numbers]),
                image_grid_thw=torch.cat([made[one]["image_grid_thw"] for one in numbers]),
                max_new_tokens=TOKENS,
                min_new_tokens=TOKENS,
                do_sample=False,
            )
        expected[at] = found[0, len(expanded) :].tolist()
        files = seen.files(*(seen.encoded(pixels[one]) for one in numbers))
        requests.append(request(at, prompt, TOKENS, tensors=[files]))
    device = os.environ.get("INFLIGHT_TEST_DEVICE")
    for backend in ("pytorch",) if device else ("numpy", "pytorch"):
        subject = create(
            tmp_path,
            device or "cpu",
            backend=backend,
            dtype="float32",
            max_num_tokens=50,
            max_batch_size=8,
            max_tokens_in_paged_kv_cache=4096,
        )
        subject.enqueue(requests)
        told: AllTold = {}
        while sum(one.final for one in told.values()) < len(requests):
            collect(unpack(subject.await_responses(60.0)), told)
        subject.shutdown()
        assert {at: told[at, 0].tokens for at in expected} == expected
