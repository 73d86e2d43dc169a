//! Finds the keys that this process looks up most, for its heartbeats, by a sketch over some
//! minibatches.
//!
//! Only the client of a worker knows how often an id occurs: replicas are asked for each key once a
//! minibatch. Only a sample of the minibatches is counted, so the count costs next to nothing.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::dedup::{Plan, TablePlan};

/// One in so many minibatches is counted, beginning with the first.
const SAMPLED: u64 = 32;
/// Keys that are followed in a table.
const COUNTERS: usize = 64;
/// Within a minibatch, keys below this part of its ids are left out.
const LEAST_PART: usize = 1024;
/// Keys of a table that are told, and the part of its ids that each has at least.
const MOST_TOLD: usize = 5;
const LEAST_TOLD: u64 = 100;
/// Tables that are followed.
const MOST_TABLES: usize = 100;

// Written by every client of the process and emptied by its heartbeat; each lock is for one table
// of a minibatch in `SAMPLED`.
static TABLES: Mutex<BTreeMap<String, SpaceSaving>> = Mutex::new(BTreeMap::new());
static NUM_PULLS: AtomicU64 = AtomicU64::new(0);

/// The keys of a table that were looked up most, since it was asked before.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HotKeys {
    /// The table's name.
    pub table: String,
    /// Ids that were counted.
    pub num_ids: u64,
    /// Keys, and how many of the ids they are; the most frequent first.
    pub keys: Vec<(u64, u64)>,
}

/// The counts since the last call, of a sample of the minibatches; begins to count anew.
pub fn take_hot_keys() -> Vec<HotKeys> {
    let tables = std::mem::take(&mut *tables());
    let told = tables.into_iter().map(|(table, sketch)| HotKeys {
        table,
        num_ids: sketch.total,
        keys: sketch.hottest(),
    });
    told.collect()
}

/// Counts the ids of a minibatch, if it is one of the sample; `names` are those of all tables.
pub(crate) fn note(names: &[String], plan: &Plan) {
    if NUM_PULLS
        .fetch_add(1, Ordering::Relaxed)
        .is_multiple_of(SAMPLED)
    {
        for table in &plan.tables {
            count(&names[table.table as usize], table);
        }
    }
}

fn count(name: &str, plan: &TablePlan) {
    let counts = plan.occurrences();
    let total: u64 = counts.iter().map(|&count| u64::from(count)).sum();
    let least = (total / LEAST_PART as u64).max(1);
    let mut tables = tables();
    if !tables.contains_key(name) {
        if tables.len() == MOST_TABLES {
            return;
        }
        tables.insert(name.to_owned(), SpaceSaving::default());
    }
    let Some(sketch) = tables.get_mut(name) else {
        return;
    };
    sketch.total += total;
    for (&key, &count) in plan.keys().iter().zip(&counts) {
        if u64::from(count) >= least {
            sketch.add(key, u64::from(count));
        }
    }
}

fn tables() -> MutexGuard<'static, BTreeMap<String, SpaceSaving>> {
    TABLES.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Space-Saving (Metwally, Agrawal and El Abbadi, 2005), with weights: a key that is not followed
/// takes the place of the least frequent one, and inherits its count. No count is too low by more
/// than what was never added, nor too high by more than the total divided by `COUNTERS`.
#[derive(Default)]
struct SpaceSaving {
    /// Ids seen, also of keys that were left out.
    total: u64,
    counters: Vec<Counter>,
}

struct Counter {
    key: u64,
    count: u64,
    /// What was inherited.
    excess: u64,
}

impl SpaceSaving {
    fn add(&mut self, key: u64, times: u64) {
        if let Some(counter) = self.counters.iter_mut().find(|c| c.key == key) {
            counter.count += times;
            return;
        }
        let mut counter = Counter {
            key,
            count: times,
            excess: 0,
        };
        if self.counters.len() < COUNTERS {
            self.counters.push(counter);
            return;
        }
        if let Some(least) = self.counters.iter_mut().min_by_key(|c| c.count) {
            counter.excess = least.count;
            counter.count += least.count;
            *least = counter;
        }
    }

    /// The most frequent keys, by what is certain of their counts.
    fn hottest(&self) -> Vec<(u64, u64)> {
        let certain = self.counters.iter().map(|c| (c.key, c.count - c.excess));
        let mut hottest: Vec<_> = certain
            .filter(|&(_, count)| count * LEAST_TOLD >= self.total)
            .collect();
        hottest.sort_unstable_by_key(|&(key, count)| (std::cmp::Reverse(count), key));
        hottest.truncate(MOST_TOLD);
        hottest
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dedup::{Planner, Site};

    fn sketch_of(keys: impl Iterator<Item = u64>) -> SpaceSaving {
        let mut sketch = SpaceSaving::default();
        for key in keys {
            sketch.total += 1;
            sketch.add(key, 1);
        }
        sketch
    }

    #[test]
    fn keys_that_are_frequent_are_told_with_their_counts_in_bounded_memory() {
        // 7 is each fourth id and 8 each eighth; all others come once.
        let ids = (0..80_000_u64).map(|i| match i % 8 {
            0 | 4 => 7,
            1 => 8,
            _ => 1_000 + i,
        });
        let sketch = sketch_of(ids);
        assert_eq!(sketch.counters.len(), COUNTERS);
        let hottest = sketch.hottest();
        assert_eq!(hottest.iter().map(|h| h.0).collect::<Vec<_>>(), [7, 8]);
        let bound = sketch.total / COUNTERS as u64;
        assert!((20_000 - bound..=20_000).contains(&hottest[0].1));
        assert!((10_000 - bound..=10_000).contains(&hottest[1].1));
    }

    #[test]
    fn of_keys_that_are_all_rare_none_is_told() {
        assert_eq!(sketch_of(0..50_000).hottest(), []);
    }

    #[test]
    fn occurrences_of_all_sites_of_a_table_are_counted() {
        let (first, second) = ([5, 5, 6, 5], [6, 9]);
        let site = |ids| Site { table: 0, ids };
        let mut planner = Planner::default();
        let plan = planner
            .plan(&[site(&first), site(&second)], &[1], 2)
            .unwrap();
        count("only of this test", &plan.tables[0]);
        let told = take_hot_keys();
        let told = told.iter().find(|t| t.table == "only of this test");
        let expected = HotKeys {
            table: "only of this test".to_owned(),
            num_ids: 6,
            keys: vec![(5, 3), (6, 2), (9, 1)],
        };
        assert_eq!(told, Some(&expected));
    }
}
