//! Rows that come from the store of another replica, and what is remembered beside them.

use parking_lot::RwLockWriteGuard;

use super::Table;
use crate::error::StoreError;
use crate::life::Candidate;
use crate::placement::NUM_STRIPES;
use crate::remembered::{PIECE_BYTES, Remembered, RememberedKind};
use crate::route::hash;
use crate::stripe::Stripe;

/// Candidates that are looked at under one taking of a stripe's lock.
const WALKED: usize = 4096;

impl Table {
    /// Make room for so many rows in all, as evenly as hashes fall.
    pub(crate) fn reserve_rows(&self, num_rows: u64) {
        let of_stripe = (num_rows as usize).div_ceil(NUM_STRIPES);
        for stripe in &self.stripes {
            let mut stripe = stripe.write();
            let before = stripe.bytes();
            stripe.reserve(of_stripe + of_stripe / 64);
            self.budget.note(before, stripe.bytes());
        }
    }

    /// Have rows, weights and slots, as another store has them, unless later versions are here.
    pub(crate) fn put(
        &self,
        keys: &[u64],
        versions: &[u64],
        births: &[u64],
        rows: &[f32],
    ) -> Result<(), StoreError> {
        let expected = keys.len().saturating_mul(self.spec.width);
        let num_births = if self.has_births() { keys.len() } else { 0 };
        if rows.len() != expected || versions.len() != keys.len() || births.len() != num_births {
            return Err(StoreError::WrongLength {
                what: format!("the moved rows of table '{}'", self.name),
                expected,
                found: rows.len(),
            });
        }
        self.placement.check(keys)?;
        self.check_room(keys)?;
        self.note_periods(rows);
        // They come in the order of their hashes, so a lock is taken once for many.
        let mut locked: Option<(usize, RwLockWriteGuard<'_, Stripe>)> = None;
        let births = births.iter().copied().chain(std::iter::repeat(0));
        let rows = rows.chunks_exact(self.spec.width);
        for (((&key, &version), birth), row) in keys.iter().zip(versions).zip(births).zip(rows) {
            let hash = hash(key);
            let number = self.placement.stripe(hash);
            let stripe = match &mut locked {
                Some((held, stripe)) if *held == number => stripe,
                other => {
                    *other = None;
                    &mut other.insert((number, self.stripes[number].write())).1
                }
            };
            let (before, len) = (stripe.bytes(), stripe.len());
            stripe.put(hash, version, birth, row);
            if stripe.len() > len {
                self.budget.note(before, stripe.bytes());
            }
        }
        Ok(())
    }

    /// Give what is remembered beside rows: all, or what has changed after a version.
    pub(crate) fn give_remembered<E: From<StoreError>>(
        &self,
        since: Option<u64>,
        take: &mut impl FnMut(&Remembered) -> Result<(), E>,
    ) -> Result<(), E> {
        use RememberedKind::{Counts, Names, OtherNames, Sketches};
        for kind in [Counts, Sketches, Names, OtherNames] {
            let mut found = Remembered::of(kind);
            for number in 0..NUM_STRIPES {
                match kind {
                    Counts => self.walk_candidates(number, since, &mut found),
                    Sketches => {
                        let mut stripe = self.stripes[number].write();
                        stripe.take_sketches(since.is_none(), &mut found);
                    }
                    Names => self.stripes[number].read().take_names(since, &mut found),
                    OtherNames => self.stripes[number].read().take_other_names(&mut found),
                }
                let is_last = number + 1 == NUM_STRIPES;
                if found.bytes.len() > PIECE_BYTES || (is_last && !found.keys.is_empty()) {
                    take(&found)?;
                    found = Remembered::of(kind);
                }
            }
        }
        Ok(())
    }

    fn walk_candidates(&self, number: usize, since: Option<u64>, found: &mut Remembered) {
        let mut cursor = Some(0);
        while let Some(from) = cursor {
            let stripe = self.stripes[number].read();
            cursor = stripe.candidates_since(from, WALKED, since, found);
        }
    }

    /// Have what another store remembers.
    pub(crate) fn put_remembered(&self, given: &Remembered) -> Result<(), StoreError> {
        self.placement.check(&given.keys)?;
        for (key, version, bytes) in given.items()? {
            let torn = || StoreError::WrongLength {
                what: format!("what is remembered beside rows of table '{}'", self.name),
                expected: self.sketch_cells(),
                found: bytes.len(),
            };
            let hash = hash(key);
            let mut stripe = self.stripes[self.placement.stripe(hash)].write();
            match given.kind {
                RememberedKind::Counts => stripe.put_candidate(Candidate {
                    hash,
                    version,
                    count: u32::from_le_bytes(bytes.try_into().map_err(|_| torn())?),
                }),
                RememberedKind::Sketches if bytes.len() == self.sketch_cells() => {
                    stripe.put_sketch((hash >> 48) as u32, bytes);
                }
                RememberedKind::Sketches => return Err(torn()),
                RememberedKind::Names => {
                    let before = stripe.bytes();
                    let text = std::str::from_utf8(bytes).map_err(|_| torn())?;
                    stripe.add_name(hash, text, version);
                    self.budget.note(before, stripe.bytes());
                }
                RememberedKind::OtherNames => {
                    let text_hash = u64::from_le_bytes(bytes.try_into().map_err(|_| torn())?);
                    if let Some(names) = stripe.names_mut() {
                        names.add_collision((hash, text_hash));
                    }
                }
            }
        }
        Ok(())
    }

    /// Return the bits of the newest period that was added to; 0 where rows are no statistics.
    pub(crate) fn newest_period(&self) -> u32 {
        self.newest().to_bits()
    }

    /// Know of a period that others have added to.
    pub(crate) fn note_newest_period(&self, bits: u32) {
        self.newest
            .fetch_max(bits, std::sync::atomic::Ordering::AcqRel);
    }
}
