//! Where to listen, and who may.

use std::fmt;
use std::net::{SocketAddr, ToSocketAddrs as _};
use std::path::{Path, PathBuf};

use crate::access::Rules;
use crate::manage::ManageError;

/// Where the management API listens, and who may use it.
///
/// On loopback anybody on this machine may read unless there is a read token. Anywhere else it needs
/// TLS (`certificate` and `key`) and somebody who may read: a read token, or certificates of clients.
/// Changes need the write token, or a client's certificate with one of the names in `writers`,
/// wherever it listens.
#[derive(Clone, Debug)]
pub struct Settings {
    /// `address:port`; port 0 takes any. Default 127.0.0.1:7480.
    pub listen: String,
    /// With this token one may read.
    pub read_token: Option<Token>,
    /// With this token one may read and change things.
    pub write_token: Option<Token>,
    /// A file with the read token, instead of the token itself. It is read again every few seconds, so
    /// that a token is replaced without a restart; a file that cannot be used changes nothing.
    pub read_token_file: Option<PathBuf>,
    /// The same for the write token.
    pub write_token_file: Option<PathBuf>,
    /// A file with the server's certificate, in PEM, followed by intermediate ones.
    pub certificate: Option<PathBuf>,
    /// A file with its private key, in PEM.
    pub key: Option<PathBuf>,
    /// A file with certificates of authorities, in PEM: whoever shows a certificate of theirs may read.
    pub client_ca: Option<PathBuf>,
    /// Who of those may also change things: names (DNS) in their certificates.
    pub writers: Vec<String>,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            listen: "127.0.0.1:7480".into(),
            read_token: None,
            write_token: None,
            read_token_file: None,
            write_token_file: None,
            certificate: None,
            key: None,
            client_ca: None,
            writers: Vec::new(),
        }
    }
}

impl Settings {
    /// Checks that nobody is let in by accident; says where to listen.
    pub fn check(&self) -> Result<SocketAddr, ManageError> {
        let refuse = |text: String| Err(ManageError::Settings(text));
        let Ok(mut addresses) = self.listen.to_socket_addrs() else {
            return refuse(format!(
                "listen {:?} is no address: 127.0.0.1:7480 is one",
                self.listen
            ));
        };
        let Some(address) = addresses.next() else {
            return refuse(format!("listen {:?} has no address", self.listen));
        };
        if self.certificate.is_some() != self.key.is_some() {
            return refuse("certificate and key go together: set both".into());
        }
        if self.client_ca.is_some() && self.certificate.is_none() {
            return refuse("client_ca needs TLS: set certificate and key, too".into());
        }
        if !self.writers.is_empty() && self.client_ca.is_none() {
            return refuse("writers are names in clients' certificates: set client_ca, too".into());
        }
        for (name, token, file) in [
            ("read_token", &self.read_token, &self.read_token_file),
            ("write_token", &self.write_token, &self.write_token_file),
        ] {
            if token.is_some() && file.is_some() {
                return refuse(format!("{name} and {name}_file exclude each other: set one"));
            }
        }
        refuse_same(self.read_token.as_ref(), self.write_token.as_ref())?;
        if !address.ip().is_loopback() {
            let listen = &self.listen;
            if self.certificate.is_none() {
                return refuse(format!(
                    "listen {listen} is beyond loopback: set certificate and key (TLS), or listen \
                     on 127.0.0.1"
                ));
            }
            if !self.has_read_token() && self.client_ca.is_none() {
                return refuse(format!(
                    "listen {listen} is beyond loopback: set read_token or client_ca, so that not \
                     everybody may read, or listen on 127.0.0.1"
                ));
            }
        }
        Ok(address)
    }

    fn has_read_token(&self) -> bool {
        self.read_token.is_some() || self.read_token_file.is_some()
    }

    /// Who may; with the tokens that the files have now.
    pub(crate) fn rules(&self, address: SocketAddr) -> Result<Rules, ManageError> {
        let token = |token: &Option<Token>, file: &Option<PathBuf>| match file {
            Some(path) => Token::load(path).map(Some),
            None => Ok(token.clone()),
        };
        let read = token(&self.read_token, &self.read_token_file)?;
        let write = token(&self.write_token, &self.write_token_file)?;
        refuse_same(read.as_ref(), write.as_ref())?;
        let open = address.ip().is_loopback() && !self.has_read_token() && self.client_ca.is_none();
        Ok(Rules { read, write, open })
    }
}

fn refuse_same(read: Option<&Token>, write: Option<&Token>) -> Result<(), ManageError> {
    if read.is_some() && read == write {
        return Err(ManageError::Settings(
            "the read token and the write token are the same: whoever may read could write".into(),
        ));
    }
    Ok(())
}

/// A secret that lets somebody in. It is never shown.
#[derive(Clone, PartialEq, Eq)]
pub struct Token(Box<[u8]>);

impl Token {
    /// 16 characters at least, and 1000 at most, without spaces; white space around it is dropped.
    pub fn new(text: &str) -> Result<Self, ManageError> {
        let text = text.trim();
        let good = text.bytes().all(|byte| byte.is_ascii_graphic());
        match (TOKEN_MIN..=TOKEN_MAX).contains(&text.len()) && good {
            true => Ok(Self(text.as_bytes().into())),
            false => Err(ManageError::Settings(
                "a token has 16 to 1000 printable ASCII characters and no space, such as what \
                 `openssl rand -hex 32` prints"
                    .into(),
            )),
        }
    }

    /// The token in this file.
    pub fn load(path: &Path) -> Result<Self, ManageError> {
        let wrong = |error: &dyn fmt::Display| {
            ManageError::Settings(format!("{}: {error}", path.display()))
        };
        let text = std::fs::read_to_string(path).map_err(|error| wrong(&error))?;
        Self::new(&text).map_err(|error| wrong(&error))
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        &self.0
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(…)")
    }
}

/// Fewer could be guessed.
const TOKEN_MIN: usize = 16;
const TOKEN_MAX: usize = 1000;

#[cfg(test)]
mod tests {
    use super::*;

    fn token() -> Option<Token> {
        Some(Token::new("0123456789abcdef").unwrap())
    }

    #[test]
    fn beyond_loopback_only_with_tls_and_credentials() {
        let at = |listen: &str| Settings { listen: listen.into(), ..Settings::default() };
        let error = |settings: &Settings| settings.check().unwrap_err().to_string();
        for loopback in ["127.0.0.1:0", "127.8.0.1:7480", "[::1]:0"] {
            assert!(at(loopback).check().is_ok(), "{loopback}");
        }
        for beyond in ["0.0.0.0:0", "[::]:0", "10.0.0.1:7480"] {
            let bare = at(beyond);
            assert!(error(&bare).contains("set certificate and key"), "{beyond}");
            let tokens = Settings { read_token: token(), ..bare.clone() };
            assert!(error(&tokens).contains("set certificate and key"), "{beyond}");
            let (certificate, key) = (Some("a.pem".into()), Some("a.key".into()));
            let tls = Settings { certificate, key, ..bare };
            assert!(error(&tls).contains("set read_token or client_ca"), "{beyond}");
            let write = Settings { write_token: token(), ..tls.clone() };
            assert!(error(&write).contains("set read_token or client_ca"), "{beyond}");
            assert!(Settings { read_token: token(), ..tls.clone() }.check().is_ok());
            assert!(Settings { client_ca: Some("ca.pem".into()), ..tls }.check().is_ok());
        }
    }

    #[test]
    fn what_cannot_work_is_said() {
        let bare = Settings::default();
        let cases = [
            (Settings { certificate: Some("a".into()), ..bare.clone() }, "go together"),
            (Settings { client_ca: Some("a".into()), ..bare.clone() }, "needs TLS"),
            (Settings { writers: vec!["ops".into()], ..bare.clone() }, "set client_ca"),
            (Settings { listen: "here".into(), ..bare.clone() }, "no address"),
            (Settings { read_token: token(), write_token: token(), ..bare }, "the same"),
        ];
        for (settings, expected) in cases {
            let error = settings.check().unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
        }
        for bad in ["", "short", "0123456789abcde f", "0123456789abcdeä"] {
            assert!(Token::new(bad).is_err(), "{bad}");
        }
        assert_eq!(format!("{:?}", token()), "Some(Token(…))");
        assert_eq!(Token::new("0123456789abcdef\n").ok(), token());
    }
}
