use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use super::DiscoveryError;

/// A service in Kubernetes whose endpoints are nodes: a headless one, most often.
///
/// Its EndpointSlices are listed; that takes the verb `list` on `endpointslices` in its namespace
/// (deploy/kubernetes/discovery-role.yaml). Endpoints count whether they are ready or not: a node is
/// ready only after it has joined.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KubernetesService {
    /// The namespace of the service.
    pub namespace: String,
    /// Its name.
    pub service: String,
    /// Where nodes listen.
    pub port: ServicePort,
    /// A file with the server and credentials; without one, what `KUBECONFIG` names,
    /// `~/.kube/config`, or the service account of the pod.
    pub kubeconfig: Option<PathBuf>,
}

/// Where nodes listen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ServicePort {
    /// All at this port.
    Number(u16),
    /// Each at the port that the service calls by this name.
    Name(String),
}

impl FromStr for KubernetesService {
    type Err = DiscoveryError;

    fn from_str(text: &str) -> Result<Self, DiscoveryError> {
        let refuse = || DiscoveryError::form(text, FORM);
        let (place, kubeconfig) = match text.split_once('?') {
            Some((place, query)) => {
                let path = query.strip_prefix("kubeconfig=").filter(|path| !path.is_empty());
                (place, Some(PathBuf::from(path.ok_or_else(refuse)?)))
            }
            None => (text, None),
        };
        let (namespace, rest) = place.split_once('/').ok_or_else(refuse)?;
        let (service, port) = rest.split_once(':').ok_or_else(refuse)?;
        let port = match port.parse::<u16>() {
            Ok(number) if number > 0 && number.to_string() == port => ServicePort::Number(number),
            Ok(_) => return Err(refuse()),
            Err(_) => ServicePort::Name(port.to_owned()),
        };
        let named = match &port {
            ServicePort::Name(name) => name,
            ServicePort::Number(_) => service,
        };
        if ![namespace, service, named].into_iter().all(is_label) {
            return Err(refuse());
        }
        let (namespace, service) = (namespace.to_owned(), service.to_owned());
        Ok(Self { namespace, service, port, kubeconfig })
    }
}

impl fmt::Display for KubernetesService {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { namespace, service, port, kubeconfig } = self;
        write!(f, "{namespace}/{service}:")?;
        match port {
            ServicePort::Number(number) => write!(f, "{number}")?,
            ServicePort::Name(name) => write!(f, "{name}")?,
        }
        match kubeconfig {
            Some(path) => write!(f, "?kubeconfig={}", path.display()),
            None => Ok(()),
        }
    }
}

/// Whether Kubernetes takes it for a name: it goes into a path and a selector.
fn is_label(text: &str) -> bool {
    let is_part = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    (1..=63).contains(&text.len()) && text.bytes().all(is_part)
}

const FORM: &str = "k8s:NAMESPACE/SERVICE:PORT, the port by number or by name";
