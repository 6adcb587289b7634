"""The model families that the reference executor serves, one file each.

To add a family, write its file and list it here: what it accepts of a `config.json`, how its layers compute
and where its tensors are. `inflight build`, its checks and the error texts follow from `FAMILIES`.
"""

from __future__ import annotations

from collections.abc import Mapping

from . import baichuan, deepseek, gemma, gpt2, gpt_oss, llama, mistral, mixtral, phi3, qwen, qwen_vl, whisper
from .family import Family

_LISTED = (
    llama.LLAMA,
    mistral.MISTRAL,
    mixtral.MIXTRAL,
    qwen.QWEN2,
    qwen.QWEN3,
    qwen.QWEN3_MOE,
    qwen_vl.QWEN2_5_VL,
    gpt2.GPT2,
    phi3.PHI3,
    gemma.GEMMA,
    gemma.GEMMA2,
    gemma.GEMMA3,
    gemma.GEMMA3_SEEING,
    baichuan.BAICHUAN,
    gpt_oss.GPT_OSS,
    deepseek.DEEPSEEK_V2,
    deepseek.DEEPSEEK_V3,
    whisper.WHISPER,
)

#: By the architecture that `config.json` names.
FAMILIES: Mapping[str, Family] = {name: family for family in _LISTED for name in family.architectures}
