use std::path::{Path, PathBuf};
use std::{fmt, fs};

use serde::Deserialize;
use tenure_cluster::Settings;
use tenure_cluster::downing::Strategy;
use tenure_lease::{Lease, OpenError, Store, duration};
use tenure_manage::Token;
use tokio::sync::OnceCell;
use toml::de::{DeTable, DeValue, Deserializer};

use crate::place::Place;

/// A node's file, read and understood. Its store is opened when it is first asked for.
pub struct NodeFile {
    place: Place,
    settings: Settings,
    own: Own,
    store: OnceCell<Store>,
}

/// Why a node's file cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum NodeFileError {
    /// It cannot be read, or something in it is wrong: what, and where.
    #[error("{0}")]
    Wrong(String),
    /// The store that it names cannot be used, as it is now.
    #[error(transparent)]
    Store(tenure_lease::backend::StoreError),
}

/// What stands in the file beside the cluster's own settings.
#[derive(Deserialize)]
struct Own {
    store: Option<String>,
    formation: Option<String>,
    formation_ttl: Option<String>,
    admin: Option<PathBuf>,
    manage: Option<OwnManage>,
    downing: Option<OwnDowning>,
}

/// `[manage]`: where the management API listens, and who may use it.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct OwnManage {
    listen: Option<String>,
    read_token_file: Option<PathBuf>,
    write_token_file: Option<PathBuf>,
    certificate: Option<PathBuf>,
    key: Option<PathBuf>,
    client_ca: Option<PathBuf>,
    #[serde(default)]
    writers: Vec<String>,
}

/// What stands in `[downing]` beside the strategy: the lease that it asks.
#[derive(Deserialize)]
struct OwnDowning {
    lease: Option<String>,
    ttl: Option<String>,
}

impl NodeFile {
    /// Reads it.
    pub fn load(path: impl AsRef<Path>) -> Result<Self, NodeFileError> {
        let path = path.as_ref();
        let text = fs::read_to_string(path)
            .map_err(|error| NodeFileError::Wrong(format!("{}: {error}", path.display())))?;
        Self::parse(path, &text)
    }

    fn parse(path: &Path, text: &str) -> Result<Self, NodeFileError> {
        let mut place = Place::new(path, text);
        let refuse = |place: &Place, error| NodeFileError::Wrong(place.refuse(&error, &KNOWN));
        let table = DeTable::parse(text).map_err(|error| refuse(&place, error))?;
        place.note("", table.get_ref());
        let own = Own::deserialize(Deserializer::from(table.clone()))
            .map_err(|error| refuse(&place, error))?;
        let mut rest = table;
        for name in OWN {
            rest.get_mut().remove(name);
        }
        let downing = rest.get_mut().get_mut("downing").map(|value| value.get_mut());
        if let Some(DeValue::Table(downing)) = downing {
            for name in OWN_DOWNING {
                downing.remove(name);
            }
        }
        let settings = Settings::deserialize(Deserializer::from(rest))
            .map_err(|error| refuse(&place, error))?;
        Ok(Self { place, settings, own, store: OnceCell::new() })
    }

    /// Where `tenure node` listens for `tenure cluster`. Nothing else does.
    pub fn admin(&self) -> Option<&Path> {
        self.own.admin.as_deref()
    }

    /// Where the management API listens, and who may use it, if it is wanted.
    pub fn manage(&self) -> Result<Option<tenure_manage::Settings>, NodeFileError> {
        let Some(manage) = &self.own.manage else { return Ok(None) };
        let default = tenure_manage::Settings::default();
        let settings = tenure_manage::Settings {
            listen: manage.listen.clone().unwrap_or_else(|| default.listen.clone()),
            read_token_file: manage.read_token_file.clone(),
            write_token_file: manage.write_token_file.clone(),
            certificate: manage.certificate.clone(),
            key: manage.key.clone(),
            client_ca: manage.client_ca.clone(),
            writers: manage.writers.clone(),
            ..default
        };
        self.check_token("manage.read_token_file", manage.read_token_file.as_deref())?;
        self.check_token("manage.write_token_file", manage.write_token_file.as_deref())?;
        settings.check().map_err(|error| self.wrong(&error.to_string()))?;
        Ok(Some(settings))
    }

    /// A file with a token, if one is named, has one.
    fn check_token(&self, setting: &str, path: Option<&Path>) -> Result<(), NodeFileError> {
        match path.map(Token::load) {
            Some(Err(error)) => Err(self.wrong_at(setting, &error.to_string())),
            _ => Ok(()),
        }
    }

    /// The store that the file names, if it does: for leases of your own, too.
    pub async fn store(&self) -> Result<Option<Store>, NodeFileError> {
        let Some(url) = &self.own.store else { return Ok(None) };
        let open = || async {
            tenure_stores::open(url).await.map_err(|error| match error {
                OpenError::Url(wrong) => self.wrong_at("store", &wrong),
                OpenError::Store(trouble) => NodeFileError::Store(trouble),
            })
        };
        self.store.get_or_try_init(open).await.cloned().map(Some)
    }

    /// Everything, with the leases in their store.
    pub async fn settings(&self) -> Result<Settings, NodeFileError> {
        let mut settings = self.settings.clone();
        let own = &self.own;
        let asks = matches!(settings.downing, Some(Strategy::LeaseMajority(_)));
        let (lease, ttl) = match &own.downing {
            Some(downing) => (&downing.lease, &downing.ttl),
            None => (&None, &None),
        };
        let formation =
            self.one_lease("formation", "formation_ttl", &own.formation, &own.formation_ttl)?;
        let arbitration = self.one_lease("downing.lease", "downing.ttl", lease, ttl)?;
        match &arbitration {
            None if asks => {
                return Err(self.wrong_at("downing.lease", NEEDS_LEASE));
            }
            Some(lease) if !asks => {
                return Err(self.wrong_at(lease.setting, "only lease-majority asks a lease"));
            }
            _ => {}
        }
        if own.store.is_some() && formation.is_none() && arbitration.is_none() {
            return Err(self.wrong_at("store", "set formation, too: the lease's name in it"));
        }
        match self.store().await? {
            Some(store) => {
                if let Some(lease) = formation {
                    settings = settings.formation(self.lease(&store, lease)?);
                }
                if let Some(lease) = arbitration {
                    settings = settings.arbitration(self.lease(&store, lease)?);
                }
            }
            None => {
                if let Some(lease) = formation.or(arbitration) {
                    let what = "set store, too: where the lease is kept";
                    return Err(self.wrong_at(lease.setting, what));
                }
            }
        }
        settings.check().map_err(|error| self.wrong(&error.to_string()))?;
        Ok(settings)
    }

    /// A lease as the file describes it; a ttl alone describes none.
    fn one_lease<'a>(
        &self,
        setting: &'a str,
        ttl_setting: &'a str,
        name: &'a Option<String>,
        ttl: &'a Option<String>,
    ) -> Result<Option<OneLease<'a>>, NodeFileError> {
        match name {
            Some(name) => Ok(Some(OneLease { setting, ttl_setting, name, ttl: ttl.as_deref() })),
            None if ttl.is_some() => {
                let what = format!("set {setting}, too: the lease's name");
                Err(self.wrong_at(ttl_setting, &what))
            }
            None => Ok(None),
        }
    }

    fn lease(&self, store: &Store, one: OneLease<'_>) -> Result<Lease, NodeFileError> {
        let mut lease = store.lease(one.name).owner(&self.settings.name);
        if let Err(error) = lease.name() {
            return Err(self.wrong_at(one.setting, &error.to_string()));
        }
        if let Some(ttl) = one.ttl {
            let ttl =
                duration::parse(ttl).map_err(|error| self.wrong_at(one.ttl_setting, &error))?;
            lease = lease.ttl(ttl);
        }
        lease
            .timing()
            .check_for(&store.info())
            .map_err(|error| self.wrong_at(one.ttl_setting, &error.to_string()))?;
        Ok(lease)
    }

    /// Something is wrong; if the message names a setting that is in the file, it is said where.
    pub fn wrong(&self, message: &str) -> NodeFileError {
        NodeFileError::Wrong(self.place.failure(self.place.named_in(message), message))
    }

    /// Something is wrong with this setting.
    pub fn wrong_at(&self, setting: &str, message: &str) -> NodeFileError {
        let found = self.place.find(setting);
        NodeFileError::Wrong(match found {
            Some(_) => self.place.failure(found, &format!("{setting}: {message}")),
            None => self.place.failure(None, &format!("{setting} (not set): {message}")),
        })
    }
}

/// Not the store's URL: there may be a password in it.
impl fmt::Debug for NodeFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NodeFile").field("place", &self.place).finish_non_exhaustive()
    }
}

/// A lease as the file describes it, and under which settings.
struct OneLease<'a> {
    setting: &'a str,
    ttl_setting: &'a str,
    name: &'a str,
    ttl: Option<&'a str>,
}

/// The settings that are not the cluster's own.
const OWN: [&str; 5] = ["store", "formation", "formation_ttl", "admin", "manage"];
/// The same in `[downing]`.
const OWN_DOWNING: [&str; 2] = ["lease", "ttl"];
/// What the file may have beyond the cluster's own settings: in itself, and in tables.
const KNOWN: [(&str, &[&str]); 2] = [("", &OWN), ("downing.", &OWN_DOWNING)];
const NEEDS_LEASE: &str =
    "lease-majority asks a lease in the store: set its name, the same on all nodes";

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tenure_cluster::downing::Mode;

    use super::*;

    fn parse(text: &str) -> Result<NodeFile, NodeFileError> {
        NodeFile::parse(Path::new("node.toml"), text)
    }

    async fn error(text: &str) -> String {
        let failure = match parse(text) {
            Err(failure) => failure,
            Ok(file) => file.settings().await.expect_err(text),
        };
        format!("{failure:?}")
    }

    const WHOLE: &str = "
        cluster = 'shop'
        name = 'shop-0'
        address = '127.0.0.1:7400'
        identity = 'certs/shop-0'
        roles = ['worker']
        store = 'memory:'
        formation = 'shop.formation'
        formation_ttl = '5s'
        admin = 'shop-0.sock'
        [membership]
        heartbeat_interval = '500ms'
        [transport]
        silence_max = '3s'
        [downing]
        strategy = 'lease-majority'
        mode = 'always'
        acquire_timeout = '2s'
        lease = 'shop.arbitration'
        ttl = '8s'
        [resolver]
        stable_after = '1s'
        [manage]
        listen = '127.0.0.1:0'";

    #[tokio::test]
    async fn a_whole_file_is_understood() {
        let file = parse(WHOLE).unwrap();
        assert_eq!(file.admin(), Some(Path::new("shop-0.sock")));
        let settings = file.settings().await.unwrap();
        assert_eq!(settings.membership.heartbeat_interval.as_millis(), 500);
        assert_eq!(settings.resolver.stable_after, Some(Duration::from_secs(1)));
        let Some(Strategy::LeaseMajority(strategy)) = settings.downing else { panic!() };
        assert_eq!(strategy.mode, Mode::Always);
        assert_eq!(strategy.acquire_timeout, Duration::from_secs(2));
    }

    #[test]
    fn the_management_api_is_not_opened_by_accident() {
        let manage = |text: &str| {
            let file = parse(&WHOLE.replace("listen = '127.0.0.1:0'", text)).unwrap();
            file.manage().map(|_| ()).map_err(|failure| format!("{failure:?}"))
        };
        assert_eq!(manage("listen = '127.0.0.1:0'"), Ok(()));
        assert_eq!(manage(""), Ok(()));
        for (text, expected) in [
            (
                "listen = '0.0.0.0:7480'",
                "line 24: listen 0.0.0.0:7480 is beyond loopback: set cert",
            ),
            ("listen = 'here'", "line 24: listen"),
            ("read_token_file = '/nowhere'", "line 24: manage.read_token_file: /nowhere: "),
            (
                "write_token_file = '/dev/null'",
                "line 24: manage.write_token_file: /dev/null: a tok",
            ),
            ("certificate = 'a.pem'", "line 24: certificate and key go together"),
        ] {
            let found = manage(text).unwrap_err();
            assert!(found.contains(expected), "{text}: {found}");
        }
    }

    #[test]
    fn the_documentation_has_every_setting() {
        let documentation = include_str!("../../../docs/cluster.md");
        let example = documentation.split("```").find_map(|block| block.strip_prefix("toml\n"));
        let file = parse(example.expect("an example")).unwrap();
        let all = serde_json::to_value(&file.settings).unwrap();
        let mut settings: Vec<&str> = OWN.to_vec();
        settings.extend(OWN_DOWNING);
        settings.extend(DOWNING);
        settings.extend(MANAGE);
        for part in [&all, &all["membership"], &all["transport"], &all["resolver"]] {
            let part = part.as_object().unwrap().iter();
            settings.extend(part.filter(|(_, value)| !value.is_object()).map(|(name, _)| &**name));
        }
        for setting in settings {
            // A setting, or a table of them.
            let names = [format!("`{setting}`"), format!("`[{setting}]`")];
            assert!(names.iter().any(|name| documentation.contains(name)), "{setting}");
        }
    }

    #[test]
    fn a_program_can_read_what_the_manifest_has() {
        let manifest = include_str!("../../../deploy/kubernetes/cluster.yaml");
        let (_, rest) = manifest.split_once("  node.toml: |\n").expect("a node's file");
        let lines = rest.lines().take_while(|line| line.is_empty() || line.starts_with("    "));
        let text: String = lines.map(|line| format!("{}\n", line.trim_start())).collect();
        let file = parse(&text).unwrap();
        assert_eq!(file.settings.cluster, "shop");
        assert_eq!(file.own.store.as_deref(), Some("k8s://default"));
        assert!(file.own.manage.is_some() && file.admin().is_some());
        assert!(!format!("{file:?}").contains("k8s:"), "a URL may have a password");
    }

    #[tokio::test]
    async fn every_strategy_can_be_written() {
        let head = &WHOLE[..WHOLE.find("[downing]").unwrap()];
        for text in [
            "strategy = 'keep-majority'\nrole = 'worker'",
            "strategy = 'static-quorum'\nquorum_size = 3\nrole = 'worker'",
            "strategy = 'keep-oldest'\ndown_if_alone = false\nrole = 'worker'",
            "strategy = 'keep-referee'\nreferee = '127.0.0.1:7400'\ndown_all_if_less_than = 2",
            "strategy = 'down-all'",
            "strategy = 'lease-majority'\nlease = 'shop.arbitration'\nrole = 'worker'",
        ] {
            let file = parse(&format!("{head}\n[downing]\n{text}")).expect(text);
            assert!(file.settings().await.unwrap().downing.is_some(), "{text}");
        }
        let unused = "cluster = 'shop'\nidentity = 'certs'\nstore = 'memory:'";
        let found = error(unused).await;
        assert!(found.contains("line 3: store: set formation"), "{found}");
        for (text, expected) in [
            ("strategy = 'static-quorum'", "static-quorum needs quorum_size"),
            ("strategy = 'static-quorum'\nquorum_size = 0", "line 18: quorum_size 0 must be"),
            ("strategy = 'keep-referee'\nreferee = 'shop'", "line 18: referee: "),
            ("strategy = 'lease-majority'", "downing.lease (not set): lease-majority asks"),
            ("strategy = 'down-all'\nlease = 'a'", "line 18: downing.lease: only lease-majority"),
            ("role = 'worker'", "missing field `strategy`"),
        ] {
            let found = error(&format!("{head}\n[downing]\n{text}")).await;
            assert!(found.contains("node.toml") && found.contains(expected), "{text}: {found}");
        }
    }

    const MANAGE: [&str; 7] = [
        "listen",
        "read_token_file",
        "write_token_file",
        "certificate",
        "key",
        "client_ca",
        "writers",
    ];

    /// The strategies and all their options.
    const DOWNING: [&str; 14] = [
        "lease-majority",
        "keep-majority",
        "static-quorum",
        "keep-oldest",
        "keep-referee",
        "down-all",
        "strategy",
        "role",
        "quorum_size",
        "down_if_alone",
        "referee",
        "down_all_if_less_than",
        "mode",
        "acquire_timeout",
    ];

    #[tokio::test]
    async fn what_is_wrong_is_said_with_line_and_setting() {
        for (from, to, expected) in [
            (
                "'500ms'",
                "'500'",
                "line 12: membership.heartbeat_interval: \\\"500\\\" is no duration",
            ),
            ("'500ms'", "'0ms'", "line 12: heartbeat_interval 0ns must be at least"),
            ("'500ms'", "500", "line 12: membership.heartbeat_interval: invalid type"),
            ("'127.0.0.1:7400'", "'here'", "line 4: address: \\\"here\\\" is not an address"),
            ("roles", "rolls", "line 6: unknown field `rolls`, expected one of `cluster`"),
            ("roles", "rolls", "`formation_ttl`, `admin`"),
            ("silence_max", "silence", "line 14: unknown field `silence`"),
            ("'worker'", "7", "line 6: roles: invalid type"),
            ("['worker']", "", "line 6: "),
            ("cluster = 'shop'", "", "missing field `cluster`"),
            ("'5s'", "'5'", "line 9: formation_ttl: \\\"5\\\" is no duration"),
            ("formation = 'shop.formation'", "", "line 9: formation_ttl: set formation"),
            ("store = 'memory:'", "", "line 8: formation: set store"),
            ("'shop.formation'", "'Shop'", "line 8: formation: "),
            ("lease-majority", "majority", "line 16: downing.strategy: unknown variant `majority`"),
            ("'always'", "'never'", "line 17: downing.mode: unknown variant `never`"),
            ("'2s'", "'2'", "line 18: downing.acquire_timeout: \\\"2\\\" is no duration"),
            ("'2s'", "'0s'", "line 18: acquire_timeout 0ns must be at least"),
            ("mode", "mood", "line 17: unknown field `mood`, expected one of `strategy`"),
            ("mode", "mood", "`lease`, `ttl`"),
            ("lease-majority", "keep-majority", "line 17: mode means nothing to keep-majority"),
            ("lease-majority", "static-quorum", "line 17: mode means nothing to static-quorum"),
            ("lease = 'shop.arbitration'", "", "line 20: downing.ttl: set downing.lease"),
            ("'shop.arbitration'", "'Shop'", "line 19: downing.lease: "),
            ("'8s'", "'8'", "line 20: downing.ttl: \\\"8\\\" is no duration"),
            ("stable_after", "stable", "line 22: unknown field `stable`"),
            ("identity", "#", "set identity to a directory"),
            ("listen", "listens", "line 24: unknown field `listens`, expected one of `listen`"),
        ] {
            let found = error(&WHOLE.replace(from, to)).await;
            assert!(found.contains("node.toml") && found.contains(expected), "{to}: {found}");
        }
    }
}
