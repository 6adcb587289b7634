//! The rows of fields that other servers have besides OpenAI's and those that open servers share: `trtllm-serve`,
//! Triton's front end, SGLang, llama.cpp and vLLM. A field that changes the answer is refused unless its value is the
//! default; what only routes, logs or tunes is ignored.

use super::Endpoint::{Both, Chat, Embeddings, Responses};
use super::{Field, NO_LORA, NO_SAMPLER, NO_SUCH, NO_TEMPLATE, ignored, refused};

const NO_TOKENS: &str = "Send the token ids in `prompt` to `/v1/completions`.";
const NO_GRAMMAR: &str = "Send `guided_grammar` instead.";
const NO_BUDGET: &str =
    "A token budget for reasoning is not supported. Leave it out, or send `reasoning_effort`.";
const NO_MEDIA: &str = "The model's own processor decides how images are read. Leave it out.";
const NO_TELLING: &str = "The response cannot contain it. Leave it out.";
const NO_DISAGGREGATION: &str =
    "The gateway itself chooses the workers for a prompt and for its answer. Leave it out.";
const NO_PARSER: &str = "The operator names the model's formats with `--tool-parser` and `--reasoning-parser`. \
     Leave it out.";
const RETURN_TOKEN_IDS: &str = "Send `return_token_ids` instead.";
const ZERO: &[&str] = &["0", "0.0"];
const ONE: &[&str] = &["1", "1.0"];
const MINUS_ONE: &[&str] = &["-1", "-1.0"];
const FALSE: &[&str] = &["false"];
const TRUE: &[&str] = &["true"];

/// See the module.
pub(super) const OTHERS: &[Field] = &[
    // trtllm-serve and Triton.
    refused(Both, "prompt_token_ids", &[], NO_TOKENS),
    refused(Both, "prompt_token_ids_b64", &[], NO_TOKENS),
    refused(Both, "prompt_ignore_length", ZERO, NO_SAMPLER),
    refused(Both, "top_p_decay", ONE, NO_SAMPLER),
    refused(Both, "top_p_reset_ids", &[], NO_SAMPLER),
    // The least that a decaying `top_p` becomes; it does not decay.
    ignored(Both, "top_p_min", ZERO),
    refused(
        Both,
        "embedding_bias_words",
        &[],
        "Send `logit_bias` instead.",
    ),
    refused(
        Both,
        "embedding_bias_weights",
        &[],
        "Send `logit_bias` instead.",
    ),
    refused(Both, "draft_tokens", &[], NO_SUCH),
    ignored(Both, "conversation_params", &[]),
    ignored(Chat, "agent_hierarchy", &[]),
    ignored(Chat, "injected_chat_template_kwargs", &[]),
    refused(Both, "media_io_kwargs", &[], NO_MEDIA),
    // SGLang.
    refused(Both, "input_ids", &[], NO_TOKENS),
    refused(Both, "stop_regex", &[], "Send `stop` instead."),
    refused(
        Both,
        "no_stop_trim",
        FALSE,
        "Send `include_stop_str_in_output` instead.",
    ),
    refused(Both, "custom_logit_processor", &[], NO_SAMPLER),
    refused(Both, "custom_params", &[], NO_SAMPLER),
    refused(Both, "sampling_logprobs_mode", &[], NO_SAMPLER),
    refused(
        Chat,
        "separate_reasoning",
        TRUE,
        "Reasoning is always separated where the model's format is known. Leave it out.",
    ),
    ignored(Chat, "stream_reasoning", TRUE),
    refused(Both, "session_params", &[], NO_SUCH),
    refused(Chat, "task", &[], NO_SUCH),
    refused(Both, "watermark", &[], NO_SUCH),
    refused(Both, "return_hidden_states", FALSE, NO_TELLING),
    refused(Both, "return_routed_experts", FALSE, NO_TELLING),
    refused(Both, "return_cached_tokens_details", FALSE, NO_TELLING),
    refused(Both, "return_spec_tokens_details", FALSE, NO_TELLING),
    refused(Both, "return_meta_info", FALSE, NO_TELLING),
    refused(Both, "return_sampling_mask", FALSE, NO_TELLING),
    refused(
        Both,
        "return_flat_raw_output_top_logprobs",
        FALSE,
        NO_TELLING,
    ),
    refused(Both, "return_prompt_token_ids", FALSE, RETURN_TOKEN_IDS),
    refused(Both, "return_input_ids_in_sglext", FALSE, RETURN_TOKEN_IDS),
    refused(Both, "return_output_ids_in_sglext", FALSE, RETURN_TOKEN_IDS),
    // They say how something is written that is refused itself.
    ignored(Both, "routed_experts_start_len", ZERO),
    ignored(Both, "return_flat_raw_top_logprobs_b64", TRUE),
    refused(Both, "extra_key", &[], "Send `cache_salt` instead."),
    refused(Both, "bootstrap_host", &[], NO_DISAGGREGATION),
    refused(Both, "bootstrap_port", &[], NO_DISAGGREGATION),
    refused(Both, "bootstrap_room", &[], NO_DISAGGREGATION),
    ignored(Both, "routed_dp_rank", &[]),
    ignored(Both, "disagg_prefill_dp_rank", &[]),
    ignored(Both, "data_parallel_rank", &[]),
    ignored(Both, "session_id", &[]),
    ignored(Both, "rid", &[]),
    ignored(Both, "custom_labels", &[]),
    refused(Both, "max_dynamic_patch", &[], NO_MEDIA),
    refused(Both, "min_dynamic_patch", &[], NO_MEDIA),
    refused(Both, "images_config", &[], NO_MEDIA),
    refused(Both, "video_config", &[], NO_MEDIA),
    refused(Both, "use_audio_in_video", FALSE, NO_MEDIA),
    // llama.cpp.
    refused(Both, "grammar", &["\"\""], NO_GRAMMAR),
    refused(Both, "grammar_lazy", FALSE, NO_GRAMMAR),
    refused(Both, "grammar_triggers", &[], NO_GRAMMAR),
    refused(Both, "grammar_type", &["\"\""], NO_GRAMMAR),
    refused(Both, "preserved_tokens", &[], NO_SUCH),
    refused(Both, "n_predict", MINUS_ONE, "Send `max_tokens` instead."),
    refused(Both, "n_cmpl", ONE, "Send `n` instead."),
    refused(
        Both,
        "n_probs",
        ZERO,
        "Send `logprobs`, and in chat `top_logprobs`, instead.",
    ),
    refused(Both, "post_sampling_probs", FALSE, NO_SAMPLER),
    refused(Both, "min_keep", ZERO, NO_SAMPLER),
    refused(Both, "repeat_last_n", &["64"], NO_SAMPLER),
    refused(Both, "top_n_sigma", MINUS_ONE, NO_SAMPLER),
    refused(Both, "tfs_z", ONE, NO_SAMPLER),
    refused(Both, "samplers", &[], NO_SAMPLER),
    refused(Both, "xtc_probability", ZERO, NO_SAMPLER),
    refused(Both, "dry_multiplier", ZERO, NO_SAMPLER),
    refused(Both, "dynatemp_range", ZERO, NO_SAMPLER),
    refused(Both, "adaptive_target", MINUS_ONE, NO_SAMPLER),
    // They shape samplers that are refused themselves.
    ignored(Both, "xtc_threshold", &[]),
    ignored(Both, "dry_base", &[]),
    ignored(Both, "dry_allowed_length", &[]),
    ignored(Both, "dry_penalty_last_n", &[]),
    ignored(Both, "dry_sequence_breakers", &[]),
    ignored(Both, "dynatemp_exponent", &[]),
    ignored(Both, "adaptive_decay", &[]),
    ignored(Both, "mirostat_tau", &[]),
    ignored(Both, "mirostat_eta", &[]),
    ignored(Both, "backend_sampling", &[]),
    refused(Both, "lora", &[], NO_LORA),
    refused(
        Both,
        "image_data",
        &[],
        "Send images as parts of a message.",
    ),
    refused(Both, "n_indent", ZERO, NO_SUCH),
    refused(
        Both,
        "t_max_predict_ms",
        &["-1", "0"],
        "Send the header `x-request-timeout-ms` instead.",
    ),
    refused(Both, "response_fields", &[], NO_TELLING),
    refused(Both, "timings_per_token", FALSE, NO_TELLING),
    refused(Both, "return_progress", FALSE, NO_TELLING),
    refused(Both, "return_tokens", FALSE, RETURN_TOKEN_IDS),
    refused(Both, "parse_tool_calls", TRUE, NO_PARSER),
    refused(Both, "chat_format", &[], NO_PARSER),
    refused(Both, "chat_parser", &["\"\""], NO_PARSER),
    refused(
        Both,
        "reasoning_format",
        &["\"auto\"", "\"deepseek\""],
        NO_PARSER,
    ),
    refused(Both, "generation_prompt", &["\"\""], NO_TEMPLATE),
    refused(Both, "reasoning_control", FALSE, NO_BUDGET),
    refused(Both, "reasoning_budget_tokens", MINUS_ONE, NO_BUDGET),
    refused(Both, "reasoning_budget_start_tag", &[], NO_BUDGET),
    refused(Both, "reasoning_budget_end_tag", &[], NO_BUDGET),
    refused(Both, "reasoning_budget_end_tags", &[], NO_BUDGET),
    refused(Both, "reasoning_budget_message", &["\"\""], NO_BUDGET),
    // Nothing is dropped from a context that is full, and what is reused of the cache changes no answer.
    ignored(Both, "n_keep", ZERO),
    ignored(Both, "n_discard", ZERO),
    ignored(Both, "n_cache_reuse", ZERO),
    ignored(Both, "cache_prompt", TRUE),
    ignored(Both, "id_slot", MINUS_ONE),
    ignored(Both, "sse_ping_interval", &[]),
    ignored(Both, "verbose", FALSE),
    // vLLM.
    refused(Both, "watermarking", &[], NO_SUCH),
    refused(Both, "return_token_offsets", FALSE, NO_TELLING),
    refused(Both, "return_prompt_text", FALSE, NO_TELLING),
    refused(Both, "return_weight_versions", FALSE, NO_TELLING),
    refused(Both, "return_mm_kwargs", FALSE, NO_TELLING),
    ignored(Both, "mm_payload", &["\"tensors\""]),
    ignored(Both, "routed_experts_prompt_start", ZERO),
    ignored(Both, "stream_interval", ONE),
    refused(Both, "ec_transfer_params", &[], NO_DISAGGREGATION),
    refused(Responses, "enable_response_messages", FALSE, NO_TELLING),
    refused(
        Responses,
        "previous_input_messages",
        &[],
        "Send all items in `input`.",
    ),
    refused(
        Responses,
        "include_reasoning",
        TRUE,
        "Reasoning is always a separate item. Leave it out.",
    ),
    // Of embeddings.
    ignored(Embeddings, "rid", &[]),
    ignored(Embeddings, "cache_salt", &[]),
    ignored(Embeddings, "padding", FALSE),
    refused(Embeddings, "truncation_side", &[], NO_SUCH),
    refused(Embeddings, "lora_path", &[], NO_SUCH),
    refused(Embeddings, "embed_override_token_id", &[], NO_SUCH),
    refused(Embeddings, "embed_overrides", &[], NO_SUCH),
    refused(Embeddings, "mm_processor_kwargs", &[], NO_MEDIA),
    refused(Embeddings, "media_io_kwargs", &[], NO_MEDIA),
    refused(
        Embeddings,
        "chat_template",
        &[],
        "Send the text in `input`.",
    ),
    refused(
        Embeddings,
        "chat_template_kwargs",
        &[],
        "Send the text in `input`.",
    ),
    refused(
        Embeddings,
        "add_generation_prompt",
        FALSE,
        "Send the text in `input`.",
    ),
    refused(
        Embeddings,
        "continue_final_message",
        FALSE,
        "Send the text in `input`.",
    ),
];

#[cfg(test)]
mod tests {
    use super::super::{Endpoint, find};
    use crate::error::ApiError;
    use crate::ignored::IgnoredFields;
    use crate::{chat, completions, responses};

    /// Where a list of names comes from, the endpoints that it is of, and the names.
    type Source = (&'static str, &'static [Endpoint], &'static str);

    /// The fields of other servers' request classes, without those whose names begin with an underscore. A name that
    /// is added here needs a row.
    const SOURCES: &[Source] = &[
        (
            "TensorRT-LLM 1.4 main, serve/openai_protocol.py, ChatCompletionRequest",
            &[Endpoint::Chat],
            "messages prompt_token_ids prompt_token_ids_b64 model frequency_penalty logit_bias logprobs top_logprobs \
             max_completion_tokens max_tokens n presence_penalty response_format seed stop stream stream_options \
             temperature top_p tools tool_choice parallel_tool_calls user reasoning_effort thinking \
             thinking_token_budget prompt_ignore_length best_of use_beam_search top_k top_p_min min_p \
             repetition_penalty length_penalty early_stopping stop_token_ids include_stop_str_in_output ignore_eos \
             min_tokens skip_special_tokens spaces_between_special_tokens truncate_prompt_tokens lora_request echo \
             add_generation_prompt add_special_tokens documents chat_template chat_template_kwargs \
             injected_chat_template_kwargs media_io_kwargs disaggregated_params conversation_params cache_salt priority \
             agent_hierarchy mm_processor_kwargs",
        ),
        (
            "TensorRT-LLM 1.4 main, serve/openai_protocol.py, CompletionRequest",
            &[Endpoint::Completions],
            "model prompt best_of echo frequency_penalty logit_bias logprobs max_tokens n presence_penalty seed stop \
             stream stream_options suffix temperature top_p user lora_request prompt_ignore_length use_beam_search \
             top_k top_p_min min_p repetition_penalty length_penalty early_stopping stop_token_ids \
             include_stop_str_in_output ignore_eos min_tokens skip_special_tokens spaces_between_special_tokens \
             truncate_prompt_tokens return_context_logits detokenize thinking_token_budget add_special_tokens \
             response_format disaggregated_params priority conversation_params",
        ),
        (
            "TensorRT-LLM 1.4 main, serve/openai_protocol.py, ResponsesRequest",
            &[Endpoint::Responses],
            "background include input instructions max_output_tokens max_tool_calls metadata model parallel_tool_calls \
             previous_response_id prompt reasoning thinking_token_budget service_tier store stream temperature text \
             tool_choice tools top_logprobs top_p truncation user request_id",
        ),
        (
            "TensorRT-LLM 1.4 main, serve/openai_protocol.py, EmbeddingRequest",
            &[Endpoint::Embeddings],
            "model input encoding_format dimensions user add_special_tokens",
        ),
        (
            "Triton's tensorrt_llm model, what openai_trtllm and its clients pass on",
            &[Endpoint::Chat, Endpoint::Completions],
            "bad_words stop_words embedding_bias_words embedding_bias_weights draft_tokens random_seed beam_width \
             top_p_decay top_p_min top_p_reset_ids prompt_ignore_length return_context_logits return_generation_logits",
        ),
        (
            "SGLang 0.5.23, entrypoints/openai/protocol.py, ChatCompletionRequest",
            &[Endpoint::Chat],
            "bootstrap_host bootstrap_port bootstrap_room routed_dp_rank disagg_prefill_dp_rank messages model \
             frequency_penalty logit_bias logprobs top_logprobs max_tokens max_completion_tokens n presence_penalty \
             response_format seed stop stream stream_options temperature top_p user tools tool_choice \
             parallel_tool_calls return_hidden_states return_routed_experts routed_experts_start_len \
             return_cached_tokens_details return_spec_tokens_details return_prompt_token_ids return_token_ids \
             return_meta_info return_input_ids_in_sglext return_output_ids_in_sglext return_sampling_mask \
             sampling_logprobs_mode return_flat_raw_output_top_logprobs return_flat_raw_top_logprobs_b64 \
             reasoning_effort thinking task top_k min_p min_tokens regex ebnf repetition_penalty stop_token_ids \
             stop_regex no_stop_trim ignore_eos continue_final_message skip_special_tokens lora_path session_id \
             session_params separate_reasoning stream_reasoning chat_template_kwargs max_dynamic_patch \
             min_dynamic_patch use_audio_in_video images_config video_config mm_processor_kwargs \
             custom_logit_processor custom_params watermark input_ids rid extra_key cache_salt priority \
             data_parallel_rank",
        ),
        (
            "SGLang 0.5.23, entrypoints/openai/protocol.py, CompletionRequest",
            &[Endpoint::Completions],
            "bootstrap_host bootstrap_port bootstrap_room routed_dp_rank disagg_prefill_dp_rank model prompt best_of \
             echo frequency_penalty logit_bias logprobs max_tokens n presence_penalty seed stop stream stream_options \
             suffix temperature top_p user return_hidden_states return_routed_experts routed_experts_start_len \
             return_cached_tokens_details return_spec_tokens_details return_token_ids top_k min_p min_tokens \
             json_schema regex ebnf repetition_penalty stop_token_ids stop_regex no_stop_trim ignore_eos \
             skip_special_tokens lora_path session_id session_params response_format custom_params \
             custom_logit_processor watermark images_config mm_processor_kwargs data_parallel_rank rid extra_key \
             cache_salt priority custom_labels",
        ),
        (
            "SGLang 0.5.23, entrypoints/openai/protocol.py, ResponsesRequest",
            &[Endpoint::Responses],
            "bootstrap_host bootstrap_port bootstrap_room routed_dp_rank disagg_prefill_dp_rank background include \
             input instructions max_output_tokens max_tool_calls metadata model parallel_tool_calls \
             previous_response_id reasoning service_tier store stream temperature text tool_choice tools top_logprobs \
             top_p truncation user chat_template_kwargs request_id session_id priority extra_key cache_salt \
             data_parallel_rank frequency_penalty presence_penalty stop top_k min_p repetition_penalty",
        ),
        (
            "SGLang 0.5.23, entrypoints/openai/protocol.py, EmbeddingRequest",
            &[Endpoint::Embeddings],
            "input model encoding_format dimensions user rid priority lora_path embed_override_token_id embed_overrides",
        ),
        (
            "llama.cpp, tools/server/server-schema.cpp and the server's README",
            &[Endpoint::Chat, Endpoint::Completions],
            "verbose timings_per_token stream stream_options cache_prompt return_tokens return_progress \
             sse_ping_interval n_predict max_tokens n_indent n_keep n_discard n_cmpl n n_cache_reuse t_max_predict_ms \
             response_fields top_k top_p min_p top_n_sigma xtc_probability xtc_threshold typical_p temperature \
             dynatemp_range dynatemp_exponent repeat_last_n repeat_penalty frequency_penalty presence_penalty \
             dry_multiplier dry_base dry_allowed_length dry_penalty_last_n dry_sequence_breakers mirostat mirostat_tau \
             mirostat_eta adaptive_target adaptive_decay seed n_probs logprobs min_keep backend_sampling \
             post_sampling_probs lora json_schema grammar grammar_type grammar_lazy chat_format reasoning_format \
             generation_prompt parse_tool_calls chat_parser echo preserved_tokens grammar_triggers reasoning_control \
             reasoning_budget_tokens reasoning_budget_start_tag reasoning_budget_end_tags reasoning_budget_end_tag \
             reasoning_budget_message logit_bias ignore_eos stop samplers tfs_z image_data id_slot",
        ),
        (
            "vLLM 0.33.0, entrypoints/openai/chat_completion/protocol.py, ChatCompletionRequest",
            &[Endpoint::Chat],
            "messages model frequency_penalty logit_bias logprobs top_logprobs max_tokens max_completion_tokens n \
             presence_penalty response_format seed stop stream stream_options temperature top_p tools tool_choice \
             reasoning_effort thinking_token_budget include_reasoning parallel_tool_calls user use_beam_search top_k \
             min_p repetition_penalty watermarking length_penalty stop_token_ids include_stop_str_in_output ignore_eos \
             min_tokens skip_special_tokens spaces_between_special_tokens truncate_prompt_tokens truncation_side \
             prompt_logprobs logprob_token_ids allowed_token_ids bad_words echo add_generation_prompt \
             continue_final_message add_special_tokens documents chat_template chat_template_kwargs media_io_kwargs \
             mm_processor_kwargs structured_outputs priority request_id session_id return_tokens_as_token_ids \
             return_token_ids return_weight_versions routed_experts_prompt_start return_token_offsets \
             return_prompt_text mm_payload return_mm_kwargs cache_salt kv_transfer_params ec_transfer_params \
             vllm_xargs repetition_detection stream_interval",
        ),
        (
            "vLLM 0.33.0, entrypoints/openai/completion/protocol.py, CompletionRequest",
            &[Endpoint::Completions],
            "model prompt echo frequency_penalty logit_bias logprobs max_tokens n presence_penalty seed stop stream \
             stream_options suffix temperature top_p user use_beam_search top_k min_p repetition_penalty watermarking \
             length_penalty stop_token_ids include_stop_str_in_output ignore_eos min_tokens skip_special_tokens \
             spaces_between_special_tokens truncate_prompt_tokens truncation_side allowed_token_ids prompt_logprobs \
             logprob_token_ids bad_words prompt_embeds add_special_tokens response_format structured_outputs priority \
             request_id session_id return_tokens_as_token_ids return_token_ids return_weight_versions \
             routed_experts_prompt_start return_token_offsets mm_payload return_mm_kwargs cache_salt \
             kv_transfer_params ec_transfer_params vllm_xargs repetition_detection thinking_token_budget \
             stream_interval",
        ),
        (
            "vLLM 0.33.0, entrypoints/openai/responses/protocol.py, ResponsesRequest",
            &[Endpoint::Responses],
            "background include input instructions max_output_tokens max_tool_calls metadata model logit_bias \
             parallel_tool_calls previous_response_id prompt reasoning include_reasoning service_tier store stream \
             temperature text tool_choice tools top_logprobs top_p top_k min_p truncation user skip_special_tokens \
             spaces_between_special_tokens include_stop_str_in_output presence_penalty frequency_penalty \
             prompt_cache_key prompt_cache_options prompt_cache_retention safety_identifier watermarking request_id \
             session_id media_io_kwargs mm_processor_kwargs priority mm_payload return_mm_kwargs cache_salt \
             enable_response_messages previous_input_messages structured_outputs repetition_penalty seed stop \
             stop_token_ids ignore_eos vllm_xargs kv_transfer_params ec_transfer_params chat_template_kwargs",
        ),
        (
            "vLLM 0.33.0, entrypoints/pooling/embed/protocol.py, EmbeddingCompletionRequest and EmbeddingChatRequest",
            &[Endpoint::Embeddings],
            "model user truncate_prompt_tokens padding truncation_side request_id priority mm_processor_kwargs \
             cache_salt input add_special_tokens encoding_format embed_dtype endianness dimensions use_activation \
             add_generation_prompt continue_final_message chat_template chat_template_kwargs media_io_kwargs messages",
        ),
        (
            "vLLM 0.25.1, entrypoints/pooling/scoring/protocol.py, RerankRequest",
            &[Endpoint::Rerank],
            "model user truncate_prompt_tokens padding truncation_side request_id priority mm_processor_kwargs \
             cache_salt use_activation max_tokens_per_query max_tokens_per_doc instruction chat_template_kwargs query \
             documents top_n",
        ),
        (
            "Cohere's Python SDK 7.3.1, v1 and v2, `rerank`",
            &[Endpoint::Rerank],
            "model query documents top_n rank_fields return_documents max_chunks_per_doc max_tokens_per_doc \
             relevant_spans priority",
        ),
    ];

    #[test]
    fn every_field_of_other_servers_has_a_row() {
        let mut missing = Vec::new();
        for (source, endpoints, names) in SOURCES {
            for (endpoint, name) in endpoints
                .iter()
                .flat_map(|endpoint| names.split_whitespace().map(move |name| (endpoint, name)))
            {
                if find(*endpoint, name).is_none() {
                    missing.push(format!("{name} ({endpoint:?}, {source})"));
                }
            }
        }
        assert!(missing.is_empty(), "{missing:#?}");
    }

    /// What becomes of a body with this field: the names that were ignored, or the error.
    fn of(endpoint: Endpoint, field: &str) -> Result<IgnoredFields, ApiError> {
        let body = |own: &str| format!(r#"{{"model":"m",{own},{field}}}"#);
        match endpoint {
            Endpoint::Chat => {
                chat::parse(body(r#""messages":[{"role":"user","content":"Hi"}]"#).as_bytes())
                    .map(|parsed| parsed.ignored)
            }
            Endpoint::Completions => {
                completions::parse(body(r#""prompt":"Hi""#).as_bytes()).map(|parsed| parsed.ignored)
            }
            _ => responses::parse(body(r#""input":"Hi""#).as_bytes()).map(|parsed| parsed.ignored),
        }
    }

    #[test]
    fn what_changes_the_answer_is_refused_by_name() {
        for (endpoint, field) in [
            (Endpoint::Chat, r#""prompt_token_ids":[1]"#),
            (Endpoint::Chat, r#""prompt_token_ids_b64":"AQ==""#),
            (Endpoint::Chat, r#""prompt_ignore_length":3"#),
            (Endpoint::Completions, r#""embedding_bias_words":["a"]"#),
            (Endpoint::Chat, r#""input_ids":[1]"#),
            (Endpoint::Chat, r#""stop_regex":"a+""#),
            (Endpoint::Chat, r#""separate_reasoning":false"#),
            (Endpoint::Chat, r#""return_hidden_states":true"#),
            (Endpoint::Completions, r#""grammar":"root""#),
            (Endpoint::Completions, r#""n_predict":5"#),
            (Endpoint::Chat, r#""dry_multiplier":0.8"#),
            (Endpoint::Chat, r#""samplers":["top_k"]"#),
            (Endpoint::Chat, r#""n_probs":1"#),
            (Endpoint::Chat, r#""reasoning_format":"none""#),
            (Endpoint::Chat, r#""return_token_offsets":true"#),
            (Endpoint::Responses, r#""include_reasoning":false"#),
            (Endpoint::Responses, r#""previous_input_messages":[{}]"#),
        ] {
            let error = of(endpoint, field).unwrap_err();
            let name = field.split('"').nth(1);
            assert_eq!(error.param.as_deref(), name, "{field}");
        }
    }

    #[test]
    fn defaults_of_other_servers_ask_for_nothing() {
        for field in [
            r#""separate_reasoning":true,"n_probs":0,"top_p_min":0.0,"prompt_ignore_length":0"#,
            r#""no_stop_trim":false,"return_hidden_states":false,"watermarking":null,"stop_regex":null"#,
            r#""repeat_penalty":1.0,"repeat_last_n":64,"top_n_sigma":-1,"typical_p":1.0,"samplers":[]"#,
            r#""n_predict":-1,"grammar":"","dry_multiplier":0.0,"xtc_probability":0,"reasoning_format":"auto""#,
        ] {
            let ignored = of(Endpoint::Chat, field).unwrap();
            assert!(ignored.is_empty(), "{field}: {ignored:?}");
        }
    }
}
