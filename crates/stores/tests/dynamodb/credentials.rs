//! Where credentials come from.

use std::process::Command;
use std::time::Duration;

use tenure_lease::Store;
use tenure_stores::dynamodb::DynamoStore;
use tenure_testkit::conformance;

use super::server::fresh;
use super::{Dynamo, TABLE};

/// The standard chain finds what the environment holds; without any, that is what is said. In
/// processes of their own, since an environment is a process's.
#[test]
fn the_standard_chain() {
    let Some((dynamo, _turn)) = Dynamo::find() else { return };
    let child = |environment: &[(&str, &str)]| {
        let output = Command::new(std::env::current_exe().expect("a program"))
            .args(["--exact", "credentials::with_these_credentials", "--nocapture"])
            .env("WITH_THESE_CREDENTIALS", &dynamo.0.address)
            .env_remove("AWS_PROFILE")
            .env_remove("AWS_ACCESS_KEY_ID")
            .env_remove("AWS_SECRET_ACCESS_KEY")
            .env("AWS_CONFIG_FILE", "/nonexistent")
            .env("AWS_SHARED_CREDENTIALS_FILE", "/nonexistent")
            .env("AWS_EC2_METADATA_DISABLED", "true")
            .envs(environment.iter().copied())
            .output();
        let output = output.expect("it ran");
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(output.status.success(), "{text}");
        text
    };
    let found = child(&[("AWS_ACCESS_KEY_ID", "any"), ("AWS_SECRET_ACCESS_KEY", "a-secret")]);
    assert!(found.contains("read: Ok"), "{found}");
    let file = std::env::temp_dir().join(format!("{}", fresh("profile")));
    let profile = "[shop]\naws_access_key_id = any\naws_secret_access_key = a-secret\n";
    std::fs::write(&file, profile).expect("written");
    let path = file.display().to_string();
    let profile = [("AWS_SHARED_CREDENTIALS_FILE", path.as_str()), ("AWS_PROFILE", "shop")];
    let found = child(&profile);
    assert!(found.contains("read: Ok"), "{found}");
    // A program that takes longer than a request may: its result serves the next one.
    let (answer, runs) = (format!("{path}.json"), format!("{path}.runs"));
    let keys = r#"{"Version":1,"AccessKeyId":"any","SecretAccessKey":"a-secret"}"#;
    std::fs::write(&answer, keys).expect("written");
    let program = format!("sh -c 'echo >> {runs}; sleep 2; cat {answer}'");
    std::fs::write(&file, format!("[shop]\ncredential_process = {program}\n")).expect("written");
    let slow = child(&profile);
    assert!(slow.contains("read: Ok") && !slow.contains("attempt 0"), "{slow}");
    assert_eq!(std::fs::read_to_string(&runs).expect("it ran").len(), 1, "it ran once");
    for file in [path, answer, runs] {
        std::fs::remove_file(file).expect("removed");
    }
    let none = child(&[]);
    println!("{none}");
    assert!(none.contains("Denied") && none.contains("no AWS credentials"), "{none}");
    let wrong = [("AWS_ACCESS_KEY_ID", "any"), ("AWS_SECRET_ACCESS_KEY", "")];
    let wrong = child(&wrong);
    assert!(wrong.contains("no AWS credentials"), "{wrong}");
}

/// The other half of `the_standard_chain`.
#[test]
fn with_these_credentials() {
    let Ok(address) = std::env::var("WITH_THESE_CREDENTIALS") else { return };
    let url = format!("dynamodb://{TABLE}?endpoint={address}");
    let store = Store::new(DynamoStore::new(&url).expect("a URL"));
    let name = fresh("credentials");
    conformance::block_on(async {
        // As a keeper does, whose requests are dropped when their time is over.
        for attempt in 0..20 {
            let limit = tokio::time::timeout(PATIENCE, store.backend().read(vec![name.clone()]));
            if let Ok(read) = limit.await {
                println!("read: {read:?}, attempt {attempt}");
                return;
            }
        }
        println!("no answer");
    });
}

const PATIENCE: Duration = Duration::from_millis(700);
