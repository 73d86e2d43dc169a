//! Rows a second of one thread: pull, push, insertion and checkpoint of one table, beside a
//! hash map of vectors behind one lock, in turns within one process.
//!
//! `cargo run --release -p edl-store --example bench -- [million rows] [dim] [optimizer] [batch] [slices]`
//!
//! Best and median of the slices are printed: under other load the best is steady, the median is
//! not. Absolute numbers hold for the machine alone; the ratio is what to compare.

use std::collections::{BTreeMap, HashMap};
use std::hint::black_box;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use edl_optim::Optimizer;
use edl_store::{
    InitializerSpec, ModelSpec, OptimizerSpec, PullMode, Push, Store, TableGrads, TableSpec,
};

struct Settings {
    rows: u64,
    dim: usize,
    optimizer: String,
    batch: usize,
    /// Slices of each kind of work, of one batch each: a millisecond, so that some are
    /// undisturbed on a busy machine.
    slices: usize,
}

fn settings() -> Result<Settings, Box<dyn std::error::Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let arg = |i: usize, default: &str| args.get(i).cloned().unwrap_or_else(|| default.to_owned());
    Ok(Settings {
        rows: (arg(0, "10").parse::<f64>()? * 1e6) as u64,
        dim: arg(1, "16").parse()?,
        optimizer: arg(2, "adagrad"),
        batch: arg(3, "16384").parse()?,
        slices: arg(4, "400").parse()?,
    })
}

fn model(settings: &Settings) -> ModelSpec {
    let optimizer = OptimizerSpec {
        kind: settings.optimizer.clone(),
        params: BTreeMap::new(),
    };
    let params = BTreeMap::from([("low".to_owned(), -0.05), ("high".to_owned(), 0.05)]);
    ModelSpec {
        tables: vec![TableSpec {
            name: "table".to_owned(),
            dim: settings.dim as u32,
            initializer: InitializerSpec {
                kind: "uniform".to_owned(),
                params,
            },
            optimizer: optimizer.clone(),
            input_dim: None,
            wire_dtype: Default::default(),
            admission: None,
            expiry: None,
        }],
        dense: Vec::new(),
        state: Vec::new(),
        optimizer,
        seed: 1,
    }
}

type Vectors = HashMap<u64, Vec<f32>>;

/// The baseline: weights and slots in maps of small vectors, one lock, one key at a time.
struct Plain {
    maps: Mutex<(Vectors, Vectors)>,
    optimizer: Optimizer,
    dim: usize,
}

impl Plain {
    fn pull(&self, keys: &[u64], out: &mut [f32]) {
        for (key, out) in keys.iter().zip(out.chunks_exact_mut(self.dim)) {
            let maps = self.maps.lock().expect("no thread panics");
            out.copy_from_slice(&maps.0[key]);
        }
    }

    fn push(&self, keys: &[u64], grads: &[f32], t: u64) {
        let step = self.optimizer.step(0.01, t);
        for (key, grad) in keys.iter().zip(grads.chunks_exact(self.dim)) {
            let mut maps = self.maps.lock().expect("no thread panics");
            let (weights, slots) = &mut *maps;
            let empty = &mut Vec::new();
            let weights = weights.get_mut(key).unwrap_or(empty);
            let none = &mut Vec::new();
            step.update(weights, slots.get_mut(key).unwrap_or(none), grad);
        }
    }

    fn insert(&self, keys: &[u64], rows: &[f32]) {
        let mut maps = self.maps.lock().expect("no thread panics");
        for (&key, row) in keys.iter().zip(rows.chunks_exact(self.dim)) {
            maps.0.insert(key, row.to_vec());
            let num_slots = self.optimizer.num_slots();
            if num_slots > 0 {
                let mut slots = vec![0.0; self.dim * num_slots];
                self.optimizer.fill_slots(&mut slots);
                maps.1.insert(key, slots);
            }
        }
    }
}

/// A generator of keys (xorshift), uniform over the rows.
struct Keys(u64);

impl Keys {
    /// Draw a batch; of millions of rows few come twice in it.
    fn batch(&mut self, rows: u64, keys: &mut [u64]) {
        keys.fill_with(|| spread(self.next() % rows));
    }

    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }
}

/// The key of row number `n`; ids as they come, in no order.
fn spread(n: u64) -> u64 {
    n.wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

/// Seconds that slices of `keys` took, as million keys a second.
struct Rates(Vec<f64>);

impl Rates {
    fn add(&mut self, keys: usize, time: Duration) {
        self.0.push(keys as f64 / time.as_secs_f64() / 1e6);
    }

    fn best_and_median(&mut self) -> (f64, f64) {
        self.0.sort_by(f64::total_cmp);
        (
            self.0.last().copied().unwrap_or(0.0),
            self.0[self.0.len() / 2],
        )
    }
}

fn fill(store: &Store, plain: &Plain, settings: &Settings) -> Result<(), edl_store::StoreError> {
    let mut longest = Duration::ZERO;
    let mut total = Duration::ZERO;
    let mut rows = vec![0.0; settings.batch * settings.dim];
    let all: Vec<u64> = (0..settings.rows).map(spread).collect();
    for keys in all.chunks(settings.batch) {
        let out = &mut rows[..keys.len() * settings.dim];
        let start = Instant::now();
        store.pull_rows(0, keys, PullMode::Create, out)?;
        longest = longest.max(start.elapsed());
        total += start.elapsed();
        plain.insert(keys, out);
    }
    println!(
        "insert: {:.1} M rows/s, longest batch of {}: {:.1} ms",
        settings.rows as f64 / total.as_secs_f64() / 1e6,
        settings.batch,
        longest.as_secs_f64() * 1e3
    );
    Ok(())
}

fn measure(
    store: &Store,
    plain: &Plain,
    settings: &Settings,
) -> Result<(), Box<dyn std::error::Error>> {
    let n = settings.batch;
    let mut keys = vec![0; n];
    let grads = vec![0.01; settings.batch * settings.dim];
    let mut out = vec![0.0; settings.batch * settings.dim];
    let mut random = Keys(0x2545_f491_4f6c_dd1d);
    let [mut pull, mut push, mut plain_pull, mut plain_push] =
        std::array::from_fn(|_| Rates(Vec::new()));
    let mut index = 0;
    for _ in 0..settings.slices {
        let mut draw = |keys: &mut Vec<u64>| {
            for batch in keys.chunks_mut(settings.batch) {
                random.batch(settings.rows, batch);
            }
        };
        draw(&mut keys);
        let start = Instant::now();
        for keys in keys.chunks(settings.batch) {
            store.pull_rows(0, keys, PullMode::Create, &mut out)?;
            black_box(&mut out);
        }
        pull.add(n, start.elapsed());

        draw(&mut keys);
        let start = Instant::now();
        for keys in keys.chunks(settings.batch) {
            let tables = [TableGrads {
                table: 0,
                keys,
                grads: &grads,
            }];
            store.apply(&Push {
                task: 0,
                lease: 0,
                index,
                num_records: 0,
                learning_rate: 0.01,
                pulled_version: 0,
                tables: &tables,
                dense: &[],
                state: &[],
            })?;
            index += 1;
        }
        push.add(n, start.elapsed());

        draw(&mut keys);
        let start = Instant::now();
        for keys in keys.chunks(settings.batch) {
            plain.pull(keys, &mut out);
            black_box(&mut out);
        }
        plain_pull.add(n, start.elapsed());

        draw(&mut keys);
        let start = Instant::now();
        for keys in keys.chunks(settings.batch) {
            plain.push(keys, &grads, 1);
        }
        plain_push.add(n, start.elapsed());
    }
    for (what, mut ours, mut peer) in [("pull", pull, plain_pull), ("push", push, plain_push)] {
        let (best, median) = ours.best_and_median();
        let (plain_best, plain_median) = peer.best_and_median();
        println!(
            "{what}: {best:.1} (median {median:.1}) M rows/s, hash map {plain_best:.2} \
             ({plain_median:.2}), ratio {:.1}",
            best / plain_best
        );
    }
    Ok(())
}

fn checkpoint(store: &Store) -> Result<(), Box<dyn std::error::Error>> {
    let dir = std::env::temp_dir().join(format!("edl-store-bench-{}", std::process::id()));
    let start = Instant::now();
    let entry = store.checkpoint(&dir)?;
    let written = start.elapsed();
    let bytes: u64 = std::fs::read_dir(&dir)?
        .filter_map(|entry| Some(entry.ok()?.metadata().ok()?.len()))
        .sum();
    let manifest = format!(r#"{{"format": 1, "replicas": [{entry}]}}"#);
    std::fs::write(dir.join("manifest.json"), manifest)?;
    let start = Instant::now();
    let restored = Store::restore(&dir, 0, 1, true);
    let read = start.elapsed();
    std::fs::remove_dir_all(&dir)?;
    let rows = restored?.stats().tables[0].rows;
    let rate = |time: Duration| bytes as f64 / time.as_secs_f64() / 1e6;
    println!(
        "checkpoint: {rows} rows, {:.0} MB/s written and synced, {:.0} MB/s restored",
        rate(written),
        rate(read)
    );
    Ok(())
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let settings = settings()?;
    let spec = model(&settings);
    let plain = Plain {
        maps: Mutex::default(),
        optimizer: spec.optimizer.parse()?,
        dim: settings.dim,
    };
    let store = Store::new(0, 1);
    store.declare(spec, &[], &[])?;
    println!(
        "{} rows x {}, {}, batches of {}, one thread",
        settings.rows, settings.dim, settings.optimizer, settings.batch
    );
    fill(&store, &plain, &settings)?;
    let bytes = store.stats().resident_bytes as f64 / settings.rows as f64;
    println!("memory: {bytes:.1} bytes a row");
    measure(&store, &plain, &settings)?;
    drop(plain);
    checkpoint(&store)
}
