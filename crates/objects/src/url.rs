//! Where objects are: `s3://BUCKET/PREFIX`, and the environment's say on who asks and which server. Owns what these may
//! be, and that a key is never shown.

use std::fmt;

use rusty_s3::{Bucket, Credentials, UrlStyle};
use url::{Host, Url};

/// The bucket of the objects and the prefix of their names.
#[derive(Clone, PartialEq, Eq)]
pub struct ObjectsUrl(String);

/// Why a place cannot be used. What a user gave for it is not repeated: it may be a key.
#[derive(Debug, thiserror::Error)]
pub enum UrlError {
    #[error(
        "the place of the objects must be `s3://BUCKET` or `s3://BUCKET/PREFIX`, of letters, digits, `-`, `_`, `.` and \
         `/`"
    )]
    Place,
    #[error(
        "no credentials for the object store; set `AWS_ACCESS_KEY_ID` and `AWS_SECRET_ACCESS_KEY`"
    )]
    NoCredentials,
    #[error("`{0}` must be the URL of an S3 server, such as `https://s3.example:9000`")]
    Endpoint(&'static str),
    #[error("a thread for the object store cannot be set up")]
    Runtime(#[source] std::io::Error),
    #[error("`AWS_REGION` must be a region's name, such as `eu-central-1`")]
    Region,
}

/// The server that is asked.
#[derive(Debug)]
pub(crate) struct Endpoint {
    pub(crate) host: String,
    pub(crate) port: u16,
    pub(crate) is_tls: bool,
    /// What the header `host` has, and messages.
    pub(crate) authority: String,
}

/// Everything that a request is made of but what is wanted.
pub(crate) struct Place {
    pub(crate) bucket: Bucket,
    pub(crate) credentials: Credentials,
    /// Empty, or with a slash at its end.
    pub(crate) prefix: String,
    pub(crate) endpoint: Endpoint,
}

const ENDPOINTS: [&str; 2] = ["AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"];
const REGIONS: [&str; 2] = ["AWS_REGION", "AWS_DEFAULT_REGION"];
const DEFAULT_REGION: &str = "us-east-1";

impl ObjectsUrl {
    /// Whatever a user gave; it is read when it is used.
    pub fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }

    /// The bucket and the prefix in one spelling.
    ///
    /// # Errors
    /// It is not such a place.
    pub fn spelled(&self) -> Result<String, UrlError> {
        let (bucket, prefix) = self.parts()?;
        Ok(format!("s3://{bucket}/{prefix}"))
    }

    /// The bucket, and the prefix without slashes around it.
    fn parts(&self) -> Result<(&str, &str), UrlError> {
        let rest = self.0.strip_prefix("s3://").ok_or(UrlError::Place)?;
        let (bucket, prefix) = rest.split_once('/').unwrap_or((rest, ""));
        let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
        let is_bucket = (3..=63).contains(&bucket.len()) && bucket.bytes().all(is_plain);
        let prefix = prefix.strip_suffix('/').unwrap_or(prefix);
        let is_part = |part: &str| !matches!(part, "" | "." | "..") && part.bytes().all(is_plain);
        let is_prefix = prefix.is_empty() || prefix.split('/').all(is_part);
        match is_bucket && !bucket.starts_with('.') && is_prefix && prefix.len() <= 512 {
            true => Ok((bucket, prefix)),
            false => Err(UrlError::Place),
        }
    }

    /// With what the environment says; `variable` reads one of it.
    pub(crate) fn read(
        &self,
        variable: impl Fn(&'static str) -> Option<String>,
    ) -> Result<Place, UrlError> {
        let (bucket, prefix) = self.parts()?;
        let set = |name| variable(name).filter(|value| !value.is_empty());
        let named = |names: [&'static str; 2]| {
            let mut values = names.into_iter().map(|name| (name, set(name)));
            values.find_map(|(name, value)| Some((name, value?)))
        };
        let region = named(REGIONS).map_or(DEFAULT_REGION.to_owned(), |(_, region)| region);
        let is_region = |byte: u8| byte.is_ascii_alphanumeric() || b"-_".contains(&byte);
        if region.len() > 64 || !region.bytes().all(is_region) {
            return Err(UrlError::Region);
        }
        let (url, style) = match named(ENDPOINTS) {
            Some((name, text)) => (
                endpoint(&text).ok_or(UrlError::Endpoint(name))?,
                UrlStyle::Path,
            ),
            None => (amazon(&region)?, style(bucket)),
        };
        let (key, secret) = set("AWS_ACCESS_KEY_ID")
            .zip(set("AWS_SECRET_ACCESS_KEY"))
            .ok_or(UrlError::NoCredentials)?;
        let credentials = match set("AWS_SESSION_TOKEN") {
            Some(token) => Credentials::new_with_token(key, secret, token),
            None => Credentials::new(key, secret),
        };
        let bucket = Bucket::new(url, style, bucket.to_owned(), region);
        let bucket = bucket.map_err(|_| UrlError::Place)?;
        let endpoint = Endpoint::of(bucket.base_url()).ok_or(UrlError::Place)?;
        let prefix = match prefix {
            "" => String::new(),
            prefix => format!("{prefix}/"),
        };
        Ok(Place {
            bucket,
            credentials,
            prefix,
            endpoint,
        })
    }
}

/// A bucket's own host has a certificate only where its name has no dots.
fn style(bucket: &str) -> UrlStyle {
    let is_label = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    match bucket.bytes().all(is_label) {
        true => UrlStyle::VirtualHost,
        false => UrlStyle::Path,
    }
}

/// Amazon's own server of a region.
fn amazon(region: &str) -> Result<Url, UrlError> {
    let domain = match region.starts_with("cn-") {
        true => "amazonaws.com.cn",
        false => "amazonaws.com",
    };
    Url::parse(&format!("https://s3.{region}.{domain}/")).map_err(|_| UrlError::Region)
}

fn endpoint(text: &str) -> Option<Url> {
    let mut url = Url::parse(text).ok()?;
    let is_plain = url.username().is_empty() && url.password().is_none();
    let is_bare = url.query().is_none() && url.fragment().is_none() && is_plain;
    let is_http = matches!(url.scheme(), "http" | "https") && url.has_host();
    if !url.path().ends_with('/') {
        let path = format!("{}/", url.path());
        url.set_path(&path);
    }
    (is_http && is_bare).then_some(url)
}

impl Endpoint {
    fn of(url: &Url) -> Option<Self> {
        let host = match url.host()? {
            Host::Ipv6(address) => address.to_string(),
            host => host.to_string(),
        };
        let shown = url.host_str()?;
        Some(Self {
            host,
            port: url.port_or_known_default()?,
            is_tls: url.scheme() == "https",
            // As it is signed.
            authority: match url.port() {
                Some(port) => format!("{shown}:{port}"),
                None => shown.to_owned(),
            },
        })
    }
}

impl fmt::Debug for ObjectsUrl {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("ObjectsUrl(..)")
    }
}

impl fmt::Debug for Place {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("Place(..)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: [(&str, &str); 2] = [
        ("AWS_ACCESS_KEY_ID", "AKID"),
        ("AWS_SECRET_ACCESS_KEY", "hidden"),
    ];

    fn read(text: &str, environment: &[(&str, &str)]) -> Result<Place, UrlError> {
        ObjectsUrl::new(text).read(|name| {
            let found = environment.iter().find(|(known, _)| *known == name);
            found.map(|(_, value)| (*value).to_owned())
        })
    }

    #[test]
    fn a_place_is_a_bucket_and_a_prefix() {
        for (text, spelled) in [
            ("s3://abc", Some("s3://abc/")),
            ("s3://abc/", Some("s3://abc/")),
            ("s3://a.b-c/d/e_f/", Some("s3://a.b-c/d/e_f")),
            ("s3://ab", None),
            ("s3://.ab", None),
            ("s3://abc//d", None),
            ("s3://abc/../d", None),
            ("s3://abc/d e", None),
            ("s3://key:secret@abc/d", None),
            ("https://abc/d", None),
            ("abc", None),
            ("", None),
        ] {
            assert_eq!(
                ObjectsUrl::new(text).spelled().ok().as_deref(),
                spelled,
                "{text}"
            );
        }
        let shown = format!("{:?}", ObjectsUrl::new("s3://key:secret@abc"));
        assert!(!shown.contains("secret"));
    }

    #[test]
    fn the_environment_says_who_asks_and_which_server() {
        let with = |more: &[(&'static str, &'static str)]| {
            read("s3://abc/d", &[&KEY[..], more].concat()).map(|place| {
                let url = place.bucket.object_url("x").unwrap().to_string();
                (
                    url,
                    place.bucket.region().to_owned(),
                    place.endpoint.authority,
                )
            })
        };
        let owned = |url: &str, region: &str, authority: &str| {
            (url.to_owned(), region.to_owned(), authority.to_owned())
        };
        let amazon = "abc.s3.us-east-1.amazonaws.com";
        assert_eq!(
            with(&[("AWS_REGION", "")]).unwrap(),
            owned(&format!("https://{amazon}/x"), "us-east-1", amazon)
        );
        let china = "abc.s3.cn-north-1.amazonaws.com.cn";
        assert_eq!(
            with(&[("AWS_DEFAULT_REGION", "cn-north-1")]).unwrap(),
            owned(&format!("https://{china}/x"), "cn-north-1", china)
        );
        for (endpoint, url, authority) in [
            (
                "http://127.0.0.1:9000",
                "http://127.0.0.1:9000/abc/x",
                "127.0.0.1:9000",
            ),
            ("https://[::1]/", "https://[::1]/abc/x", "[::1]"),
            (
                "https://s3.example/base",
                "https://s3.example/base/abc/x",
                "s3.example",
            ),
        ] {
            let named = [
                ("AWS_ENDPOINT_URL", "http://other"),
                ("AWS_ENDPOINT_URL_S3", endpoint),
            ];
            assert_eq!(with(&named).unwrap(), owned(url, "us-east-1", authority));
        }
        for wrong in [
            [("AWS_ENDPOINT_URL", "hidden")],
            [("AWS_ENDPOINT_URL", "ftp://hidden")],
            [("AWS_ENDPOINT_URL", "http://hidden:hidden@h")],
            [("AWS_REGION", "hidden hidden")],
        ] {
            let error = with(&wrong).unwrap_err();
            assert!(!format!("{error} {error:?}").contains("hidden"), "{error}");
        }
        let none = read("s3://abc", &KEY[..1]);
        assert!(matches!(none, Err(UrlError::NoCredentials)));
        let dotted = read("s3://a.bc", &KEY).unwrap();
        let url = dotted.bucket.object_url("x").unwrap();
        assert_eq!(url.as_str(), "https://s3.us-east-1.amazonaws.com/a.bc/x");
        assert!(!format!("{dotted:?}").contains("hidden"));
    }
}
