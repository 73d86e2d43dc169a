//! Rows that go, and the numbers of rows that are free.

use std::borrow::Cow;

use super::Stripe;
use crate::arena::View;
use crate::cold::ColdRows;
use crate::error::StoreError;
use crate::features::Features;
use crate::index::{Entry, NO_ROW};

/// The rows that were removed of some that were looked at.
pub(crate) struct Removed {
    /// The hash to go on from.
    pub(crate) next: Option<u64>,
    pub(crate) rows: u64,
    /// Whether something has gone with one of them that workers are to tell again.
    pub(crate) is_told: bool,
}

/// A row that is looked at, to be removed or not.
pub(crate) struct Looked<'a> {
    entry: &'a Entry,
    cold: Option<&'a ColdRows>,
    arena: &'a View<'a>,
    pub(crate) features: &'a Features,
}

impl Looked<'_> {
    pub(crate) fn hash(&self) -> u64 {
        self.entry.hash
    }

    pub(crate) fn version(&self) -> u64 {
        self.entry.version()
    }

    /// Return the row's number.
    pub(crate) fn number(&self) -> u32 {
        self.entry.row()
    }

    /// Return the first floats of the row, wherever it is.
    ///
    /// # Errors
    /// It cannot be read.
    pub(crate) fn values(&self, len: usize) -> Result<Cow<'_, [f32]>, StoreError> {
        let row = self.entry.row();
        let place = self.cold.map_or(row, |cold| cold.place_of(row));
        match self.cold {
            Some(cold) if place == NO_ROW => {
                let mut whole = cold.fetch(row)?;
                whole.truncate(len);
                Ok(Cow::Owned(whole))
            }
            _ => Ok(Cow::Borrowed(self.arena.row(place, len))),
        }
    }
}

impl Stripe {
    /// Take a row that is free, or a new one.
    ///
    /// While a snapshot is read only new ones are taken: it tells by the number which rows were
    /// there when it began. Nor is a free one taken at the version of the last snapshot: what has
    /// changed since is told by the version, and of equal ones by the number.
    pub(super) fn take_row(&mut self, hash: u64, version: u64) -> u32 {
        let is_told = self.snapshot_version.is_none_or(|last| version > last);
        let free = if self.snapshot.is_none() && is_told {
            self.free.pop()
        } else {
            None
        };
        match &mut self.cold {
            None => free.unwrap_or_else(|| self.arena.push()),
            Some(cold) => cold.add(hash, free, &mut self.arena),
        }
    }

    /// Remove those of some rows from the hash `from` on, about `max`, that are to go, in a pass that
    /// began at `version`.
    ///
    /// # Errors
    /// Rows on disk that cannot be read.
    pub(crate) fn remove_where(
        &mut self,
        from: u64,
        max: usize,
        version: u64,
        goes: impl Fn(&Looked<'_>) -> Result<bool, StoreError>,
    ) -> Result<Removed, StoreError> {
        let (entries, next) = self.index.walk(from, max);
        let mut going = Vec::new();
        let arena = self.arena.view();
        for entry in entries {
            let looked = Looked {
                entry: &entry,
                cold: self.cold.as_deref(),
                arena: &arena,
                features: &self.features,
            };
            if !goes(&looked)? {
                continue;
            }
            let place = (entry.hash, entry.row(), entry.version());
            if let Some(snapshot) = &mut self.snapshot
                && snapshot.wants(place.0, place.1, place.2)
            {
                let values = looked.values(self.width)?;
                snapshot.saved.push(place, &self.features, &values);
            }
            going.push(entry);
        }
        drop(arena);
        let mut removed = Removed {
            next,
            rows: going.len() as u64,
            is_told: false,
        };
        for entry in going {
            self.index.remove(entry.hash);
            if let Some(cold) = &mut self.cold {
                cold.forget(entry.row(), &mut self.arena);
            }
            self.free.push(entry.row());
            removed.is_told |= self.features.removed(entry.hash, version);
        }
        if next.is_none() {
            self.features
                .iter_mut()
                .for_each(|part| part.passed(version));
        }
        Ok(removed)
    }
}
