//! Pulls and pushes of one table at one replica.

use std::time::{Duration, Instant};

use edl_ps::bare;
use edl_ps::{Minibatch, PS, PsClient, PsError, Receipt, Remote, RemoteOptions, Site};
use edl_store::PullMode;
use edl_wire::frame::HEADER_BYTES;
use serde_json::json;

use crate::peers::{Answerer, Echo, cpu_of};
use crate::{Failure, Settings, Spent, TOKEN};

/// Unique keys of a slice: a stride through all of them, begun elsewhere each time.
fn keys_of(slice: u64, batch: usize, rows: u64) -> Vec<u64> {
    // Odd and far from small fractions of `rows`: neighbours in a batch lie far apart.
    let stride = (rows as f64 * 0.618_033_988_75) as u64 | 1;
    let start = slice.wrapping_mul(batch as u64);
    (start..start + batch as u64)
        .map(|i| i.wrapping_mul(stride) % rows)
        .collect()
}

/// Connects to the replicas of some processes.
pub fn connect(answerers: &[Answerer], settings: &Settings) -> Result<PsClient, Failure> {
    let timeout = Duration::from_secs(60);
    let options = RemoteOptions {
        worker_id: 0,
        timeout,
        silence_timeout: timeout,
        connect_timeout: timeout,
        unix_sockets: !settings.tcp,
        whole_job: true,
        layout: 0,
        service: &PS,
        tls: None,
    };
    let addresses: Vec<String> = answerers.iter().map(Answerer::address).collect();
    Ok(PsClient::remote(Remote::connect(
        &addresses, TOKEN, options,
    )?))
}

fn fill(client: &PsClient, settings: &Settings) -> Result<(), Failure> {
    let optimizer = json!({"kind": "adagrad", "params": {}});
    let model = json!({
        "tables": [{
            "name": "table", "dim": settings.dim, "optimizer": optimizer,
            "initializer": {"kind": "uniform", "params": {"low": -0.05, "high": 0.05}},
        }],
        "dense": [], "state": [], "seed": 1, "optimizer": optimizer,
    });
    client.declare(&model.to_string(), &[], &[])?;
    client.begin_task(0, 1)?;
    let all: Vec<u64> = (0..settings.rows).collect();
    for ids in all.chunks(1 << 16) {
        client.pull(&[Site { table: 0, ids }], PullMode::Create, false, None)?;
    }
    Ok(())
}

/// Client calls, bare calls and echoes in turn: echoes at once, and after as much work as the store
/// had before, since a processor that has waited longer takes longer to wake.
pub fn measure_calls(settings: &Settings) -> Result<Spent, Failure> {
    let answerer = Answerer::start(0, 1, false)?;
    let mut echo = answerer.echo(settings.tcp)?;
    let client = connect(std::slice::from_ref(&answerer), settings)?;
    fill(&client, settings)?;
    let mut spent = Spent::new();
    let Settings { batch, dim, .. } = *settings;
    let (key_bytes, row_bytes) = (HEADER_BYTES + 8 * batch, 4 * dim * batch);
    let mut rows = vec![vec![0.0; dim * batch]];
    let grads = vec![vec![0.01; dim * batch]];
    let site_grads: Vec<&[f32]> = grads.iter().map(Vec::as_slice).collect();
    let slices = settings.slices as u64;
    let pull = |slice| {
        let ids = &keys_of(slice, batch, settings.rows);
        client.pull(&[Site { table: 0, ids }], PullMode::Create, false, None)
    };
    let receipts = (0..slices).map(|slice| Ok(pull(slice)?.receipt));
    let receipts: Vec<Receipt> = receipts.collect::<Result<_, PsError>>()?;
    let both_cpu = || cpu_of("self") + answerer.cpu();
    for slice in 0..slices {
        // Each call of a slice has keys of its own: none finds its rows in a cache because of
        // another.
        let number = |call| (slice + call * slices / 4) % slices;
        let receipt = |call| &receipts[number(call) as usize];
        let minibatch = |index: u64| Minibatch {
            task: 0,
            lease: 1,
            index: index as u32,
            num_minibatches: 1,
            num_records: 1,
            learning_rate: 0.01,
        };
        // `work` returns how long the other end worked: the rest is the wire's.
        let mut time = |what: &str, work: &mut dyn FnMut() -> Result<Duration, Failure>| {
            let (cpu, began) = (both_cpu(), Instant::now());
            let other = work()?;
            let taken = began.elapsed();
            let wire = taken.saturating_sub(other);
            let mut note = |what: String, seconds| spent.entry(what).or_default().push(seconds);
            note(what.to_owned(), taken.as_secs_f64());
            note(format!("{what} without the store"), wire.as_secs_f64());
            note(format!("{what} cpu"), both_cpu() - cpu);
            Ok::<Duration, Failure>(other)
        };
        let in_store = |call: &mut dyn FnMut() -> Result<(), PsError>| {
            let before = client.store_time();
            call()?;
            Ok(client.store_time() - before)
        };
        time("client pull", &mut || {
            in_store(&mut || pull(number(0)).map(drop))
        })?;
        let store = time("rpc pull", &mut || {
            in_store(&mut || bare::pull_keys(&client, receipt(1), &mut rows))
        })?;
        let back = HEADER_BYTES + row_bytes;
        echoes(&mut echo, "pull", [key_bytes, back], store, &mut time)?;
        time("client push", &mut || {
            let minibatch = minibatch(2 * slice);
            let (receipt, grads) = (receipt(2), &site_grads);
            in_store(&mut || client.push(receipt, grads, &[], &[], &minibatch).map(drop))
        })?;
        let store = time("rpc push", &mut || {
            let minibatch = minibatch(2 * slice + 1);
            in_store(&mut || bare::push_keys(&client, receipt(3), &grads, &minibatch).map(drop))
        })?;
        let there = key_bytes + row_bytes;
        echoes(&mut echo, "push", [there, HEADER_BYTES], store, &mut time)?;
    }
    Ok(spent)
}

/// Echoes so many bytes there and back, at once and after as long as the store took.
fn echoes(
    echo: &mut Echo,
    what: &str,
    [there, back]: [usize; 2],
    store: Duration,
    time: &mut impl FnMut(
        &str,
        &mut dyn FnMut() -> Result<Duration, Failure>,
    ) -> Result<Duration, Failure>,
) -> Result<(), Failure> {
    for (kind, work) in [("echo", Duration::ZERO), ("late echo", store)] {
        time(&format!("{kind} {what}"), &mut || {
            echo.call(there, back, work)?;
            Ok(work)
        })?;
    }
    Ok(())
}
