//! The strings that the keys of a table were made of, for tables that keep them.

use crate::error::StoreError;
use crate::route::{hash, unhash};
use crate::stripe::Stripe;
use crate::table::Table;

mod dictionary;
pub(crate) mod saved;

pub use dictionary::MAX_NAME_BYTES;
pub(crate) use dictionary::Names;

/// The names of some stripes, one after the other.
#[derive(Debug, Default)]
pub(crate) struct SavedNames {
    pub(crate) keys: Vec<u64>,
    /// The end of each key's name in `text`.
    pub(crate) ends: Vec<u64>,
    pub(crate) text: String,
}

impl SavedNames {
    pub(crate) fn push(&mut self, key: u64, name: &str) {
        self.keys.push(key);
        self.text.push_str(name);
        self.ends.push(self.text.len() as u64);
    }
}

impl Stripe {
    /// Note the name of a key; return whether the key has a row, and the name is there to stay.
    fn add_name(&mut self, hash: u64, text: &str, version: u64) -> bool {
        let has_row = self.has_row(hash);
        let names = self.features.get_mut::<Names>();
        names.is_some_and(|names| names.add(hash, text, version, has_row))
    }
}

impl Table {
    /// Whether the strings of keys are kept.
    pub(crate) fn keeps_names(&self) -> bool {
        self.terms.keeps_names
    }

    /// Note the names of keys that belong to this replica; append those without a row to
    /// `waiting`.
    pub(crate) fn add_names(
        &self,
        keys: &[u64],
        names: &[&str],
        version: u64,
        waiting: &mut Vec<u64>,
    ) -> Result<(), StoreError> {
        let text_bytes = names.iter().map(|name| name.len()).sum();
        let bytes = Names::bytes_of(keys.len(), text_bytes) as u64;
        if !self.budget().has_room(bytes) {
            return Err(StoreError::NamesMemoryLimit {
                table: self.name().to_owned(),
                count: keys.len(),
                used: self.budget().used(),
                limit: self.budget().limit().unwrap_or(0),
            });
        }
        for (&key, name) in keys.iter().zip(names) {
            let hash = hash(key);
            let stripe = self.stripe_of(hash);
            if !self.change(stripe, |stripe| stripe.add_name(hash, name, version)) {
                waiting.push(key);
            }
        }
        Ok(())
    }

    /// Put back names as a checkpoint has them; those of other replicas are left out.
    pub(crate) fn restore_names(&self, saved: &SavedNames, version: u64) {
        let mut start = 0;
        for (&key, &end) in saved.keys.iter().zip(&saved.ends) {
            let (hash, range) = (hash(key), start..end as usize);
            start = end as usize;
            let name = saved.text.get(range).filter(|_| self.owns(hash));
            let Some(name) = name else { continue };
            self.change(self.stripe_of(hash), |stripe| {
                stripe.add_name(hash, name, version)
            });
        }
    }

    /// Return the names in a stripe that came at a version or later.
    pub(crate) fn names_since(&self, stripe: usize, version: u64, saved: &mut SavedNames) {
        let stripe = self.stripes()[stripe].read();
        let names = stripe.features.get::<Names>().into_iter();
        for (hash, _, name) in names.flat_map(|names| names.since(version)) {
            saved.push(unhash(hash), name);
        }
    }

    /// Return the names of keys, where they have any.
    pub(crate) fn names_of(&self, keys: &[u64]) -> Vec<Option<String>> {
        let name_of = |&key: &u64| {
            let hash = hash(key);
            if !self.owns(hash) {
                return None;
            }
            let stripe = self.stripe_of(hash).read();
            Some(stripe.features.get::<Names>()?.get(hash)?.to_owned())
        };
        keys.iter().map(name_of).collect()
    }
}
