//! Answers that an emulator does not give.

use std::sync::{Arc, Mutex};

use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

use tenure_lease::backend::StoreErrorKind;
use tenure_lease::{LeaseName, Store};
use tenure_stores::dynamodb::DynamoStore;
use tenure_testkit::conformance;

/// What comes in parts is read in parts; what makes no progress is an error, and so is a refusal,
/// which does not repeat what it was told.
#[test]
fn awkward_answers() {
    conformance::block_on(async {
        let item = |name: &str| {
            json!({
                "pk": { "S": name }, "format": { "N": "1" }, "term": { "N": "7" },
                "ttlMs": { "N": "2000" }, "rvn": { "S": "0a-released" },
            })
        };
        let key = json!({ "pk": { "S": "b" } });
        let rest = json!({ "leases": { "Keys": [key], "ConsistentRead": true } });
        let part = json!({ "Responses": { "leases": [item("a")] }, "UnprocessedKeys": rest });
        let end = json!({ "Responses": { "leases": [item("b")] }, "UnprocessedKeys": {} });
        let stuck = json!({ "Responses": {}, "UnprocessedKeys": rest });
        let type_ = |name: &str| format!("com.amazon.coral.service#{name}");
        let leak = "The canonical string was 'x-amz-security-token:a-secret'";
        let refused = json!({ "__type": type_("InvalidSignatureException"), "message": leak });
        let busy = json!({ "__type": type_("ProvisionedThroughputExceededException") });
        let answers =
            vec![(200, part), (200, end), (200, stuck.clone()), (200, stuck), (400, refused)];
        let broken = json!({ "__type": type_("InternalServerError") });
        let unclear = json!("is this DynamoDB?");
        let answers = answers.into_iter().chain([(400, busy), (500, broken), (200, unclear)]);
        let answers = answers.collect();
        let (address, asked) = stub(answers).await;
        let url = format!("dynamodb://leases?endpoint=http://{address}");
        let store = DynamoStore::with_access_key(&url, "any", "a-secret").expect("a URL");
        let store = Store::new(store);
        let names = ["a", "b"].map(|name| LeaseName::new(name).expect("a name")).to_vec();
        let read = || store.backend().read(names.clone());
        let records = read().await.expect("both");
        assert!(records.iter().all(|record| record.as_ref().is_some_and(|r| r.token.term == 7)));
        assert_eq!(read().await.expect_err("stuck").kind(), StoreErrorKind::Unavailable);
        let error = read().await.expect_err("refused");
        assert_eq!(error.kind(), StoreErrorKind::Denied);
        assert!(!error.to_string().contains("a-secret"), "{error}");
        // Nothing is sent twice: the next answer would be another.
        for text in ["400 ProvisionedThroughputExceeded", "500 InternalServerError", "speak like"] {
            let error = read().await.expect_err(text);
            assert_eq!(error.kind(), StoreErrorKind::Unavailable, "{error}");
            assert!(error.to_string().contains(text), "{error}");
        }
        let asked = asked.lock().expect("whole").clone();
        assert_eq!(asked.len(), 8, "{asked:?}");
        assert!(asked.iter().all(|request| request.contains("\"ConsistentRead\":true")));
        assert!(!asked[1].contains("\"S\":\"a\""), "{}", asked[1]);
        assert!(!asked.concat().contains("a-secret"));
        // DynamoDB refuses signatures of another time than its own: they follow its clock.
        assert!(!asked[0].contains("x-amz-date: 2099"), "{}", asked[0]);
        assert!(asked[1].contains("x-amz-date: 20990101T0"), "{}", asked[1]);
    });
}

const DATE: &str = "Thu, 01 Jan 2099 00:00:00 GMT";

/// A server that gives these answers, one after the other, and keeps what it was asked.
async fn stub(answers: Vec<(u16, Value)>) -> (String, Arc<Mutex<Vec<String>>>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("an address").to_string();
    let asked = Arc::new(Mutex::new(Vec::new()));
    let kept = Arc::clone(&asked);
    tokio::spawn(async move {
        for (status, answer) in answers {
            let (mut stream, _) = listener.accept().await.expect("a client");
            let (mut request, mut buffer) = (String::new(), [0; 4096]);
            // All of these requests end in two braces and are small.
            while !request.trim_end().ends_with("}}") {
                let count = stream.read(&mut buffer).await.expect("a request");
                request.push_str(&String::from_utf8_lossy(&buffer[..count]));
            }
            kept.lock().expect("whole").push(request);
            let answer = answer.to_string();
            let head = format!(
                "HTTP/1.1 {status} X\r\nContent-Length: {}\r\nConnection: close\r\n\
                 Date: {DATE}\r\n\r\n",
                answer.len()
            );
            stream.write_all((head + &answer).as_bytes()).await.expect("answered");
        }
    });
    (address, asked)
}
