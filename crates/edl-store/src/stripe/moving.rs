//! The parts of a stripe that come from another store, or go to one.

use super::Stripe;
use crate::life::{AdmissionFilter, Candidate};
use crate::names::Names;
use crate::remembered::Remembered;
use crate::route::unhash;

impl Stripe {
    /// Have a row as another store has it, unless a later version of it is here.
    pub(crate) fn put(&mut self, hash: u64, version: u64, birth: u64, row: &[f32]) {
        match self.index.get(hash) {
            None => {
                self.restore(hash, version, birth, row);
                let candidates = self.filter.as_mut().and_then(AdmissionFilter::candidates);
                if let Some(candidates) = candidates {
                    candidates.remove(hash);
                }
                if let Some(names) = &mut self.names {
                    names.row_came(hash);
                }
            }
            Some((number, here)) if here <= version => {
                if let Some(cold) = &mut self.cold {
                    cold.forget(number, &mut self.arena);
                    cold.add(hash, Some(number), &mut self.arena);
                }
                self.row_mut(number, row.len()).copy_from_slice(row);
                self.index.set(hash, number, version);
                if let Some(births) = &mut self.births {
                    births.set(number, birth);
                }
            }
            Some(_) => {}
        }
    }

    /// Append the candidates that were seen after a version among some from the hash `from` on;
    /// return the hash to go on from.
    pub(crate) fn candidates_since(
        &self,
        from: u64,
        max: usize,
        since: Option<u64>,
        out: &mut Remembered,
    ) -> Option<u64> {
        let (found, next) = self.filter.as_ref()?.walk_candidates(from, max)?;
        let is_new = |c: &&Candidate| since.is_none_or(|since| c.version > since);
        for candidate in found.iter().filter(is_new) {
            let count = candidate.count.to_le_bytes();
            out.push(unhash(candidate.hash), candidate.version, &count);
        }
        next
    }

    /// Have a candidate as another store has it, unless it has a row here, or was seen later.
    pub(crate) fn put_candidate(&mut self, candidate: Candidate) {
        if self.has_row(candidate.hash) {
            return;
        }
        if let Some(candidates) = self.filter.as_mut().and_then(AdmissionFilter::candidates) {
            candidates.put(candidate);
        }
    }

    /// Append the cells of the slots that have changed since the last time that this was asked, or
    /// of all of which something was counted.
    pub(crate) fn take_sketches(&mut self, all: bool, out: &mut Remembered) {
        if let Some(filter) = &mut self.filter {
            filter.take_sketches(all, |slot, cells| {
                // Any key of the slot says where it goes.
                out.push(unhash(u64::from(slot) << 48), 0, cells);
            });
        }
    }

    /// Count at least as much as another store has counted in a slot.
    pub(crate) fn put_sketch(&mut self, slot: u32, cells: &[u8]) {
        if let Some(filter) = &mut self.filter {
            filter.put_sketch(slot, cells);
        }
    }

    /// Append the names that came at a version or later.
    pub(crate) fn take_names(&self, since: Option<u64>, out: &mut Remembered) {
        let names = self.names.iter();
        for (hash, version, text) in names.flat_map(|n| n.with_versions(since.unwrap_or(0))) {
            out.push(unhash(hash), version, text.as_bytes());
        }
    }

    /// Append the other strings that keys were given.
    pub(crate) fn take_other_names(&self, out: &mut Remembered) {
        for (hash, text_hash) in self.names.iter().flat_map(|names| names.collisions()) {
            out.push(unhash(hash), 0, &text_hash.to_le_bytes());
        }
    }

    pub(crate) fn names_mut(&mut self) -> Option<&mut Names> {
        self.names.as_deref_mut()
    }
}
