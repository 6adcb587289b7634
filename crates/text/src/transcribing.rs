//! What a model that transcribes says of its prompts and times: Whisper's tokens, and how long a clip it hears. Knows
//! nothing of clips.

use serde_json::{Map, Value};

use crate::tokenizer::Tokenizer;

/// Times are in steps of this: an encoder's position, which is two frames of 160 samples at 16 kHz.
const STEP_S: f64 = 0.02;
/// Far above any encoder.
const MOST_POSITIONS: u64 = 1 << 17;

/// The tokens that frame a transcript.
#[derive(Clone, Debug, PartialEq)]
pub struct Transcribing {
    /// Of the encoder: a clip has at most so many steps.
    positions: u32,
    pub end: u32,
    pub start: u32,
    /// Before the text that came before.
    pub before: Option<u32>,
    /// What says that no times are written. Every id from the next one on is a time.
    pub no_times: u32,
    /// Where the model has several languages: what says that the clip's is written, and that English is.
    pub transcribe: Option<u32>,
    pub translate: Option<u32>,
}

impl Transcribing {
    /// Of a model's files; `None`: it does not transcribe, or its tokenizer lacks what a transcript needs.
    pub(crate) fn of(
        config: &Map<String, Value>,
        generation: Option<&Map<String, Value>>,
        tokenizer: &Tokenizer,
    ) -> Option<Self> {
        let positions = config.get("max_source_positions")?.as_u64()?;
        if !(1..=MOST_POSITIONS).contains(&positions) {
            return None;
        }
        // Tokenizers of English models have all tokens, too.
        let several = generation.and_then(|settings| settings.get("is_multilingual"));
        let several = several.and_then(Value::as_bool).unwrap_or(true);
        let task = |token: &str| tokenizer.token_id(token).filter(|_| several);
        Some(Self {
            positions: u32::try_from(positions).ok()?,
            end: tokenizer.token_id("<|endoftext|>")?,
            start: tokenizer.token_id("<|startoftranscript|>")?,
            before: tokenizer.token_id("<|startofprev|>"),
            no_times: tokenizer.token_id("<|notimestamps|>")?,
            transcribe: task("<|transcribe|>"),
            translate: task("<|translate|>"),
        })
    }

    /// The longest clip, in seconds.
    pub fn window_s(&self) -> f64 {
        f64::from(self.positions) * STEP_S
    }

    /// The time that a token is, in seconds from the beginning of its clip; `None`: it is text or a mark.
    pub fn time(&self, token: u32) -> Option<f64> {
        let step = token.checked_sub(self.no_times)?.checked_sub(1)?;
        Some(f64::from(step.min(self.positions)) * STEP_S)
    }

    /// Whether a token is text.
    pub fn is_text(&self, token: u32) -> bool {
        token < self.end
    }
}
