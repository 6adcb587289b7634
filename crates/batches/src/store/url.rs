//! The URL of a database. Owns what one may say, and that its password is never shown.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use tokio_postgres::Config;
use tokio_postgres::config::Host;

/// Where the database is; it may have a password.
#[derive(Clone, PartialEq, Eq)]
pub struct DataUrl(pub(super) String);

/// Why a URL cannot be used. None of its text is repeated: any part of it may be a password.
#[derive(Debug, thiserror::Error)]
pub enum UrlError {
    #[error(
        "the URL of the database is not one of PostgreSQL; pass `postgresql://USER@HOST/DATABASE`, with `%` and two \
         hexadecimal digits for special characters"
    )]
    Invalid,
    #[error("the URL of the database has no host; pass `postgresql://USER@HOST/DATABASE`")]
    NoHost,
}

/// Unacknowledged data closes a connection after this.
const SILENCE: Duration = Duration::from_secs(10);

impl DataUrl {
    /// Whatever a user gave; it is read when it is used, so that no error repeats it.
    pub fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }

    /// How to connect, and what the database is called in messages.
    pub(super) fn read(&self) -> Result<(Config, String), UrlError> {
        let is_url = ["postgresql://", "postgres://"]
            .iter()
            .any(|scheme| self.0.starts_with(scheme));
        let config = Config::from_str(&self.0).ok().filter(|_| is_url);
        let mut config = config.ok_or(UrlError::Invalid)?;
        let hosts = config.get_hosts().iter().map(|host| match host {
            Host::Tcp(name) => name.clone(),
            Host::Unix(path) => path.display().to_string(),
        });
        let hosts = hosts.collect::<Vec<_>>().join(",");
        if hosts.is_empty() {
            return Err(UrlError::NoHost);
        }
        let place = match config.get_dbname() {
            Some(database) => format!("{database}` at `{hosts}"),
            None => hosts,
        };
        if config.get_password().is_none()
            && let Ok(password) = std::env::var("PGPASSWORD")
        {
            config.password(password);
        }
        if config.get_application_name().is_none() {
            config.application_name("inflight");
        }
        config
            .keepalives_idle(SILENCE)
            .tcp_user_timeout(SILENCE)
            .connect_timeout(SILENCE / 4);
        Ok((config, place))
    }
}

impl fmt::Debug for DataUrl {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("DataUrl(..)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_is_read_and_its_password_is_never_shown() {
        let read = |text: &str| DataUrl::new(text).read().map(|(_, place)| place);
        assert_eq!(
            read("postgresql://me:secret@db.example:5433/kept").unwrap(),
            "kept` at `db.example"
        );
        assert_eq!(read("postgres://me@db").unwrap(), "db");
        for (bad, says) in [
            ("mysql://me:secret@db/x", "not one of PostgreSQL"),
            ("host=db password=secret", "not one of PostgreSQL"),
            (
                "postgresql://me:secret@db/x?secret=1",
                "not one of PostgreSQL",
            ),
            ("postgresql:///x", "has no host"),
            (
                "postgresql://me:secret@db/x?sslmode=verify-full",
                "not one of",
            ),
        ] {
            let error = read(bad).unwrap_err();
            assert!(error.to_string().contains(says), "{bad}: {error}");
            assert!(!format!("{error} {error:?}").contains("sec"), "{bad}");
        }
        let shown = format!("{:?}", DataUrl::new("postgresql://me:secret@db"));
        assert!(!shown.contains("secret"));
    }
}
