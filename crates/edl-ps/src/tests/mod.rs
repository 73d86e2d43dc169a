//! Servers and clients in one process, with real sockets between them.

use std::sync::Arc;
use std::time::Duration;

use edl_store::{PullMode, Store};
use edl_wire::service::PS;

use crate::{
    Door, Minibatch, PsClient, PsError, PsServer, Pulled, Remote, RemoteOptions, Site, Step,
    Synchrony,
};

mod bounded_after_loss;
mod combined;
mod exchange;
mod failures;
mod given;
mod moving;
mod names;
mod owed;
mod pressure;
mod progress;
mod relay;
mod several;
mod spans;
mod strangers;
mod synchrony;

const TOKEN: &[u8] = b"a token of this job";
const TIMEOUT: Duration = Duration::from_secs(30);

/// Two tables of different dims and optimizers, 37 dense and 5 state elements.
fn model() -> String {
    let table = |name: &str, dim: u32, optimizer: &str| {
        format!(
            r#"{{"name": "{name}", "dim": {dim}, "optimizer": {optimizer}, "initializer":
               {{"kind": "uniform", "params": {{"low": -0.05, "high": 0.05}}}}}}"#
        )
    };
    let adagrad = r#"{"kind": "adagrad", "params":
        {"epsilon": 1e-7, "initial_accumulator": 0.1}}"#;
    let sgd = r#"{"kind": "sgd", "params": {}}"#;
    format!(
        r#"{{"tables": [{}, {}], "seed": 17, "optimizer": {adagrad},
            "dense": [{{"name": "w", "shape": [37], "offset": 0}}],
            "state": [{{"name": "s", "shape": [5], "offset": 0}}]}}"#,
        table("user", 8, adagrad),
        table("item", 3, sgd)
    )
}

fn declare(client: &PsClient) {
    let dense: Vec<f32> = (0..37).map(|i| i as f32).collect();
    client.declare(&model(), &dense, &[1.0; 5]).unwrap();
}

/// Replicas that serve on ports of the system's choice.
struct Cluster {
    stores: Vec<Arc<Store>>,
    servers: Vec<PsServer>,
}

impl Cluster {
    fn start(num_replicas: u32) -> Self {
        Self::with(num_replicas, Synchrony::Asynchronous)
    }

    fn with(num_replicas: u32, synchrony: Synchrony) -> Self {
        let stores: Vec<_> = (0..num_replicas)
            .map(|replica| Arc::new(Store::new(replica, num_replicas)))
            .collect();
        let servers = stores
            .iter()
            .map(|store| serve_with(store, 0, synchrony))
            .collect();
        Self { stores, servers }
    }

    /// Ends a replica, and puts another store in its place, at another address.
    fn replace(&mut self, replica: usize, store: Store, synchrony: Synchrony) {
        self.servers[replica].stop();
        self.stores[replica] = Arc::new(store);
        self.servers[replica] = serve_with(&self.stores[replica], 0, synchrony);
    }

    fn addresses(&self) -> Vec<String> {
        self.servers
            .iter()
            .map(|server| server.address().to_owned())
            .collect()
    }

    fn client(&self) -> PsClient {
        self.client_with(TIMEOUT, true)
    }

    fn client_with(&self, timeout: Duration, unix_sockets: bool) -> PsClient {
        PsClient::remote(connect(&self.addresses(), TOKEN, timeout, unix_sockets).unwrap())
    }
}

fn serve(store: &Arc<Store>, port: u16) -> PsServer {
    serve_with(store, port, Synchrony::Asynchronous)
}

fn serve_with(store: &Arc<Store>, port: u16, synchrony: Synchrony) -> PsServer {
    PsServer::start(
        store.clone(),
        &Door {
            service: &PS,
            host: "127.0.0.1",
            port,
            token: TOKEN,
            tls: None,
        },
        synchrony,
        None,
    )
    .unwrap()
}

fn connect(
    addresses: &[String],
    token: &[u8],
    timeout: Duration,
    unix_sockets: bool,
) -> Result<Remote, PsError> {
    let options = RemoteOptions {
        worker_id: 3,
        timeout,
        silence_timeout: TIMEOUT,
        connect_timeout: timeout,
        unix_sockets,
        whole_job: true,
        layout: 0,
        service: &PS,
        tls: None,
    };
    Remote::connect(addresses, token, options)
}

/// Ids of two sites of table 0 and one of table 1, with duplicates within and across sites.
fn ids(step: u64) -> [Vec<u64>; 3] {
    let from = |start: u64| (0..40).map(|i| (start + i * i * (step + 1)) % 97).collect();
    [from(step), from(step + 5), from(2 * step)]
}

fn pull(client: &PsClient, step: u64) -> Pulled {
    pull_for(client, step, None)
}

fn pull_for(client: &PsClient, step: u64, training: Option<Step>) -> Pulled {
    let ids = ids(step);
    let sites = [
        Site {
            table: 0,
            ids: &ids[0],
        },
        Site {
            table: 0,
            ids: &ids[1],
        },
        Site {
            table: 1,
            ids: &ids[2],
        },
    ];
    client
        .pull(&sites, PullMode::Create, true, training)
        .unwrap()
}

fn minibatch(task: u64, index: u32) -> Minibatch {
    Minibatch {
        task,
        lease: 1,
        index,
        num_minibatches: 1,
        num_records: 40,
        learning_rate: 0.1,
    }
}

/// Pushes gradients that differ by site, element and minibatch.
fn push(client: &PsClient, pulled: &Pulled, minibatch: Minibatch) -> Result<(u64, u64), PsError> {
    let grads = gradients_of(pulled, minibatch);
    let grads: Vec<&[f32]> = grads.iter().map(Vec::as_slice).collect();
    let dense = vec![0.5; pulled.dense.len()];
    let state = vec![0.25; pulled.state.len()];
    client.push(&pulled.receipt, &grads, &dense, &state, &minibatch)
}

fn gradients_of(pulled: &Pulled, minibatch: Minibatch) -> Vec<Vec<f32>> {
    let sites = (1u32..).zip(&pulled.rows);
    let grads = sites.map(|(site, rows)| {
        let factor = (site + minibatch.index) as f32;
        (0..rows.len())
            .map(|i| factor * ((i % 13) as f32 - 6.0))
            .collect()
    });
    grads.collect()
}
