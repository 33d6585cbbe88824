//! SRV records, and the addresses of their targets.

use std::net::IpAddr;

use hickory_resolver::config::{ConnectionConfig, NameServerConfig, ResolverConfig};
use hickory_resolver::net::runtime::TokioRuntimeProvider;
use hickory_resolver::proto::rr::RData;
use hickory_resolver::{Resolver, TokioResolver};
use tokio::task::JoinSet;

use super::MOST;
use crate::Address;
use crate::discovery::{BoxError, Discover, SrvName};

pub(super) struct Srv(pub(super) SrvName);

impl Discover for Srv {
    async fn find_nodes(&self) -> Result<Vec<Address>, BoxError> {
        let resolver = self.resolver()?;
        let records = resolver.srv_lookup(self.0.name.as_str()).await?;
        let mut asked = JoinSet::new();
        for record in records.answers() {
            let RData::SRV(srv) = &record.data else { continue };
            let (resolver, target, port) = (resolver.clone(), srv.target.clone(), srv.port);
            if asked.len() < MOST {
                asked.spawn(async move { (resolver.lookup_ip(target).await, port) });
            }
        }
        let mut found = Vec::new();
        while let Some(Ok((looked, port))) = asked.join_next().await {
            // A target without an address is a node that is gone, or not there yet.
            let Ok(ips) = looked else { continue };
            for ip in ips.iter() {
                let ip = match ip {
                    IpAddr::V4(ip) => ip.to_string(),
                    IpAddr::V6(ip) => format!("[{ip}]"),
                };
                found.push(Address::new(&format!("{ip}:{port}"))?);
            }
        }
        found.sort();
        found.dedup();
        Ok(found)
    }
}

impl Srv {
    /// Made for each look-up: the DNS servers of a machine may change, and what it does not find
    /// must not be remembered.
    fn resolver(&self) -> Result<TokioResolver, BoxError> {
        let mut builder = match self.0.server {
            None => TokioResolver::builder_tokio()?,
            Some(server) => {
                let mut connections = [ConnectionConfig::udp(), ConnectionConfig::tcp()];
                connections.iter_mut().for_each(|connection| connection.port = server.port());
                let server = NameServerConfig::new(server.ip(), true, connections.into());
                let config = ResolverConfig::from_name_servers(vec![server]);
                Resolver::builder_with_config(config, TokioRuntimeProvider::default())
            }
        };
        builder.options_mut().cache_size = 0;
        Ok(builder.build()?)
    }
}
