//! The prompt of a KServe request, as caches of workers know it. Owns which inputs that is; where it leads is the table's.

use inflight_blocks::Seed;
use inflight_kserve::inference::ModelInferRequest;
use inflight_kserve::inference::infer_parameter::ParameterChoice;
use inflight_kserve::names;
use inflight_kserve::tensor::{Tensor, TensorError, Tensors};
use inflight_text::{Scope, TextModel};

use crate::placement::{CacheQuery, FIRST_LEVEL};

const IDS: &str = "input_ids";
const TEXT: &str = "text_input";
const ADAPTER: &str = "lora_task_id";
/// Inputs with which token ids do not say what blocks hold: those that take the place of tokens, and an adapter that has
/// no number yet.
const INSTEAD: [&str; 3] = [names::IMAGES, names::PROMPT_TABLE, names::LORA_NAME];

/// One prompt.
#[derive(Debug)]
pub(super) struct Prompt {
    tokens: Vec<i32>,
    /// `None`: its token ids do not say what its blocks hold.
    seed: Option<Seed>,
    is_urgent: bool,
}

impl Prompt {
    /// Reads token ids, or makes them of a text, as workers do where nothing else was asked for. `None`: it has none, or
    /// several prompts, or is damaged; its server says which.
    pub(super) fn read(message: &ModelInferRequest, text: Option<&TextModel>) -> Option<Self> {
        let inputs = Tensors::inputs(message).ok()?;
        let tokens = match (inputs.get(IDS), text) {
            (Some(ids), _) => of_one_row(ids)?.values().ok()?,
            (None, Some(text)) => encoded(&inputs, text)?,
            (None, None) => return None,
        };
        let is_named = !INSTEAD.iter().any(|name| inputs.get(name).is_some());
        let seed = match is_named {
            true => Some(seed(&inputs).ok()?),
            false => None,
        };
        let level = message.parameters.get(names::PRIORITY);
        let level = level.and_then(|level| level.parameter_choice.as_ref());
        Some(Self {
            tokens,
            seed,
            is_urgent: level == Some(&ParameterChoice::Int64Param(FIRST_LEVEL.into())),
        })
    }

    /// What it asks of a cache with blocks of so many tokens.
    pub(super) fn ask(&self, block_tokens: u32) -> CacheQuery {
        CacheQuery::of_one(&self.tokens, self.seed, self.is_urgent, block_tokens)
    }
}

/// Bytes of the text that has to be encoded; `None`: there is none.
pub(super) fn text_bytes(message: &ModelInferRequest) -> Option<usize> {
    let inputs = Tensors::inputs(message).ok()?;
    match inputs.get(IDS) {
        Some(_) => None,
        None => Some(inputs.get(TEXT)?.data.len()),
    }
}

fn of_one_row<'a, 'b>(tensor: &'b Tensor<'a>) -> Option<&'b Tensor<'a>> {
    (tensor.shape.first() == Some(&1) || tensor.shape.len() == 1).then_some(tensor)
}

fn encoded(inputs: &Tensors<'_>, text: &TextModel) -> Option<Vec<i32>> {
    let prompt = inputs.get(TEXT)?.string().ok()?;
    let scope = Scope::of(salt(inputs).ok()?);
    let ids = text.tokenizer().encode_for(scope, prompt, true).ok()?;
    ids.into_iter().map(|id| i32::try_from(id).ok()).collect()
}

fn seed(inputs: &Tensors<'_>) -> Result<Seed, TensorError> {
    let adapter = inputs.scalar::<u64>(ADAPTER)?;
    Ok(Seed::new(adapter, salt(inputs)?.as_bytes()))
}

fn salt<'a>(inputs: &'a Tensors<'_>) -> Result<&'a str, TensorError> {
    inputs
        .get(names::CACHE_SALT)
        .map_or(Ok(""), |salt| salt.string())
}

#[cfg(test)]
mod tests {
    use inflight_blocks::keys;
    use inflight_kserve::tensor::RequestBuilder;

    use super::*;

    #[test]
    fn a_prompt_is_named_as_its_worker_names_it() {
        let tokens: Vec<i32> = (0..9).collect();
        let shape = [1, 9];
        type Change = fn(&mut RequestBuilder);
        for (change, named) in [
            ((|_| {}) as Change, Some(Seed::new(None, b""))),
            (
                |request| {
                    request.scalar("lora_task_id", 7_u64);
                },
                Some(Seed::new(Some(7), b"")),
            ),
            (
                |request| {
                    request.push_bytes(names::CACHE_SALT, &[1, 1], ["mine"]);
                },
                Some(Seed::new(None, b"mine")),
            ),
            (
                |request| {
                    request.push_bytes(names::IMAGES, &[1, 1], ["an image"]);
                },
                None,
            ),
            (
                |request| {
                    request.push_bytes(names::LORA_NAME, &[1], ["support"]);
                },
                None,
            ),
        ] {
            let mut request = RequestBuilder::new("tensorrt_llm", "", 64);
            request.push("input_ids", &shape, &tokens);
            change(&mut request);
            let ask = Prompt::read(&request.build(), None).unwrap().ask(4);
            let expected = named.map(|seed| keys(&tokens, 4, seed));
            assert_eq!(ask.keys, expected.unwrap_or_default().into());
            assert_eq!(ask.tokens, 9);
        }
    }

    #[test]
    fn what_is_no_single_prompt_of_tokens_has_no_name() {
        let build = |add: fn(&mut RequestBuilder)| {
            let mut request = RequestBuilder::new("tensorrt_llm", "", 64);
            add(&mut request);
            request.build()
        };
        for message in [
            build(|_| {}),
            build(|request| {
                request.push("input_ids", &[2, 2], &[1, 2, 3, 4]);
            }),
            build(|request| {
                request.push("input_ids", &[1, 2], &[1.0_f32, 2.0]);
            }),
            build(|request| {
                request.push_bytes("text_input", &[1, 1], ["no tokenizer"]);
            }),
        ] {
            assert!(Prompt::read(&message, None).is_none());
        }
    }
}
