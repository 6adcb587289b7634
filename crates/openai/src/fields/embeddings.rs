//! The rows of `/v1/embeddings`, which shares none with generation.

use super::Endpoint::Embeddings;
use super::{Field, applied, ignored, ignored_unless_string, refused};

/// See the module.
pub(super) const EMBEDDINGS: &[Field] = &[
    applied(Embeddings, "model"),
    applied(Embeddings, "input"),
    applied(Embeddings, "encoding_format"),
    applied(Embeddings, "dimensions"),
    applied(Embeddings, "pooling"),
    applied(Embeddings, "add_special_tokens"),
    ignored_unless_string(Embeddings, "user"),
    refused(
        Embeddings,
        "truncate_prompt_tokens",
        &[],
        "Inputs are not truncated. Send a shorter one.",
    ),
    refused(
        Embeddings,
        "normalize",
        &["true"],
        "Embeddings have length 1. Leave it out.",
    ),
    refused(
        Embeddings,
        "use_activation",
        &["true"],
        "Embeddings have length 1. Leave it out.",
    ),
    refused(
        Embeddings,
        "embed_dtype",
        &["\"float32\""],
        "Vectors are float32. Leave it out.",
    ),
    refused(
        Embeddings,
        "endianness",
        &["\"native\"", "\"little\""],
        "Vectors are little-endian. Leave it out.",
    ),
    refused(Embeddings, "messages", &[], "Send the text in `input`."),
    refused(Embeddings, "prompt", &[], "Send `input` instead."),
    ignored(Embeddings, "priority", &["0"]),
    ignored(Embeddings, "request_id", &[]),
];
