//! Knows which strings of keys a client has sent, and which it must still send.
//!
//! A client sends a string once, before the update that may create the row of its key. A sent
//! string may be lost: a replica is restarted from a checkpoint, or a row is removed. Each answer
//! has a number, the generation, that changes when this may have happened. The client then forgets
//! what it has sent to that replica. `docs/designs/sparse-life-cycle.md` says why no string is
//! missed.

use std::borrow::Cow;
use std::collections::{HashMap, HashSet};

use edl_store::{MAX_NAME_BYTES, hash_of_name, replica_of};
use edl_wire::op::name::Response;

/// Ends a string that was too long.
const CUT: char = '…';

/// The ids of one site and the strings that they were made of.
#[derive(Debug, Clone, Copy)]
pub struct NameSite<'a> {
    /// The table's number.
    pub table: u32,
    /// Ids, with duplicates.
    pub ids: &'a [u64],
    /// As many strings.
    pub names: &'a [&'a str],
}

/// Strings for the keys of one table, on their way to one replica.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct NewNames {
    pub(crate) table: u32,
    pub(crate) keys: Vec<u64>,
    /// The end of each string in `text`.
    pub(crate) ends: Vec<u64>,
    pub(crate) text: String,
}

impl NewNames {
    fn push(&mut self, key: u64, name: &str) {
        self.keys.push(key);
        self.text.push_str(&cut(name));
        self.ends.push(self.text.len() as u64);
    }

    /// Return each string; `None` if the ends are not those of strings.
    pub(crate) fn names(&self) -> Option<Vec<&str>> {
        names_of(&self.text, &self.ends)
    }
}

/// Cut a text into strings at their ends; `None` if it cannot be.
pub(crate) fn names_of<'a>(text: &'a str, ends: &[u64]) -> Option<Vec<&'a str>> {
    let mut start = 0;
    ends.iter()
        .map(|&end| {
            let end = usize::try_from(end).ok()?;
            let name = text.get(start..end)?;
            start = end;
            Some(name)
        })
        .collect()
}

fn cut(name: &str) -> Cow<'_, str> {
    if name.len() <= MAX_NAME_BYTES {
        return name.into();
    }
    let room = 0..=MAX_NAME_BYTES - CUT.len_utf8();
    let end = room.rev().find(|&end| name.is_char_boundary(end));
    format!("{}{CUT}", &name[..end.unwrap_or(0)]).into()
}

/// For each replica, strings by table.
pub(crate) type Batch = Vec<Vec<NewNames>>;

/// The keys used last that are surely remembered, in some tens of MB. A string may be sent twice.
const MOST_RECENT: usize = 1 << 20;

/// The recently used keys, each with a hash of its string.
///
/// There are two generations. The older one is dropped once the younger is full, and a key that is
/// found in the older one is moved to the younger. So at most twice [`MOST_RECENT`] keys are kept,
/// without an order.
#[derive(Debug, Default)]
struct RecentKeys {
    young: HashMap<(u32, u64), u32>,
    old: HashMap<(u32, u64), u32>,
}

impl RecentKeys {
    /// Return the hash of a key, which is used now.
    fn find(&mut self, key: (u32, u64)) -> Option<u32> {
        if let Some(&check) = self.young.get(&key) {
            return Some(check);
        }
        let check = self.old.remove(&key)?;
        self.insert(key, check);
        Some(check)
    }

    fn insert(&mut self, key: (u32, u64), check: u32) {
        if self.young.len() >= MOST_RECENT {
            self.old = std::mem::take(&mut self.young);
        }
        self.young.insert(key, check);
    }

    fn retain(&mut self, is_kept: impl Fn(u64) -> bool) {
        for keys in [&mut self.young, &mut self.old] {
            keys.retain(|&(_, key), _| is_kept(key));
        }
    }
}

/// The strings that the replicas have, as far as a client knows.
#[derive(Debug, Default)]
pub(crate) struct SentNames {
    known: RecentKeys,
    /// Strings of keys that have another one: (table, key, hash).
    others: HashSet<(u32, u64, u32)>,
    /// For each replica, the generation of its last answer.
    generations: Vec<Option<u64>>,
    /// For each replica, the strings of the last call: the update after it may meet a successor
    /// that never got them.
    last: Batch,
    /// Under which layout.
    layout: u64,
}

impl SentNames {
    /// Forgets the strings that were sent to replicas of another layout. A successor may lack the
    /// strings of the last call, so returns the part of them for each replica of this layout.
    pub(crate) fn go_over_to(&mut self, layout: u64, num_replicas: usize) -> Batch {
        let mut batch: Batch = vec![Vec::new(); num_replicas];
        if layout == self.layout {
            return batch;
        }
        let before = std::mem::take(self);
        self.layout = layout;
        for earlier in before.last.iter().flatten() {
            for (&key, name) in earlier.keys.iter().zip(earlier.names().unwrap_or_default()) {
                let names = &mut batch[replica_of(key, num_replicas as u32) as usize];
                add(names, earlier.table).push(key, name);
            }
        }
        // Until they have heard it.
        self.last.clone_from(&batch);
        batch
    }

    /// Return what is to be sent: to each of some replicas, the strings that it may not have.
    pub(crate) fn unsent(&mut self, sites: &[NameSite<'_>], num_replicas: usize) -> Batch {
        let mut batch: Batch = vec![Vec::new(); num_replicas];
        let mut found: HashSet<(u32, u64, u32)> = HashSet::new();
        for site in sites {
            for (&key, name) in site.ids.iter().zip(site.names) {
                let check = hash_of_name(cut(name).as_bytes()) as u32;
                let is_known = self.known.find((site.table, key)) == Some(check);
                let id = (site.table, key, check);
                if is_known || self.others.contains(&id) || !found.insert(id) {
                    continue;
                }
                let names = &mut batch[replica_of(key, num_replicas as u32) as usize];
                add(names, site.table).push(key, name);
            }
        }
        batch
    }

    /// Notes the replicas' answers; returns the replicas that may have lost their strings, whose
    /// strings are forgotten.
    pub(crate) fn heard(&mut self, batch: &Batch, answers: &[Response]) -> Vec<usize> {
        self.generations.resize(answers.len(), None);
        self.last.resize(answers.len(), Vec::new());
        let mut lost = Vec::new();
        for (replica, (names, answer)) in batch.iter().zip(answers).enumerate() {
            let before = self.generations[replica].replace(answer.generation);
            if before.is_some_and(|before| before != answer.generation) {
                self.forget(replica, answers.len() as u32);
                lost.push(replica);
            } else {
                self.note(names, &answer.waiting);
            }
        }
        lost
    }

    /// Returns the strings to send again to the replicas that have lost them, with those of the
    /// last call.
    pub(crate) fn again(&mut self, sites: &[NameSite<'_>], lost: &[usize]) -> Batch {
        let mut batch = self.unsent(sites, self.generations.len());
        for (replica, names) in batch.iter_mut().enumerate() {
            if !lost.contains(&replica) {
                names.clear();
                continue;
            }
            for earlier in &self.last[replica] {
                let names = add(names, earlier.table);
                for (&key, name) in earlier.keys.iter().zip(earlier.names().unwrap_or_default()) {
                    names.push(key, name);
                }
            }
        }
        batch
    }

    /// Keep what was sent until the next call has found the replicas to be the same.
    pub(crate) fn keep(&mut self, sent: Batch) {
        self.last = sent;
    }

    /// Whether something was sent that the next call should confirm.
    pub(crate) fn is_unconfirmed(&self) -> bool {
        self.last.iter().any(|names| !names.is_empty())
    }

    fn note(&mut self, names: &[NewNames], waiting: &[u64]) {
        // The same key may wait in one table and not in another; it is sent once more to both.
        let waiting: HashSet<u64> = waiting.iter().copied().collect();
        for names in names {
            let texts = names.names().unwrap_or_default();
            for (&key, name) in names.keys.iter().zip(texts) {
                if waiting.contains(&key) {
                    continue;
                }
                let check = hash_of_name(name.as_bytes()) as u32;
                match self.known.find((names.table, key)) {
                    None => self.known.insert((names.table, key), check),
                    Some(known) if known == check => {}
                    Some(_) => {
                        self.others.insert((names.table, key, check));
                    }
                }
            }
        }
    }

    fn forget(&mut self, replica: usize, num_replicas: u32) {
        let is_elsewhere = |key: u64| replica_of(key, num_replicas) as usize != replica;
        self.known.retain(is_elsewhere);
        self.others.retain(|&(_, key, _)| is_elsewhere(key));
    }
}

fn add(names: &mut Vec<NewNames>, table: u32) -> &mut NewNames {
    let at = names.iter().position(|names| names.table == table);
    let at = at.unwrap_or_else(|| {
        names.push(NewNames {
            table,
            ..NewNames::default()
        });
        names.len() - 1
    });
    &mut names[at]
}

#[cfg(test)]
mod tests {
    use super::*;

    const IDS: [u64; 4] = [1, 2, 1, 3];
    const NAMES: [&str; 4] = ["one", "two", "one", "three"];

    fn site() -> NameSite<'static> {
        NameSite {
            table: 0,
            ids: &IDS,
            names: &NAMES,
        }
    }

    fn answer(generation: u64, waiting: &[u64]) -> Vec<Response> {
        let waiting = waiting.to_vec();
        vec![Response {
            generation,
            waiting,
        }]
    }

    fn keys(batch: &Batch) -> Vec<u64> {
        let names = batch.iter().flatten();
        names.flat_map(|names| names.keys.clone()).collect()
    }

    #[test]
    fn each_string_is_sent_once_until_its_key_has_a_row() {
        let mut sent = SentNames::default();
        let batch = sent.unsent(&[site()], 1);
        assert_eq!(keys(&batch), [1, 2, 3]);
        assert_eq!(batch[0][0].names(), Some(vec!["one", "two", "three"]));
        assert!(sent.heard(&batch, &answer(7, &[2])).is_empty());
        assert_eq!(keys(&sent.unsent(&[site()], 1)), [2]);
    }

    #[test]
    fn a_replica_that_may_have_lost_names_is_sent_those_of_the_last_time_as_well() {
        let mut sent = SentNames::default();
        let batch = sent.unsent(&[site()], 1);
        sent.heard(&batch, &answer(7, &[]));
        sent.keep(batch);
        assert!(sent.is_unconfirmed());
        let other = NameSite {
            table: 0,
            ids: &[9, 1],
            names: &["nine", "one"],
        };
        let batch = sent.unsent(&[other], 1);
        assert_eq!(keys(&batch), [9]);
        let lost = sent.heard(&batch, &answer(8, &[]));
        assert_eq!(lost, [0]);
        let again = sent.again(&[other], &lost);
        assert_eq!(keys(&again), [9, 1, 1, 2, 3]);
        assert!(sent.heard(&again, &answer(8, &[])).is_empty());
        assert!(keys(&sent.unsent(&[site(), other], 1)).is_empty());
    }

    #[test]
    fn replicas_of_another_layout_are_sent_all_again_and_those_of_the_last_time() {
        let mut sent = SentNames::default();
        let batch = sent.unsent(&[site()], 1);
        sent.heard(&batch, &answer(7, &[]));
        sent.keep(batch);
        assert!(keys(&sent.go_over_to(0, 1)).is_empty());
        let mut again = keys(&sent.go_over_to(4, 2));
        again.sort_unstable();
        assert_eq!(again, [1, 2, 3]);
        let mut unsent = keys(&sent.unsent(&[site()], 2));
        unsent.sort_unstable();
        assert_eq!(unsent, [1, 2, 3]);
        assert!(keys(&sent.go_over_to(4, 2)).is_empty());
    }

    #[test]
    fn another_string_for_a_key_is_sent_once_to_be_counted() {
        let mut sent = SentNames::default();
        let other = NameSite {
            table: 0,
            ids: &[1],
            names: &["uno"],
        };
        let batch = sent.unsent(&[site(), other], 1);
        assert_eq!(keys(&batch), [1, 2, 3, 1]);
        sent.heard(&batch, &answer(7, &[]));
        assert!(keys(&sent.unsent(&[other, site()], 1)).is_empty());
    }

    #[test]
    fn keys_used_lately_are_remembered_and_others_cost_no_memory_for_ever() {
        let mut keys = RecentKeys::default();
        let count = 4 * MOST_RECENT as u64;
        for key in 0..count {
            keys.insert((0, key), 7);
            assert_eq!(keys.find((0, 3.min(key))), Some(7));
        }
        assert!(keys.young.len() + keys.old.len() <= 2 * MOST_RECENT);
        assert_eq!(keys.find((0, count - 1)), Some(7));
        assert_eq!(keys.find((0, 4)), None);
    }

    #[test]
    fn a_long_string_is_cut_between_characters() {
        let long = "é".repeat(MAX_NAME_BYTES);
        let name = cut(&long);
        assert!(name.len() <= MAX_NAME_BYTES && name.len() > MAX_NAME_BYTES - 4);
        assert!(name.ends_with("é…"));
        assert_eq!(cut("short"), "short");
    }
}
