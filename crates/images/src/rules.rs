//! Which images are accepted: how many, how large, of which kind and from where. Pure; the words of each refusal are
//! here.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;
use std::time::Duration;

use fluent_uri::{Uri, UriRef};
use inflight_openai::ApiError;

use super::network::{Network, is_public};

/// Longer than any URL that servers take.
const MAX_URL_BYTES: usize = 8 * 1024;
/// Characters of a peer's text that an error quotes.
const QUOTED: usize = 80;

/// The limits, as the options have them.
#[derive(Clone, Debug)]
pub struct Rules {
    /// Whom images are fetched from; empty: from nobody.
    pub hosts: Vec<HostRule>,
    /// Where besides the public internet such hosts may be.
    pub networks: Vec<Network>,
    /// Of one file.
    pub max_bytes: usize,
    /// Of all files of a request.
    pub max_total_bytes: usize,
    pub max_images: usize,
    /// For one image, redirects included.
    pub timeout: Duration,
}

impl Rules {
    /// Whether a connection to `address` may be made.
    pub(super) fn allow_address(&self, address: IpAddr) -> bool {
        let address = address.to_canonical();
        is_public(address) || self.networks.iter().any(|range| range.contains(address))
    }

    fn allow_host(&self, host: &str, port: u16) -> bool {
        self.hosts.iter().any(|rule| rule.allows(host, port))
    }
}

/// Hosts that images may be fetched from: `cdn.example.com`, `*.example.com`, `*`; each on the ports of HTTP and
/// HTTPS, or on the port given, `cdn.example.com:8443`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostRule {
    /// In lower case; `*`, or with `*.` in front.
    name: String,
    port: Option<u16>,
}

impl HostRule {
    fn allows(&self, host: &str, port: u16) -> bool {
        let host = host.trim_end_matches('.').to_ascii_lowercase();
        let is_named = match self.name.strip_prefix('*') {
            // `*.example.com` is every host below, and not the host itself.
            Some(end) => host.len() > end.len() && host.ends_with(end),
            None => host == self.name,
        };
        is_named
            && self
                .port
                .map_or(matches!(port, 80 | 443), |own| own == port)
    }
}

impl FromStr for HostRule {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || {
            "must be a host, `*.DOMAIN` or `*`, with a port or without: `cdn.example.com:8443`"
                .to_owned()
        };
        let (name, port) = match text.rsplit_once(':') {
            // The colons of an IPv6 address are in brackets.
            Some((name, port)) if !port.ends_with(']') => {
                let port = port.parse().ok().filter(|port| *port > 0);
                (name, Some(port.ok_or_else(wrong)?))
            }
            _ => (text, None),
        };
        let rest = name.strip_prefix("*.").unwrap_or(name);
        let is_address = || {
            let inside = name
                .strip_prefix('[')
                .and_then(|name| name.strip_suffix(']'));
            inside.is_some_and(|address| address.parse::<std::net::Ipv6Addr>().is_ok())
        };
        if name != "*" && !is_host_name(rest) && !is_address() {
            return Err(wrong());
        }
        let name = name.trim_end_matches('.').to_ascii_lowercase();
        Ok(Self { name, port })
    }
}

impl fmt::Display for HostRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.port {
            Some(port) => write!(f, "{}:{port}", self.name),
            None => f.write_str(&self.name),
        }
    }
}

fn is_host_name(text: &str) -> bool {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_');
    !text.is_empty() && text.len() <= 253 && text.bytes().all(is_plain)
}

/// A URL that may be fetched, taken apart.
#[derive(Clone, Debug)]
pub(super) struct Target {
    url: Uri<String>,
    pub is_tls: bool,
    /// A name or an address; one of IPv6 without its brackets.
    pub host: String,
    pub port: u16,
}

impl Target {
    /// Takes a client's URL apart.
    ///
    /// # Errors
    /// It is malformed, or nothing may be fetched from there.
    pub(super) fn parse(url: &str, rules: &Rules) -> Result<Self, Refusal> {
        if url.len() > MAX_URL_BYTES {
            return Err(Refusal::LongUrl);
        }
        let url = Uri::parse(url).map_err(|_| Refusal::Malformed)?;
        Self::of(url.to_owned(), rules)
    }

    /// Where a redirect to `location` leads.
    ///
    /// # Errors
    /// As for a client's URL; and where it leads from HTTPS to HTTP.
    pub(super) fn redirected(&self, location: &str, rules: &Rules) -> Result<Self, Refusal> {
        let misled = |refusal: Refusal| refusal.of_redirect(&self.host);
        if location.len() > MAX_URL_BYTES {
            return Err(misled(Refusal::LongUrl));
        }
        let location = UriRef::parse(location).map_err(|_| misled(Refusal::Malformed))?;
        let base = self.url.strip_fragment();
        let url = location
            .resolve_against(&base)
            .map_err(|_| misled(Refusal::Malformed))?;
        let target = Self::of(url, rules).map_err(misled)?;
        match self.is_tls && !target.is_tls {
            true => Err(Refusal::Downgraded),
            false => Ok(target),
        }
    }

    fn of(url: Uri<String>, rules: &Rules) -> Result<Self, Refusal> {
        let is_tls = match url.scheme().as_str().to_ascii_lowercase().as_str() {
            "https" => true,
            "http" => false,
            other => return Err(Refusal::Scheme(quoted(other))),
        };
        if rules.hosts.is_empty() {
            return Err(Refusal::NotFetched);
        }
        let authority = url.authority().ok_or(Refusal::Malformed)?;
        if authority.has_userinfo() {
            return Err(Refusal::Credentials);
        }
        let host = authority.host().to_owned();
        let port = authority.port_to_u16().map_err(|_| Refusal::Malformed)?;
        let port = port.unwrap_or(if is_tls { 443 } else { 80 });
        let inside = host
            .strip_prefix('[')
            .and_then(|host| host.strip_suffix(']'));
        // A name with escapes or in another script is nobody's here.
        if inside.is_none() && !is_host_name(&host) || port == 0 {
            return Err(Refusal::Malformed);
        }
        if !rules.allow_host(&host, port) {
            return Err(Refusal::Host(quoted(authority.as_str())));
        }
        let host = inside.unwrap_or(&host).to_owned();
        Ok(Self {
            url,
            is_tls,
            host,
            port,
        })
    }

    /// What the request line has: path and query.
    pub(super) fn path(&self) -> String {
        let path = self.url.path().as_str();
        let path = if path.is_empty() { "/" } else { path };
        match self.url.query() {
            Some(query) => format!("{path}?{}", query.as_str()),
            None => path.to_owned(),
        }
    }

    /// The header `Host`.
    pub(super) fn authority(&self) -> &str {
        self.url
            .authority()
            .map_or("", |authority| authority.as_str())
    }
}

/// Checks by its first bytes that a file is one that models' processors read.
///
/// # Errors
/// It is of another kind.
pub(super) fn check_kind(file: &[u8]) -> Result<(), Refusal> {
    let is_webp = || file.starts_with(b"RIFF") && file.get(8..12) == Some(b"WEBP");
    let starts: [&[u8]; 4] = [b"\x89PNG\r\n\x1a\n", b"\xff\xd8\xff", b"GIF87a", b"GIF89a"];
    if file.is_empty() {
        return Err(Refusal::Empty);
    }
    match starts.iter().any(|start| file.starts_with(start)) || is_webp() {
        true => Ok(()),
        false => Err(Refusal::Kind),
    }
}

/// Why an image is refused. The text follows the image's path.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum Refusal {
    #[error("exceeds the limit of {limit} images. Send fewer in a request.")]
    TooMany { limit: usize },
    #[error("is larger than {limit} bytes. Send a smaller file.")]
    TooLarge { limit: usize },
    #[error("makes the images larger than {limit} bytes together. Send fewer, or smaller ones.")]
    TooLargeTogether { limit: usize },
    #[error("is an empty file. Send a PNG, JPEG, WebP or GIF file.")]
    Empty,
    #[error("is neither a PNG nor a JPEG, WebP or GIF file. Send one of these.")]
    Kind,
    #[error("is not a valid `data:` URL. Send `data:image/png;base64,` and the file in base64.")]
    NotBase64,
    #[error("is not a valid URL. Escape what is not ASCII with `%`.")]
    Malformed,
    #[error("has a URL of more than 8192 bytes. Send a shorter one, or the file as a `data:` URL.")]
    LongUrl,
    #[error("has a URL that starts with `{0}:`. Send one that starts with `https:` or `data:`.")]
    Scheme(String),
    #[error("has a URL with a user name. Leave it out.")]
    Credentials,
    #[error(
        "has a URL, and this server does not fetch images. Send the file as a `data:` URL, or start the gateway with \
         `--image-host`."
    )]
    NotFetched,
    #[error(
        "is on `{0}`, from which this server does not fetch images. Send the file as a `data:` URL."
    )]
    Host(String),
    #[error(
        "is on `{0}`, whose address is not on the public internet. Send the file as a `data:` URL."
    )]
    Address(String),
    #[error("is redirected from HTTPS to HTTP. Send another URL, or the file as a `data:` URL.")]
    Downgraded,
    #[error("is redirected by `{host}` to {to}. Send another URL, or the file as a `data:` URL.")]
    Misled { host: String, to: String },
    #[error("is redirected more than {limit} times. Send the URL that it ends at.")]
    Redirects { limit: usize },
    #[error(
        "could not be fetched from `{host}`: {reason}. Send another URL, or the file as a `data:` URL."
    )]
    Unreachable { host: String, reason: &'static str },
    #[error("could not be fetched from `{host}`, which answered `{status}`. Send another URL.")]
    Status { host: String, status: u16 },
    #[error("did not arrive within {seconds} s. Send the file as a `data:` URL.")]
    Late { seconds: u64 },
}

impl Refusal {
    /// The same of a URL that `host` sent as a redirect: the client's own is right.
    fn of_redirect(self, host: &str) -> Self {
        let to = match self {
            Self::Malformed => "a URL that is not valid".to_owned(),
            Self::LongUrl => format!("a URL of more than {MAX_URL_BYTES} bytes"),
            Self::Scheme(scheme) => format!("a URL that starts with `{scheme}:`"),
            Self::Credentials => "a URL with a user name".to_owned(),
            Self::Host(other) => format!("`{other}`, from which this server does not fetch images"),
            other => return other,
        };
        let host = quoted(host);
        Self::Misled { host, to }
    }

    /// The error of the image at `path`.
    pub(super) fn at(self, path: &str) -> ApiError {
        ApiError::invalid_request(path, format!("`{path}` {self}"))
    }
}

/// A peer's text, for an error.
pub(super) fn quoted(text: &str) -> String {
    text.chars().take(QUOTED).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rules(hosts: &[&str]) -> Rules {
        Rules {
            hosts: hosts.iter().map(|host| host.parse().unwrap()).collect(),
            networks: vec!["10.1.0.0/16".parse().unwrap()],
            max_bytes: 10,
            max_total_bytes: 20,
            max_images: 2,
            timeout: Duration::from_secs(1),
        }
    }

    #[test]
    fn urls_are_taken_apart() {
        let rules = rules(&["*", "a.b:8443", "[::1]:9"]);
        for (url, is_tls, host, port, path, authority) in [
            ("https://a.b/c?d=e#f", true, "a.b", 443, "/c?d=e", "a.b"),
            ("HTTP://A.b", false, "A.b", 80, "/", "A.b"),
            ("https://a.b:8443?x", true, "a.b", 8443, "/?x", "a.b:8443"),
            ("https://a.b:/c", true, "a.b", 443, "/c", "a.b:"),
            ("http://[::1]:9/", false, "::1", 9, "/", "[::1]:9"),
            ("http://1.2.3.4/", false, "1.2.3.4", 80, "/", "1.2.3.4"),
        ] {
            let target = Target::parse(url, &rules).unwrap();
            assert_eq!((target.is_tls, target.port), (is_tls, port), "{url}");
            assert_eq!(
                (
                    target.host.as_str(),
                    target.path().as_str(),
                    target.authority()
                ),
                (host, path, authority)
            );
        }
    }

    #[test]
    fn urls_that_may_not_be_fetched_are_refused() {
        let long = format!("https://a.b/{}", "x".repeat(MAX_URL_BYTES));
        for (url, expected) in [
            ("", Refusal::Malformed),
            ("a.b/c", Refusal::Malformed),
            ("//a.b/c", Refusal::Malformed),
            ("https:///c", Refusal::Malformed),
            ("https:c", Refusal::Malformed),
            ("https://a b/", Refusal::Malformed),
            ("https://a.b/\u{e4}", Refusal::Malformed),
            ("https://\u{e4}.b/", Refusal::Malformed),
            ("https://a%2eb/", Refusal::Malformed),
            ("https://a.b:99999/", Refusal::Malformed),
            ("https://a.b:0/", Refusal::Malformed),
            ("https://a.b/\r\nx: y", Refusal::Malformed),
            ("file:///etc/passwd", Refusal::Scheme("file".to_owned())),
            ("ftp://a.b/", Refusal::Scheme("ftp".to_owned())),
            ("https://u@a.b/", Refusal::Credentials),
            ("https://a.b@c.d/", Refusal::Credentials),
            ("https://c.d/", Refusal::Host("c.d".to_owned())),
            ("https://a.b:22/", Refusal::Host("a.b:22".to_owned())),
            (&long, Refusal::LongUrl),
        ] {
            let refusal = Target::parse(url, &rules(&["a.b"])).unwrap_err();
            assert_eq!(refusal, expected, "{url}");
        }
        let refusal = Target::parse("https://a.b/", &rules(&[])).unwrap_err();
        assert_eq!(refusal, Refusal::NotFetched);
        let error = refusal.at("messages[0].content[1]");
        assert_eq!(error.param.as_deref(), Some("messages[0].content[1]"));
        assert!(
            error
                .message
                .starts_with("`messages[0].content[1]` has a URL"),
            "{error}"
        );
    }

    #[test]
    fn redirects_are_held_to_the_same_rules() {
        let rules = rules(&["a.b", "*.c.d"]);
        let from = |url| Target::parse(url, &rules).unwrap();
        let secure = from("https://a.b/x/y?z#f");
        for (location, expected) in [
            ("https://e.c.d/f", "https://e.c.d/f"),
            ("//e.c.d/f", "https://e.c.d/f"),
            ("/f?g", "https://a.b/f?g"),
            ("f", "https://a.b/x/f"),
            ("../../f", "https://a.b/f"),
            ("?g", "https://a.b/x/y?g"),
        ] {
            let target = secure.redirected(location, &rules).unwrap();
            assert_eq!(target.url.as_str(), expected, "{location}");
        }
        let misled = |to: &str| Refusal::Misled {
            host: "a.b".to_owned(),
            to: to.to_owned(),
        };
        for (location, expected) in [
            ("http://a.b/", Refusal::Downgraded),
            (
                "https://x.y/",
                misled("`x.y`, from which this server does not fetch images"),
            ),
            (
                "//127.0.0.1/",
                misled("`127.0.0.1`, from which this server does not fetch images"),
            ),
            (
                "data:image/png;base64,AA",
                misled("a URL that starts with `data:`"),
            ),
            (
                "file:///etc/passwd",
                misled("a URL that starts with `file:`"),
            ),
            ("https://u:p@a.b/", misled("a URL with a user name")),
            ("http://[", misled("a URL that is not valid")),
            (
                "x".repeat(MAX_URL_BYTES + 1).as_str(),
                misled("a URL of more than 8192 bytes"),
            ),
        ] {
            let refusal = secure.redirected(location, &rules).unwrap_err();
            assert_eq!(refusal, expected, "{location}");
        }
        let plain = from("http://a.b/");
        assert!(plain.redirected("https://a.b/", &rules).unwrap().is_tls);
    }

    #[test]
    fn hosts_are_named_alone_or_by_their_domain() {
        for (rule, host, port, allowed) in [
            ("a.b", "a.b", 443, true),
            ("a.b", "A.B.", 80, true),
            ("A.b.", "a.b", 443, true),
            ("a.b", "x.a.b", 443, false),
            ("a.b", "a.b.c", 443, false),
            ("a.b", "a.b", 8080, false),
            ("a.b:8080", "a.b", 8080, true),
            ("a.b:8080", "a.b", 443, false),
            ("*.a.b", "x.a.b", 443, true),
            ("*.a.b", "y.x.a.b", 443, true),
            ("*.a.b", "a.b", 443, false),
            ("*.a.b", "xa.b", 443, false),
            ("*.a.b:9", "x.a.b", 9, true),
            ("*", "anything", 443, true),
            ("*", "anything", 22, false),
            ("*:8080", "anything", 8080, true),
            ("[::1]:80", "[::1]", 80, true),
        ] {
            let parsed: HostRule = rule.parse().unwrap();
            assert_eq!(parsed.allows(host, port), allowed, "{rule} {host}:{port}");
        }
        assert_eq!("A.b:1".parse::<HostRule>().unwrap().to_string(), "a.b:1");
        for bad in [
            "",
            "*a.b",
            "a.*",
            "a b",
            "https://a.b",
            "a.b:",
            "a.b:0",
            "a.b:x",
            "[::1",
            "::1",
            "*.",
        ] {
            assert!(bad.parse::<HostRule>().is_err(), "{bad}");
        }
    }

    #[test]
    fn addresses_are_public_or_named() {
        let rules = rules(&["*"]);
        for (address, allowed) in [
            ("8.8.8.8", true),
            ("10.1.2.3", true),
            ("::ffff:10.1.2.3", true),
            ("10.2.0.0", false),
            ("127.0.0.1", false),
            ("::1", false),
        ] {
            assert_eq!(
                rules.allow_address(address.parse().unwrap()),
                allowed,
                "{address}"
            );
        }
    }

    #[test]
    fn files_are_known_by_their_first_bytes() {
        for good in [
            &b"\x89PNG\r\n\x1a\n..."[..],
            b"\xff\xd8\xff\xe0",
            b"GIF87a",
            b"GIF89a",
            b"RIFF\x01\x02\x03\x04WEBPVP8 ",
        ] {
            assert!(check_kind(good).is_ok(), "{good:?}");
        }
        assert_eq!(check_kind(b""), Err(Refusal::Empty));
        for bad in [
            &b"<svg/>"[..],
            b"BM",
            b"RIFF\x01\x02\x03\x04WAVE",
            b"RIFF",
            b"\x89PNG",
            b"<!DOCTYPE html>",
        ] {
            assert_eq!(check_kind(bad), Err(Refusal::Kind), "{bad:?}");
        }
    }
}
