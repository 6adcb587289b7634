//! The rows of `/v1/embeddings`, which shares none with generation.

use super::Endpoint::Embeddings;
use super::kind::Kind::*;
use super::{Field, applied, ignored, ignored_unless_string, refused};

const MAX_DIMENSIONS: i64 = crate::bounds::MAX_DIMENSIONS as i64;

/// See the module.
pub(super) const EMBEDDINGS: &[Field] = &[
    applied(Embeddings, "model", Text),
    applied(Embeddings, "input", TextsOrTokens),
    applied(Embeddings, "encoding_format", OneOf(&["float", "base64"])),
    applied(Embeddings, "dimensions", Integer(1, MAX_DIMENSIONS)),
    applied(Embeddings, "pooling", OneOf(&["mean", "last"])),
    applied(Embeddings, "add_special_tokens", Boolean),
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
