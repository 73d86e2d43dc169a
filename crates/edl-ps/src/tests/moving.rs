//! Replicas that go over to another number of replicas while clients push.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use serde_json::{Value, json};

use super::*;
use crate::{Cursor, ErrorKind};

/// Whoever leads a move, as the master does.
pub(super) struct Leader {
    pub(super) number: u64,
    pub(super) now: Vec<String>,
    pub(super) next: Vec<String>,
}

impl Leader {
    fn ask(&self, address: &str, step: Value) -> Result<Value, PsError> {
        let client = PsClient::remote(alone(address));
        let told = client.move_step(0, &step.to_string())?;
        Ok(serde_json::from_str(&told).unwrap())
    }

    fn each(&self, step: Value) -> Result<Vec<Value>, PsError> {
        let ask = |address: &String| self.ask(address, step.clone());
        self.now.iter().map(ask).collect()
    }

    fn begin(&self) -> Result<(), PsError> {
        let described = self.each(json!({"describe": {}}))?.swap_remove(0);
        let described = &described["described"];
        for (replica, address) in self.next.iter().enumerate() {
            let begin = json!({"begin": {
                "number": self.number, "replica": replica, "num_replicas": self.next.len(),
                "model": described["model"], "is_restored": described["is_restored"],
                "num_rows": described["num_rows"]}});
            self.ask(address, begin)?;
        }
        Ok(())
    }

    fn copy(&self, round: u32, is_last: bool) -> Result<u64, PsError> {
        let mut copied = 0;
        for source in &self.now {
            let here = |address: &String| if address == source { "" } else { address }.to_owned();
            let targets: Vec<String> = self.next.iter().map(here).collect();
            let step = json!({"copy": {"number": self.number, "targets": targets,
                                       "round": round, "is_last": is_last}});
            copied += self.ask(source, step)?["num_rows"].as_u64().unwrap();
        }
        Ok(copied)
    }

    /// Holds all, and lets in what some have and others lack; false if some still lack it.
    fn hold(&self, hold: u64) -> Result<Option<Value>, PsError> {
        let held = self.each(json!({"hold": {"number": self.number, "hold": hold}}))?;
        let mut limits: BTreeMap<u64, u64> = BTreeMap::new();
        for mark in held
            .iter()
            .flat_map(|told| told["marks"]["watermarks"].as_array().unwrap())
        {
            let (task, next) = (mark[0].as_u64().unwrap(), mark[2].as_u64().unwrap());
            let limit = limits.entry(task).or_default();
            *limit = next.max(*limit);
        }
        let limits: Vec<(u64, u64)> = limits.into_iter().collect();
        let settle = json!({"settle": {"number": self.number, "hold": hold, "limits": limits,
                                       "wait_ms": 2000}});
        let marks: Vec<Value> = self
            .each(settle)?
            .into_iter()
            .map(|t| t["marks"].clone())
            .collect();
        let next_of = |marks: &Value| -> BTreeMap<u64, u64> {
            let all = marks["watermarks"].as_array().unwrap().iter();
            let all = all.map(|mark| (mark[0].as_u64().unwrap(), mark[2].as_u64().unwrap()));
            all.filter(|&(_, next)| next > 0).collect()
        };
        let agrees = marks
            .iter()
            .all(|found| next_of(found) == next_of(&marks[0]));
        let most = marks
            .into_iter()
            .max_by_key(|m| m["watermarks"].as_array().unwrap().len());
        Ok(most.filter(|_| agrees))
    }

    fn end(&self, marks: &Value) -> Result<(), PsError> {
        for address in &self.next {
            self.ask(
                address,
                json!({"ready": {"number": self.number, "marks": marks}}),
            )?;
        }
        let leave = self
            .now
            .iter()
            .filter(|address| !self.next.contains(address));
        for address in self.next.iter().chain(leave) {
            let leaves = !self.next.contains(address);
            self.ask(
                address,
                json!({"switch": {"number": self.number, "leaves": leaves,
                                                "addresses": self.next}}),
            )?;
        }
        Ok(())
    }

    pub(super) fn lead(&self) {
        self.begin().unwrap();
        self.copy(0, false).unwrap();
        self.copy(1, false).unwrap();
        let marks = self.hold(1).unwrap().expect("all have the same in the end");
        self.copy(2, true).unwrap();
        self.end(&marks).unwrap();
    }
}

fn alone(address: &str) -> Remote {
    let options = RemoteOptions {
        worker_id: -1,
        timeout: TIMEOUT,
        silence_timeout: TIMEOUT,
        connect_timeout: TIMEOUT,
        unix_sockets: true,
        whole_job: false,
        layout: 0,
        service: &PS,
        tls: None,
    };
    Remote::connect(&[address.to_owned()], TOKEN, options).unwrap()
}

/// A client of the replicas of a later layout.
fn client_of(layout: u64, addresses: &[String]) -> PsClient {
    let options = RemoteOptions {
        whole_job: true,
        layout,
        ..alone(&addresses[0]).options.clone()
    };
    PsClient::remote(Remote::connect(addresses, TOKEN, options).unwrap())
}

/// Replica `replica` of `count`, which serves nothing before a move.
fn awaiting(replica: u32, count: u32) -> PsServer {
    awaiting_with(replica, count, Synchrony::Asynchronous)
}

fn awaiting_with(replica: u32, count: u32, synchrony: Synchrony) -> PsServer {
    let door = Door {
        service: &PS,
        host: "127.0.0.1",
        port: 0,
        token: TOKEN,
        tls: None,
    };
    let store = Arc::new(Store::new(replica, count));
    PsServer::start_in(store, &door, synchrony, None, 0, true).unwrap()
}

fn rows(client: &PsClient) -> BTreeMap<(u32, u64), Vec<u32>> {
    let mut all = BTreeMap::new();
    for (table, dim) in [(0, 8), (1, 3)] {
        let mut cursor = Cursor::new(table);
        while let Some(chunk) = client.scan(&mut cursor).unwrap() {
            for (&key, row) in chunk.keys.iter().zip(chunk.rows.chunks_exact(dim)) {
                let bits = row.iter().map(|value| value.to_bits()).collect();
                assert_eq!(
                    all.insert((table, key), bits),
                    None,
                    "key {key} is there twice"
                );
            }
        }
    }
    all
}

#[test]
fn a_job_whose_replicas_move_has_the_bits_of_one_whose_replicas_stay() {
    const STEPS: u64 = 60;
    let still = Cluster::start(1);
    let cluster = Cluster::start(2);
    let third = awaiting(2, 3);
    let train = |client: &PsClient, then: &dyn Fn(u64)| {
        declare(client);
        for step in 0..STEPS {
            let (task, index) = (step / 10, (step % 10) as u32);
            if index == 0 {
                client.begin_task(task, 1).unwrap();
            }
            let pulled = pull(client, step);
            then(step);
            push(client, &pulled, minibatch(task, index)).unwrap();
        }
    };
    let (expected, client) = (still.client(), cluster.client());
    train(&expected, &|_| ());
    let two = cluster.addresses();
    let three = [two.clone(), vec![third.address().to_owned()]].concat();
    let lead = |number, now: &[String], next: &[String]| {
        let (now, next) = (now.to_vec(), next.to_vec());
        Leader { number, now, next }.lead();
    };
    // Between the pull of a step and its push, which is cut for other replicas then.
    train(&client, &|step| match step {
        13 => lead(1, &two, &three),
        40 => lead(2, &three, &three[..1]),
        _ => (),
    });
    assert_eq!(rows(&client), rows(&expected));
    let vectors = |client: &PsClient| {
        let pulled = pull(client, 0);
        (pulled.dense, pulled.state)
    };
    assert_eq!(vectors(&client), vectors(&expected));
    assert_eq!(client.audit().unwrap(), expected.audit().unwrap());
}

#[test]
fn who_gives_late_gradients_less_weight_does_so_after_a_move() {
    let cluster = Cluster::start(1);
    declare(&cluster.client());
    let door = Door {
        service: &PS,
        host: "127.0.0.1",
        port: 0,
        token: TOKEN,
        tls: None,
    };
    let store = Arc::new(Store::new(1, 2));
    store.modulate_learning_rate();
    let other = PsServer::start_in(store, &door, Synchrony::Asynchronous, None, 0, true).unwrap();
    let (now, number) = (cluster.addresses(), 1);
    let next = [now.clone(), vec![other.address().to_owned()]].concat();
    Leader { number, now, next }.lead();
    assert!(other.store().unwrap().modulates());
}

#[test]
fn pushes_of_several_clients_count_once_while_replicas_move() {
    let moved = Moved::with(Synchrony::Asynchronous);
    moved.check_watermarks();
    moved.check_rows();
}

#[test]
fn within_a_bound_of_staleness_they_do_too() {
    let moved = Moved::with(Synchrony::Bounded { max_staleness: 3 });
    moved.check_watermarks();
    moved.check_rows();
}

/// A gradient is averaged with those of its round, so rows tell nothing of counts.
#[test]
fn in_rounds_each_replica_has_each_minibatch_once() {
    let synchrony = Synchrony::Synchronous {
        grads_to_wait: 2,
        version_tolerance: 0,
    };
    Moved::with(synchrony).check_watermarks();
}

/// A gradient goes to the others before replica 0: these have left, and are gone.
#[test]
fn a_client_that_meets_only_replicas_that_are_gone_learns_of_the_move() {
    let synchronies = [
        Synchrony::Bounded { max_staleness: 3 },
        Synchrony::Synchronous {
            grads_to_wait: 1,
            version_tolerance: 0,
        },
    ];
    for synchrony in synchronies {
        let cluster = Cluster::with(3, synchrony);
        let (client, now) = (cluster.client(), cluster.addresses());
        declare(&client);
        client.begin_task(0, 1).unwrap();
        let pulled = pull(&client, 0);
        let next = now[..1].to_vec();
        let number = 1;
        Leader { number, now, next }.lead();
        cluster.servers[1..].iter().for_each(PsServer::stop);
        push(&client, &pulled, minibatch(0, 0)).unwrap();
        assert_eq!(client.audit().unwrap()[0][0].next_index, 1);
    }
}

const IDS: u64 = 500;

fn ids_of(index: u32) -> Vec<u64> {
    let ids = (0..64).map(|i| (i * 31 + u64::from(index)) % IDS);
    ids.collect()
}

/// Three clients that have trained while replicas moved: 2, 3, 1 and 2 of them.
struct Moved {
    _cluster: Cluster,
    client: PsClient,
    steps: Vec<u32>,
}

impl Moved {
    fn with(synchrony: Synchrony) -> Self {
        let cluster = Cluster::with(2, synchrony);
        let third = awaiting_with(2, 3, synchrony);
        let two = cluster.addresses();
        let three = [two.clone(), vec![third.address().to_owned()]].concat();
        declare(&cluster.client());
        let is_over = AtomicBool::new(false);
        let steps: Vec<u32> = thread::scope(|scope| {
            let (cluster, is_over) = (&cluster, &is_over);
            let workers: Vec<_> = (0..3)
                .map(|task| {
                    scope.spawn(move || {
                        let client = cluster.client();
                        declare(&client);
                        client.begin_task(task, 1).unwrap();
                        let mut index = 0;
                        while !is_over.load(Ordering::Relaxed) || index < 20 {
                            train(&client, task, index);
                            index += 1;
                        }
                        client.end_task(task, 1).unwrap();
                        index
                    })
                })
                .collect();
            let moves = [
                (1, &two[..], &three[..]),
                (2, &three, &three[..1]),
                (3, &three[..1], &two),
            ];
            for (number, now, next) in moves {
                let (now, next) = (now.to_vec(), next.to_vec());
                Leader { number, now, next }.lead();
            }
            is_over.store(true, Ordering::Relaxed);
            workers
                .into_iter()
                .map(|worker| worker.join().unwrap())
                .collect()
        });
        let client = client_of(3, &two);
        declare(&client);
        Self {
            _cluster: cluster,
            client,
            steps,
        }
    }

    fn check_watermarks(&self) {
        for audit in self.client.audit().unwrap() {
            let applied: Vec<u32> = audit.iter().map(|task| task.next_index).collect();
            assert_eq!(applied, self.steps);
        }
    }

    /// A row falls by 1 with each gradient.
    fn check_rows(&self) {
        let mut counts = vec![0_u32; IDS as usize];
        for index in self.steps.iter().flat_map(|&steps| 0..steps) {
            for id in ids_of(index) {
                counts[id as usize] += 1;
            }
        }
        let untouched = rows_of_item(&Cluster::start(1), IDS);
        let mut cursor = Cursor::new(1);
        while let Some(chunk) = self.client.scan(&mut cursor).unwrap() {
            for (&key, row) in chunk.keys.iter().zip(chunk.rows.chunks_exact(3)) {
                let fallen = (untouched[key as usize] - row[0]).round() as u32;
                assert_eq!(fallen, counts[key as usize], "key {key}");
            }
        }
    }
}

/// Pulls and pushes one minibatch, again if its parameters are too old by then.
fn train(client: &PsClient, task: u64, index: u32) {
    let ids = ids_of(index);
    let site = Site {
        table: 1,
        ids: &ids,
    };
    let (lease, of) = (1, minibatch(task, index));
    let of = Minibatch {
        learning_rate: 1.0,
        ..of
    };
    let grads = vec![1.0; ids.len() * 3];
    loop {
        let step = Step { task, lease, index };
        let pulled = client.pull(&[site], PullMode::Create, false, Some(step));
        let receipt = pulled.unwrap().receipt;
        match client.push(&receipt, &[&grads], &[0.0; 37], &[0.0; 5], &of) {
            Ok(_) => return,
            Err(error) => assert_eq!(error.kind(), ErrorKind::TooStale, "{error}"),
        }
    }
}

/// The first number of each row of table 1, as it begins.
fn rows_of_item(cluster: &Cluster, count: u64) -> Vec<f32> {
    let client = cluster.client();
    declare(&client);
    let ids: Vec<u64> = (0..count).collect();
    let site = Site {
        table: 1,
        ids: &ids,
    };
    let pulled = client.pull(&[site], PullMode::Create, false, None).unwrap();
    pulled.rows[0].chunks_exact(3).map(|row| row[0]).collect()
}

#[test]
fn what_one_replica_has_and_another_lacks_is_let_in_before_a_move() {
    let cluster = Cluster::start(2);
    let client = cluster.client();
    declare(&client);
    client.begin_task(7, 1).unwrap();
    let pulled = pull(&client, 3);
    let now = cluster.addresses();
    let (now, next) = (now.clone(), now[..1].to_vec());
    let leader = Leader {
        number: 1,
        now,
        next,
    };
    leader.begin().unwrap();
    leader.copy(0, false).unwrap();
    // Replica 1 is held before the push comes, replica 0 afterwards.
    let hold = json!({"hold": {"number": 1, "hold": 1}});
    leader.ask(&leader.now[1], hold).unwrap();
    thread::scope(|scope| {
        let pushed = scope.spawn(|| push(&client, &pulled, minibatch(7, 0)));
        while cluster.stores[0].version() == 0 {
            thread::yield_now();
        }
        assert_eq!(cluster.stores[1].version(), 0);
        let marks = leader.hold(1).unwrap().expect("the push is let in");
        assert_eq!(cluster.stores[1].version(), 1);
        pushed.join().unwrap().unwrap();
        leader.copy(1, true).unwrap();
        leader.end(&marks).unwrap();
    });
    push(&client, &pull(&client, 4), minibatch(7, 1)).unwrap();
    let (audit, rows) = (client.audit().unwrap(), rows(&client));
    assert_eq!((audit.len(), audit[0][0].next_index), (1, 2));
    assert!(!rows.is_empty());
}

#[test]
fn a_move_that_is_given_up_changes_nothing() {
    let cluster = Cluster::start(2);
    let client = cluster.client();
    declare(&client);
    client.begin_task(0, 1).unwrap();
    push(&client, &pull(&client, 1), minibatch(0, 0)).unwrap();
    let before = rows(&client);
    let now = cluster.addresses();
    let leader = Leader {
        number: 1,
        now: now.clone(),
        next: now[..1].to_vec(),
    };
    leader.begin().unwrap();
    leader.copy(0, false).unwrap();
    leader.hold(1).unwrap().unwrap();
    leader.each(json!({"abandon": {"number": 1}})).unwrap();
    assert_eq!(rows(&client), before);
    push(&client, &pull(&client, 2), minibatch(0, 1)).unwrap();
    // What was on its way is too late, and a later move begins anew.
    let late = leader
        .each(json!({"hold": {"number": 1, "hold": 2}}))
        .unwrap_err();
    assert_eq!(late.kind(), ErrorKind::Invalid);
    let leader = Leader {
        number: 2,
        ..leader
    };
    leader.lead();
    push(&client, &pull(&client, 3), minibatch(0, 2)).unwrap();
    assert_eq!(client.audit().unwrap().len(), 1);
}
