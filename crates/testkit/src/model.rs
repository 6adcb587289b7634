//! The smallest real model files: one token per byte, so that a test writes token ids as text. Owns
//! the files' content; knows nothing of who loads them.

use bytes::Bytes;

/// Ends a turn; the first end token.
pub const END: i32 = 256;
/// The second end token.
pub const SECOND_END: i32 = 257;
/// Tokens in the vocabulary: the bytes and three special tokens.
pub const VOCABULARY: u32 = 259;

/// `tokenizer.json`, `chat_template.jinja` and `generation_config.json`. Token id n below 256 is the
/// byte n; [`END`] and [`SECOND_END`] are special. The template writes `role:content` and a line break
/// for each message, then `assistant:`.
pub fn byte_model_files() -> Vec<(String, Bytes)> {
    let vocabulary: Vec<String> = (0..=255u8)
        .map(|byte| format!("\"{}\":{byte}", escaped(byte_character(byte))))
        .collect();
    let special: Vec<String> = ["<|end|>", "<|also_end|>", "<|pad|>"]
        .iter()
        .zip(256..)
        .map(|(content, id)| {
            format!(
                r#"{{"id":{id},"content":"{content}","single_word":false,"lstrip":false,"rstrip":false,"normalized":false,"special":true}}"#
            )
        })
        .collect();
    let tokenizer = format!(
        r#"{{"version":"1.0","truncation":null,"padding":null,"added_tokens":[{}],"normalizer":null,
        "pre_tokenizer":{{"type":"ByteLevel","add_prefix_space":false,"trim_offsets":true,"use_regex":false}},
        "post_processor":null,
        "decoder":{{"type":"ByteLevel","add_prefix_space":false,"trim_offsets":true,"use_regex":false}},
        "model":{{"type":"BPE","dropout":null,"unk_token":null,"continuing_subword_prefix":null,
        "end_of_word_suffix":null,"fuse_unk":false,"byte_fallback":false,"ignore_merges":false,
        "vocab":{{{}}},"merges":[]}}}}"#,
        special.join(","),
        vocabulary.join(",")
    );
    let template = "{% for message in messages %}{{ message.role }}:{{ message.content }}\n\
                    {% endfor %}{% if add_generation_prompt %}assistant:{% endif %}";
    let generation = r#"{"eos_token_id":[256,257],"pad_token_id":258,"do_sample":true,
        "temperature":0.5,"top_p":0.75,"top_k":20}"#;
    [
        ("tokenizer.json", tokenizer.as_str()),
        ("chat_template.jinja", template),
        ("generation_config.json", generation),
    ]
    .map(|(name, text)| (name.to_owned(), Bytes::copy_from_slice(text.as_bytes())))
    .to_vec()
}

/// The tokens of a text under [`byte_model_files`].
pub fn tokens(text: &str) -> Vec<i32> {
    text.bytes().map(i32::from).collect()
}

/// GPT-2's visible stand-in for a byte.
fn byte_character(byte: u8) -> char {
    let visible = |byte: u8| matches!(byte, b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff);
    if visible(byte) {
        return char::from(byte);
    }
    let before = (0..byte).filter(|other| !visible(*other)).count() as u32;
    char::from_u32(256 + before).expect("the stand-ins are letters")
}

fn escaped(character: char) -> String {
    match character {
        '"' => "\\\"".to_owned(),
        '\\' => "\\\\".to_owned(),
        other => other.to_string(),
    }
}
