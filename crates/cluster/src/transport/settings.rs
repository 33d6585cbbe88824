//! What can be chosen about the transport, each with how to choose it.

use std::net::SocketAddr;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::frame::HEADER;
use crate::humane;

/// The transport's settings. Every one has a default that suits a cluster in one data centre.
///
/// ```
/// use std::time::Duration;
/// use tenure_cluster::transport::TransportSettings;
///
/// let settings: TransportSettings = serde_json::from_str(r#"{"silence_max": "3s"}"#).unwrap();
/// assert_eq!(settings.silence_max, Duration::from_secs(3));
/// assert_eq!(settings.handshake_timeout, Duration::from_secs(5));
/// let wrong = TransportSettings { data_buffer: 1000, ..settings };
/// assert!(wrong.check().unwrap_err().to_string().contains("data_frame_max"));
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct TransportSettings {
    /// Where to listen. Set it when the node's address is not one of this machine's own (behind
    /// a load balancer, in a container), for instance to `0.0.0.0:7400`. Default: the node's
    /// address, resolved.
    pub listen: Option<SocketAddr>,
    /// The second word that plaintext beyond this machine takes; the first is
    /// [`Security::PlaintextWithoutAnyProtection`](super::Security). Only for networks that
    /// encrypt and authenticate by themselves. Default: false.
    pub allow_plaintext_beyond_loopback: bool,

    /// The longest control frame. The gossip of the whole cluster's state must fit: some hundred
    /// bytes for each node. A peer may make us hold that much for each of its links. The same on
    /// all nodes. Default: 16 MiB.
    pub control_frame_max: usize,
    /// The longest message between users. Long ones delay all that follow on the same link. The
    /// same on all nodes. Default: 1 MiB.
    pub data_frame_max: usize,
    /// How many control frames wait for one peer; when there are more, the oldest is dropped and
    /// counted, since newer ones say more. Default: 256.
    pub control_queue: usize,
    /// How many bytes of messages wait for one peer; a sender waits while they are there. More
    /// smooths bursts, and is memory for each peer that does not keep up. Must hold at least one
    /// frame of `data_frame_max`. Default: 4 MiB.
    pub data_buffer: usize,
    /// How many reads' worth of messages (each up to 128 KiB and one frame) from one peer wait for
    /// this node to handle them, before we stop reading from it. Default: 16.
    pub incoming_batches: usize,

    /// How long a TCP connection may take to open. Above the worst round trip, since a lost
    /// packet is repeated after a second. Default: 2 s.
    #[serde(with = "humane")]
    pub connect_timeout: Duration,
    /// How long a new connection may take to show its certificate and say who it is. Default:
    /// 5 s.
    #[serde(with = "humane")]
    pub handshake_timeout: Duration,
    /// How long a peer's machine may leave our bytes without a sign of having received them before
    /// the connection is given up: how soon a cut that nobody announces is noticed. On the
    /// control lane, a peer that does not take our bytes for that long is given up as well; on the
    /// data lane it is waited for. Linux only; elsewhere the system's own, longer times hold.
    /// Default: 5 s.
    #[serde(with = "humane")]
    pub silence_max: Duration,
    /// After how long without use a link is closed; the next use opens it again. Default: 60 s.
    #[serde(with = "humane")]
    pub idle_timeout: Duration,
    /// The wait before the second attempt to open a link; it doubles from there. Default: 50 ms.
    #[serde(with = "humane")]
    pub reconnect_min: Duration,
    /// The longest wait between attempts to open a link: how long after a cut has healed we may
    /// notice. Default: 1 s.
    #[serde(with = "humane")]
    pub reconnect_max: Duration,
    /// How often the certificate's files are looked at for a change. Default: 30 s.
    #[serde(with = "humane")]
    pub certificate_check: Duration,
    /// How old a link with certificates may become. Whoever opened it opens it again before that,
    /// without losing a message; so each peer shows a certificate that is good now at least this
    /// often. Less costs handshakes: four for each pair of nodes that talk, within this time.
    /// Default: 1 h.
    #[serde(with = "humane")]
    pub link_age_max: Duration,

    /// How many connections peers may have open to this node: two for each peer, and some to
    /// spare while they reconnect. Default: 8192.
    pub connections_max: usize,
    /// How many of them may show the same certificate, unless that is for all names
    /// (`tenure://CLUSTER/*`): two for the node that it is for, and some to spare while it
    /// reconnects or restarts. Default: 16.
    pub links_per_certificate_max: usize,
    /// How many connections clients may have to this node, which are no members
    /// ([`client`](crate::client)); 0 if there are to be none. Default: 1024.
    pub clients_max: usize,
    /// How many connections may be open that have not yet shown who they are. Default: 512.
    pub handshakes_max: usize,
    /// The same for one IP address; at least twice the number of nodes that share one. Default:
    /// 64.
    pub handshakes_per_ip_max: usize,

    /// Cuts this node off from others when it is told to. Only code can set it. Default: none.
    #[cfg(feature = "switch")]
    #[serde(skip)]
    pub switch: Option<super::Switch>,
}

impl TransportSettings {
    /// Checks what must hold between them.
    pub fn check(&self) -> Result<(), TransportSettingsError> {
        let refuse = |text: String| Err(TransportSettingsError(text));
        let counts = [
            ("control_frame_max", self.control_frame_max),
            ("data_frame_max", self.data_frame_max),
            ("control_queue", self.control_queue),
            ("incoming_batches", self.incoming_batches),
            ("connections_max", self.connections_max),
            ("links_per_certificate_max", self.links_per_certificate_max),
            ("handshakes_max", self.handshakes_max),
            ("handshakes_per_ip_max", self.handshakes_per_ip_max),
        ];
        if let Some((name, _)) = counts.iter().find(|(_, value)| *value == 0) {
            return refuse(format!("{name} must be at least 1"));
        }
        let times = [
            ("connect_timeout", self.connect_timeout),
            ("handshake_timeout", self.handshake_timeout),
            ("silence_max", self.silence_max),
            ("idle_timeout", self.idle_timeout),
            ("reconnect_min", self.reconnect_min),
            ("certificate_check", self.certificate_check),
        ];
        for (name, value) in times {
            if value < Duration::from_millis(1) {
                return refuse(format!("{name} must be at least 1ms"));
            }
        }
        if self.link_age_max < Duration::from_secs(1) {
            return refuse("link_age_max must be at least 1s".into());
        }
        for (name, value) in &counts[..2] {
            if *value > FRAME_MAX {
                return refuse(format!("{name} {value} must be at most {FRAME_MAX}"));
            }
        }
        if self.data_buffer < self.data_frame_max + HEADER {
            return refuse(format!(
                "data_buffer {} must be at least data_frame_max {} + {HEADER}: a message that does \
                 not fit would wait for ever",
                self.data_buffer, self.data_frame_max
            ));
        }
        if self.data_buffer > BUFFER_MAX {
            return refuse(format!(
                "data_buffer {} must be at most {BUFFER_MAX}",
                self.data_buffer
            ));
        }
        if self.reconnect_max < self.reconnect_min {
            return refuse(format!(
                "reconnect_max {:?} must not be less than reconnect_min {:?}",
                self.reconnect_max, self.reconnect_min
            ));
        }
        Ok(())
    }
}

impl Default for TransportSettings {
    fn default() -> Self {
        Self {
            listen: None,
            allow_plaintext_beyond_loopback: false,
            control_frame_max: 16 << 20,
            data_frame_max: 1 << 20,
            control_queue: 256,
            data_buffer: 4 << 20,
            incoming_batches: 16,
            connect_timeout: Duration::from_secs(2),
            handshake_timeout: Duration::from_secs(5),
            silence_max: Duration::from_secs(5),
            idle_timeout: Duration::from_secs(60),
            reconnect_min: Duration::from_millis(50),
            reconnect_max: Duration::from_secs(1),
            certificate_check: Duration::from_secs(30),
            link_age_max: Duration::from_secs(3600),
            connections_max: 8192,
            links_per_certificate_max: 16,
            clients_max: 1024,
            handshakes_max: 512,
            handshakes_per_ip_max: 64,
            #[cfg(feature = "switch")]
            switch: None,
        }
    }
}

/// Why settings cannot work.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("transport settings: {0}")]
pub struct TransportSettingsError(String);

/// Its length must fit in four bytes, and a link that carries such a frame is busy for seconds.
const FRAME_MAX: usize = 1 << 30;
/// Room is counted in 32 bits.
const BUFFER_MAX: usize = u32::MAX as usize;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn defaults_work_and_survive_a_file() {
        let settings = TransportSettings::default();
        settings.check().unwrap();
        let file = serde_json::to_string(&settings).unwrap();
        assert!(file.contains(r#""reconnect_min":"50ms""#), "{file}");
        assert_eq!(serde_json::from_str::<TransportSettings>(&file).unwrap(), settings);
    }

    #[test]
    fn slips_are_named() {
        for (file, named) in [
            (r#"{"silence_max": "5"}"#, "no duration"),
            (r#"{"silence_max": "-5s"}"#, "no duration"),
            (r#"{"silence_max": "99999999999h"}"#, "no duration"),
            (r#"{"silence": "5s"}"#, "unknown field"),
        ] {
            let error = serde_json::from_str::<TransportSettings>(file).unwrap_err();
            assert!(error.to_string().contains(named), "{error}");
        }
        let zero = TransportSettings { control_queue: 0, ..TransportSettings::default() };
        assert!(zero.check().unwrap_err().to_string().contains("control_queue"));
    }
}
