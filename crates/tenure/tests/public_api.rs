//! What users can name, of every library, as it was last agreed on: docs/api/. A change of it is seen in
//! review, and a change that breaks users by accident is not.
//!
//! ```sh
//! UPDATE_API=1 cargo test-all --test public_api   # after a change that is meant
//! ```
//!
//! It is read from the sources. Items that say `pub` are public indeed: the lint `unreachable_pub`
//! sees to that.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use syn::{
    Attribute, Block, Expr, Field, Fields, File, FnArg, ImplItem, Item, Meta, Pat, Signature,
    TraitItem, Type, Visibility, parse_quote,
};

const LIBRARIES: [&str; 10] = [
    "tenure",
    "lease",
    "stores",
    "cron",
    "cluster",
    "singleton",
    "sharding",
    "manage",
    "node",
    "testkit",
];

#[test]
fn the_public_api_is_as_agreed() {
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("crates/");
    let agreed = crates.parent().expect("the repository").join("docs/api");
    let mut different = Vec::new();
    for library in LIBRARIES {
        let now = api(&crates.join(library).join("src"));
        let path = agreed.join(format!("{library}.txt"));
        if std::env::var_os("UPDATE_API").is_some() {
            fs::create_dir_all(&agreed).unwrap();
            fs::write(&path, &now).unwrap();
        }
        let before = fs::read_to_string(&path).unwrap_or_default();
        let (old, new): (BTreeSet<_>, BTreeSet<_>) =
            (before.lines().collect(), now.lines().collect());
        different.extend(old.difference(&new).map(|line| format!("{library}: - {line}")));
        different.extend(new.difference(&old).map(|line| format!("{library}: + {line}")));
        if before != now {
            different.push(format!("{library}: not as in {}", path.display()));
        }
    }
    assert!(
        different.is_empty(),
        "the public API is another one; if that is meant, write it down: \
         UPDATE_API=1 cargo test-all --test public_api\n{}",
        different.join("\n")
    );
}

/// Everything public in the files below, without bodies and comments.
fn api(sources: &Path) -> String {
    let files = files(sources);
    let parsed: Vec<(String, File)> = files
        .iter()
        .map(|path| {
            let name = path.strip_prefix(sources).unwrap().display().to_string();
            let text = fs::read_to_string(path).unwrap();
            (name, syn::parse_file(&text).unwrap_or_else(|error| panic!("{path:?}: {error}")))
        })
        .collect();
    let mut types = BTreeSet::new();
    parsed.iter().for_each(|(_, file)| names(&file.items, &mut types));
    let mut text = String::new();
    for (name, mut file) in parsed {
        if is_test(&file.attrs) {
            continue;
        }
        file.attrs.clear();
        file.items = file.items.into_iter().filter_map(|item| public(item, &types)).collect();
        if !file.items.is_empty() {
            text += &format!("// {name}\n{}\n", prettyplease::unparse(&file));
        }
    }
    text
}

fn files(directory: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        let stem = path.file_stem().unwrap().to_string_lossy().into_owned();
        if path.is_dir() {
            found.extend(files(&path));
        } else if path.extension().is_some_and(|it| it == "rs") && stem != "tests" {
            found.push(path);
        }
    }
    found.sort();
    found
}

/// The names of public types.
fn names(items: &[Item], types: &mut BTreeSet<String>) {
    for item in items {
        let (vis, name) = match item {
            Item::Struct(it) => (&it.vis, &it.ident),
            Item::Enum(it) => (&it.vis, &it.ident),
            Item::Type(it) => (&it.vis, &it.ident),
            Item::Mod(it) => {
                if let Some((_, items)) = it.content.as_ref().filter(|_| !is_test(&it.attrs)) {
                    names(items, types);
                }
                continue;
            }
            _ => continue,
        };
        if is_public(vis) {
            types.insert(name.to_string());
        }
    }
}

/// An item as users see it; `None` if they do not.
fn public(item: Item, types: &BTreeSet<String>) -> Option<Item> {
    match item {
        Item::Fn(mut it) if seen(&it.vis, &it.attrs) => {
            strip(&mut it.attrs);
            *it.block = nothing();
            without_mut(&mut it.sig);
            Some(Item::Fn(it))
        }
        Item::Const(mut it) if seen(&it.vis, &it.attrs) => {
            strip(&mut it.attrs);
            *it.expr = unsaid();
            Some(Item::Const(it))
        }
        Item::Static(mut it) if seen(&it.vis, &it.attrs) => {
            strip(&mut it.attrs);
            *it.expr = unsaid();
            Some(Item::Static(it))
        }
        Item::Type(mut it) if seen(&it.vis, &it.attrs) => {
            strip(&mut it.attrs);
            Some(Item::Type(it))
        }
        Item::Use(mut it) if seen(&it.vis, &it.attrs) => {
            strip(&mut it.attrs);
            Some(Item::Use(it))
        }
        Item::Struct(mut it) if seen(&it.vis, &it.attrs) => {
            strip(&mut it.attrs);
            only_public(&mut it.fields);
            Some(Item::Struct(it))
        }
        Item::Enum(mut it) if seen(&it.vis, &it.attrs) => {
            strip(&mut it.attrs);
            for variant in &mut it.variants {
                strip(&mut variant.attrs);
                variant.fields.iter_mut().for_each(|field| strip(&mut field.attrs));
            }
            Some(Item::Enum(it))
        }
        Item::Trait(mut it) if seen(&it.vis, &it.attrs) => {
            strip(&mut it.attrs);
            it.items.iter_mut().for_each(without_body);
            Some(Item::Trait(it))
        }
        Item::Mod(mut it) if seen(&it.vis, &it.attrs) => {
            strip(&mut it.attrs);
            it.content = it.content.map(|(brace, items)| {
                (brace, items.into_iter().filter_map(|item| public(item, types)).collect())
            });
            Some(Item::Mod(it))
        }
        Item::Impl(mut it) if !is_test(&it.attrs) && is_of(&it.self_ty, types) => {
            strip(&mut it.attrs);
            let of_a_trait = it.trait_.is_some();
            it.items.retain_mut(|item| match item {
                ImplItem::Fn(it) if !of_a_trait && seen(&it.vis, &it.attrs) => {
                    strip(&mut it.attrs);
                    it.block = nothing();
                    without_mut(&mut it.sig);
                    true
                }
                ImplItem::Const(it) if !of_a_trait && seen(&it.vis, &it.attrs) => {
                    strip(&mut it.attrs);
                    it.expr = unsaid();
                    true
                }
                ImplItem::Type(it) => {
                    strip(&mut it.attrs);
                    true
                }
                _ => false,
            });
            (of_a_trait || !it.items.is_empty()).then_some(Item::Impl(it))
        }
        _ => None,
    }
}

fn without_body(item: &mut TraitItem) {
    match item {
        TraitItem::Fn(it) => {
            strip(&mut it.attrs);
            it.default = it.default.take().map(|_| nothing());
        }
        TraitItem::Const(it) => strip(&mut it.attrs),
        TraitItem::Type(it) => strip(&mut it.attrs),
        _ => {}
    }
}

/// What a function does to what it was given is its own business.
fn without_mut(signature: &mut Signature) {
    for argument in &mut signature.inputs {
        match argument {
            FnArg::Receiver(it) if it.reference.is_none() => it.mutability = None,
            FnArg::Typed(it) => {
                if let Pat::Ident(name) = &mut *it.pat {
                    name.mutability = None;
                }
            }
            FnArg::Receiver(_) => {}
        }
    }
}

/// What is private is there, and nobody's business.
fn only_public(fields: &mut Fields) {
    match fields {
        Fields::Named(named) => {
            let all = named.named.len();
            let public = named.named.iter().filter(|field| is_public(&field.vis)).cloned();
            named.named = public.collect();
            if named.named.len() < all {
                let private: Field = parse_quote!(_private: ());
                named.named.push(private);
            }
        }
        Fields::Unnamed(unnamed) => {
            for field in unnamed.unnamed.iter_mut().filter(|field| !is_public(&field.vis)) {
                field.ty = parse_quote!(());
            }
        }
        Fields::Unit => {}
    }
    fields.iter_mut().for_each(|field| strip(&mut field.attrs));
}

fn seen(vis: &Visibility, attrs: &[Attribute]) -> bool {
    is_public(vis) && !is_test(attrs)
}

fn is_public(vis: &Visibility) -> bool {
    matches!(vis, Visibility::Public(_))
}

fn is_test(attrs: &[Attribute]) -> bool {
    attrs.iter().any(|it| {
        it.path().is_ident("cfg")
            && matches!(&it.meta, Meta::List(list) if list.tokens.to_string() == "test")
    })
}

/// What matters to users stays.
fn strip(attrs: &mut Vec<Attribute>) {
    let matters = ["cfg", "derive", "non_exhaustive", "must_use", "deprecated"];
    attrs.retain(|it| matters.iter().any(|name| it.path().is_ident(name)));
}

/// Whether an implementation is for a public type, or for all that there are.
fn is_of(self_ty: &Type, types: &BTreeSet<String>) -> bool {
    match self_ty {
        Type::Path(path) => path.path.segments.last().is_some_and(|it| {
            types.contains(&it.ident.to_string()) || it.ident.to_string().len() == 1
        }),
        Type::Reference(it) => is_of(&it.elem, types),
        _ => false,
    }
}

fn nothing() -> Block {
    parse_quote!({})
}

fn unsaid() -> Expr {
    parse_quote!(_)
}
