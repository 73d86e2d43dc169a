//! Parts of the wire without what surrounds them, for benchmarks and fuzzing. Not for programs.

use edl_store::{PullMode, Store};
use edl_wire::frame::Header;
use edl_wire::op::Op;
use edl_wire::op::model::Protocol;

use crate::client::{PsClient, Receipt};
use crate::error::PsError;
use crate::replicas::{Gradients, Minibatch, Pull};
use crate::service::{RowBuffers, Service};
use crate::synchrony::{Coordinator, Peer, Synchrony};

/// Fetches the rows of the unique keys of an earlier pull again: a pull without deduplication.
///
/// Args: `rows` by table of the pull, with the length of its answer.
///
/// # Errors
/// As [`PsClient::pull`].
pub fn pull_keys(
    client: &PsClient,
    receipt: &Receipt,
    rows: &mut [Vec<f32>],
) -> Result<(), PsError> {
    let mut versions = receipt.versions.clone();
    client.replicas().pull(Pull {
        plan: &receipt.plan,
        mode: PullMode::Create,
        step: None,
        rows,
        vectors: None,
        versions: &mut versions,
    })
}

/// Pushes gradients of the unique keys of a pull: a push without merging.
///
/// # Errors
/// As [`PsClient::push`].
pub fn push_keys(
    client: &PsClient,
    receipt: &Receipt,
    rows: &[Vec<f32>],
    minibatch: &Minibatch,
) -> Result<(u64, u64), PsError> {
    let gradients = Gradients {
        rows,
        dense: &[],
        state: &[],
    };
    client
        .replicas()
        .push(&receipt.plan, &gradients, minibatch, &receipt.versions)
}

struct Nobody;

impl Peer for Nobody {
    fn id(&self) -> u64 {
        0
    }

    fn is_there(&self) -> bool {
        true
    }
}

/// Does what a frame asks of a replica that applies what comes; the reply is dropped. Requests
/// that name files are not done.
///
/// # Errors
/// As the replica would answer.
pub fn answer(store: &Store, header: &Header, payload: &[u8]) -> Result<(), PsError> {
    if matches!(header.op, Op::Checkpoint | Op::Export) {
        return Ok(());
    }
    let coordinator = Coordinator::new(Synchrony::Asynchronous, 0);
    let mut rows = RowBuffers::default();
    Service::new(
        store,
        &coordinator,
        Protocol::Direct,
        &Nobody,
        None,
        &mut rows,
    )
    .answer(header, payload, &edl_store::unseen, |answer| {
        answer.check_size()
    })
}
