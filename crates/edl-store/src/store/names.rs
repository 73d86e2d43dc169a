//! The dictionary of a table's keys, for tables that ask for it.

use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::Ordering;

use super::{Model, Store};
use crate::error::StoreError;
use crate::features::names::MAX_NAME_BYTES;
use crate::redo::Change;
use crate::table::Table;

/// The result of storing names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Named {
    /// The generation of this replica's names. If the number differs from the last one, any name
    /// that the replica was told may be gone.
    pub generation: u64,
    /// Keys that have no row, in the order in which they were given: their names wait for one, but
    /// not for long.
    pub waiting: Vec<u64>,
}

/// A number that no other process begins with.
pub(super) fn new_generation() -> u64 {
    RandomState::new().hash_one(std::process::id())
}

impl Store {
    /// Note the strings that keys were made of, for the export to show them. The first string
    /// of a key stays. They are known as long as the key has its row.
    ///
    /// # Errors
    /// A table that keeps no names, a key of another replica, a name that is too long, or no memory
    /// for them; nothing has changed then.
    pub fn name_keys(&self, table: u32, keys: &[u64], names: &[&str]) -> Result<Named, StoreError> {
        let model = self.declared("keys are named")?;
        // Before the names: if rows go meanwhile, the next answer says so.
        let generation = self.naming_generation();
        let named = model.table(table)?;
        check(named, keys, names)?;
        // The call, like an update, comes before a checkpoint's instant or after it.
        let _updates = self.updates.read();
        self.note(&Change::Name {
            table,
            keys,
            names: names.into(),
        });
        let _change = self.change();
        let mut waiting = Vec::new();
        named.add_names(keys, names, model.version(), &mut waiting)?;
        Ok(Named {
            generation,
            waiting,
        })
    }

    /// Return which names this replica may have; see [`Named::generation`].
    pub fn naming_generation(&self) -> u64 {
        self.naming.load(Ordering::Acquire)
    }

    /// Return the strings of a table's keys, where they are known.
    ///
    /// # Errors
    /// An unknown table.
    pub fn names_of(&self, table: u32, keys: &[u64]) -> Result<Vec<Option<String>>, StoreError> {
        let model: &Model = self.declared("names are read")?;
        Ok(model.table(table)?.names_of(keys))
    }
}

fn check(table: &Table, keys: &[u64], names: &[&str]) -> Result<(), StoreError> {
    let refused = |problem: String| StoreError::BadNames {
        table: table.name().to_owned(),
        problem,
    };
    if !table.keeps_names() {
        return Err(refused(
            "it was declared without keep_names; do all workers run the same model?".to_owned(),
        ));
    }
    if keys.len() != names.len() {
        return Err(refused(format!(
            "{} names came for {} keys",
            names.len(),
            keys.len()
        )));
    }
    if let Some(long) = names.iter().find(|name| name.len() > MAX_NAME_BYTES) {
        return Err(refused(format!(
            "a name has {} bytes, expected at most {MAX_NAME_BYTES}",
            long.len()
        )));
    }
    table.check("names", keys, keys.len() * table.dim())
}
