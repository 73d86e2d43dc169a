//! The names of a stripe's keys.

use super::Stripe;
use crate::names::Names;

impl Stripe {
    /// Keep names from now on; a new stripe does not.
    pub(crate) fn keep_names(&mut self) {
        self.names = Some(Box::default());
    }

    pub(crate) fn names(&self) -> Option<&Names> {
        self.names.as_deref()
    }

    /// Note the name of a key; return whether the key has a row, and the name is there to stay.
    pub(crate) fn add_name(&mut self, hash: u64, text: &str, version: u64) -> bool {
        let has_row = self.has_row(hash);
        let names = self.names.as_mut();
        names.is_some_and(|names| names.add(hash, text, version, has_row))
    }
}
