//! Stores that are filled from others, of another number of replicas.

use std::ops::Range;

use edl_store::{MovedMarks, Piece, RowsToPut, Store, StoreError, dense_range, replica_of, unseen};

use super::Replicas;

/// A move that is being made.
pub struct Move {
    to: Replicas,
    round: u32,
}

impl Move {
    /// Begin to fill so many stores with what others have.
    pub fn to(count: u32, from: &Replicas) -> Self {
        let (spec, is_restored) = from.0[0].model_to_move().unwrap();
        // Changes are found by a walk over all rows, or are noted.
        let notes = from.0.iter().filter(|_| count.is_multiple_of(2));
        notes.for_each(|store| store.note_changes().unwrap());
        let to = (0..count).map(|replica| {
            Store::to_be_filled((*spec).clone(), is_restored, replica, count, &[400, 400]).unwrap()
        });
        Self {
            to: Replicas(to.collect()),
            round: 0,
        }
    }

    /// Copy all tables, or what has changed since the last copy; return how many rows, or nothing if
    /// some have gone.
    pub fn copy(&mut self, from: &Replicas) -> Option<usize> {
        let since = self.round.checked_sub(1).map(|round| round.to_string());
        let name = self.round.to_string();
        self.round += 1;
        let mut copied = 0;
        for source in &from.0 {
            copied += copy_tables(source, &self.to, &name, since.as_deref())?;
        }
        Some(copied)
    }

    /// Copy the last changes and all else; return the stores that have everything now.
    pub fn end(mut self, from: &Replicas) -> Replicas {
        self.copy(from).unwrap();
        copy_vectors(from, &self.to);
        take_marks(from, &self.to);
        self.to
    }
}

fn copy_tables(source: &Store, to: &Replicas, name: &str, since: Option<&str>) -> Option<usize> {
    let mut copied = 0;
    let mut has_gone = false;
    let cut = source.cut(name, since, &unseen, |piece| {
        let Piece::Rows {
            table,
            keys,
            versions,
            words,
            rows,
            width,
        } = piece
        else {
            has_gone = true;
            return Ok(());
        };
        let num_words = words.len() / keys.len();
        for (i, &key) in keys.iter().enumerate() {
            let target = &to.0[replica_of(key, to.count()) as usize];
            let given = RowsToPut {
                keys: &[key],
                versions: &versions[i..=i],
                words: &words[i * num_words..][..num_words],
                rows: &rows[i * width..(i + 1) * width],
            };
            target.put_moved(table as u32, &given)?;
            copied += 1;
        }
        Ok::<_, StoreError>(())
    });
    let cut = cut.unwrap();
    assert_eq!(cut.since.is_none(), since.is_none());
    assert!(cut.has_removals || !has_gone);
    if cut.has_removals {
        return None;
    }
    let given = source.give_remembered(cut.since, |table, found| {
        found.split(to.count(), |replica, part| {
            to.0[replica as usize].put_remembered(table, part)
        })
    });
    given.unwrap();
    Some(copied)
}

/// What two replicas hold of a vector, each counted from its own first element.
fn common(len: usize, from: &Store, to: &Store) -> Option<(Range<usize>, Range<usize>)> {
    let here = dense_range(len, from.replica(), from.num_replicas());
    let there = dense_range(len, to.replica(), to.num_replicas());
    let (first, end) = (here.start.max(there.start), here.end.min(there.end));
    (first < end).then(|| {
        (
            first - here.start..end - here.start,
            first - there.start..end - there.start,
        )
    })
}

fn copy_vectors(from: &Replicas, to: &Replicas) {
    let (spec, _) = from.0[0].model_to_move().unwrap();
    let (num_dense, num_state) = (spec.dense_len().unwrap(), spec.state_len().unwrap());
    for source in &from.0 {
        for target in &to.0 {
            let num_slots = source.num_slots().unwrap();
            if let Some((here, there)) = common(num_dense, source, target) {
                let mut values = vec![0.0; here.len() * (1 + num_slots)];
                source.read_part(here, &mut values).unwrap();
                target.write_part(there, &values).unwrap();
            }
            if let Some((here, there)) = common(num_state, source, target) {
                let behind = |store: &Store, part: Range<usize>| {
                    let held = dense_range(num_dense, store.replica(), store.num_replicas()).len();
                    held + part.start..held + part.end
                };
                let mut values = vec![0.0; here.len()];
                source.read_part(behind(source, here), &mut values).unwrap();
                target.write_part(behind(target, there), &values).unwrap();
            }
        }
    }
}

fn take_marks(from: &Replicas, to: &Replicas) {
    let marks: Vec<MovedMarks> = from.0.iter().map(|s| s.marks_to_move().unwrap()).collect();
    assert!(
        marks
            .iter()
            .all(|found| found.watermarks == marks[0].watermarks)
    );
    let mut merged = marks[0].clone();
    for found in &marks {
        assert_eq!(found.times, merged.times);
        for (period, other) in merged.periods.iter_mut().zip(&found.periods) {
            *period = *other.max(period);
        }
    }
    for target in &to.0 {
        target.take_moved_marks(&merged).unwrap();
    }
}
