//! Metrics, as Prometheus reads them: a recorder for processes that have no exporter of their own.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use metrics::{
    Counter, CounterFn, Gauge, GaugeFn, Histogram, HistogramFn, Key, KeyName, Metadata,
    SharedString, Unit,
};
use tenure_lease::telemetry::Metric;

/// Keeps every metric of this process. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct Recorder(Arc<Mutex<Families>>);

#[derive(Debug, Default)]
struct Families {
    families: BTreeMap<String, Family>,
    series: usize,
    refused: u64,
}

#[derive(Debug, Default)]
struct Family {
    help: Option<String>,
    series: BTreeMap<Labels, Series>,
}

/// Sorted by name.
type Labels = Vec<(String, String)>;

#[derive(Clone, Debug)]
enum Series {
    Counter(Arc<Count>),
    Gauge(Arc<Level>),
    Histogram(Arc<Spread>),
}

impl Recorder {
    /// Makes this the process's recorder, and describes what Tenure measures. Do it before anything
    /// else of Tenure's: what is measured before is lost.
    pub fn install() -> Result<Self, InstallError> {
        let recorder = Self::default();
        metrics::set_global_recorder(recorder.clone()).map_err(|_| InstallError)?;
        all().for_each(Metric::describe);
        Ok(recorder)
    }

    /// The text that Prometheus reads.
    pub fn render(&self) -> String {
        let mut text = String::new();
        let families = self.lock();
        for (name, family) in &families.families {
            let Some(kind) = family.series.values().next().map(Series::kind) else { continue };
            if let Some(help) = &family.help {
                let _ = writeln!(text, "# HELP {name} {}", help.replace('\n', " "));
            }
            let _ = writeln!(text, "# TYPE {name} {kind}");
            for (labels, series) in &family.series {
                series.render(&mut text, name, labels);
            }
        }
        let _ = writeln!(text, "# HELP {REFUSED} {REFUSED_HELP}\n# TYPE {REFUSED} counter");
        let _ = writeln!(text, "{REFUSED} {}", families.refused);
        text
    }

    /// The series of this name and these labels; none if there are too many already.
    fn series(&self, key: &Key, make: impl FnOnce() -> Series) -> Option<Series> {
        let mut labels: Labels =
            key.labels().map(|it| (it.key().to_owned(), it.value().to_owned())).collect();
        labels.sort_unstable();
        let mut families = self.lock();
        let known = families.families.get(key.name()).and_then(|it| it.series.get(&labels));
        if let Some(series) = known {
            return Some(series.clone());
        }
        if families.series >= SERIES_MAX {
            families.refused += 1;
            return None;
        }
        families.series += 1;
        let series = make();
        let family = families.families.entry(key.name().to_owned()).or_default();
        family.series.insert(labels, series.clone());
        Some(series)
    }

    fn describe(&self, name: &KeyName, help: &SharedString) {
        let mut families = self.lock();
        let family = families.families.entry(name.as_str().to_owned()).or_default();
        family.help = Some(help.to_string());
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Families> {
        // Maps that are never left half changed.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Everything that Tenure measures, in this process.
pub(crate) fn all() -> impl Iterator<Item = &'static Metric> {
    tenure_lease::telemetry::METRICS
        .iter()
        .chain(tenure_cluster::telemetry::all())
        .chain(tenure_singleton::telemetry::METRICS)
        .chain(tenure_sharding::telemetry::METRICS)
}

impl metrics::Recorder for Recorder {
    fn describe_counter(&self, name: KeyName, _: Option<Unit>, help: SharedString) {
        self.describe(&name, &help);
    }

    fn describe_gauge(&self, name: KeyName, _: Option<Unit>, help: SharedString) {
        self.describe(&name, &help);
    }

    fn describe_histogram(&self, name: KeyName, _: Option<Unit>, help: SharedString) {
        self.describe(&name, &help);
    }

    fn register_counter(&self, key: &Key, _: &Metadata<'_>) -> Counter {
        match self.series(key, || Series::Counter(Arc::default())) {
            Some(Series::Counter(count)) => Counter::from_arc(count),
            _ => Counter::noop(),
        }
    }

    fn register_gauge(&self, key: &Key, _: &Metadata<'_>) -> Gauge {
        match self.series(key, || Series::Gauge(Arc::default())) {
            Some(Series::Gauge(level)) => Gauge::from_arc(level),
            _ => Gauge::noop(),
        }
    }

    fn register_histogram(&self, key: &Key, _: &Metadata<'_>) -> Histogram {
        match self.series(key, || Series::Histogram(Arc::default())) {
            Some(Series::Histogram(spread)) => Histogram::from_arc(spread),
            _ => Histogram::noop(),
        }
    }
}

impl Series {
    fn kind(&self) -> &'static str {
        match self {
            Self::Counter(_) => "counter",
            Self::Gauge(_) => "gauge",
            Self::Histogram(_) => "histogram",
        }
    }

    fn render(&self, text: &mut String, name: &str, labels: &Labels) {
        let mut line = |suffix: &str, more: Option<(&str, String)>, value: String| {
            let _ = writeln!(text, "{name}{suffix}{} {value}", written(labels, more));
        };
        match self {
            Self::Counter(count) => line("", None, count.0.load(Ordering::Relaxed).to_string()),
            Self::Gauge(level) => line("", None, number(level.value())),
            Self::Histogram(spread) => {
                let mut below = 0;
                let counts = spread.counts.iter().map(|count| count.load(Ordering::Relaxed));
                let limits = BUCKETS.iter().map(|limit| number(*limit)).chain(["+Inf".to_owned()]);
                for (limit, count) in limits.zip(counts) {
                    below += count;
                    line("_bucket", Some(("le", limit)), below.to_string());
                }
                line("_sum", None, number(spread.sum.value()));
                line("_count", None, below.to_string());
            }
        }
    }
}

fn written(labels: &Labels, more: Option<(&str, String)>) -> String {
    let escape =
        |value: &str| value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
    let own = labels.iter().map(|(name, value)| format!("{name}=\"{}\"", escape(value)));
    let all: Vec<String> =
        own.chain(more.map(|(name, value)| format!("{name}=\"{value}\""))).collect();
    if all.is_empty() { String::new() } else { format!("{{{}}}", all.join(",")) }
}

fn number(value: f64) -> String {
    match value {
        f64::INFINITY => "+Inf".into(),
        f64::NEG_INFINITY => "-Inf".into(),
        value if value.is_nan() => "NaN".into(),
        value => value.to_string(),
    }
}

#[derive(Debug, Default)]
struct Count(AtomicU64);

impl CounterFn for Count {
    fn increment(&self, value: u64) {
        self.0.fetch_add(value, Ordering::Relaxed);
    }

    fn absolute(&self, value: u64) {
        self.0.fetch_max(value, Ordering::Relaxed);
    }
}

/// A number with a fraction.
#[derive(Debug, Default)]
struct Level(AtomicU64);

impl Level {
    fn value(&self) -> f64 {
        f64::from_bits(self.0.load(Ordering::Relaxed))
    }

    fn add(&self, change: f64) {
        let add = |bits| Some((f64::from_bits(bits) + change).to_bits());
        let _ = self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, add); // Never refused.
    }
}

impl GaugeFn for Level {
    fn increment(&self, value: f64) {
        self.add(value);
    }

    fn decrement(&self, value: f64) {
        self.add(-value);
    }

    fn set(&self, value: f64) {
        self.0.store(value.to_bits(), Ordering::Relaxed);
    }
}

/// How many fell between two limits, and above the last.
#[derive(Debug, Default)]
struct Spread {
    counts: [AtomicU64; BUCKETS.len() + 1],
    sum: Level,
}

impl HistogramFn for Spread {
    fn record(&self, value: f64) {
        let place = BUCKETS.partition_point(|limit| *limit < value);
        self.counts[place].fetch_add(1, Ordering::Relaxed);
        self.sum.add(value);
    }
}

/// Somebody has installed a recorder already.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "this process has a recorder of metrics already: serve that one's metrics, or install this first"
)]
pub struct InstallError;

/// From a store next door to a failover.
const BUCKETS: [f64; 16] = [
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 40.0, 80.0,
];
/// Far more than Tenure has; a label that somebody else left unbounded must not eat the memory.
const SERIES_MAX: usize = 10_000;
const REFUSED: &str = "tenure_metrics_refused_total";
const REFUSED_HELP: &str = "Series that were not kept, because there are too many";

#[cfg(test)]
mod tests {
    use metrics::{Label, Level as Importance, Recorder as _};

    use super::*;

    const META: Metadata<'_> = Metadata::new("test", Importance::INFO, None);

    fn key(name: &'static str, labels: &[(&'static str, &str)]) -> Key {
        let labels = labels.iter().map(|(name, value)| Label::new(*name, value.to_string()));
        Key::from_parts(name, labels.collect::<Vec<_>>())
    }

    #[test]
    fn renders_what_prometheus_reads() {
        let recorder = Recorder::default();
        recorder.describe_gauge("held".into(), None, "1 while\nheld".into());
        recorder.describe_gauge("unused".into(), None, "never seen".into());
        recorder.register_gauge(&key("held", &[("lease", "a\"\\\n")]), &META).set(1.5);
        recorder.register_counter(&key("won_total", &[]), &META).increment(2);
        recorder.register_counter(&key("won_total", &[]), &META).increment(1);
        let seconds = recorder.register_histogram(&key("seconds", &[("op", "renew")]), &META);
        for value in [0.0009765625, 0.001953125, 3.0, 100.0] {
            seconds.record(value);
        }
        let text = recorder.render();
        for line in [
            "# HELP held 1 while held\n# TYPE held gauge\nheld{lease=\"a\\\"\\\\\\n\"} 1.5\n",
            "# TYPE won_total counter\nwon_total 3\n",
            "seconds_bucket{op=\"renew\",le=\"0.001\"} 1\n",
            "seconds_bucket{op=\"renew\",le=\"0.0025\"} 2\n",
            "seconds_bucket{op=\"renew\",le=\"5\"} 3\n",
            "seconds_bucket{op=\"renew\",le=\"+Inf\"} 4\n",
            "seconds_sum{op=\"renew\"} 103.0029296875\n",
            "seconds_count{op=\"renew\"} 4\n",
        ] {
            assert!(text.contains(line), "{line} in {text}");
        }
        assert!(!text.contains("unused"));
    }

    #[test]
    fn series_are_bounded() {
        let recorder = Recorder::default();
        for number in 0..SERIES_MAX + 5 {
            let name = number.to_string();
            recorder.register_counter(&key("many_total", &[("id", &name)]), &META).increment(1);
        }
        assert!(recorder.render().contains("tenure_metrics_refused_total 5\n"));
        assert_eq!(
            recorder.render().lines().filter(|it| it.starts_with("many")).count(),
            SERIES_MAX
        );
    }
}
