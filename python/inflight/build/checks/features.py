"""Features of an engine that exclude or need each other."""

from __future__ import annotations

from inflight.build.options import Values
from inflight.build.options.declaration import DISABLE, ENABLE
from inflight.errors import Problem
from inflight.model.config import ModelFacts


def check_features(values: Values, facts: ModelFacts) -> list[Problem]:
    """Engine features that exclude or need each other."""
    problems = []
    for given, problem, remedy in (
        (
            values.is_given("paged_kv_cache") and values.is_given("kv_cache_type"),
            "`--paged-kv-cache` and `--kv-cache-type` are both given",
            "keep `--kv-cache-type`",
        ),
        (
            values["use_inflight_batching"]
            and (
                DISABLE in (values["remove_input_padding"], values["paged_kv_cache"])
                or values["kv_cache_type"] != "paged"
            ),
            "`--use-inflight-batching` needs packed requests and a paged cache",
            "leave `--remove-input-padding` and `--kv-cache-type` at their defaults",
        ),
        (
            (values["gather_context_logits"] or values["gather_all_token_logits"])
            and values["max_draft_len"] > 0,
            f"the logits of prompts cannot be kept with `--max-draft-len {values['max_draft_len']}`",
            "leave `--gather-context-logits` and `--gather-all-token-logits` out, or do not draft",
        ),
        (
            values["multiple_profiles"] == ENABLE and values["opt_num_tokens"] is not None,
            f"`--opt-num-tokens {values['opt_num_tokens']}` cannot be combined with"
            " `--multiple-profiles enable`",
            "leave one of them out",
        ),
        (
            values["user_buffer"] == ENABLE and values["reduce_fusion"] != ENABLE,
            "`--user-buffer enable` needs `--reduce-fusion enable`",
            "pass both",
        ),
        (
            values["lora_plugin"] == DISABLE and (values["lora_dir"] or values["lora_target_modules"]),
            "`--lora-plugin disable` is given with adapters",
            "leave it out, or the adapters",
        ),
        (
            values["embedding_sharding_dim"] > 1,
            f"`--embedding-sharding-dim` is `{values['embedding_sharding_dim']}`",
            "choose 0 or 1",
        ),
        (
            values["use_parallel_embedding"]
            and values["embedding_sharding_dim"] == 0
            and facts.vocab_size % values["tp_size"] != 0,
            f"`--tp-size {values['tp_size']}` does not divide the vocabulary `{facts.vocab_size}`",
            "choose `--embedding-sharding-dim 1`, or leave `--use-parallel-embedding` out",
        ),
        (
            values["use_parallel_embedding"]
            and values["embedding_sharding_dim"] == 1
            and facts.hidden_size % values["tp_size"] != 0,
            f"`--tp-size {values['tp_size']}` does not divide the hidden size `{facts.hidden_size}`",
            "choose `--embedding-sharding-dim 0`",
        ),
    ):
        if given:
            problems.append(Problem(problem, remedy))
    return problems
