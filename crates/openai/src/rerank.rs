//! The request and the answer of `/v1/rerank`: documents in the order of how well they fit a query, in the forms of
//! Cohere, Jina and vLLM. Owns their parsing, their form and the order; knows nothing of tokenizers and models.

use schemars::JsonSchema;
use serde::Serialize;
use serde_json::value::RawValue;

use crate::Parsed;
use crate::bounds::{MAX_PROMPTS, MAX_TEXT_TOKENS, MAX_TOP_N};
use crate::embeddings::{EmbeddingUsage, Pooling, take_pooling};
use crate::error::{ApiError, code};
use crate::fields::Endpoint;
use crate::generation::take_model;
use crate::ignored::IgnoredFields;
use crate::reader::{Fields, wrong_type};

/// What is to be ranked, and by what.
#[derive(Clone, Debug, PartialEq)]
pub struct RerankRequest {
    /// Empty: the only one that is served.
    pub model: String,
    pub query: String,
    /// At least one.
    pub documents: Vec<String>,
    /// How many of them are returned at most; `None`: all.
    pub top_n: Option<usize>,
    /// Whether their texts are returned as well.
    pub returns_documents: bool,
    /// How many tokens of the query and of each document count at most; `None`: all.
    pub query_tokens: Option<usize>,
    pub document_tokens: Option<usize>,
    pub pooling: Pooling,
    /// Whether texts get the tokenizer's special tokens.
    pub add_special_tokens: bool,
}

/// Parses and validates a body. Total: any bytes give a request or a 400.
pub fn parse(body: &[u8]) -> Result<Parsed<RerankRequest>, ApiError> {
    let mut fields = Fields::of_body(body)?;
    let mut ignored = IgnoredFields::default();
    let model = take_model(&mut fields)?;
    let query = fields.required_string("query")?;
    let documents = fields.list("documents", MAX_PROMPTS)?;
    let documents = documents.ok_or_else(|| fields.missing("documents"))?;
    let documents = documents.into_iter().enumerate();
    let documents: Vec<String> = documents
        .map(|(index, raw)| document(&format!("documents[{index}]"), raw))
        .collect::<Result<_, ApiError>>()?;
    if documents.is_empty() {
        return Err(ApiError::invalid_request(
            "documents",
            "Invalid value for `documents`: the array is empty. Send at least one text.",
        )
        .with_code(code::EMPTY_ARRAY));
    }
    let pooling = take_pooling(&mut fields)?;
    let top_n = most(&mut fields, "top_n", MAX_TOP_N)?;
    let query_tokens = most(&mut fields, "max_tokens_per_query", MAX_TEXT_TOKENS)?;
    let document_tokens = most(&mut fields, "max_tokens_per_doc", MAX_TEXT_TOKENS)?;
    let returns_documents = fields.boolean("return_documents")?.unwrap_or(true);
    let add_special_tokens = fields.boolean("add_special_tokens")?.unwrap_or(true);
    fields.finish(Endpoint::Rerank, "", &mut ignored)?;
    let request = RerankRequest {
        model,
        query,
        documents,
        top_n,
        returns_documents,
        query_tokens,
        document_tokens,
        pooling,
        add_special_tokens,
    };
    Ok(Parsed { request, ignored })
}

/// How many of something at most; 0 means all, as for vLLM.
fn most(fields: &mut Fields<'_>, name: &str, greatest: u32) -> Result<Option<usize>, ApiError> {
    let given = fields.count(name, 0..=greatest)?;
    Ok(given.filter(|most| *most > 0).map(|most| most as usize))
}

/// A text, or an object that has one; its other fields are a client's own.
fn document(param: &str, raw: &RawValue) -> Result<String, ApiError> {
    if raw.get().starts_with('{') {
        return Fields::of_value(param, raw)?.required_string("text");
    }
    serde_json::from_str(raw.get())
        .map_err(|_| wrong_type(param, "a string or an object with a `text`", raw))
}

/// The answer.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
pub struct Ranking {
    id: String,
    model: String,
    results: Vec<Ranked>,
    usage: EmbeddingUsage,
}

#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
struct Ranked {
    /// Its place among the documents of the request.
    index: usize,
    /// From -1 to 1, the better the greater.
    relevance_score: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    document: Option<RankedDocument>,
}

#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
struct RankedDocument {
    text: String,
}

impl Ranking {
    /// Ranks the documents of a request by the cosine of their vectors and the query's; all have length 1. Of equal ones the
    /// first is first.
    pub fn new(
        id: String,
        request: RerankRequest,
        query: &[f32],
        documents: &[Vec<f32>],
        tokens: u64,
    ) -> Self {
        let all = request.documents.into_iter().zip(documents).enumerate();
        let mut results: Vec<Ranked> = all
            .map(|(index, (text, vector))| Ranked {
                index,
                relevance_score: cosine(query, vector),
                document: request.returns_documents.then_some(RankedDocument { text }),
            })
            .collect();
        results.sort_by(|one, other| other.relevance_score.total_cmp(&one.relevance_score));
        results.truncate(request.top_n.unwrap_or(usize::MAX));
        Self {
            id,
            model: request.model,
            results,
            usage: EmbeddingUsage::of(tokens),
        }
    }
}

/// Of vectors of length 1, which rounding may make a little longer.
fn cosine(one: &[f32], other: &[f32]) -> f64 {
    let products = one.iter().zip(other);
    let sum: f64 = products
        .map(|(one, other)| f64::from(*one) * f64::from(*other))
        .sum();
    sum.clamp(-1.0, 1.0)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn parsed(mut body: Value) -> Result<Parsed<RerankRequest>, ApiError> {
        body["model"] = json!("m");
        parse(body.to_string().as_bytes())
    }

    fn body() -> Value {
        json!({"query": "q", "documents": ["a", {"text": "b", "title": "t"}, "c"]})
    }

    #[test]
    fn documents_are_texts_or_have_one() {
        let Parsed { request, ignored } = parsed(body()).unwrap();
        assert_eq!(request.documents, ["a", "b", "c"]);
        assert_eq!((request.top_n, request.returns_documents), (None, true));
        assert_eq!(
            (request.pooling, request.add_special_tokens),
            (Pooling::Last, true)
        );
        assert_eq!(ignored.header_value(), None);
        let more = json!({"query": "q", "documents": ["a"], "top_n": 2, "return_documents": false,
            "pooling": "mean", "add_special_tokens": false, "user": "u", "rank_fields": ["text"],
            "max_tokens_per_doc": 4096, "max_tokens_per_query": 0, "relevant_spans": null, "priority": 3});
        let Parsed { request, ignored } = parsed(more).unwrap();
        assert_eq!((request.top_n, request.returns_documents), (Some(2), false));
        assert_eq!(
            (request.pooling, request.add_special_tokens),
            (Pooling::Mean, false)
        );
        assert_eq!(
            (request.query_tokens, request.document_tokens),
            (None, Some(4096))
        );
        assert_eq!(ignored.header_value().as_deref(), Some("priority"));
    }

    #[test]
    fn errors_name_their_field() {
        for (name, value, param) in [
            ("query", json!(null), "query"),
            ("query", json!(["q"]), "query"),
            ("documents", json!(null), "documents"),
            ("documents", json!([]), "documents"),
            ("documents", json!("a"), "documents"),
            ("documents", json!(["a", 1]), "documents[1]"),
            (
                "documents",
                json!(["a", {"title": "t"}]),
                "documents[1].text",
            ),
            ("documents", json!(vec!["a"; 2049]), "documents"),
            ("top_n", json!(-1), "top_n"),
            ("return_documents", json!("yes"), "return_documents"),
            ("pooling", json!("max"), "pooling"),
            ("rank_fields", json!(["title"]), "rank_fields"),
            ("max_tokens_per_doc", json!(-5), "max_tokens_per_doc"),
            ("truncate_prompt_tokens", json!(5), "truncate_prompt_tokens"),
            ("instruction", json!("find"), "instruction"),
            ("document", json!(["a"]), "document"),
        ] {
            let mut body = body();
            body[name] = value;
            let error = parsed(body).unwrap_err();
            assert_eq!(
                (error.status(), error.param.as_deref()),
                (400, Some(param)),
                "{error}"
            );
        }
    }

    #[test]
    fn the_best_come_first_and_only_so_many() {
        let vectors = [vec![0.0, 1.0], vec![1.0, 0.0], vec![0.6, 0.8]];
        let ranking = |body: Value| {
            let request = parsed(body).unwrap().request;
            let ranking = Ranking::new("rerank-1".to_owned(), request, &[1.0, 0.0], &vectors, 7);
            serde_json::to_value(ranking).unwrap()
        };
        let whole = ranking(body());
        let order = whole["results"].as_array().unwrap().iter();
        let order: Vec<_> = order
            .map(|one| (one["index"].as_u64().unwrap(), &one["document"]["text"]))
            .collect();
        assert_eq!(
            order,
            [(1, &json!("b")), (2, &json!("c")), (0, &json!("a"))]
        );
        let mut short = body();
        (short["top_n"], short["return_documents"]) = (json!(1), json!(false));
        let usage = json!({"prompt_tokens": 7, "total_tokens": 7});
        assert_eq!(
            ranking(short),
            json!({"id": "rerank-1", "model": "m", "usage": usage,
                "results": [{"index": 1, "relevance_score": 1.0}]})
        );
    }

    #[test]
    fn equal_ones_keep_their_order() {
        let request = parsed(json!({"query": "q", "documents": ["a", "b", "c"]}))
            .unwrap()
            .request;
        let vectors = vec![vec![1.0]; 3];
        let ranking = Ranking::new(String::new(), request, &[1.0], &vectors, 3);
        let order = ranking.results.iter().map(|one| one.index);
        assert!(order.eq(0..3));
    }
}
