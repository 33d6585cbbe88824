//! The table in docs/metrics.md is what the code describes, and what it emits.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use tenure_lease::telemetry::{Kind, Metric};

const TABLE: &str = include_str!("../../../docs/metrics.md");

fn described() -> impl Iterator<Item = &'static Metric> {
    tenure_lease::telemetry::METRICS
        .iter()
        .chain(tenure_cluster::telemetry::all())
        .chain(tenure_singleton::telemetry::METRICS)
        .chain(tenure_sharding::telemetry::METRICS)
        .chain(tenure_cron::telemetry::METRICS)
}

/// Name, kind and labels of each row.
fn rows() -> Vec<(String, String, Vec<String>)> {
    let rows = TABLE.lines().filter(|line| line.starts_with("| `tenure_"));
    rows.map(|line| {
        let cells: Vec<&str> = line.trim_matches('|').split('|').map(str::trim).collect();
        let [name, kind, labels, meaning, todo] = cells[..] else { panic!("{line}") };
        assert!(!meaning.is_empty() && !todo.is_empty(), "{line}");
        let bare = |text: &str| text.trim().trim_matches('`').to_owned();
        let labels = labels.split(',').map(bare).filter(|label| !label.is_empty()).collect();
        (bare(name), kind.to_owned(), labels)
    })
    .collect()
}

fn kind(metric: &Metric) -> &'static str {
    match metric.kind {
        Kind::Counter => "counter",
        Kind::Gauge => "gauge",
        Kind::Histogram => "histogram",
    }
}

#[test]
fn the_table_is_what_is_described() {
    let described: Vec<_> = described()
        .map(|it| {
            let labels = it.labels.iter().map(|label| (*label).to_owned()).collect::<Vec<_>>();
            (it.name.to_owned(), kind(it).to_owned(), labels)
        })
        .collect();
    let (table, described): (BTreeSet<_>, BTreeSet<_>) =
        (rows().into_iter().collect(), described.into_iter().collect());
    let missing: Vec<_> = described.difference(&table).collect();
    let unknown: Vec<_> = table.difference(&described).collect();
    assert!(missing.is_empty(), "not in docs/metrics.md: {missing:?}");
    assert!(unknown.is_empty(), "only in docs/metrics.md: {unknown:?}");
    assert_eq!(rows().len(), table.len(), "a row stands twice");
}

#[test]
fn names_follow_the_conventions() {
    for metric in described() {
        let Metric { name, kind, .. } = metric;
        assert_eq!(name.ends_with("_total"), *kind == Kind::Counter, "{name}");
        assert!(*kind != Kind::Histogram || name.ends_with("_seconds"), "{name}");
        assert!(name.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'_'), "{name}");
        for label in metric.labels {
            assert!(!["node", "address", "entity", "id"].contains(label), "{name}: {label}");
        }
    }
}

/// Every name of a metric that stands in the sources of the libraries, as a text, is described; and
/// nowhere is one emitted by a text, rather than by one of those names.
#[test]
fn nothing_is_emitted_that_is_not_described() {
    let names: BTreeMap<&str, &Metric> = described().map(|it| (it.name, it)).collect();
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let mut found = BTreeSet::new();
    for name in ["lease", "cron", "cluster", "singleton", "sharding", "stores"] {
        for file in sources(&crates.join(name).join("src")) {
            let text = fs::read_to_string(&file).unwrap();
            for quoted in text.split('"').skip(1).step_by(2) {
                let words = quoted.bytes().all(|it| it.is_ascii_lowercase() || it == b'_');
                if words && quoted.starts_with("tenure_") {
                    assert!(names.contains_key(quoted), "{quoted} in {}", file.display());
                    found.insert(quoted.to_owned());
                }
            }
            for emitted in ["counter!(\"", "gauge!(\"", "histogram!(\""] {
                assert!(!text.contains(emitted), "{emitted} in {}", file.display());
            }
        }
    }
    let described: BTreeSet<String> = names.keys().map(|name| (*name).to_owned()).collect();
    assert_eq!(found, described);
}

fn sources(directory: &Path) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for entry in fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            files.extend(sources(&path));
        } else if path.extension().is_some_and(|it| it == "rs") {
            files.push(path);
        }
    }
    files
}
