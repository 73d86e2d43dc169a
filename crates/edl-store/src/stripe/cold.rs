//! The rows of a stripe that are on disk.

use super::{RowSpec, SavedRows, Stripe};
use crate::cold::{ColdFile, ColdRows, ColdTally};
use crate::error::StoreError;

impl Stripe {
    /// Bring rows to a file from now on, when they are asked to go; a new stripe does not.
    pub(crate) fn keep_cold(&mut self, file: ColdFile) {
        self.cold = Some(Box::new(ColdRows::new(file)));
    }

    pub(crate) fn cold_tally(&self) -> ColdTally {
        let rows = self.len() - self.arena.len() as usize;
        let cold = self.cold.as_ref();
        cold.map_or_else(ColdTally::default, |cold| cold.tally(rows))
    }

    /// Bring some rows to disk; return how many, or `None` if there are few left in memory.
    ///
    /// # Errors
    /// A disk that takes no more: all rows are in memory that were. Or one that cannot be read.
    pub(crate) fn evict(&mut self, buffer: &mut Vec<u8>) -> Result<Option<usize>, StoreError> {
        let Some(cold) = &mut self.cold else {
            return Ok(None);
        };
        let version_of = |hash| self.index.get(hash).map_or(0, |(_, version)| version);
        cold.evict(&mut self.arena, version_of, buffer)
    }

    /// Read those rows of some keys into memory that are on disk; return the row of each key.
    ///
    /// # Errors
    /// Rows that cannot be read.
    pub(crate) fn bring(&mut self, hashes: &[u64]) -> Result<Vec<Option<u32>>, StoreError> {
        let rows: Vec<_> = hashes.iter().map(|&hash| self.index.find(hash)).collect();
        if let Some(cold) = &mut self.cold {
            let found: Vec<u32> = rows.iter().copied().flatten().collect();
            cold.bring(&found, &mut self.arena)?;
        }
        Ok(rows)
    }

    /// Give `take` the weights of some keys that have a row, wherever it is, by number; return how
    /// many have none.
    ///
    /// # Errors
    /// Rows that cannot be read.
    pub(crate) fn look_up(
        &self,
        hashes: &[u64],
        spec: &RowSpec,
        mut take: impl FnMut(usize, Option<&[f32]>),
    ) -> Result<usize, StoreError> {
        let mut found = Vec::new();
        for (i, &hash) in hashes.iter().enumerate() {
            match self.index.find(hash) {
                Some(row) => found.push((i, row)),
                None => take(i, None),
            }
        }
        let rows: Vec<u32> = found.iter().map(|&(_, row)| row).collect();
        let mut values = Vec::new();
        self.copy_numbered(&rows, spec.head::<0>(), &mut values)?;
        let values = spec.weights(values.into());
        for (&(i, _), weights) in found.iter().zip(values.chunks_exact(spec.dim)) {
            take(i, Some(weights));
        }
        Ok(hashes.len() - found.len())
    }

    /// Append some more rows of the snapshot to `out` from the file, in the order of the disk; return
    /// false when all of it has been read.
    pub(super) fn read_part(&mut self, out: &mut SavedRows) -> Result<bool, StoreError> {
        let (Some(cold), Some(snapshot)) = (&self.cold, &mut self.snapshot) else {
            return Ok(false);
        };
        let Some(part) = snapshot.part else {
            return Ok(false);
        };
        let more = cold.visit_part(part, |head, row| {
            if snapshot.wants(head.hash, head.row, head.version) {
                snapshot.found[head.row as usize / 64] |= 1 << (head.row % 64);
                let place = (head.hash, head.row, head.version);
                out.push(place, &self.features, row);
            }
        })?;
        snapshot.part = more.then_some(part + 1);
        Ok(true)
    }

    #[cfg(test)]
    pub(crate) fn cold_mut(&mut self) -> Option<&mut ColdRows> {
        self.cold.as_deref_mut()
    }
}
