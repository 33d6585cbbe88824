//! Messages of users: bytes of one version of a type, changed, as they are read by another.
#![no_main]

use std::fmt::Debug;

use libfuzzer_sys::fuzz_target;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use tenure_cluster::messaging::{Message, Positional};
use tenure_fuzz::planted::planted;
use tenure_fuzz::room;

#[derive(Debug, PartialEq, Serialize, Deserialize)]
struct Cart {
    sku: u64,
    note: Option<Option<String>>,
    items: Vec<Item>,
    next: Option<Box<Cart>>,
}

#[derive(Debug, PartialEq, Serialize, Deserialize)]
enum Item {
    Gift,
    Piece(i32),
    Set { count: u8, price: i128 },
}

/// The next version, which the one before can read.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename = "Cart")]
struct Grown {
    items: Vec<GrownItem>,
    #[serde(default)]
    total: u64,
    sku: u64,
    note: Option<Option<String>>,
    next: Option<Box<Grown>>,
}

#[derive(Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename = "Item")]
enum GrownItem {
    Set { price: i128, count: u8, color: Option<char> },
    Gift { to: Option<String> },
    Piece(i32),
}

/// A version of the same shape that means something else.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename = "Cart@2")]
struct Changed {
    sku: u64,
    note: Option<Option<String>>,
    items: Vec<Item>,
    next: Option<Box<Changed>>,
}

fuzz_target!(|input: &[u8]| {
    room::within(room::for_input(input), || {
        // As it is: whatever is read was meant for this type, in this form.
        let tagged = |tag: &[u8]| input.starts_with(tag);
        assert!(Cart::decode(input).is_err() || tagged(b"\x01\x04Cart"));
        assert!(Changed::decode(input).is_err() || tagged(b"\x01\x06Cart@2"));
        assert!(Positional::<Cart>::decode(input).is_err() || tagged(b"\x02\x04Cart"));
        assert!(String::decode(input).is_err() || tagged(b"\x01\x00"));

        // After the right tag.
        let cart = read::<Cart>(b"\x01\x04Cart", input);
        let grown = read::<Grown>(b"\x01\x04Cart", input);
        if let (Some(cart), Some(grown)) = (&cart, &grown) {
            same(cart, grown);
        }
        if let Some(cart) = &cart {
            let grown = Grown::decode(&written(cart)).expect("the next version reads it");
            same(cart, &grown);
        }
        if let Some(grown) = &grown {
            let cart = Cart::decode(&written(grown)).expect("the version before reads it");
            same(&cart, grown);
            assert!(Changed::decode(&written(grown)).is_err());
        }
        read::<Changed>(b"\x01\x06Cart@2", input);
        read::<Option<Option<i128>>>(b"\x01\x00", input);
        let bytes = [b"\x02\x04Cart", input].concat();
        if let Ok(cart) = Positional::<Cart>::decode(&bytes) {
            assert_eq!(Positional::<Cart>::decode(&written(&cart)), Ok(cart));
        }
    });
});

/// What is read is written, and read again as the same.
fn read<M>(tag: &[u8], body: &[u8]) -> Option<M>
where
    M: Serialize + DeserializeOwned + Send + 'static + Debug + PartialEq,
{
    let bytes = [tag, body].concat();
    let value = M::decode(&bytes).ok()?;
    assert_eq!(M::decode(&written(&value)).as_ref(), Ok(&value));
    Some(value)
}

fn written(message: &impl Message) -> Vec<u8> {
    let mut out = Vec::new();
    message.encode(&mut out).expect("what was read is written");
    out
}

/// What both versions know means the same to them.
fn same(cart: &Cart, grown: &Grown) {
    assert_eq!(cart.sku, grown.sku, "a misread");
    assert_eq!(cart.note, grown.note, "a misread");
    assert_eq!(cart.items.len(), grown.items.len(), "a misread");
    for items in cart.items.iter().zip(&grown.items) {
        match items {
            (Item::Gift, GrownItem::Gift { .. }) => {}
            (Item::Piece(number), GrownItem::Piece(other)) if number == other => {}
            (
                Item::Set { count, price },
                GrownItem::Set { count: same_count, price: same_price, .. },
            ) if (count, price) == (same_count, same_price) && !planted("misread") => {}
            items => panic!("a misread: {items:?}"),
        }
    }
    match (&cart.next, &grown.next) {
        (None, None) => {}
        (Some(cart), Some(grown)) => same(cart, grown),
        next => panic!("a misread: {next:?}"),
    }
}
