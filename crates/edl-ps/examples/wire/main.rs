//! What the wire costs beside the sockets: calls of the client with their frames made before, and
//! echoes of the same bytes over a socket of the same kind, in turn. Each side has one thread and a
//! process of its own.
//!
//! `cargo run --release -p edl-ps --example wire -- [name=value ...]`, with `rows` (thousands in
//! the table), `batch` (unique keys of a call), `dim`, `slices`, `tcp` (1: not the Unix socket).
//! With `shape=step`: pull and push of whole training steps of the Criteo-shaped job, `batch`
//! records each. With `shape=ordered`: the same where no pull may come before the last push, each
//! by itself and in one exchange.
//!
//! One line of JSON is printed: seconds by slice, and seconds of processor time.

use std::collections::HashMap;

use crate::calls::measure_calls;
use crate::step::{measure_ordered, measure_steps};

mod calls;
mod peers;
mod step;

type Failure = Box<dyn std::error::Error>;

const TOKEN: &[u8] = b"a token of this benchmark";

/// Seconds of each slice, by what was done.
type Spent = HashMap<String, Vec<f64>>;

struct Settings {
    rows: u64,
    batch: usize,
    dim: usize,
    slices: usize,
    tcp: bool,
    shape: String,
}

fn settings() -> Result<Settings, Failure> {
    let mut given: HashMap<String, String> = HashMap::new();
    for arg in std::env::args().skip(1) {
        let (name, value) = arg.split_once('=').ok_or("expected name=value")?;
        given.insert(name.to_owned(), value.to_owned());
    }
    let mut take = |name: &str, default: &str| given.remove(name).unwrap_or(default.to_owned());
    let settings = Settings {
        rows: take("rows", "2000").parse::<u64>()? * 1000,
        batch: take("batch", "65536").parse()?,
        dim: take("dim", "8").parse()?,
        slices: take("slices", "60").parse()?,
        tcp: take("tcp", "0") != "0",
        shape: take("shape", "calls"),
    };
    match given.keys().next() {
        Some(name) => Err(format!("no setting '{name}'").into()),
        None if settings.batch as u64 > settings.rows => Err("rows: expected a batch".into()),
        None => Ok(settings),
    }
}

fn main() -> Result<(), Failure> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    if let [what, replica, num_replicas, ordered] = &words[..]
        && what == "answer"
    {
        return peers::answer(replica.parse()?, num_replicas.parse()?, ordered.parse()?);
    }
    let settings = settings()?;
    let spent = match settings.shape.as_str() {
        "calls" => measure_calls(&settings)?,
        "step" => measure_steps(&settings)?,
        "ordered" => measure_ordered(&settings)?,
        other => return Err(format!("shape={other}: expected calls, step or ordered").into()),
    };
    println!("{}", serde_json::to_string(&spent)?);
    Ok(())
}
