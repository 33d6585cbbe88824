//! Items that must be readable for ever, in the JSON in which DynamoDB is sent them.

use aws_smithy_types::base64;
use serde_json::json;

use super::*;
use crate::dynamodb::{acquisition, end_of_tenure};
use crate::records::samples;

impl Change {
    /// What it makes of an item.
    fn apply_to(&self, item: &mut Item) {
        for set in &self.set {
            let (name, value) = set.split_once(" = ").unwrap();
            item.insert(self.names[name].clone(), self.values[value].clone());
        }
        for name in &self.remove {
            item.remove(&self.names[name]);
        }
    }
}

fn to_json(item: &Item) -> Vec<u8> {
    let value = |value: &AttributeValue| match value {
        AttributeValue::S(text) => json!({ "S": text }),
        AttributeValue::N(number) => json!({ "N": number }),
        AttributeValue::B(bytes) => json!({ "B": base64::encode(bytes) }),
        other => panic!("records have no {other:?}"),
    };
    let item: BTreeMap<_, _> = item.iter().map(|(name, it)| (name, value(it))).collect();
    serde_json::to_vec(&item).unwrap()
}

fn from_json(bytes: &[u8]) -> Item {
    let item: BTreeMap<String, BTreeMap<String, String>> = serde_json::from_slice(bytes).unwrap();
    let value = |value: BTreeMap<String, String>| match value.into_iter().next().unwrap() {
        (kind, text) if kind == "S" => AttributeValue::S(text),
        (kind, number) if kind == "N" => AttributeValue::N(number),
        (_, bytes) => AttributeValue::B(Blob::new(base64::decode(bytes).unwrap())),
    };
    item.into_iter().map(|(name, it)| (name, value(it))).collect()
}

fn read(item: Item) -> Result<Option<Record>, StoreError> {
    match Content::new(&samples::name(), Some(item))? {
        Content::Ours { record, .. } => Ok(Some(record)),
        other => panic!("it is not ours: {other:?}"),
    }
}

#[test]
fn samples_can_be_read_also_with_an_attribute_that_a_later_release_adds() {
    let request = samples::request();
    let mut item = Item::from([(KEY.to_owned(), s(samples::name().as_str()))]);
    let unheld = Content::Unheld { rvn: unheld(request.claim) };
    acquisition(&request, samples::TERM, &unheld).apply_to(&mut item);
    // The clock's, and a renewal's.
    item.extend([(LEASE_UNTIL.to_owned(), n(7)), (RVN.to_owned(), s(&samples::NONCE.to_string()))]);
    let held = (item.clone(), samples::held(&samples::NONCE.to_string()));
    end_of_tenure(request.claim).apply_to(&mut item);
    let released = (item, samples::released(&released(request.claim)));
    for (name, (mut item, expected)) in [("Dynamo::held", held), ("Dynamo::released", released)] {
        samples::check(name, to_json(&item), &expected, |bytes| read(from_json(bytes)));
        item.insert("added".to_owned(), s("later"));
        assert_eq!(read(item), Ok(Some(expected)));
    }
}
