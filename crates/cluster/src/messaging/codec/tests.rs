use std::collections::BTreeMap;
use std::fmt::Debug;

use proptest::prelude::*;
use serde::{Deserialize, Serialize};

use super::name::type_name;
use super::*;
use crate::messaging::{Json, Message, Positional};

fn encode<M: Message>(message: &M) -> Vec<u8> {
    let mut out = vec![7];
    message.encode(&mut out).unwrap();
    assert_eq!(out.remove(0), 7, "what was there before stays");
    out
}

/// What one type sent, another reads.
fn read<M: Message>(sent: &impl Message) -> Result<M, String> {
    M::decode(&encode(sent)).map_err(|error| error.to_string())
}

/// Reads back what was written, in each form; and not if a byte is missing, or one too many.
fn round<M>(value: M)
where
    M: Serialize + DeserializeOwned + Send + 'static + Debug + PartialEq + Clone,
{
    assert_eq!(read::<M>(&value).as_ref(), Ok(&value));
    let positional = Positional(value.clone());
    assert_eq!(read::<Positional<M>>(&positional).as_ref(), Ok(&positional));
    for mut bytes in [encode(&value), encode(&positional)] {
        let is_read =
            |bytes: &[u8]| M::decode(bytes).is_ok() || Positional::<M>::decode(bytes).is_ok();
        assert!((0..bytes.len()).all(|len| !is_read(&bytes[..len])), "{value:?}");
        bytes.push(0);
        assert!(!is_read(&bytes), "{value:?}");
    }
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Item {
    sku: u64,
    count: u32,
    note: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
enum Word {
    Stop,
    Add(Item),
    Move(i32, i32),
    Say { text: String, loud: bool },
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Unit;

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Meters(f64);

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Pair(u8, String);

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Envelope<T> {
    to: u8,
    body: T,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
struct Through(Item);

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
enum Either {
    Number(u64),
    Text(String),
    Item(Item),
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type")]
enum Tagged {
    Stop,
    Add(Item),
    Say { text: String },
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", content = "content")]
enum Adjacent {
    Stop,
    Add(Item),
    Move(i32, i32),
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Flat {
    id: u8,
    #[serde(flatten)]
    item: Item,
    #[serde(flatten)]
    more: BTreeMap<String, u64>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename = "Item@2")]
struct Item2 {
    sku: u64,
    count: u32,
    note: Option<String>,
}

fn item() -> Item {
    Item { sku: 1 << 40, count: 3, note: None }
}

#[test]
fn values_of_every_kind_come_back_as_they_were() {
    for number in [0, 1, 31, 32, 127, 128, 255, 256, 65_535, 65_536, i64::MAX] {
        round(number);
        round(-number);
        round(number as u64);
        round((number as u8, number as i8, number as u16, number as i16, number as u32));
    }
    round((i64::MIN, u64::MAX, u128::MAX, i128::MIN, i128::MAX, -1i128, 1u128 << 64));
    round((true, 'ß', 1.5f32, f64::MIN_POSITIVE, ()));
    for len in [0, 15, 16, 31, 32, 255, 256, 65_535, 65_536] {
        let text = "x".repeat(len);
        assert_eq!(read::<String>(&text).as_ref(), Ok(&text));
        let list = vec![200u8; len];
        assert_eq!(read::<Vec<u8>>(&list).as_ref(), Ok(&list));
        let map: BTreeMap<u32, bool> = (0..len as u32).map(|key| (key, key % 2 == 0)).collect();
        assert_eq!(read::<BTreeMap<u32, bool>>(&map).as_ref(), Ok(&map));
    }
    round(item());
    round(vec![Word::Stop, Word::Add(item()), Word::Move(-1, 70_000)]);
    round(Word::Say { text: "hi".into(), loud: true });
    round((Unit, Meters(0.1), Pair(200, "b".into()), Envelope { to: 1, body: Some(Unit) }));
    round(Through(item()));
    round((Either::Number(1), Either::Text("a".into()), Either::Item(item())));
    round((Tagged::Stop, Tagged::Add(item()), Tagged::Say { text: "a".into() }));
    round((Adjacent::Add(item()), Adjacent::Move(1, 2)));
    assert_eq!(read(&Adjacent::Stop), Ok(Adjacent::Stop));
    round(Result::<u8, String>::Err("no".into()));
    round(std::time::Duration::from_millis(1500));
    round(std::net::IpAddr::from([127, 0, 0, 1]));
    let flat = Flat { id: 1, item: item(), more: [("a".to_owned(), 7)].into() };
    assert_eq!(read::<Flat>(&flat).as_ref(), Ok(&flat));
    assert_eq!(read::<Positional<Flat>>(&Positional(flat.clone())), Ok(Positional(flat)));
}

#[test]
fn what_is_nested_in_options_is_told_apart() {
    for value in [None, Some(None), Some(Some(None)), Some(Some(Some(())))] {
        round::<Option<Option<Option<()>>>>(value);
        round(Envelope { to: 1, body: value });
    }
    round(Some(Unit));
    round(vec![Some(Word::Stop), None]);
}

#[test]
fn a_type_has_the_name_that_serde_knows() {
    assert_eq!(type_name::<Item>(), "Item");
    assert_eq!(type_name::<Item2>(), "Item@2");
    assert_eq!(type_name::<Word>(), "Word");
    assert_eq!(type_name::<Unit>(), "Unit");
    assert_eq!(type_name::<Meters>(), "Meters");
    assert_eq!(type_name::<Pair>(), "Pair");
    assert_eq!(type_name::<Box<Item>>(), "Item");
    assert_eq!(type_name::<Adjacent>(), "Adjacent");
    // Of its parameter, serde says nothing.
    assert_eq!(type_name::<Envelope<Item>>(), "Envelope");
    // It is what is in it.
    assert_eq!(type_name::<Through>(), "Item");
    assert_eq!(type_name::<(Either, Tagged, Flat)>(), "");
    assert_eq!(type_name::<Either>(), "");
    assert_eq!(type_name::<Tagged>(), "");
    assert_eq!(type_name::<Flat>(), "");
    assert_eq!(type_name::<Vec<Item>>(), "");
    assert_eq!(type_name::<Option<Item>>(), "");
    assert_eq!(type_name::<u64>(), "");

    #[derive(Serialize, Deserialize)]
    #[serde(rename = "Item@1")]
    struct First;
    assert_eq!(type_name::<First>(), "Item");
    assert_eq!(encode(&Unit), b"\x01\x04Unit\x80");
}

#[test]
fn another_type_or_version_or_form_is_never_read() {
    let sent = Item2 { sku: 1, count: 2, note: None };
    assert_eq!(read::<Item>(&sent).unwrap_err(), "sent Item@2, expected Item@1");
    assert_eq!(read::<Item2>(&item()).unwrap_err(), "sent Item@1, expected Item@2");
    assert_eq!(read::<Word>(&item()).unwrap_err(), "sent Item@1, expected Word@1");
    let positional = Positional(item());
    assert_eq!(
        read::<Item>(&positional).unwrap_err(),
        "sent Item@1 in positional form, expected Item@1"
    );
    assert_eq!(
        read::<Json<Item>>(&positional).unwrap_err(),
        "sent Item@1 in positional form, expected Item@1 in JSON"
    );
    assert_eq!(
        read::<Positional<Item2>>(&positional).unwrap_err(),
        "sent Item@1 in positional form, expected Item@2 in positional form"
    );
    assert_eq!(
        read::<Json<Item2>>(&Json(item())).unwrap_err(),
        "sent Item@1 in JSON, expected Item@2 in JSON"
    );
    assert_eq!(read::<Item>(&1u64).unwrap_err(), "sent a type without a name, expected Item@1");
    assert_eq!(read::<u64>(&Unit).unwrap_err(), "sent Unit@1, expected a type without a name");
    // The name of a peer does no harm to a log.
    let error = Item::decode(b"\x01\x03a\nb\x80").unwrap_err();
    assert_eq!(error.to_string(), "sent a\\nb@1, expected Item@1");
    for bytes in [&b""[..], b"\x01", b"\x01\x04It", b"\x09\x04Item", b"\x01\x02\xff\xff"] {
        let error = Item::decode(bytes).unwrap_err();
        assert_eq!(error.to_string(), "sent something without a tag, expected Item@1");
    }
}

#[test]
fn what_changed_is_refused_and_never_taken_for_something_else() {
    mod after {
        use super::*;

        #[derive(Debug, PartialEq, Serialize, Deserialize)]
        pub(super) struct Pair {
            pub(super) text: String,
            pub(super) number: u8,
        }

        #[derive(Debug, PartialEq, Serialize, Deserialize)]
        pub(super) enum Word {
            Add(u64),
            Move { y: i32, x: i32 },
            Stop(u64),
        }
    }
    let error = |sent: Word| read::<after::Word>(&sent).unwrap_err();
    // By position, both would be numbers that mean something else.
    assert_eq!(
        read::<after::Pair>(&Pair(1, "a".into())).unwrap_err(),
        "found an array, expected a map"
    );
    assert_eq!(error(Word::Move(1, 2)), "found an array, expected a map");
    assert_eq!(error(Word::Add(item())), "found a map, expected an integer");
    assert_eq!(error(Word::Stop), "a variant has no content, where some is expected");
    let said = error(Word::Say { text: String::new(), loud: false });
    assert!(said.starts_with("unknown variant `Say`"), "{said}");
    assert_eq!(read::<(u8, u8)>(&(1u8, 2u8, 3u8)).unwrap_err(), "found 3 values, expected 2");
    assert_eq!(
        read::<f32>(&1.5f64).unwrap_err(),
        "found a number of type f64, expected a number of type f32"
    );
    assert!(read::<u8>(&256u64).unwrap_err().contains("256"));
    assert!(read::<i128>(&u128::MAX).is_err());
    assert!(read::<u128>(&i128::MIN).is_err());

    // Positional: not another number of fields, even if the rest would have defaults.
    #[derive(Debug, Serialize, Deserialize)]
    #[serde(rename = "Item")]
    struct Shorter {
        sku: u64,
        count: u32,
    }
    let error = read::<Positional<Item>>(&Positional(Shorter { sku: 1, count: 2 })).unwrap_err();
    assert_eq!(error, "found 2 values, expected 3");
    // So what leaves fields out cannot be read in this form.
    let error = read::<Positional<Adjacent>>(&Positional(Adjacent::Stop)).unwrap_err();
    assert_eq!(error, "found 1 values, expected 2");
}

#[test]
fn a_serialize_that_miscounts_its_parts_is_an_error() {
    #[derive(Deserialize)]
    struct Liar;
    impl Serialize for Liar {
        fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
            let mut parts = serializer.serialize_struct("Liar", 2)?;
            serde::ser::SerializeStruct::serialize_field(&mut parts, "a", &1)?;
            serde::ser::SerializeStruct::end(parts)
        }
    }
    let error = Liar.encode(&mut Vec::new()).unwrap_err();
    assert_eq!(error.to_string(), "its Serialize promised 2 parts and wrote 1");
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
struct Chain(Option<Box<Self>>);

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
enum Tree {
    Leaf,
    Node(Vec<Self>),
}

#[test]
fn neither_depth_nor_lengths_of_a_stranger_cost_more_than_its_bytes() {
    // A newtype around an option: it could descend for ever without reading a byte.
    for bytes in [&b"\x01\x05Chain\x01"[..], b"\x01\x05Chain\x80"] {
        let error = Chain::decode(bytes).unwrap_err();
        assert_eq!(error.to_string(), "it is nested more than 128 deep");
    }
    let nested = |levels| (0..levels).fold(Tree::Leaf, |tree, _| Tree::Node(vec![tree]));
    round(nested(60));
    let too_deep = Err("it is nested more than 128 deep".to_owned());
    assert_eq!(read::<Tree>(&nested(100)), too_deep);
    assert_eq!(read::<Positional<Tree>>(&Positional(nested(100))).map(|tree| tree.0), too_deep);
    // What is skipped needs no stack.
    let mut skipped = b"\x01\x04Unit\x81\xa1x".to_vec();
    skipped.resize(1_000_000, 0x91);
    assert_eq!(Unit::decode(&skipped).unwrap_err().to_string(), "it ends too early");
    skipped.push(0);
    assert_eq!(Unit::decode(&skipped), Ok(Unit));
    // What is read by its own type, or by none, does.
    let mut any = b"\x01\x00".to_vec();
    any.resize(1_000_000, 0x91);
    let error = serde_json::Value::decode(&any).unwrap_err();
    assert_eq!(error.to_string(), "it is nested more than 128 deep");
    for marker in [b"\xdd", b"\xdf", b"\xdb", b"\xc6"] {
        let bytes = [b"\x01\x00", &marker[..], b"\xff\xff\xff\xff\x00\x00"].concat();
        assert!(Vec::<()>::decode(&bytes).is_err());
        assert!(BTreeMap::<(), ()>::decode(&bytes).is_err());
        assert!(String::decode(&bytes).is_err());
        assert!(serde_json::Value::decode(&bytes).is_err());
    }
}

proptest! {
    #[test]
    fn whatever_is_read_is_written_and_read_again(
        bytes in proptest::collection::vec(any::<u8>(), 0..60),
    ) {
        fn again<M>(body: &[u8])
        where
            M: Serialize + DeserializeOwned + Send + 'static + Debug + PartialEq,
        {
            for form in [Form::Named, Form::Positional] {
                let mut bytes = Vec::new();
                put_tag::<M>(form, &mut bytes).unwrap();
                bytes.extend_from_slice(body);
                if let Ok(value) = M::decode(&bytes) {
                    assert_eq!(read::<M>(&value), Ok(value));
                }
                if let Ok(value) = Positional::<M>::decode(&bytes) {
                    assert_eq!(read::<Positional<M>>(&value), Ok(value));
                }
            }
        }
        again::<Word>(&bytes);
        again::<Item>(&bytes);
        again::<Either>(&bytes);
        again::<Option<Option<i128>>>(&bytes);
        again::<Vec<Tree>>(&bytes);
        again::<serde_json::Value>(&bytes);
        let _ = Word::decode(&bytes);
    }
}
