//! The dictionary of a table's keys, stripe by stripe.

use super::Table;
use crate::error::StoreError;
use crate::names::Names;
use crate::route::{hash, unhash};

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

/// The contents of a table's dictionary.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct NamesTally {
    /// Keys with a row and a name.
    pub(crate) names: u64,
    /// Strings that have the key of another one.
    pub(crate) collisions: u64,
}

impl Table {
    /// Whether the strings of keys are kept.
    pub(crate) fn keeps_names(&self) -> bool {
        self.keeps_names
    }

    pub(super) fn begin_names(&self) {
        for stripe in &self.stripes {
            stripe.write().keep_names();
        }
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
        if !self.budget.has_room(bytes) {
            return Err(StoreError::NamesMemoryLimit {
                table: self.name.clone(),
                count: keys.len(),
                used: self.budget.used(),
                limit: self.budget.limit().unwrap_or(0),
            });
        }
        for (&key, name) in keys.iter().zip(names) {
            let hash = hash(key);
            let mut stripe = self.stripes[self.placement.stripe(hash)].write();
            let before = stripe.bytes();
            if !stripe.add_name(hash, name, version) {
                waiting.push(key);
            }
            self.budget.note(before, stripe.bytes());
        }
        Ok(())
    }

    /// Put back names as a checkpoint has them; those of other replicas are left out.
    pub(crate) fn restore_names(&self, saved: &SavedNames, version: u64) {
        let mut start = 0;
        for (&key, &end) in saved.keys.iter().zip(&saved.ends) {
            let (hash, range) = (hash(key), start..end as usize);
            start = end as usize;
            let name = saved.text.get(range).filter(|_| self.placement.owns(hash));
            let Some(name) = name else { continue };
            let mut stripe = self.stripes[self.placement.stripe(hash)].write();
            let before = stripe.bytes();
            stripe.add_name(hash, name, version);
            self.budget.note(before, stripe.bytes());
        }
    }

    /// Return the names in a stripe that came at a version or later.
    pub(crate) fn names_since(&self, stripe: usize, version: u64, saved: &mut SavedNames) {
        let stripe = self.stripes[stripe].read();
        for (hash, name) in stripe.names().into_iter().flat_map(|n| n.since(version)) {
            saved.push(unhash(hash), name);
        }
    }

    /// Return the names of keys, where they have any.
    pub(crate) fn names_of(&self, keys: &[u64]) -> Vec<Option<String>> {
        let name_of = |&key: &u64| {
            let hash = hash(key);
            if !self.placement.owns(hash) {
                return None;
            }
            let stripe = self.stripes[self.placement.stripe(hash)].read();
            Some(stripe.names()?.get(hash)?.to_owned())
        };
        keys.iter().map(name_of).collect()
    }

    pub(crate) fn names_tally(&self) -> NamesTally {
        let mut sum = NamesTally::default();
        for stripe in &self.stripes {
            if let Some(names) = stripe.read().names() {
                sum.names += names.len() as u64;
                sum.collisions += names.num_collisions() as u64;
            }
        }
        sum
    }
}
