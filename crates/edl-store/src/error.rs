//! The refusals of the store, with their reasons.

use std::path::PathBuf;

use thiserror::Error;

/// Why the store refused a request.
#[derive(Debug, Error)]
pub enum StoreError {
    /// Something was asked of a store that knows no model yet.
    #[error("no model has been declared to this replica; declare it before {0}")]
    NotDeclared(&'static str),
    /// The model is declared before the rows that its table begins with are there.
    #[error(
        "table '{table}' begins with rows that the model file sets, of which this replica has {found} of {expected}; give them before the model is declared"
    )]
    RowsAwaited {
        /// The table.
        table: String,
        /// Rows that this replica is to have.
        expected: u64,
        /// Rows that were given.
        found: u64,
    },
    /// A model that cannot be stored.
    #[error("{0}")]
    BadModel(String),
    /// The model differs from the one that is stored.
    #[error("{0}")]
    ModelMismatch(String),
    /// No table of that number.
    #[error(
        "no table {table}: the model has {num_tables} tables; do all workers run the same model?"
    )]
    UnknownTable {
        /// The table asked for.
        table: u32,
        /// Tables that the model has.
        num_tables: usize,
    },
    /// An array of the wrong length.
    #[error("{what} has {found} elements, expected {expected}; do all workers run the same model?")]
    WrongLength {
        /// Which array.
        what: String,
        /// The length that fits.
        expected: usize,
        /// The length given.
        found: usize,
    },
    /// A key that belongs to another replica.
    #[error(
        "key {key} belongs to replica {owner} of {num_replicas}, this is replica {replica}; do all workers know the same replicas?"
    )]
    WrongReplica {
        /// The key.
        key: u64,
        /// The replica that it belongs to.
        owner: u32,
        /// The replica that was asked.
        replica: u32,
        /// How many there are.
        num_replicas: u32,
    },
    /// The lease has been given to somebody else since.
    #[error("lease {lease} of task {task} is over: lease {current} has begun")]
    StaleLease {
        /// The task.
        task: u64,
        /// The lease that came.
        lease: u32,
        /// The newest lease known.
        current: u32,
    },
    /// A minibatch came before the one that precedes it.
    #[error(
        "minibatch {index} of task {task} came, expected {expected}; begin the task again to resume at the right one"
    )]
    Gap {
        /// The task.
        task: u64,
        /// The index that came.
        index: u32,
        /// The next index to apply.
        expected: u32,
    },
    /// A lease began before this replica did, which may lack what was trained before it.
    #[error(
        "lease {lease} of task {task} began before this replica, which lets leases in from {first} on; give it back"
    )]
    EarlierLease {
        /// The task.
        task: u64,
        /// The lease that came.
        lease: u32,
        /// The first lease that is let in.
        first: u32,
    },
    /// A gradient of parameters that are too old by now.
    #[error(
        "task {task}, minibatch {index}: its gradient is of version {pulled}, the model is at {version}; at most {limit} updates may lie between: pull again and compute it anew"
    )]
    TooStale {
        /// The task.
        task: u64,
        /// Number of the minibatch.
        index: u32,
        /// The version that it was computed on.
        pulled: u64,
        /// The version now.
        version: u64,
        /// The most that they may differ.
        limit: u64,
    },
    /// A defect has left a change half done.
    #[error(
        "ps replica {replica} failed while it changed its parameters, and they are only half changed: it answers nothing more and has to be restored from a checkpoint"
    )]
    HalfChanged {
        /// The replica.
        replica: u32,
    },
    /// No more rows or updates can be numbered.
    #[error("{0}")]
    Full(String),
    /// New rows would take more memory than the replica may.
    #[error(
        "table '{table}' cannot take {new_rows} new rows: it has {rows}, and the rows of all tables take {used} of the {limit} bytes that --ps_memory_limit allows each ps replica; nothing was created or changed. Raise the limit, or spread the rows over more replicas (--num_ps_pods)"
    )]
    MemoryLimit {
        /// The table that was to grow.
        table: String,
        /// Rows that it has.
        rows: u64,
        /// Rows that were to be created.
        new_rows: usize,
        /// Bytes that the rows of all tables take.
        used: u64,
        /// The limit.
        limit: u64,
    },
    /// New rows would take more memory than the replica may, though others are on disk.
    #[error(
        "table '{table}' cannot take {new_rows} new rows: it has {rows}, and though nearly all rows are on disk (--ps_disk), what tells where they are takes {used} of the {limit} bytes that --ps_memory_limit allows each ps replica; nothing was created or changed. Raise the limit, or spread the rows over more replicas (--num_ps_pods)"
    )]
    IndexLimit {
        /// The table that was to grow.
        table: String,
        /// Rows that it has.
        rows: u64,
        /// Rows that were to be created.
        new_rows: usize,
        /// Bytes that are taken.
        used: u64,
        /// The limit.
        limit: u64,
    },
    /// The folder of cold rows cannot be used.
    #[error(
        "--ps_disk: rows cannot be kept in {problem}. Name a folder on a local disk that this user may write to"
    )]
    DiskUnusable {
        /// The folder, and what the system says.
        problem: String,
    },
    /// The disk takes no more rows.
    #[error(
        "the disk of --ps_disk takes no more rows, in {problem}. No row is lost, and a checkpoint can be written; nothing more is trained. Free that disk or name another one, and start the job again from its last checkpoint"
    )]
    DiskFull {
        /// The folder, and what the system says.
        problem: String,
    },
    /// Rows that were brought to disk cannot be read again.
    #[error(
        "rows that this ps replica brought to the disk of --ps_disk cannot be read again, in {problem}. It answers nothing more and has to be restored from a checkpoint; if it comes again, look after that disk"
    )]
    DiskLost {
        /// The folder, and what was found.
        problem: String,
    },
    /// Names of keys that cannot be.
    #[error("the names of keys of table '{table}' are refused: {problem}")]
    BadNames {
        /// The table.
        table: String,
        /// Why.
        problem: String,
    },
    /// The strings of a table's keys would take more memory than the replica may.
    #[error(
        "table '{table}' cannot keep the strings of {count} more keys: the rows of all tables, with their strings, take {used} of the {limit} bytes that --ps_memory_limit allows each ps replica; nothing was kept. Raise the limit, spread the rows over more replicas (--num_ps_pods), or do without keep_names"
    )]
    NamesMemoryLimit {
        /// The table that was to grow.
        table: String,
        /// Strings that were to be kept.
        count: usize,
        /// Bytes that the rows of all tables take.
        used: u64,
        /// The limit.
        limit: u64,
    },
    /// A checkpoint cannot be written or read.
    #[error("checkpoint {}: {problem}", path.display())]
    Checkpoint {
        /// The file or directory.
        path: PathBuf,
        /// The problem of the file, and the remedy.
        problem: String,
    },
    /// The numbers of replicas do not fit each other.
    #[error(
        "replica {replica} of {num_replicas} does not exist; there may be 1 to 65536 replicas, numbered from 0"
    )]
    BadReplica {
        /// The replica asked for.
        replica: u32,
        /// How many there are.
        num_replicas: u32,
    },
}
