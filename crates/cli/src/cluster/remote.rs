//! A node elsewhere, by its management API.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tenure_manage::Token;
use tenure_manage::client::{Client, ClientError};
use tenure_manage::document::{self, Kind, Regions};

use super::{Answer, Change, Changed, Request, Status};
use crate::exit::{self, Failure};

/// Which node, and who asks.
#[derive(clap::Args)]
pub(super) struct Remote {
    /// The management API of a node: http://host:port, or https://host:port with --ca
    #[arg(long, value_name = "URL")]
    url: Option<String>,
    /// A file with the token: the read token to look, the write token to change something
    #[arg(long, value_name = "FILE", requires = "url")]
    token_file: Option<PathBuf>,
    /// A file with the certificates of the authorities that the node's certificate must be of
    #[arg(long, value_name = "FILE", requires = "url")]
    ca: Option<PathBuf>,
    /// A file with a certificate to show, for nodes with `client_ca`
    #[arg(long, value_name = "FILE", requires_all = ["url", "key"])]
    cert: Option<PathBuf>,
    /// A file with the key of --cert
    #[arg(long, value_name = "FILE", requires_all = ["url", "cert"])]
    key: Option<PathBuf>,
    /// A directory of `tenure certs`: its ca.pem, node.pem and node.key for --ca, --cert and --key
    #[arg(long, value_name = "DIR", requires = "url", conflicts_with_all = ["ca", "cert", "key"])]
    identity: Option<PathBuf>,
}

impl Remote {
    pub(super) fn ask(&self, request: &Request) -> Result<Answer, Failure> {
        match request {
            Request::Status => {
                let told: document::Cluster = understood(self.get("/api/cluster")?)?;
                Ok(Answer::Status(Box::new(Status::told(&told))))
            }
            Request::Leave { node } => {
                self.change("/api/leave", &json!({"node": node}), Change::Leaving)
            }
            Request::Down { node } => {
                self.change("/api/down", &json!({"node": node}), Change::Down)
            }
        }
    }

    fn change(&self, path: &str, body: &Value, change: Change) -> Result<Answer, Failure> {
        let changed: tenure_manage::Changed = understood(self.post(path, body)?)?;
        let node = changed.node.unwrap_or_default();
        Ok(Answer::Changed(Changed { change, node }))
    }

    pub(super) fn hand_over(&self, singleton: &str) -> Result<Said, Failure> {
        understood(self.post("/api/hand-over", &json!({"singleton": singleton}))?)
    }

    pub(super) fn rebalance(&self, kind: &str) -> Result<Said, Failure> {
        understood(self.post("/api/rebalance", &json!({"kind": kind}))?)
    }

    /// What the node knows of shards, and what all nodes say that they have.
    pub(super) fn shards(&self) -> Result<(Vec<Kind>, Vec<Regions>), Failure> {
        let (known, said): (Kinds<Kind>, Kinds<Regions>) =
            (understood(self.get("/api/shards")?)?, understood(self.get("/api/regions")?)?);
        Ok((known.kinds, said.kinds))
    }

    fn get(&self, path: &str) -> Result<Value, Failure> {
        self.run(async |client| client.get(path).await)
    }

    fn post(&self, path: &str, body: &Value) -> Result<Value, Failure> {
        self.run(async |client| client.post(path, body).await)
    }

    fn run(
        &self,
        ask: impl AsyncFnOnce(Client) -> Result<Value, ClientError>,
    ) -> Result<Value, Failure> {
        let Some(url) = &self.url else {
            return Err(Failure::usage(
                "name a node by its management API: --url http://host:port",
            ));
        };
        let token = match &self.token_file {
            None => None,
            Some(path) => {
                let wrong = |error: &dyn std::fmt::Display| {
                    Failure::usage(format!("--token-file {}: {error}", path.display()))
                };
                let text = std::fs::read_to_string(path).map_err(|error| wrong(&error))?;
                Some(Token::new(&text).map_err(|error| wrong(&error))?)
            }
        };
        let client = self.client(url, token).map_err(failure)?;
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(|error| Failure::system("cannot start", &error))?;
        runtime.block_on(ask(client)).map_err(failure)
    }

    fn client(&self, url: &str, token: Option<Token>) -> Result<Client, ClientError> {
        let of_identity = |file: &str| self.identity.as_ref().map(|dir| dir.join(file));
        let ca = self.ca.clone().or_else(|| of_identity("ca.pem"));
        let certificate = self.cert.clone().or_else(|| of_identity("node.pem"));
        let key = self.key.clone().or_else(|| of_identity("node.key"));
        let client = Client::new(url, token, ca.as_deref())?;
        match (certificate, key) {
            (Some(certificate), Some(key)) => client.with_certificate(&certificate, &key),
            _ => Ok(client),
        }
    }
}

#[derive(Deserialize)]
struct Kinds<K> {
    kinds: Vec<K>,
}

/// What is under way, as the node says it.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Said {
    change: String,
    node: Option<String>,
    text: String,
}

impl std::fmt::Display for Said {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.text)
    }
}

fn understood<T: serde::de::DeserializeOwned>(value: Value) -> Result<T, Failure> {
    serde_json::from_value(value).map_err(|error| {
        let what = format!("the node answers in a way that this version does not know: {error}");
        Failure::new(exit::UNAVAILABLE, what)
    })
}

fn failure(error: ClientError) -> Failure {
    match error {
        ClientError::Unreachable(_) => {
            Failure::new(exit::UNAVAILABLE, format!("{error}; does it run?"))
        }
        ClientError::Refused { status: 401 | 403, .. } => {
            Failure::usage(format!("the node refuses: {error} (--token-file, --cert)"))
        }
        ClientError::Usage(_) | ClientError::Refused { .. } => Failure::usage(error.to_string()),
    }
}
