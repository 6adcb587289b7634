"""A vision tower in `config.json`, as published checkpoints have it, and what is refused of it by name."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from inflight.build.files import copy_for_reference
from inflight.build.runtimes.reference import verify, write_weights
from inflight.errors import UserMistake
from inflight.executors.reference.model.config import RopeConfig, load_config, parse_config
from inflight.executors.reference.model.processor import Processor, load_processor
from inflight.executors.reference.model.split import require_splittable
from inflight.executors.reference.model.tensors import required_tensors
from inflight.executors.reference.model.weights import CheckpointWeights, find_weights
from inflight.executors.reference.numpy.model import load_model

from . import seen
from .support import FIXTURES

#: As Qwen2.5-VL-7B-Instruct's, less what nothing here reads.
PUBLISHED: dict[str, Any] = {
    "architectures": ["Qwen2_5_VLForConditionalGeneration"],
    "image_token_id": 151655,
    "hidden_act": "silu",
    "hidden_size": 3584,
    "intermediate_size": 18944,
    "max_position_embeddings": 128000,
    "max_window_layers": 28,
    "model_type": "qwen2_5_vl",
    "num_attention_heads": 28,
    "num_hidden_layers": 28,
    "num_key_value_heads": 4,
    "rms_norm_eps": 1e-06,
    "rope_theta": 1000000.0,
    "sliding_window": 32768,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "use_sliding_window": False,
    "vision_config": {
        "depth": 32,
        "hidden_act": "silu",
        "hidden_size": 1280,
        "intermediate_size": 3420,
        "num_heads": 16,
        "in_chans": 3,
        "out_hidden_size": 3584,
        "patch_size": 14,
        "spatial_merge_size": 2,
        "spatial_patch_size": 14,
        "window_size": 112,
        "fullatt_block_indexes": [7, 15, 23, 31],
        "tokens_per_second": 2,
        "temporal_patch_size": 2,
    },
    "rope_scaling": {"type": "mrope", "mrope_section": [16, 24, 24]},
    "vocab_size": 152064,
}


def test_a_published_config_is_read() -> None:
    config = parse_config(PUBLISHED)
    assert config.rope == RopeConfig(1e6, sections=(16, 24, 24))
    assert config.windows == (None,) * 28
    vision = config.vision
    assert vision is not None
    assert (vision.factor, vision.window, vision.full_layers) == (28, 4, frozenset((7, 15, 23, 31)))
    assert (vision.patch_width, vision.merged_width, vision.head_dim) == (1176, 5120, 80)
    # What the model card says: 8.29 billion.
    assert sum(math.prod(shape) for _, shape in required_tensors(config)) == 8_292_166_656


def test_the_same_model_in_the_names_that_transformers_has_in_memory(tmp_path: Path) -> None:
    for name in ("config.json", "preprocessor_config.json"):
        (tmp_path / name).write_bytes((FIXTURES / seen.NAME / name).read_bytes())
    config = load_config(FIXTURES / seen.NAME)
    weights = CheckpointWeights.of(config, find_weights(FIXTURES / seen.NAME))
    renamed = {}
    for name, _ in required_tensors(config):
        other = re.sub(r"^visual", "model.visual", re.sub(r"^model", "model.language_model", name))
        renamed[other] = weights.tensor(name)
    save_file(renamed, tmp_path / "model.safetensors")
    found, expected = load_model(tmp_path), load_model(FIXTURES / seen.NAME)
    assert found.tower is not None
    assert expected.tower is not None
    patches = seen.record()["patches_0"]
    assert np.array_equal(found.tower.embed(patches, 8, 8), expected.tower.embed(patches, 8, 8))


def test_what_is_built_prepares_images_alike(tmp_path: Path) -> None:
    write_weights(str(FIXTURES / seen.NAME), str(tmp_path))
    copy_for_reference(str(FIXTURES / seen.NAME), str(tmp_path))
    verify(str(tmp_path))
    assert load_processor(tmp_path, seen.vision()) == seen.processor()


@pytest.mark.parametrize(
    ("keys", "vision", "words"),
    [
        ({"vision_config": None}, {}, "`vision_config`"),
        ({"image_token_id": None}, {}, "`image_token_id` is missing"),
        ({"image_token_id": 152064}, {}, "`image_token_id` in `config.json` must be at most 152063"),
        ({"rope_scaling": None}, {}, "`mrope_section` in `config.json` must be three numbers whose sum is"),
        ({"rope_scaling": {"type": "mrope", "mrope_section": [16, 24, 23]}}, {}, "`mrope_section`"),
        (
            {"rope_scaling": {"rope_type": "linear", "factor": 2.0, "mrope_section": [16, 24, 24]}},
            {},
            "rotary scaling `linear` with `mrope_section`",
        ),
        ({}, {"hidden_act": "quick_gelu"}, "`quick_gelu`"),
        ({}, {"out_hidden_size": 1280}, "`out_hidden_size`"),
        ({}, {"num_heads": 7}, "`num_heads`"),
        ({}, {"window_size": 27}, "`window_size`"),
        ({}, {"fullatt_block_indexes": "all"}, "`fullatt_block_indexes`"),
        ({}, {"in_chans": 4}, "`in_chans`"),
        ({}, {"depth": 10**6}, "`depth`"),
    ],
)
def test_what_is_not_implemented_is_refused(keys: dict[str, Any], vision: dict[str, Any], words: str) -> None:
    config = PUBLISHED | {"vision_config": PUBLISHED["vision_config"] | vision} | keys
    with pytest.raises(UserMistake) as raised:
        parse_config(config)
    assert words in str(raised.value)


def test_a_text_model_has_one_position() -> None:
    config = PUBLISHED | {"architectures": ["Qwen2ForCausalLM"]}
    with pytest.raises(UserMistake, match="rotary scaling `mrope` is not supported"):
        parse_config(config)


def test_it_is_not_split_over_ranks() -> None:
    with pytest.raises(UserMistake, match="has a vision tower, which the reference executor does not split"):
        require_splittable(load_config(FIXTURES / seen.NAME), 2)


PROCESSORS: list[tuple[str, dict[str, Any], tuple[int, int]]] = [
    ("preprocessor_config.json", {"min_pixels": 3136, "max_pixels": 12845056}, (3136, 12845056)),
    ("preprocessor_config.json", {"size": {"shortest_edge": 256, "longest_edge": 9999}}, (256, 9999)),
    ("preprocessor_config.json", {"size": {"min_pixels": 256, "max_pixels": 9999}}, (256, 9999)),
    ("processor_config.json", {"image_processor": {"size": {"longest_edge": 8888}}}, (3136, 8888)),
    ("other.json", {}, (3136, 28 * 28 * 1280)),
]


@pytest.mark.parametrize(("name", "values", "pixels"), PROCESSORS)
def test_the_bounds_of_pixels_are_read(
    tmp_path: Path, name: str, values: dict[str, Any], pixels: tuple[int, int]
) -> None:
    (tmp_path / name).write_text(json.dumps(values))
    found = load_processor(tmp_path, seen.vision())
    assert found == Processor(seen.vision(), *pixels)


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"do_resize": False}, "`do_resize`"),
        ({"resample": 2}, "`resample`"),
        ({"patch_size": 16}, "`patch_size`"),
        ({"min_pixels": 99, "max_pixels": 98}, "`max_pixels`"),
        ({"image_std": [1.0, 0.0, 1.0]}, "`image_std`"),
        ({"image_mean": [1.0]}, "`image_mean`"),
    ],
)
def test_another_processor_is_refused(tmp_path: Path, values: dict[str, Any], words: str) -> None:
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(values))
    with pytest.raises(UserMistake) as raised:
        load_processor(tmp_path, seen.vision())
    assert words in str(raised.value)
