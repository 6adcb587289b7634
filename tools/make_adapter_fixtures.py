"""Makes the LoRA fixtures of `tests/reference/fixtures`: adapters as the `peft` package saves them, with the
logits of transformers' model with the adapter on.

Owns which modules they change, and their seeds. It needs torch, transformers and peft, which no test does:
run it where they are installed, and commit what it writes.

    python tools/make_adapter_fixtures.py tests/reference/fixtures
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

#: By fixture: the arguments of `peft.LoraConfig`.
ADAPTERS: dict[str, dict[str, Any]] = {
    "llama": {"r": 4, "lora_alpha": 6, "target_modules": "all-linear"},
    "gpt2": {
        "r": 4,
        "lora_alpha": 6,
        "use_rslora": True,
        "fan_in_fan_out": True,
        "target_modules": ["c_attn", "c_fc", "mlp.c_proj"],
    },
    "qwen3": {"r": 2, "lora_alpha": 3, "target_modules": ["q_proj", "o_proj"], "layers_to_transform": [1]},
}


def write(fixture: Path, arguments: dict[str, Any]) -> None:
    """Writes `adapter` below a fixture."""
    import numpy as np
    import peft
    import torch
    import transformers

    torch.manual_seed(17)
    base = transformers.AutoModelForCausalLM.from_pretrained(
        fixture, dtype=torch.float32, attn_implementation="eager"
    )
    # Random in both matrices: PEFT's own start is an adapter that changes nothing.
    config = peft.LoraConfig(task_type="CAUSAL_LM", init_lora_weights=False, **arguments)
    model = peft.get_peft_model(base, config).eval()
    # The fixture's place is nobody else's business.
    model.peft_config["default"].base_model_name_or_path = fixture.name
    directory = fixture / "adapter"
    model.save_pretrained(directory)
    (directory / "README.md").unlink(missing_ok=True)
    with np.load(fixture / "expected.npz") as file:
        token_ids = file["token_ids"]
    with torch.no_grad():
        logits = model(torch.from_numpy(token_ids.astype(np.int64))[None]).logits[0]
    np.savez_compressed(directory / "expected.npz", logits=logits.float().numpy())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("directory", type=Path, help="where the logit fixtures are")
    directory = parser.parse_args().directory
    for name, arguments in ADAPTERS.items():
        write(directory / name, arguments)


if __name__ == "__main__":
    main()
