//! A relay in front of a replica: it keeps its address, and cuts connections on demand.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::thread::JoinHandle;

use super::*;

pub(super) struct Relay {
    address: String,
    shared: Arc<Shared>,
    acceptor: Option<JoinHandle<()>>,
}

struct Shared {
    target: Mutex<String>,
    /// How many bytes of the replica may pass before the connection that carries them is cut.
    budget: AtomicI64,
    stopping: AtomicBool,
}

impl Relay {
    pub(super) fn start(target: &str) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let shared = Arc::new(Shared {
            target: Mutex::new(target.to_owned()),
            budget: AtomicI64::new(i64::MAX),
            stopping: AtomicBool::new(false),
        });
        let acceptor = {
            let shared = shared.clone();
            std::thread::spawn(move || accept_all(&listener, &shared))
        };
        Self {
            address,
            shared,
            acceptor: Some(acceptor),
        }
    }

    /// A client of two replicas that reaches replica 1 through this relay.
    pub(super) fn client(&self, cluster: &Cluster) -> PsClient {
        self.client_to(cluster, 1)
    }

    /// A client that reaches one replica through this relay and the others directly.
    pub(super) fn client_to(&self, cluster: &Cluster, replica: usize) -> PsClient {
        let mut addresses = cluster.addresses();
        addresses[replica].clone_from(&self.address);
        PsClient::remote(connect(&addresses, TOKEN, TIMEOUT, false).unwrap())
    }

    pub(super) fn lead_to(&self, target: &str) {
        target.clone_into(&mut self.shared.target.lock().unwrap());
    }

    /// Cuts one connection after this many more bytes of the replica; later ones are left alone.
    pub(super) fn cut_after(&self, bytes: i64) {
        self.shared.budget.store(bytes, Ordering::SeqCst);
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.shared.stopping.store(true, Ordering::SeqCst);
        let _ = TcpStream::connect(&self.address);
        let _ = self.acceptor.take().unwrap().join();
    }
}

fn accept_all(listener: &TcpListener, shared: &Arc<Shared>) {
    loop {
        let (near, _) = listener.accept().unwrap();
        if shared.stopping.load(Ordering::SeqCst) {
            return;
        }
        let target = shared.target.lock().unwrap().clone();
        if let Ok(far) = TcpStream::connect(target) {
            let (near_2, far_2) = (near.try_clone().unwrap(), far.try_clone().unwrap());
            let shared = shared.clone();
            std::thread::spawn(move || copy(near_2, far_2, |_| true));
            std::thread::spawn(move || copy(far, near, |bytes| shared.may_pass(bytes)));
        }
    }
}

impl Shared {
    fn may_pass(&self, bytes: usize) -> bool {
        let bytes = bytes as i64;
        let left = self.budget.fetch_sub(bytes, Ordering::SeqCst) - bytes;
        if left < 0 {
            self.budget.store(i64::MAX, Ordering::SeqCst);
        }
        left >= 0
    }
}

/// Copies byte by byte, so that a cut may be anywhere, until one end or `may_pass` says no.
fn copy(from: TcpStream, to: TcpStream, may_pass: impl Fn(usize) -> bool) {
    let mut byte = [0; 1];
    let mut reader = std::io::BufReader::new(&from);
    while let Ok(1) = reader.read(&mut byte) {
        if !may_pass(1) || (&to).write_all(&byte).is_err() {
            break;
        }
    }
    let _ = (from.shutdown(Shutdown::Both), to.shutdown(Shutdown::Both));
}
