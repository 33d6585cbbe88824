//! The endpoints of a service, from the Kubernetes API.

use std::sync::{Mutex, PoisonError};

use kube::api::{ApiResource, DynamicObject, GroupVersionKind, ListParams};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Api, Client, Config};
use serde::Deserialize;

use crate::Address;
use crate::discovery::{BoxError, Discover, KubernetesService, ServicePort};

pub(super) struct EndpointSlices {
    service: KubernetesService,
    /// Made anew after a failure, with whatever the configuration says by then.
    client: Mutex<Option<Client>>,
}

/// What is read of an EndpointSlice, in any version of Kubernetes.
#[derive(Deserialize)]
struct Slice {
    endpoints: Option<Vec<Endpoint>>,
    ports: Option<Vec<Port>>,
}

#[derive(Deserialize)]
struct Endpoint {
    addresses: Vec<String>,
}

#[derive(Deserialize)]
struct Port {
    name: Option<String>,
    port: Option<u16>,
}

impl EndpointSlices {
    pub(super) fn new(service: KubernetesService) -> Self {
        Self { service, client: Mutex::default() }
    }

    async fn client(&self) -> Result<Client, BoxError> {
        if let Some(client) = self.kept() {
            return Ok(client);
        }
        // kube uses the process's; one that the program has installed stays.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let config = match &self.service.kubeconfig {
            Some(path) => {
                let file = Kubeconfig::read_from(path)?;
                Config::from_custom_kubeconfig(file, &KubeConfigOptions::default()).await?
            }
            None => Config::infer().await?,
        };
        let client = Client::try_from(config)?;
        self.keep(Some(client.clone()));
        Ok(client)
    }

    fn kept(&self) -> Option<Client> {
        self.client.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn keep(&self, client: Option<Client>) {
        *self.client.lock().unwrap_or_else(PoisonError::into_inner) = client;
    }

    async fn list(&self) -> Result<Vec<Slice>, BoxError> {
        let KubernetesService { namespace, service, .. } = &self.service;
        let kind = GroupVersionKind::gvk("discovery.k8s.io", "v1", "EndpointSlice");
        let resource = ApiResource::from_gvk_with_plural(&kind, "endpointslices");
        let slices: Api<DynamicObject> =
            Api::namespaced_with(self.client().await?, namespace, &resource);
        // What the server has at hand will do: this is asked every second, by every node that starts.
        let params = ListParams::default()
            .labels(&format!("kubernetes.io/service-name={service}"))
            .match_any();
        match slices.list(&params).await {
            Ok(list) => {
                let slice = |object: DynamicObject| serde_json::from_value(object.data);
                Ok(list.items.into_iter().map(slice).collect::<Result<_, _>>()?)
            }
            Err(kube::Error::Api(status)) if status.code == 403 => Err(format!(
                "{}; give this account the verb list on endpointslices (discovery.k8s.io) in the \
                 namespace {namespace}: deploy/kubernetes/discovery-role.yaml",
                status.message
            )
            .into()),
            Err(error) => Err(error.into()),
        }
    }
}

impl Discover for EndpointSlices {
    async fn find_nodes(&self) -> Result<Vec<Address>, BoxError> {
        let list = match self.list().await {
            Ok(list) => list,
            Err(error) => {
                self.keep(None);
                return Err(error);
            }
        };
        let mut found = Vec::new();
        for slice in &list {
            for port in ports(slice, &self.service.port) {
                // Ready or not: a node is ready only after it has joined.
                let endpoints = slice.endpoints.iter().flatten();
                for host in endpoints.flat_map(|endpoint| &endpoint.addresses) {
                    let bracketed =
                        if host.contains(':') { format!("[{host}]") } else { host.clone() };
                    found.push(Address::new(&format!("{bracketed}:{port}"))?);
                }
            }
        }
        found.sort();
        found.dedup();
        Ok(found)
    }
}

fn ports(slice: &Slice, wanted: &ServicePort) -> Vec<u16> {
    match wanted {
        ServicePort::Number(number) => vec![*number],
        ServicePort::Name(name) => {
            let ports = slice.ports.iter().flatten();
            let named = ports.filter(|port| port.name.as_ref() == Some(name));
            named.filter_map(|port| port.port).collect()
        }
    }
}
