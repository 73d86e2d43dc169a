//! The strings that keys were made of, in tables that keep them: at both ends.

use edl_store::{Named, Store};
use edl_wire::WireError;
use edl_wire::op::name::{Request, Response, TableNames};

use crate::error::PsError;

mod sent;

pub use self::sent::NameSite;
pub(crate) use self::sent::{Batch, NewNames, SentNames};

/// Returns the message to one replica.
pub(crate) fn request(names: &[NewNames]) -> Request<'_> {
    let tables = names.iter().map(|names| TableNames {
        table: names.table,
        keys: &names.keys,
        ends: &names.ends,
        text: &names.text,
    });
    Request {
        tables: tables.collect(),
    }
}

/// Gives a store the strings of keys.
pub(crate) fn name(store: &Store, request: &Request<'_>) -> Result<Response, PsError> {
    let mut response = Response {
        generation: store.naming_generation(),
        waiting: Vec::new(),
    };
    for names in &request.tables {
        let torn = || WireError::malformed("names whose ends are not those of strings");
        let texts = sent::names_of(names.text, names.ends).ok_or_else(torn)?;
        let Named { waiting, .. } = store.name_keys(names.table, names.keys, &texts)?;
        response.waiting.extend(waiting);
    }
    Ok(response)
}
