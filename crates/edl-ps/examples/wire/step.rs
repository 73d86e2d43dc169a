//! Whole training steps, as workers of the Criteo-shaped job make them: 26 ids a record, looked up
//! in a table of vectors and one of weights, at two replicas.

use std::time::Instant;

use edl_ps::{Minibatch, PsClient, PsError, Pulled, Site, Step, StepGradients, Wanted};
use edl_store::PullMode;
use serde_json::json;

use crate::calls::connect;
use crate::peers::{Answerer, cpu_of};
use crate::{Failure, Settings, Spent};

const REPLICAS: u32 = 2;
const DIM: usize = 8;
/// Of one slice, where steps are ordered.
const STEPS: usize = 32;
/// As many as the model has.
const DENSE: usize = 48_600;
/// The categories' sizes, as in `model_zoo/criteo/fields.py`.
const SIZES: [u64; 26] = [
    1460, 583, 3_036_000, 660_000, 305, 24, 12_517, 633, 3, 27_900, 5683, 2_500_000, 3194, 27,
    14_992, 1_636_000, 10, 5652, 2173, 4, 2_111_000, 18, 15, 85_700, 105, 42_700,
];
/// Of the zipf law, less 1 and negated.
const POWER: f64 = -0.05;

/// Ids of a minibatch, record by record; few are seen all the time, most hardly ever.
fn minibatch_ids(records: usize, random: &mut u64) -> Vec<u64> {
    let mut ids = Vec::with_capacity(records * SIZES.len());
    for _ in 0..records {
        let mut offset = 0;
        for size in SIZES {
            // Steele, Lea, Flood: "Fast splittable pseudorandom number generators", 2014.
            *random = random.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let mut z = *random;
            z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            let uniform = ((z ^ (z >> 31)) >> 11) as f64 / (1u64 << 53) as f64;
            let largest = (size as f64 + 1.0).powf(POWER);
            let rank = (1.0 - uniform * (1.0 - largest)).powf(1.0 / POWER) as u64;
            ids.push(offset + rank.clamp(1, size) * 2_654_435_761 % size);
            offset += size;
        }
    }
    ids
}

fn declare(client: &PsClient) -> Result<(), Failure> {
    let sgd = json!({"kind": "sgd", "params": {}});
    let table = |name, dim| {
        json!({
            "name": name, "dim": dim, "optimizer": sgd,
            "initializer": {"kind": "uniform", "params": {"low": -0.05, "high": 0.05}},
        })
    };
    let model = json!({
        "tables": [table("vectors", DIM), table("weights", 1)], "state": [], "seed": 1,
        "dense": [{"name": "dense", "shape": [DENSE], "offset": 0}], "optimizer": sgd,
    });
    client.declare(&model.to_string(), &vec![0.0; DENSE], &[])?;
    client.begin_task(0, 1)?;
    Ok(())
}

/// A worker of the job and its replicas.
struct Job {
    answerers: Vec<Answerer>,
    client: PsClient,
    records: usize,
    random: u64,
    vectors: Vec<f32>,
    weights: Vec<f32>,
    dense: Vec<f32>,
}

impl Job {
    fn start(settings: &Settings, ordered: bool) -> Result<Self, Failure> {
        let answerers = (0..REPLICAS).map(|replica| Answerer::start(replica, REPLICAS, ordered));
        let answerers: Vec<Answerer> = answerers.collect::<Result<_, _>>()?;
        let client = connect(&answerers, settings)?;
        declare(&client)?;
        let num_ids = settings.batch * SIZES.len();
        Ok(Self {
            answerers,
            client,
            records: settings.batch,
            random: 0,
            vectors: vec![0.01; num_ids * DIM],
            weights: vec![0.01; num_ids],
            dense: vec![0.01; DENSE],
        })
    }

    fn ids(&mut self) -> Vec<u64> {
        minibatch_ids(self.records, &mut self.random)
    }

    fn pull(&self, ids: &[u64], index: u32) -> Result<Pulled, PsError> {
        let step = Some(step_of(index));
        self.client
            .pull(&sites_of(ids), PullMode::Create, true, step)
    }

    fn push(&self, pulled: &Pulled, index: u32) -> Result<(), PsError> {
        let rows = [&self.vectors[..], &self.weights[..]];
        let minibatch = self.minibatch(index);
        self.client
            .push(&pulled.receipt, &rows, &self.dense, &[], &minibatch)
            .map(|_| ())
    }

    fn push_pull(&self, pulled: &Pulled, index: u32, ids: &[u64]) -> Result<Pulled, Failure> {
        let gradients = StepGradients {
            rows: &[&self.vectors[..], &self.weights[..]],
            dense: &self.dense,
            state: &[],
        };
        let next = Wanted {
            sites: &sites_of(ids),
            mode: PullMode::Create,
            vectors: true,
            step: Some(step_of(index + 1)),
        };
        let minibatch = self.minibatch(index);
        let (_, next) = self
            .client
            .push_pull(&pulled.receipt, &gradients, &minibatch, &next)?;
        next.ok_or_else(|| "the only worker had to wait".into())
    }

    fn minibatch(&self, index: u32) -> Minibatch {
        Minibatch {
            task: 0,
            lease: 1,
            index,
            num_minibatches: 1,
            num_records: self.records as u32,
            learning_rate: 0.01,
        }
    }
}

fn step_of(index: u32) -> Step {
    Step {
        task: 0,
        lease: 1,
        index,
    }
}

fn sites_of(ids: &[u64]) -> [Site<'_>; 2] {
    [Site { table: 0, ids }, Site { table: 1, ids }]
}

/// Steps one after the other.
pub fn measure_steps(settings: &Settings) -> Result<Spent, Failure> {
    let mut job = Job::start(settings, false)?;
    let mut spent = Spent::new();
    for index in 0..settings.slices as u32 {
        let ids = job.ids();
        let servers = || job.answerers.iter().map(Answerer::cpu).sum::<f64>();
        let (store, server, own) = (job.client.store_time(), servers(), cpu_of("self"));
        let began = Instant::now();
        let pulled = job.pull(&ids, index)?;
        let between = began.elapsed();
        job.push(&pulled, index)?;
        drop(pulled);
        let taken = began.elapsed();
        let mut note = |what: &str, seconds| {
            spent.entry(what.to_owned()).or_default().push(seconds);
        };
        note("client cpu", cpu_of("self") - own);
        note("replicas cpu", servers() - server);
        let in_store = job.client.store_time() - store;
        note("replicas in the store", in_store.as_secs_f64());
        note("pull", between.as_secs_f64());
        note("push", (taken - between).as_secs_f64());
    }
    Ok(spent)
}

/// Steps of which each is pulled after the push before it, by itself and with it in turn.
pub fn measure_ordered(settings: &Settings) -> Result<Spent, Failure> {
    let mut job = Job::start(settings, true)?;
    let mut spent = Spent::new();
    let mut index = 0;
    for _ in 0..settings.slices {
        // Ids of its own for each way: neither finds rows that the other has made.
        let ids: Vec<Vec<u64>> = (0..2 * STEPS).map(|_| job.ids()).collect();
        let (ids, others) = ids.split_at(STEPS);
        let began = Instant::now();
        for ids in ids {
            let pulled = job.pull(ids, index)?;
            job.push(&pulled, index)?;
            index += 1;
        }
        let apart = began.elapsed().as_secs_f64() / STEPS as f64;
        spent.entry("apart".to_owned()).or_default().push(apart);

        let began = Instant::now();
        let mut pulled = job.pull(&others[0], index)?;
        for ids in &others[1..] {
            pulled = job.push_pull(&pulled, index, ids)?;
            index += 1;
        }
        job.push(&pulled, index)?;
        index += 1;
        let together = began.elapsed().as_secs_f64() / STEPS as f64;
        spent
            .entry("together".to_owned())
            .or_default()
            .push(together);
    }
    Ok(spent)
}
