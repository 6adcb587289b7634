//! The rows of `/v1/rerank`, which shares none with generation.

use super::Endpoint::Rerank;
use super::kind::Kind::*;
use super::{Field, applied, ignored, ignored_unless_string, refused};

const MAX_TOP_N: i64 = crate::bounds::MAX_TOP_N as i64;
const MAX_TEXT_TOKENS: i64 = crate::bounds::MAX_TEXT_TOKENS as i64;

const NO_TRUNCATION: &str = "Send `max_tokens_per_doc` instead.";
const NO_INSTRUCTION: &str = "Models have no field for it. Put it into `query`.";
const NO_MEDIA: &str = "Documents are texts. Leave it out.";

/// See the module.
pub(super) const RERANK: &[Field] = &[
    applied(Rerank, "model", Text),
    applied(Rerank, "query", Text),
    applied(Rerank, "documents", TextsOrObjects),
    applied(Rerank, "top_n", Integer(0, MAX_TOP_N)),
    applied(Rerank, "return_documents", Boolean),
    applied(Rerank, "max_tokens_per_doc", Integer(0, MAX_TEXT_TOKENS)),
    applied(Rerank, "max_tokens_per_query", Integer(0, MAX_TEXT_TOKENS)),
    applied(Rerank, "pooling", OneOf(&["mean", "last"])),
    applied(Rerank, "add_special_tokens", Boolean),
    ignored_unless_string(Rerank, "user"),
    ignored(Rerank, "priority", &["0"]),
    ignored(Rerank, "request_id", &[]),
    ignored(Rerank, "rid", &[]),
    ignored(Rerank, "cache_salt", &[]),
    ignored(Rerank, "padding", &["false"]),
    refused(Rerank, "truncate_prompt_tokens", &[], NO_TRUNCATION),
    refused(Rerank, "truncation_side", &["\"right\""], NO_TRUNCATION),
    refused(Rerank, "truncation", &["false"], NO_TRUNCATION),
    refused(
        Rerank,
        "max_chunks_per_doc",
        &["10"],
        "Documents are not cut into chunks. Send them as several.",
    ),
    refused(
        Rerank,
        "rank_fields",
        &["[\"text\"]"],
        "Documents are read by their `text`. Leave it out.",
    ),
    refused(
        Rerank,
        "relevant_spans",
        &[],
        "Passages of a document are not marked. Leave it out.",
    ),
    refused(
        Rerank,
        "return_embeddings",
        &["false"],
        "Ask `/v1/embeddings` for them.",
    ),
    refused(
        Rerank,
        "use_activation",
        &["true"],
        "A score is the cosine of two embeddings. Leave it out.",
    ),
    refused(Rerank, "instruction", &[], NO_INSTRUCTION),
    refused(Rerank, "instruct", &[], NO_INSTRUCTION),
    refused(Rerank, "chat_template_kwargs", &[], NO_INSTRUCTION),
    refused(Rerank, "mm_processor_kwargs", &[], NO_MEDIA),
    refused(Rerank, "queries", &[], "Send one `query`."),
    refused(Rerank, "texts", &[], "Send `documents`."),
];
