//! The handful of calls to DynamoDB, by AWS's SDK.

use std::collections::HashMap;
use std::sync::{Arc, OnceLock};

use aws_sdk_dynamodb::config::{ConfigBag, Intercept, RuntimeComponents};
use aws_sdk_dynamodb::error::{ProvideErrorMetadata, SdkError};
use aws_sdk_dynamodb::types::{
    AttributeDefinition, BillingMode, KeySchemaElement, KeyType, KeysAndAttributes, ReturnValue,
    ScalarAttributeType,
};
use aws_smithy_runtime_api::box_error::BoxError;
use aws_smithy_runtime_api::client::interceptors::context::BeforeDeserializationInterceptorContextRef;

use tenure_lease::backend::{StoreError, StoreErrorKind};

use super::driver::Access;
use super::item::{self, Change, Item, KEY, s};
use crate::date::parse_date;
use crate::generations::Lane;
use crate::http::causes;

/// A client of one table.
pub(super) struct Api {
    pub(super) access: Access,
    pub(super) table: String,
    pub(super) create: bool,
}

/// What a conditional change came to.
pub(super) enum Outcome {
    /// It is done. The attributes that changed, as they are now.
    Done { changed: Item, date: Option<u64> },
    /// The item is not as it was expected; nothing was done.
    Conflict,
}

/// An answer that is not yes.
struct Fault {
    /// The exception's name; empty if there is no definite answer.
    name: String,
    error: StoreError,
}

impl Api {
    /// The item as it is, and what the server's clock said, in seconds since 1970.
    pub(super) async fn get(
        &self,
        lane: Lane,
        key: &str,
    ) -> Result<(Option<Item>, Option<u64>), StoreError> {
        let date = AnswerDate::default();
        let asked = self.access.client(lane).await?.get_item();
        let asked = asked.table_name(&self.table).key(KEY, s(key)).consistent_read(true);
        let answer = asked.customize().interceptor(date.clone()).send().await;
        let answer = self.understand(answer).await.map_err(|fault| fault.error)?;
        Ok((answer.item, date.seconds()))
    }

    /// The items of these keys, which are all different; at most [`BATCH_MAX`].
    pub(super) async fn get_all(&self, keys: &[String]) -> Result<Vec<Item>, StoreError> {
        let client = self.access.client(Lane::Other).await?;
        let (mut items, mut left) = (Vec::new(), Vec::new());
        left.extend(keys.iter().map(|key| Item::from([(KEY.to_owned(), s(key))])));
        while !left.is_empty() {
            let asked = left.len();
            let wanted = KeysAndAttributes::builder().consistent_read(true).set_keys(Some(left));
            let wanted = wanted.build().map_err(|error| self.unsuitable(&error.to_string()))?;
            let answer = client.batch_get_item().request_items(&self.table, wanted).send().await;
            let mut answer = self.understand(answer).await.map_err(|fault| fault.error)?;
            let found = answer.responses.as_mut().and_then(|found| found.remove(&self.table));
            items.extend(found.unwrap_or_default());
            // What did not fit in one answer, or was throttled.
            let rest = answer.unprocessed_keys.as_mut().and_then(|rest| rest.remove(&self.table));
            left = rest.map(|rest| rest.keys).unwrap_or_default();
            if left.len() >= asked {
                let text = format!("DynamoDB is too busy to read from {}", self.table);
                return Err(StoreError::unavailable(text));
            }
        }
        Ok(items)
    }

    /// Some attributes of up to so many items, whichever come first.
    pub(super) async fn scan(
        &self,
        attributes: &[&str],
        most: usize,
    ) -> Result<Vec<Item>, StoreError> {
        let client = self.access.client(Lane::Other).await?;
        let (mut items, mut from) = (Vec::new(), None);
        for _ in 0..SCAN_PAGES_MAX {
            let mut asked = client.scan().table_name(&self.table).consistent_read(true);
            let mut aliases = Vec::new();
            for (index, attribute) in attributes.iter().enumerate() {
                let alias = format!("#{index}");
                asked = asked.expression_attribute_names(&alias, *attribute);
                aliases.push(alias);
            }
            let asked = asked.projection_expression(aliases.join(", "));
            let answer = asked.set_exclusive_start_key(from).send().await;
            let answer = self.understand(answer).await.map_err(|fault| fault.error)?;
            items.extend(answer.items.unwrap_or_default());
            from = answer.last_evaluated_key;
            if from.is_none() || items.len() >= most {
                break;
            }
        }
        items.truncate(most);
        Ok(items)
    }

    /// Changes an item, or creates it, if the conditions hold.
    pub(super) async fn update(
        &self,
        lane: Lane,
        key: &str,
        change: Change,
    ) -> Result<Outcome, StoreError> {
        let date = AnswerDate::default();
        let asked = self.access.client(lane).await?.update_item().table_name(&self.table);
        let asked = asked.key(KEY, s(key)).return_values(ReturnValue::UpdatedNew);
        let answer = change.write_to(asked).customize().interceptor(date.clone()).send().await;
        match self.understand(answer).await {
            Ok(answer) => {
                let changed = answer.attributes.unwrap_or_default();
                Ok(Outcome::Done { changed, date: date.seconds() })
            }
            Err(fault) if fault.name == "ConditionalCheckFailedException" => Ok(Outcome::Conflict),
            Err(fault) => Err(fault.error),
        }
    }

    /// An answer, or why there is none. If the table is missing and may be created, sees to that,
    /// and leaves it to the keeper to ask again.
    async fn understand<T, E: ProvideErrorMetadata + std::error::Error + 'static>(
        &self,
        answer: Result<T, SdkError<E>>,
    ) -> Result<T, Fault> {
        let fault = match answer {
            Ok(answer) => return Ok(answer),
            Err(error) => self.fault(&error),
        };
        if self.create && fault.name == NO_TABLE {
            return Err(Fault { error: self.create_table().await, ..fault });
        }
        Err(fault)
    }

    /// Creates the table; what there is to say about it.
    async fn create_table(&self) -> StoreError {
        let client = match self.access.client(Lane::Other).await {
            Ok(client) => client,
            Err(error) => return error,
        };
        let key = AttributeDefinition::builder().attribute_name(KEY);
        let key = key.attribute_type(ScalarAttributeType::S).build();
        let schema = KeySchemaElement::builder().attribute_name(KEY).key_type(KeyType::Hash);
        let (Ok(key), Ok(schema)) = (key, schema.build()) else {
            return self.unsuitable("the key of a table cannot be described");
        };
        let asked = client.create_table().table_name(&self.table);
        let asked = asked.billing_mode(BillingMode::PayPerRequest);
        let asked = asked.attribute_definitions(key).key_schema(schema);
        match asked.send().await.map_err(|error| self.fault(&error)) {
            Err(fault) if fault.name != "ResourceInUseException" => fault.error,
            _ => StoreError::unavailable(format!("table {} is being created", self.table)),
        }
    }

    /// Only what DynamoDB itself said is a definite answer; all else leaves open what was done.
    fn fault<E: ProvideErrorMetadata + std::error::Error + 'static>(
        &self,
        error: &SdkError<E>,
    ) -> Fault {
        let (table, place) = (&self.table, self.access.place());
        let name = error.code().unwrap_or_default().to_owned();
        let said: String = error.message().unwrap_or_default().chars().take(300).collect();
        let unclear = (
            StoreErrorKind::Unavailable,
            format!("what answers at {place} does not speak like DynamoDB"),
        );
        let (kind, text) = match (error, name.as_str()) {
            (SdkError::ServiceError(_), NO_TABLE) => (
                StoreErrorKind::Unsuitable,
                format!(
                    "there is no table {table} at {place}; create it, with the key {KEY:?} (a \
                     string), or let it be created by create=true"
                ),
            ),
            (SdkError::ServiceError(_), "AccessDeniedException") => {
                (StoreErrorKind::Denied, format!("DynamoDB at {place} refuses: {said}"))
            }
            // Their texts repeat the request, session token and all.
            (
                SdkError::ServiceError(_),
                "UnrecognizedClientException"
                | "InvalidSignatureException"
                | "IncompleteSignatureException"
                | "MissingAuthenticationTokenException"
                | "InvalidClientTokenId"
                | "ExpiredTokenException",
            ) => (
                StoreErrorKind::Denied,
                format!("DynamoDB at {place} refuses our credentials ({name})"),
            ),
            (
                SdkError::ServiceError(_),
                "ValidationException"
                | "SerializationException"
                | "UnknownOperationException"
                | "LimitExceededException",
            ) => (
                StoreErrorKind::Unsuitable,
                format!("DynamoDB at {place} refuses the request for table {table}: {said}"),
            ),
            // A yes that cannot be read: its text may quote it.
            (SdkError::ServiceError(answer), _) if answer.raw().status().is_success() => unclear,
            (SdkError::ResponseError(_), _) => unclear,
            // Throttled, in conflict with a transaction, broken, or something else in between.
            (SdkError::ServiceError(answer), _) => (
                StoreErrorKind::Unavailable,
                format!("DynamoDB at {place} failed: {} {name}", answer.raw().status()),
            ),
            (SdkError::ConstructionFailure(_), _) => (
                StoreErrorKind::Unsuitable,
                format!("a request to DynamoDB at {place} cannot be made: {}", causes(error)),
            ),
            _ => (
                StoreErrorKind::Unavailable,
                format!("DynamoDB at {place} did not answer: {}", causes(error)),
            ),
        };
        if kind == StoreErrorKind::Denied {
            self.access.forget();
        }
        // DynamoDB's exceptions come with a status of their own; in any other answer their names prove
        // nothing.
        let is_definite = matches!(error, SdkError::ServiceError(answer)
            if answer.raw().status().is_client_error());
        let name = if is_definite { name } else { String::new() };
        Fault { name, error: StoreError::new(kind, text) }
    }

    fn unsuitable(&self, why: &str) -> StoreError {
        let text = format!("the request for table {} cannot be made: {why}", self.table);
        StoreError::new(StoreErrorKind::Unsuitable, text)
    }
}

/// Keeps the `Date` of an answer, which is DynamoDB's clock.
#[derive(Clone, Debug, Default)]
struct AnswerDate(Arc<OnceLock<u64>>);

impl AnswerDate {
    fn seconds(&self) -> Option<u64> {
        self.0.get().copied()
    }
}

impl Intercept for AnswerDate {
    fn name(&self) -> &'static str {
        "AnswerDate"
    }

    fn read_before_deserialization(
        &self,
        context: &BeforeDeserializationInterceptorContextRef<'_>,
        _: &RuntimeComponents,
        _: &mut ConfigBag,
    ) -> Result<(), BoxError> {
        let date = context.response().headers().get("date").and_then(parse_date);
        if let Some(date) = date {
            // There is one answer: nothing is sent twice.
            let _ = self.0.set(date);
        }
        Ok(())
    }
}

/// By their keys.
pub(super) fn by_key(items: Vec<Item>) -> HashMap<String, Item> {
    let key = |item: &Item| item::string(item, KEY).unwrap_or_default().to_owned();
    items.into_iter().map(|item| (key(&item), item)).collect()
}

/// So many items one request may ask for.
pub(super) const BATCH_MAX: usize = 100;
/// Of a mebibyte each, notes included.
const SCAN_PAGES_MAX: usize = 1000;
const NO_TABLE: &str = "ResourceNotFoundException";
