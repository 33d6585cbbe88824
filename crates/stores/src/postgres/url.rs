//! What a store URL says.

use std::time::Duration;

use percent_encoding::percent_decode_str;
use tenure_lease::OpenError;
use tokio_postgres::Config;
use tokio_postgres::config::{Host, SslMode, TargetSessionAttrs};

use super::tls::{Files, Tls};

/// A server and how to reach it.
#[derive(Clone)]
pub(super) struct Target {
    pub(super) config: Config,
    pub(super) tls: Tls,
    /// For a whole attempt to connect.
    pub(super) timeout: Duration,
}

/// All that a URL says.
pub(super) struct Settings {
    pub(super) target: Target,
    /// Where to listen for wake-ups; `None`: nowhere.
    pub(super) listen: Option<Target>,
    /// Where the tables are, if it says so.
    pub(super) schema: Option<String>,
    /// How many connections at most.
    pub(super) connections: usize,
}

impl Settings {
    /// Reads a URL. No error repeats it: it may contain a password.
    pub(super) fn parse(url: &str) -> Result<Self, OpenError> {
        let (url, own) = split(url)?;
        let value = |name: &str| own.iter().find(|(key, _)| key == name).map(|(_, value)| value);
        let schema = value("schema").cloned();
        if schema.as_ref().is_some_and(|schema| !is_identifier(schema)) {
            return Err(wrong("schema must be a plain name of at most 63 characters"));
        }
        let connections = match value("connections") {
            None => CONNECTIONS,
            Some(number) => match number.parse() {
                Ok(number @ 1..=100) => number,
                _ => return Err(wrong("connections must be a number from 1 to 100")),
            },
        };
        let tls = match value("sslmode").map(String::as_str) {
            None | Some("disable") => Tls::off()?,
            Some("require" | "verify-full") => Tls::on(Files {
                roots: value("sslrootcert").map(String::as_str),
                certificate: value("sslcert").map(String::as_str),
                key: value("sslkey").map(String::as_str),
            })?,
            Some(_) => {
                return Err(wrong(
                    "sslmode must be disable, require or verify-full (the last two both verify \
                     the server's certificate and name)",
                ));
            }
        };
        if !tls.is_on() && own.iter().any(|(key, _)| FILES.contains(&key.as_str())) {
            return Err(wrong("sslrootcert, sslcert and sslkey need sslmode=verify-full"));
        }
        let target = Target::new(&url, tls.clone())?;
        let listen = match value("listen").map(String::as_str) {
            None => Some(target.clone()),
            Some("off") => None,
            Some(url) if url.contains("://") => {
                let (url, own) = split(url)?;
                if let Some((key, _)) = own.first() {
                    return Err(wrong(&format!("{key} belongs outside of the URL in listen")));
                }
                Some(Target::new(&url, tls)?)
            }
            Some(host) => Some(target.at(host)?),
        };
        Ok(Self { target, listen, schema, connections })
    }
}

impl Target {
    fn new(url: &str, tls: Tls) -> Result<Self, OpenError> {
        let mut config: Config = url.parse().map_err(|error: tokio_postgres::Error| {
            // It names options, never their values.
            let why = std::error::Error::source(&error).map(ToString::to_string);
            wrong(&why.unwrap_or_else(|| error.to_string()))
        })?;
        if config.get_hosts().is_empty() && config.get_hostaddrs().is_empty() {
            return Err(wrong("it names no host"));
        }
        if config.get_password().is_none()
            && let Ok(password) = std::env::var("PGPASSWORD")
        {
            config.password(password);
        }
        if config.get_application_name().is_none() {
            config.application_name("tenure");
        }
        config.ssl_mode(if tls.is_on() { SslMode::Require } else { SslMode::Disable });
        let hosts = config.get_hosts().len().max(config.get_hostaddrs().len());
        if hosts > 1 {
            // One of them is the primary; the others would answer with the past.
            config.target_session_attrs(TargetSessionAttrs::ReadWrite);
        }
        let each = *config.get_connect_timeout().unwrap_or(&CONNECT_TIMEOUT);
        config.connect_timeout(each);
        // A peer that is gone without a word is noticed within a ttl, not within two hours.
        if !url.contains("keepalives") {
            config.keepalives_idle(Duration::from_secs(5));
            config.keepalives_interval(Duration::from_secs(2));
            config.keepalives_retries(3);
        }
        if !url.contains("tcp_user_timeout") {
            config.tcp_user_timeout(Duration::from_secs(10));
        }
        let timeout = each * u32::try_from(hosts).unwrap_or(1);
        Ok(Self { config, tls, timeout })
    }

    /// The same database on another host.
    fn at(&self, host: &str) -> Result<Self, OpenError> {
        let (host, port) = match host.rsplit_once(':') {
            None => (host, 5432),
            Some((host, port)) => {
                (host, port.parse().map_err(|_| wrong("listen's port must be a number"))?)
            }
        };
        if host.is_empty() {
            return Err(wrong("listen must be off, HOST, HOST:PORT or a postgres URL"));
        }
        let mut target = Self::new(&format!("postgres://{host}:{port}/"), self.tls.clone())?;
        if let Some(user) = self.config.get_user() {
            target.config.user(user);
        }
        if let Some(password) = self.config.get_password() {
            target.config.password(password);
        }
        if let Some(database) = self.config.get_dbname().or(self.config.get_user()) {
            target.config.dbname(database);
        }
        Ok(target)
    }

    /// The same, with this schema as its search path: from the start, so that a pooler that shares
    /// connections refuses it instead of passing it on to somebody else.
    pub(super) fn within(mut self, schema: &str) -> Self {
        let options = self.config.get_options().unwrap_or_default();
        let options = format!("{options} -c search_path=\"{schema}\"");
        self.config.options(options.trim_start());
        self
    }

    /// Where it is, for people.
    pub(super) fn place(&self) -> String {
        let hosts = self.config.get_hosts().iter().enumerate().map(|(index, host)| {
            let ports = self.config.get_ports();
            let port = ports.get(index).or(ports.first()).unwrap_or(&5432);
            match host {
                Host::Tcp(host) => format!("{host}:{port}"),
                #[cfg(unix)]
                Host::Unix(path) => path.display().to_string(),
            }
        });
        hosts.collect::<Vec<_>>().join(",")
    }
}

/// The URL without our own options, and these, decoded.
fn split(url: &str) -> Result<(String, Vec<(String, String)>), OpenError> {
    let Some((base, query)) = url.split_once('?') else {
        return Ok((url.to_owned(), Vec::new()));
    };
    let (mut rest, mut own) = (Vec::new(), Vec::new());
    for option in query.split('&').filter(|option| !option.is_empty()) {
        let (key, value) = option.split_once('=').unwrap_or((option, ""));
        if !OWN.contains(&key) {
            rest.push(option);
            continue;
        }
        let value = percent_decode_str(value)
            .decode_utf8()
            .map_err(|_| wrong(&format!("the option {key} is not UTF-8")))?;
        own.push((key.to_owned(), value.into_owned()));
    }
    let separator = if rest.is_empty() { "" } else { "?" };
    Ok((format!("{base}{separator}{}", rest.join("&")), own))
}

fn is_identifier(name: &str) -> bool {
    let mut chars = name.chars();
    name.len() <= 63
        && chars.next().is_some_and(|c| c.is_ascii_alphabetic() || c == '_')
        && chars.all(|c| c.is_ascii_alphanumeric() || c == '_' || c == '-')
}

fn wrong(why: &str) -> OpenError {
    OpenError::Url(format!(
        "the URL of the postgres store cannot be used: {why}; \
         \"postgres://user:password@host:5432/database\" can"
    ))
}

const OWN: &[&str] =
    &["listen", "schema", "connections", "sslmode", "sslrootcert", "sslcert", "sslkey"];
const FILES: &[&str] = &["sslrootcert", "sslcert", "sslkey"];
const CONNECTIONS: usize = 4;
/// Below the operation time-out of the default ttl.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);

#[cfg(test)]
mod tests {
    use super::*;

    fn places(url: &str) -> (String, Option<String>) {
        let settings = Settings::parse(url).unwrap();
        (settings.target.place(), settings.listen.map(|listen| listen.place()))
    }

    #[test]
    fn listening_goes_where_it_is_told() {
        let pooled = "postgres://u:p@pool:6432/db";
        assert_eq!(places(pooled), ("pool:6432".into(), Some("pool:6432".into())));
        assert_eq!(places(&format!("{pooled}?listen=off")), ("pool:6432".into(), None));
        let direct = Some("direct:5433".into());
        assert_eq!(places(&format!("{pooled}?listen=direct:5433")).1, direct);
        let url = format!("{pooled}?listen=postgres%3A%2F%2Fx:y@direct:5433%2Fdb");
        assert_eq!(places(&url).1, direct);
        let settings = Settings::parse(&format!("{pooled}?listen=direct")).unwrap();
        let listen = settings.listen.unwrap().config;
        assert_eq!((listen.get_user(), listen.get_dbname()), (Some("u"), Some("db")));
        assert_eq!(listen.get_password(), Some(b"p".as_slice()));
    }

    #[test]
    fn several_hosts_mean_the_primary() {
        let config = Settings::parse("postgres://a,b:5433/db").unwrap().target.config;
        assert_eq!(config.get_target_session_attrs(), TargetSessionAttrs::ReadWrite);
    }

    #[test]
    fn errors_repeat_no_secret() {
        for url in [
            "postgres://u:sesame@h/db?nonsense=sesame",
            "postgres://u:sesame@h/db?schema=a\"b-sesame",
            "postgres://u:sesame@h/db?connections=sesame",
            "postgres://u:sesame@h/db?sslmode=sesame",
            "postgres://u:sesame@h/db?sslrootcert=/tmp/x",
            "postgres://u:sesame@h/db?listen=direct:sesame",
            "postgres://u:sesame@h/db?port=sesame",
            "postgres://u:sesame@h:sesame/db",
            "postgres://u:sesame@/db",
            "postgres://u:sesame%zz@h/db?listen=%ff",
        ] {
            let error = Settings::parse(url).err().expect(url).to_string();
            assert!(!error.contains("sesame"), "{error}");
        }
    }
}
