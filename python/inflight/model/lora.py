"""LoRA adapters: the files that PEFT writes, and the modules that adapters change, by TensorRT-LLM's names.
Data only.
"""

from __future__ import annotations

PEFT_CONFIG = "adapter_config.json"
PEFT_WEIGHTS = "adapter_model.safetensors"

#: ``tensorrt_llm.lora_helper``'s and ``LoraModule``'s names, in order of their ids.
MODULES = (
    "attn_qkv",
    "attn_q",
    "attn_k",
    "attn_v",
    "attn_dense",
    "mlp_h_to_4h",
    "mlp_4h_to_h",
    "mlp_gate",
    "cross_attn_qkv",
    "cross_attn_q",
    "cross_attn_k",
    "cross_attn_v",
    "cross_attn_dense",
    "moe_h_to_4h",
    "moe_4h_to_h",
    "moe_gate",
    "moe_router",
    "mlp_router",
    "mlp_gate_up",
)

#: Of those, the ones that adapters for the PyTorch runtime may change -> Hugging Face's name of the layer.
HF_MODULES = {
    "attn_q": "q_proj",
    "attn_k": "k_proj",
    "attn_v": "v_proj",
    "attn_dense": "o_proj",
    "mlp_h_to_4h": "gate_proj",
    "mlp_4h_to_h": "down_proj",
    "mlp_gate": "up_proj",
    "mlp_gate_up": "gate_up_proj",
    "moe_h_to_4h": "w1",
    "moe_4h_to_h": "w2",
    "moe_gate": "w3",
    "moe_router": "gate",
}
