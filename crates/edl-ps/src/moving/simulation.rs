//! Simulates whole jobs in one thread, by seeds. Workers push to one replica after the other, and
//! are lost in between. Moves are given up or complete, replicas are lost at each step of a move,
//! and messages come late.
//!
//! The first table counts: each key belongs to one minibatch, and each training of the minibatch
//! adds one. Each dense value counts all minibatches in the same way. In a second table each key
//! belongs to two minibatches, and the second one creates its row. So the counts of keys without a
//! row must move too.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use edl_store::{
    ModelSpec, MovedMarks, PullMode, Push, Store, TableGrads, dense_range, replica_of, unseen,
};
use tempfile::TempDir;

use super::copying::{Moved, copy_tables, copy_vectors};
use super::*;

const MODEL: &str = r#"{"tables": [{"name": "t", "dim": 1,
    "initializer": {"kind": "constant", "params": {"value": 0.0}},
    "optimizer": {"kind": "sgd"}}, {"name": "twice", "dim": 1,
    "initializer": {"kind": "constant", "params": {"value": 0.0}},
    "admission": {"kind": "count", "params": {"count": 2}},
    "optimizer": {"kind": "sgd"}}], "dense": [{"name": "w", "shape": [70], "offset": 0}],
    "state": [], "optimizer": {"kind": "sgd"}, "seed": 0}"#;
const DENSE: usize = 70;
const TASKS: u64 = 3;
const MINIBATCHES: u32 = 14;
const KEYS: u64 = 6;
const MOVES: u32 = 3;

/// Xorshift (Marsaglia, 2003).
struct Random(u64);

impl Random {
    fn below(&mut self, end: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % end
    }
}

/// The state of a worker's task.
#[derive(Clone, Default)]
struct Worker {
    lease: u32,
    layout: u64,
    /// `None` until all replicas have begun the lease; of each that has, where it stands.
    index: Option<u32>,
    answered: BTreeMap<usize, u32>,
}

/// The state of a move.
#[derive(Clone, Copy, PartialEq, Eq)]
enum At {
    Begin,
    Cut,
    Copy,
    Again,
    Hold,
}

/// A part of the protocol that is left out, one at a time: the simulation must then find an error.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Sabotage {
    /// Whatever replicas have applied, it is taken for the same.
    Agreement,
    /// The changes since the first copy are not copied.
    LastCopy,
    /// The remembered counts of keys without a row are not copied.
    Remembered,
    /// Requests are not held while the last changes are copied.
    Hold,
}

struct Job {
    sabotage: Option<Sabotage>,
    random: Random,
    folder: TempDir,
    /// The hosts by index; hosts beyond the number of the present layout have no part of it.
    hosts: Vec<Host>,
    layout: u64,
    count: u32,
    tried: u64,
    workers: Vec<Worker>,
    /// The checkpoint with which a lost replica begins again.
    checkpoint: Option<PathBuf>,
    num_files: u32,
}

fn declared(replica: u32, count: u32) -> Store {
    let store = Store::new(replica, count);
    let model = ModelSpec::from_json(MODEL).unwrap();
    let held = dense_range(DENSE, replica, count).len();
    store.declare(model, &vec![0.0; held], &[]).unwrap();
    store
}

fn keys(task: u64, index: u32) -> impl Iterator<Item = u64> {
    (0..KEYS).map(move |i| (task * 1_000 + u64::from(index)) * 10 + i)
}

/// Keys of the second table: the next minibatch, or the one before, has the same.
fn shared_keys(task: u64, index: u32) -> impl Iterator<Item = u64> {
    keys(task, index / 2)
}

impl Job {
    fn new(seed: u64, sabotage: Option<Sabotage>) -> Self {
        let mut random = Random(0x9e37_79b9_7f4a_7c15_u64.wrapping_mul(seed + 1));
        let count = 1 + random.below(3) as u32;
        let mut job = Self {
            sabotage,
            random,
            folder: tempfile::tempdir().unwrap(),
            hosts: Vec::new(),
            layout: 0,
            count,
            tried: 0,
            workers: vec![Worker::default(); TASKS as usize],
            checkpoint: None,
            num_files: 0,
        };
        for replica in 0..count {
            let host = job.successor(replica);
            job.hosts.push(host);
        }
        job.workers.iter_mut().for_each(|worker| worker.lease = 1);
        job
    }

    /// A replica of the layout that counts, from the last checkpoint.
    fn successor(&self, replica: u32) -> Host {
        let store = match &self.checkpoint {
            Some(folder) => Store::restore(folder, replica, self.count, true).unwrap(),
            None => declared(replica, self.count),
        };
        let layout = Layout {
            number: self.layout,
            replica,
            num_replicas: self.count,
        };
        Host::new(Some(Arc::new(store)), layout)
    }

    /// A replica is lost, and its successor lacks something: all tasks are leased again.
    fn lose_replica(&mut self, replica: u32) {
        self.hosts[replica as usize] = self.successor(replica);
        (0..TASKS as usize).for_each(|task| self.lose_worker(task));
    }

    fn lose_worker(&mut self, task: usize) {
        let worker = &mut self.workers[task];
        worker.lease += 1;
        (worker.index, worker.answered) = (None, BTreeMap::new());
    }

    /// One message of a worker to one replica; false if its task is done.
    fn work(&mut self, task: usize) -> bool {
        let worker = self.workers[task].clone();
        if worker.index == Some(MINIBATCHES) {
            return false;
        }
        // How many it knows of is of its layout, which may be over.
        let known = if worker.layout == self.layout {
            self.count as usize
        } else {
            1
        };
        let waiting: Vec<usize> = (0..known)
            .filter(|r| !worker.answered.contains_key(r))
            .collect();
        let replica = waiting[self.random.below(waiting.len() as u64) as usize];
        let update = worker.index.map(|index| (task as u64, index));
        let host = &self.hosts[replica];
        match host.admits(worker.layout, update.as_slice()) {
            Entrance::Later => return true,
            Entrance::Elsewhere(told) => {
                // A successor does not know where; the worker hears it from the master.
                let layout = told.parse().unwrap_or(self.layout);
                let worker = &mut self.workers[task];
                worker.layout = layout;
                worker.answered.clear();
                return true;
            }
            Entrance::Now => {}
        }
        let store = host.store().unwrap().clone();
        let next = match worker.index {
            None => store.begin_task(task as u64, worker.lease).unwrap(),
            Some(index) => {
                self.push(&store, task as u64, worker.lease, index);
                index + 1
            }
        };
        let worker = &mut self.workers[task];
        worker.answered.insert(replica, next);
        if worker.answered.len() == self.count as usize {
            worker.index = worker.answered.values().min().copied();
            worker.answered.clear();
        }
        true
    }

    fn push(&self, store: &Store, task: u64, lease: u32, index: u32) {
        let own = |key: &u64| replica_of(*key, store.num_replicas()) == store.replica();
        let keys: Vec<u64> = keys(task, index).filter(own).collect();
        let shared: Vec<u64> = shared_keys(task, index).filter(own).collect();
        let held = dense_range(DENSE, store.replica(), store.num_replicas()).len();
        let push = Push {
            task,
            lease,
            index,
            num_records: 1,
            learning_rate: 1.0,
            pulled_version: 0,
            tables: &[
                TableGrads {
                    table: 0,
                    keys: &keys,
                    grads: &vec![-1.0; keys.len()],
                },
                TableGrads {
                    table: 1,
                    keys: &shared,
                    grads: &vec![-1.0; shared.len()],
                },
            ],
            dense: &vec![-1.0; held],
            state: &[],
        };
        store.apply(&push).unwrap();
    }

    /// Workers go on for a while, and are lost now and then.
    fn go_on(&mut self) {
        for _ in 0..self.random.below(40) {
            let task = self.random.below(TASKS) as usize;
            if self.random.below(40) == 0 && self.workers[task].index != Some(MINIBATCHES) {
                self.lose_worker(task);
            }
            self.work(task);
        }
    }

    /// Holds all, and lets in what some have applied; the marks, if all are the same in the end.
    fn agreed(&mut self, number: u64, hold: u64) -> Option<MovedMarks> {
        let mut limits: BTreeMap<u64, u32> = BTreeMap::new();
        for replica in 0..self.count as usize {
            self.hosts[replica].hold(number, hold).unwrap();
            // Others are held a little later.
            self.go_on();
            let marks = self.hosts[replica]
                .store()
                .unwrap()
                .marks_to_move()
                .unwrap();
            for (task, _, next, _) in marks.watermarks {
                let limit = limits.entry(task).or_default();
                *limit = next.max(*limit);
            }
        }
        let limits: Vec<Update> = limits.into_iter().collect();
        for replica in 0..self.count as usize {
            self.hosts[replica].settle(number, hold, &limits).unwrap();
        }
        for _ in 0..3 {
            self.go_on();
        }
        let held = self.hosts.iter().take(self.count as usize);
        let marks: Vec<_> = held
            .map(|host| host.store().unwrap().marks_to_move().unwrap())
            .collect();
        let next = |marks: &MovedMarks| -> BTreeMap<u64, u32> {
            let all = marks.watermarks.iter().map(|mark| (mark.0, mark.2));
            all.filter(|&(_, next)| next > 0).collect()
        };
        let agree = marks.iter().all(|found| next(found) == next(&marks[0]));
        if !agree && self.sabotage != Some(Sabotage::Agreement) {
            return None;
        }
        let mut merged: BTreeMap<u64, (u64, u32, u32, u64)> = BTreeMap::new();
        for mark in marks.iter().flat_map(|found| &found.watermarks) {
            let known = merged.entry(mark.0).or_insert(*mark);
            known.1 = known.1.max(mark.1);
        }
        Some(MovedMarks {
            watermarks: merged.into_values().collect(),
            ..marks[0].clone()
        })
    }

    fn copy(&self, number: u64, after: u32, round: u32, is_last: bool) {
        let name = |round: u32| format!("{number} {round}");
        let since = round.checked_sub(1).map(name);
        for source in self.hosts.iter().take(self.count as usize) {
            let store = source.store().unwrap().clone();
            let names = (&*name(round), since.as_deref());
            copy_tables(&store, after, names, &unseen, |replica, moved| {
                let is_remembered = matches!(moved, Moved::Remembered(..));
                if is_remembered && self.sabotage == Some(Sabotage::Remembered) {
                    return Ok(());
                }
                let target = self.hosts[replica as usize].filled(number)?;
                moved.put_into(&target)
            })
            .unwrap();
            for replica in (0..after).filter(|_| is_last) {
                let target = self.hosts[replica as usize].filled(number).unwrap();
                copy_vectors(&store, (replica, after), |part, values| {
                    Ok(target.write_part(part, values)?)
                })
                .unwrap();
            }
        }
    }

    fn write(&mut self, folder: &Path) {
        let held = self.hosts.iter().take(self.count as usize);
        let entries = held.map(|host| host.store().unwrap().checkpoint(folder).unwrap());
        let entries: Vec<String> = entries.collect();
        let manifest = format!(r#"{{"format": 1, "replicas": [{}]}}"#, entries.join(","));
        std::fs::write(folder.join("manifest.json"), manifest).unwrap();
    }

    /// Tries a move; whoever leads it, or a replica, may be lost at any step.
    fn try_move(&mut self, after: u32) {
        self.tried += 1;
        let number = self.tried;
        while self.hosts.len() < after as usize {
            let layout = Layout {
                number: self.layout,
                replica: self.hosts.len() as u32,
                num_replicas: after,
            };
            self.hosts.push(Host::new(None, layout));
        }
        let (mut marks, mut folder) = (None, PathBuf::new());
        for at in [At::Begin, At::Cut, At::Copy, At::Again, At::Hold] {
            self.go_on();
            let is_lost = self.random.below(12) == 0;
            match at {
                At::Begin => (0..after).for_each(|replica| {
                    let layout = Layout {
                        number,
                        replica,
                        num_replicas: after,
                    };
                    let host = &mut self.hosts[replica as usize];
                    host.begin(layout, MODEL, false, &[]).unwrap();
                }),
                At::Cut => {
                    if self.agreed(number, 1).is_none() {
                        return self.give_up(number, after);
                    }
                    self.num_files += 1;
                    folder = self.folder.path().join(self.num_files.to_string());
                    self.write(&folder);
                    for replica in 0..self.count as usize {
                        self.hosts[replica].release(number, 1);
                        self.go_on();
                    }
                }
                At::Copy => self.copy(number, after, 0, false),
                At::Again => self.copy(number, after, 1, false),
                At::Hold => {
                    marks = self.agreed(number, 2);
                    if self.sabotage == Some(Sabotage::Hold) {
                        for replica in 0..self.count as usize {
                            self.hosts[replica].release(number, 2);
                        }
                        self.go_on();
                    }
                    if marks.is_some() && self.sabotage != Some(Sabotage::LastCopy) {
                        self.copy(number, after, 2, true);
                    }
                }
            }
            if is_lost {
                if self.random.below(2) == 0 {
                    let replica = self.random.below(u64::from(self.count)) as u32;
                    self.lose_replica(replica);
                }
                return self.give_up(number, after);
            }
        }
        let Some(marks) = marks else {
            return self.give_up(number, after);
        };
        for replica in 0..after as usize {
            let host = &mut self.hosts[replica];
            host.filled(number)
                .unwrap()
                .take_moved_marks(&marks)
                .unwrap();
            host.ready(number).unwrap();
            self.go_on();
        }
        self.moved(number, after, folder);
    }

    fn give_up(&mut self, number: u64, after: u32) {
        for replica in 0..self.count.max(after) as usize {
            self.hosts[replica].abandon(number);
            self.go_on();
            // A message that was on its way.
            assert!(self.hosts[replica].hold(number, 3).is_err());
        }
    }

    /// The next layout counts; replicas are told in any order, and some are lost before.
    fn moved(&mut self, number: u64, after: u32, folder: PathBuf) {
        let before = std::mem::replace(&mut self.count, after);
        (self.layout, self.checkpoint) = (number, Some(folder));
        let lost = self.random.below(3 * u64::from(after)) as u32;
        let first = self.random.below(u64::from(before.max(after))) as u32;
        for i in 0..before.max(after) {
            let replica = (first + i) % before.max(after);
            if replica == lost && replica < after {
                self.lose_replica(replica);
            } else {
                let host = &mut self.hosts[replica as usize];
                host.switch(number, replica >= after, &number.to_string())
                    .unwrap();
            }
            self.go_on();
            self.hosts[replica as usize].abandon(number);
        }
    }

    fn check(&self) {
        let held: Vec<_> = self.hosts.iter().take(self.count as usize).collect();
        for task in 0..TASKS {
            let own = (0..MINIBATCHES).flat_map(|index| keys(task, index));
            let shared = (0..MINIBATCHES).flat_map(|index| shared_keys(task, index));
            let all = own.map(|key| (0, key)).chain(shared.map(|key| (1, key)));
            for (table, key) in all {
                let store = held[replica_of(key, self.count) as usize].store().unwrap();
                let mut count = [0.0];
                store
                    .pull_rows(table, &[key], PullMode::ReadOnly, &mut count)
                    .unwrap();
                assert_eq!(count, [1.0], "key {key} of table {table}");
            }
        }
        for host in held {
            let store = host.store().unwrap();
            let mut dense = vec![0.0; dense_range(DENSE, store.replica(), self.count).len()];
            store.pull_vectors(&mut dense, &mut []).unwrap();
            let expected = TASKS as f32 * MINIBATCHES as f32;
            assert!(dense.iter().all(|&value| value == expected), "{dense:?}");
            let audit = store.audit();
            assert!(audit.iter().all(|task| task.next_index == MINIBATCHES));
        }
    }
}

/// A whole job; whether it moved.
fn run(seed: u64, sabotage: Option<Sabotage>) -> bool {
    let mut job = Job::new(seed, sabotage);
    for _ in 0..MOVES {
        job.go_on();
        let after = 1 + job.random.below(4) as u32;
        if after != job.count {
            job.try_move(after);
        }
    }
    for _ in 0..100_000 {
        let is_open: Vec<bool> = (0..TASKS as usize).map(|task| job.work(task)).collect();
        if !is_open.contains(&true) {
            break;
        }
    }
    job.check();
    job.layout > 0
}

#[test]
fn every_minibatch_counts_once_whatever_goes_wrong_in_a_move() {
    let num_moved = (0..60).filter(|&seed| run(seed, None)).count();
    assert!(num_moved > 20, "{num_moved} jobs moved");
}

#[test]
fn a_move_without_one_of_its_safeguards_is_found() {
    let sabotages = [
        Sabotage::Agreement,
        Sabotage::LastCopy,
        Sabotage::Remembered,
        Sabotage::Hold,
    ];
    for sabotage in sabotages {
        let is_found = |seed| std::panic::catch_unwind(|| run(seed, Some(sabotage))).is_err();
        assert!((0..60).any(is_found));
    }
}
