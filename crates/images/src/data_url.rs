//! Files in `data:` URLs (RFC 2397), as clients of the OpenAI API send images: in base64. Pure.

use base64::Engine;
use base64::alphabet::STANDARD;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
use bytes::Bytes;

use super::rules::Refusal;

const SCHEME: &str = "data:";
/// Some clients leave the padding out.
const BASE64: GeneralPurpose = GeneralPurpose::new(
    &STANDARD,
    GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent),
);

/// Whether a URL has its file in itself.
pub(super) fn is_data(url: &str) -> bool {
    let start = url.get(..SCHEME.len());
    start.is_some_and(|start| start.eq_ignore_ascii_case(SCHEME))
}

/// The file, of at most `limit` bytes. Its media type is not looked at: the file's first bytes are.
///
/// # Errors
/// The URL is malformed, or the file too large; a file that is too large is not decoded.
pub(super) fn file(url: &str, limit: usize) -> Result<Bytes, Refusal> {
    let rest = url.get(SCHEME.len()..).unwrap_or_default();
    let (head, data) = rest.split_once(',').ok_or(Refusal::NotBase64)?;
    let encoding = head.rsplit(';').next().filter(|_| head.contains(';'));
    if !encoding.is_some_and(|name| name.trim().eq_ignore_ascii_case("base64")) {
        return Err(Refusal::NotBase64);
    }
    let data = data.trim_ascii();
    if data.trim_end_matches('=').len() / 4 * 3 > limit {
        return Err(Refusal::TooLarge { limit });
    }
    let file = BASE64.decode(data).map_err(|_| Refusal::NotBase64)?;
    match file.len() > limit {
        true => Err(Refusal::TooLarge { limit }),
        false => Ok(file.into()),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn files_are_taken_out() {
        for url in [
            "data:image/png;base64,aGVsbG8=",
            "data:image/png;base64,aGVsbG8",
            "DATA:image/png;charset=x;BASE64,aGVsbG8=",
            "data:;base64,aGVsbG8=",
            "data:image/png; base64, aGVsbG8= \n",
        ] {
            assert!(is_data(url));
            assert_eq!(file(url, 5).unwrap(), "hello", "{url}");
        }
        assert!(!is_data("http://data:80/") && !is_data("dat") && !is_data("dätä:"));
    }

    #[test]
    fn what_is_no_file_is_refused() {
        for (url, expected) in [
            ("data:", Refusal::NotBase64),
            ("data:image/png;base64", Refusal::NotBase64),
            ("data:image/png,aGVsbG8=", Refusal::NotBase64),
            ("data:base64,aGVsbG8=", Refusal::NotBase64),
            ("data:;base64,aG k=", Refusal::NotBase64),
            ("data:image/png;base64,aGVsbG8==", Refusal::NotBase64),
            ("data:image/png;base64,a", Refusal::NotBase64),
            ("data:image/png;base64,ä", Refusal::NotBase64),
            (
                "data:image/png;base64,aGVsbG8h",
                Refusal::TooLarge { limit: 5 },
            ),
            (
                "data:image/png;base64,aGVsbG8hISEh",
                Refusal::TooLarge { limit: 5 },
            ),
        ] {
            assert_eq!(file(url, 5).unwrap_err(), expected, "{url}");
        }
    }

    proptest! {
        #[test]
        fn any_text_is_a_file_or_refused(url in "\\PC{0,60}", tail in "[A-Za-z0-9+/=;,: ]{0,40}") {
            for url in [url.clone(), format!("data:{url}"), format!("data:;base64,{tail}")] {
                if let Ok(file) = file(&url, 12) {
                    prop_assert!(file.len() <= 12);
                }
                let _ = is_data(&url);
            }
        }

        #[test]
        fn every_file_comes_back(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let url = format!("data:image/png;base64,{}", BASE64.encode(&bytes));
            prop_assert_eq!(&file(&url, bytes.len()).unwrap()[..], &bytes[..]);
            if bytes.len() > 1 {
                let limit = bytes.len() - 1;
                prop_assert_eq!(file(&url, limit).unwrap_err(), Refusal::TooLarge { limit });
            }
        }
    }
}
