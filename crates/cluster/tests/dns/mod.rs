//! A DNS server with the records of one service, over UDP.
#![allow(clippy::disallowed_methods, reason = "these tests run in real time, over real sockets")]

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex};

use tenure_cluster::Address;
use tokio::net::UdpSocket;
use tokio::task::JoinSet;

/// Answers until it is dropped.
pub(crate) struct DnsServer {
    pub(crate) address: SocketAddr,
    nodes: Arc<Mutex<Vec<Address>>>,
    _answering: JoinSet<()>,
}

impl DnsServer {
    /// Knows nobody yet.
    pub(crate) async fn start() -> Self {
        let socket = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        let address = socket.local_addr().unwrap();
        let nodes = Arc::<Mutex<Vec<Address>>>::default();
        let (mut answering, known) = (JoinSet::new(), nodes.clone());
        answering.spawn(async move {
            let mut query = [0; 1500];
            loop {
                let (length, from) = socket.recv_from(&mut query).await.unwrap();
                let answer = answer(&query[..length], &known.lock().unwrap());
                socket.send_to(&answer, from).await.unwrap();
            }
        });
        Self { address, nodes, _answering: answering }
    }

    /// `_cluster._tcp.shop.test` stands for these from now on; their targets are called
    /// `node-N.shop.test`.
    pub(crate) fn publish(&self, nodes: &[Address]) {
        *self.nodes.lock().unwrap() = nodes.to_vec();
    }
}

fn answer(query: &[u8], nodes: &[Address]) -> Vec<u8> {
    let (mut labels, mut at) = (Vec::new(), 12);
    while query[at] != 0 {
        let length = usize::from(query[at]);
        labels.push(String::from_utf8_lossy(&query[at + 1..=at + length]).to_lowercase());
        at += length + 1;
    }
    let (name, question) = (labels.join("."), &query[12..at + 5]);
    let mut records: Vec<Vec<u8>> = Vec::new();
    let mut is_known = false;
    for (index, node) in nodes.iter().enumerate() {
        let (target, ip) = (format!("node-{index}.shop.test"), node.host());
        match (name.as_str(), query[at + 2]) {
            ("_cluster._tcp.shop.test", SRV) => {
                is_known = true;
                let mut data = [[0, 0], [0, 0], node.port().to_be_bytes()].concat();
                for label in target.split('.') {
                    data.push(label.len() as u8);
                    data.extend(label.as_bytes());
                }
                data.push(0);
                records.push(record(SRV, &data));
            }
            (asked, kind) if asked == target => {
                is_known = true;
                if kind == A {
                    records.push(record(A, &ip.parse::<Ipv4Addr>().unwrap().octets()));
                }
            }
            _ => {}
        }
    }
    let code = if is_known { 0 } else { NO_SUCH_NAME };
    let mut answer = vec![query[0], query[1], 0x85, 0x80 | code, 0, 1, 0, records.len() as u8];
    answer.extend([0, 0, 0, 0]);
    answer.extend(question);
    answer.extend(records.concat());
    answer
}

/// About the name in the question, good for no time at all.
fn record(kind: u8, data: &[u8]) -> Vec<u8> {
    let mut record = vec![0xc0, 12, 0, kind, 0, 1, 0, 0, 0, 0];
    record.extend((data.len() as u16).to_be_bytes());
    record.extend(data);
    record
}

const A: u8 = 1;
const SRV: u8 = 33;
const NO_SUCH_NAME: u8 = 3;
