//! What a thread gets out of one table, beside what the memory gives: slices of random cache
//! lines, of copying, of pulls and of pushes in turn within one process, of a hash map of
//! vectors too. `benchmarks/store.py` runs it and says what the figures mean.
//!
//! `cargo run --release -p edl-store --features stages --example bench -- [name=value ...]`, with `rows` (millions),
//! `dim`, `optimizer`, `keys` (uniform or zipf), `miss` (share of pulled keys without a row),
//! `batch`, `batches` (of a slice), `slices`, `peer` (0: no hash maps), `checkpoint` (a folder to
//! write to; none if empty).
//!
//! One line of JSON is printed: rates by slice, in millions a second (`memcpy`: GB/s), and what the
//! stages of pulls and pushes took, in nanoseconds a key.

use std::collections::{BTreeMap, HashMap};
use std::hint::black_box;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

use edl_optim::{Optimizer, prefetch, work_ahead};
use edl_store::{
    InitializerSpec, ModelSpec, OptimizerSpec, PullMode, Push, Store, StoreError, TableGrads,
    TableSpec, take_stages,
};
use memmap2::{Advice, MmapMut};
use serde_json::{Value, json};

use plain::Plain;
use sharded::Sharded;

mod plain;
mod sharded;

type Failure = Box<dyn std::error::Error>;

/// Random lines of one slice.
const LINES: usize = 1 << 18;

/// Bytes that are copied in one slice, out of a larger buffer.
const COPIED: usize = 32 << 20;

struct Settings {
    rows: u64,
    dim: usize,
    optimizer: String,
    zipf: bool,
    miss: f64,
    batch: usize,
    batches: usize,
    slices: usize,
    peer: bool,
    checkpoint: String,
}

fn settings() -> Result<Settings, Failure> {
    let mut given: HashMap<String, String> = HashMap::new();
    for arg in std::env::args().skip(1) {
        let (name, value) = arg.split_once('=').ok_or("expected name=value")?;
        given.insert(name.to_owned(), value.to_owned());
    }
    let mut take = |name: &str, default: &str| given.remove(name).unwrap_or(default.to_owned());
    let settings = Settings {
        rows: (take("rows", "4").parse::<f64>()? * 1e6) as u64,
        dim: take("dim", "16").parse()?,
        optimizer: take("optimizer", "adagrad"),
        zipf: take("keys", "uniform") == "zipf",
        miss: take("miss", "0").parse()?,
        batch: take("batch", "16384").parse()?,
        batches: take("batches", "8").parse()?,
        slices: take("slices", "60").parse()?,
        peer: take("peer", "1") != "0",
        checkpoint: take("checkpoint", ""),
    };
    match given.keys().next() {
        Some(name) => Err(format!("no setting '{name}'").into()),
        None => Ok(settings),
    }
}

fn model(settings: &Settings) -> ModelSpec {
    let optimizer = OptimizerSpec {
        kind: settings.optimizer.clone(),
        params: BTreeMap::new(),
        program: None,
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
            keep_names: false,
            constraint: None,
            trainable: true,
            given_rows: false,
            rate: 1.0,
            statistics: None,
        }],
        dense: Vec::new(),
        state: Vec::new(),
        optimizer,
        seed: 1,
        clip: None,
    }
}

/// A generator of numbers (xorshift64).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn unit(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1u64 << 53) as f64
    }
}

/// The key of row number `n`; ids as they come, in no order.
fn spread(n: u64) -> u64 {
    n.wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

/// Draws batches of keys, each key once in a batch, as the client sends them.
///
/// What it remembers is small: drawing should not drive out of the caches what a store in use
/// has there.
struct Draw<'a> {
    settings: &'a Settings,
    random: Random,
    /// Whether each row is in the batch, by bits.
    taken: Vec<u64>,
}

impl<'a> Draw<'a> {
    fn new(settings: &'a Settings) -> Self {
        Self {
            settings,
            random: Random(0x2545_f491_4f6c_dd1d),
            taken: vec![0; settings.rows.div_ceil(64) as usize],
        }
    }

    /// Fill a batch with keys of which a share `miss` has no row.
    fn keys(&mut self, miss: f64, keys: &mut [u64]) {
        for key in &mut *keys {
            *key = self.row();
            while !self.take(*key) {
                *key = self.row();
            }
        }
        for key in keys {
            self.taken[*key as usize / 64] = 0;
            let missing = miss > 0.0 && self.random.unit() < miss;
            *key = spread(*key + if missing { self.settings.rows } else { 0 });
        }
    }

    /// Take a row for the batch, if it is not in there.
    fn take(&mut self, row: u64) -> bool {
        let (word, bit) = (&mut self.taken[row as usize / 64], 1 << (row % 64));
        let is_free = *word & bit == 0;
        *word |= bit;
        is_free
    }

    /// Draw a row's number: uniform, or by Zipf's law with exponent 1 (its continuous form).
    fn row(&mut self) -> u64 {
        let rows = self.settings.rows;
        if self.settings.zipf {
            let rank = (rows as f64).powf(self.random.unit());
            (rank as u64).min(rows - 1)
        } else {
            self.random.next() % rows
        }
    }
}

/// Memory of the same size as the table, for what the machine can do.
struct Machine {
    map: MmapMut,
    places: Vec<u32>,
    copied: usize,
}

impl Machine {
    fn new(bytes: usize) -> Result<Self, Failure> {
        let bytes = bytes.next_multiple_of(COPIED);
        let mut map = MmapMut::map_anon(bytes)?;
        map.advise(Advice::HugePage)?;
        // Every page is there before anything is measured.
        map.chunks_mut(4096).for_each(|page| page[0] = 1);
        Ok(Self {
            map,
            places: vec![0; LINES],
            copied: 0,
        })
    }

    /// Read random lines, each asked for ahead or none; millions a second.
    fn lines(&mut self, random: &mut Random, asked: bool) -> f64 {
        let lines: &[[u64; 8]] = bytemuck::cast_slice(&self.map);
        self.places
            .fill_with(|| (random.next() % lines.len() as u64) as u32);
        let start = Instant::now();
        let mut sum = 0_u64;
        let mut add = |place: u32| sum = sum.wrapping_add(lines[place as usize][0]);
        if asked {
            let ask = |&place: &u32| prefetch(&lines[place as usize]);
            work_ahead(&self.places, ask, |_, &place| add(place));
        } else {
            self.places.iter().for_each(|&place| add(place));
        }
        black_box(sum);
        rate(LINES, start.elapsed())
    }

    /// Copy some megabytes from one place to another; GB/s of bytes copied.
    fn copy(&mut self) -> f64 {
        let half = self.map.len() / 2;
        let (from, to) = self.map.split_at_mut(half);
        let at = (self.copied * COPIED / 2) % (half - COPIED / 2 + 1);
        self.copied += 1;
        let start = Instant::now();
        to[at..at + COPIED / 2].copy_from_slice(&from[at..at + COPIED / 2]);
        rate(COPIED / 2, start.elapsed()) / 1e3
    }
}

/// Millions a second.
fn rate(count: usize, time: Duration) -> f64 {
    count as f64 / time.as_secs_f64() / 1e6
}

/// Seconds of processor time that the kernel has spent for this process.
fn system_seconds() -> f64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let after_name = stat.rsplit(") ").next().unwrap_or_default();
    let ticks = after_name.split(' ').nth(12).and_then(|t| t.parse().ok());
    // A tick is a hundredth of a second on every Linux.
    ticks.map_or(0.0, |ticks: f64| ticks / 100.0)
}

/// Seconds of processor time of this thread.
fn thread_seconds() -> f64 {
    let stat = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    let nanoseconds = stat.split(' ').next().and_then(|n| n.parse::<f64>().ok());
    nanoseconds.unwrap_or(0.0) / 1e9
}

/// A value of `/proc/self/smaps_rollup`, in bytes.
fn memory(what: &str) -> u64 {
    let text = std::fs::read_to_string("/proc/self/smaps_rollup").unwrap_or_default();
    let line = text.lines().find(|line| line.starts_with(what));
    let kib = line.and_then(|line| line.split_whitespace().nth(1)?.parse::<u64>().ok());
    kib.unwrap_or(0) * 1024
}

fn fill(store: &Store, settings: &Settings) -> Result<Value, StoreError> {
    let mut rows = vec![0.0; settings.batch * settings.dim];
    let mut times = Vec::new();
    let all: Vec<u64> = (0..settings.rows).map(spread).collect();
    let system = system_seconds();
    for keys in all.chunks(settings.batch) {
        let out = &mut rows[..keys.len() * settings.dim];
        let start = Instant::now();
        store.pull_rows(0, keys, PullMode::Create, out)?;
        times.push(start.elapsed().as_secs_f64());
    }
    let system = system_seconds() - system;
    let total: f64 = times.iter().sum();
    times.sort_by(f64::total_cmp);
    Ok(json!({
        "rate": settings.rows as f64 / total / 1e6,
        "rate_without_kernel": settings.rows as f64 / (total - system).max(1e-9) / 1e6,
        "median_batch_ms": times[times.len() / 2] * 1e3,
        "longest_batch_ms": times[times.len() - 1] * 1e3,
    }))
}

/// The longest that one thread waits for one row while rows are created one by one.
fn longest_insert(store: &Store, settings: &Settings) -> Result<f64, StoreError> {
    let mut row = vec![0.0; settings.dim];
    let mut longest = Duration::ZERO;
    for n in 0..settings.rows / 4 {
        let start = Instant::now();
        store.pull_rows(
            0,
            &[spread(3 * settings.rows + n)],
            PullMode::Create,
            &mut row,
        )?;
        longest = longest.max(start.elapsed());
    }
    Ok(longest.as_secs_f64() * 1e3)
}

fn push(store: &Store, index: u32, keys: &[u64], grads: &[f32]) -> Result<(), StoreError> {
    let tables = [TableGrads {
        table: 0,
        keys,
        grads,
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
    Ok(())
}

/// What the store is measured against: the same rows, held as somebody else might hold them.
trait Peer {
    fn insert(&self, keys: &[u64], rows: &[f32]);
    fn pull(&self, keys: &[u64], out: &mut [f32]);
    fn push(&self, keys: &[u64], grads: &[f32]);
}

/// A peer, and what its pulls and pushes are called.
struct Rival {
    pull: &'static str,
    push: &'static str,
    peer: Box<dyn Peer>,
}

fn rivals(store: &Store, settings: &Settings, kind: Optimizer) -> Result<Vec<Rival>, StoreError> {
    let rivals = vec![
        Rival {
            pull: "plain_pull",
            push: "plain_push",
            peer: Box::new(Plain::new(kind, settings.dim)),
        },
        Rival {
            pull: "sharded_pull",
            push: "sharded_push",
            peer: Box::new(Sharded::new(kind, settings.dim)),
        },
    ];
    let mut rows = vec![0.0; settings.batch * settings.dim];
    let all: Vec<u64> = (0..settings.rows).map(spread).collect();
    for keys in all.chunks(settings.batch) {
        let out = &mut rows[..keys.len() * settings.dim];
        store.pull_rows(0, keys, PullMode::ReadOnly, out)?;
        rivals.iter().for_each(|rival| rival.peer.insert(keys, out));
    }
    Ok(rivals)
}

/// What slices of work came to, each list by the name of the work.
#[derive(Default)]
struct Measured {
    rates: BTreeMap<&'static str, Vec<f64>>,
    /// Nanoseconds a key, by stage.
    stages: BTreeMap<&'static str, BTreeMap<&'static str, Vec<f64>>>,
    pushes: u32,
}

/// Measure slice after slice.
fn measure(store: &Store, rivals: &[Rival], settings: &Settings) -> Result<Measured, Failure> {
    let n = settings.batch;
    let grads = vec![0.01; n * settings.dim];
    let mut out = vec![0.0; n * settings.dim];
    let mut keys = vec![0; n * settings.batches];
    let mut draw = Draw::new(settings);
    let mut machine = Machine::new(store.stats().resident_bytes as usize)?;
    let mut random = Random(0x9876_5432_1234_5678);
    let mut measured = Measured::default();
    for _ in 0..settings.slices {
        let Measured {
            rates,
            stages,
            pushes,
        } = &mut measured;
        // A slice of one kind of work: batches after one another.
        let mut slice = |what, miss, work: &mut dyn FnMut(&[u64]) -> Result<(), StoreError>| {
            keys.chunks_mut(n).for_each(|keys| draw.keys(miss, keys));
            let start = Instant::now();
            keys.chunks(n).try_for_each(work)?;
            let rate = rate(keys.len(), start.elapsed());
            rates.entry(what).or_default().push(rate);
            for (stage, time) in take_stages() {
                let times = stages.entry(what).or_default().entry(stage).or_default();
                times.push(time.as_secs_f64() * 1e9 / keys.len() as f64);
            }
            Ok::<(), StoreError>(())
        };
        slice("pull", settings.miss, &mut |keys| {
            store.pull_rows(0, keys, PullMode::ReadOnly, black_box(&mut out))
        })?;
        slice("push", 0.0, &mut |keys| {
            *pushes += 1;
            push(store, *pushes - 1, keys, &grads)
        })?;
        for Rival { pull, push, peer } in rivals {
            slice(pull, settings.miss, &mut |keys| {
                peer.pull(keys, black_box(&mut out));
                Ok(())
            })?;
            slice(push, 0.0, &mut |keys| {
                peer.push(keys, &grads);
                Ok(())
            })?;
        }
        // A first pass after pushes is slower, probably since it writes back what they left.
        for (what, asked) in [
            ("lines_after_pushes", true),
            ("lines_unasked", false),
            ("lines", true),
        ] {
            let lines = machine.lines(&mut random, asked);
            rates.entry(what).or_default().push(lines);
        }
        rates.entry("memcpy").or_default().push(machine.copy());
    }
    Ok(measured)
}

/// Push until told to stop, and count.
fn train(
    store: &Store,
    settings: &Settings,
    first: u32,
    count: &AtomicU32,
    stop: &AtomicBool,
) -> Result<(), StoreError> {
    // Small batches, as steps are, with something else between them.
    let mut keys = vec![0; 2048];
    let grads = vec![0.01; keys.len() * settings.dim];
    let mut draw = Draw::new(settings);
    while !stop.load(Ordering::Relaxed) {
        draw.keys(0.0, &mut keys);
        push(store, first + count.load(Ordering::Relaxed), &keys, &grads)?;
        count.fetch_add(1, Ordering::Relaxed);
    }
    Ok(())
}

/// Checkpoints of each kind.
const CHECKPOINTS: usize = 3;

/// Write checkpoints while another thread trains, with as much time between them, and without it;
/// and load one.
fn checkpoint(store: &Store, settings: &Settings, pushed: u32) -> Result<Value, Failure> {
    let dir = Path::new(&settings.checkpoint).join(format!("bench-{}", std::process::id()));
    let write = || -> Result<(String, u64, f64, f64), Failure> {
        // To replace files would cost the time that it takes to free them.
        if dir.exists() {
            std::fs::remove_dir_all(&dir)?;
        }
        let (start, processor) = (Instant::now(), thread_seconds());
        let entry = store.checkpoint(&dir)?;
        let (seconds, processor) = (start.elapsed(), thread_seconds() - processor);
        let files = std::fs::read_dir(&dir)?;
        let bytes = files.filter_map(|entry| Some(entry.ok()?.metadata().ok()?.len()));
        Ok((entry, bytes.sum(), seconds.as_secs_f64(), processor))
    };
    let (count, stop) = (AtomicU32::new(0), AtomicBool::new(false));
    let (mut alone, mut meanwhile, mut paced, mut busy) = (vec![], vec![], vec![], vec![]);
    std::thread::scope(|scope| -> Result<(), Failure> {
        let trainer = scope.spawn(|| train(store, settings, pushed, &count, &stop));
        let pushes = |rates: &mut Vec<f64>, work: &mut dyn FnMut() -> Result<(), Failure>| {
            let (start, before) = (Instant::now(), count.load(Ordering::Relaxed));
            let done = work();
            let made = count.load(Ordering::Relaxed) - before;
            rates.push(f64::from(made) / start.elapsed().as_secs_f64());
            done
        };
        let mut pause = Duration::from_secs(1);
        let mut all = || -> Result<(), Failure> {
            for _ in 0..CHECKPOINTS {
                pushes(&mut alone, &mut || {
                    std::thread::sleep(pause);
                    Ok(())
                })?;
                pushes(&mut meanwhile, &mut || {
                    let (_, bytes, seconds, processor) = write()?;
                    paced.push(bytes as f64 / seconds / 1e6);
                    busy.push(bytes as f64 / processor / 1e6);
                    pause = Duration::from_secs_f64(seconds);
                    Ok(())
                })?;
            }
            Ok(())
        };
        let done = all();
        stop.store(true, Ordering::Relaxed);
        trainer.join().expect("no thread panics")?;
        done
    })?;
    let mut written = Vec::new();
    let (mut entry, mut bytes) = (String::new(), 0);
    for _ in 0..CHECKPOINTS {
        let seconds;
        (entry, bytes, seconds, _) = write()?;
        written.push(bytes as f64 / seconds / 1e6);
    }
    let manifest = format!(r#"{{"format": 1, "replicas": [{entry}]}}"#);
    std::fs::write(dir.join("manifest.json"), manifest)?;
    let mut restored = Vec::new();
    for _ in 0..CHECKPOINTS {
        let start = Instant::now();
        let store = Store::restore(&dir, 0, 1, true)?;
        restored.push(rate(bytes as usize, start.elapsed()));
        drop(store);
    }
    std::fs::remove_dir_all(&dir)?;
    Ok(json!({
        "bytes": bytes,
        "written_mb": written,
        "written_mb_meanwhile": paced,
        "written_mb_of_processor_second": busy,
        "restored_mb": restored,
        "pushes_alone": alone,
        "pushes_meanwhile": meanwhile,
    }))
}

fn main() -> Result<(), Failure> {
    let settings = settings()?;
    let spec = model(&settings);
    let optimizer = spec.optimizer.parse()?;
    let store = Store::new(0, 1);
    store.declare(spec, &[], &[])?;
    let before = memory("Rss");
    let insert = fill(&store, &settings)?;
    let stats = store.stats();
    let grown = memory("Rss").saturating_sub(before);
    let rivals = match settings.peer {
        true => rivals(&store, &settings, optimizer)?,
        false => Vec::new(),
    };
    // What it took to fill the table is not asked.
    take_stages();
    let measured = measure(&store, &rivals, &settings)?;
    let huge = memory("AnonHugePages");
    let checkpoint = match settings.checkpoint.as_str() {
        "" => Value::Null,
        _ => checkpoint(&store, &settings, measured.pushes)?,
    };
    let longest = longest_insert(&store, &settings)?;
    let width = settings.dim * (1 + optimizer.num_slots());
    let found = json!({
        "rows": settings.rows,
        "width": width,
        "bytes_per_row": stats.resident_bytes as f64 / settings.rows as f64,
        "store_bytes": stats.resident_bytes,
        "resident_growth_bytes": grown,
        "huge_page_bytes": huge,
        "insert": insert,
        "longest_insert_ms": longest,
        "rates": measured.rates,
        "stages": measured.stages,
        "checkpoint": checkpoint,
    });
    println!("{found}");
    Ok(())
}
