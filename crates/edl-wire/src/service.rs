//! The two ends of a connection: the names and labels that keep services apart.

/// A service; processes of one service do not accept connections of another.
#[derive(Clone, Copy, Debug)]
pub struct Service {
    /// The name of the listening end in errors.
    pub server: &'static str,
    /// The name of the connecting end in errors.
    pub client: &'static str,
    /// Begins the MAC of a client.
    pub(crate) client_label: &'static [u8],
    /// Begins the MAC of a server.
    pub(crate) server_label: &'static [u8],
    /// Begins the name of a Unix socket.
    pub(crate) local_prefix: &'static str,
    /// The name in the certificate of what listens.
    pub(crate) server_name: &'static str,
    /// The names of those that may connect.
    pub(crate) client_names: &'static [&'static str],
}

/// Ps replicas and their clients.
pub const PS: Service = Service {
    server: "ps replica",
    client: "worker",
    client_label: b"elasticdl ps: client knows the token",
    server_label: b"elasticdl ps: server knows the token",
    local_prefix: "elasticdl-ps",
    server_name: "ps.elasticdl",
    client_names: &[
        "worker.elasticdl",
        "master.elasticdl",
        "ps.elasticdl",
        "modelserver.elasticdl",
    ],
};

/// A worker that serves its own copy of the parameters, in a job of all-reduce, and the master.
///
/// Such a worker must not be taken for a ps replica, which a hybrid job has as well.
pub const COPY: Service = Service {
    server: "worker with parameters",
    client: "master",
    client_label: b"elasticdl copy: client knows the token",
    server_label: b"elasticdl copy: server knows the token",
    local_prefix: "elasticdl-copy",
    server_name: "worker.elasticdl",
    client_names: &["master.elasticdl"],
};

/// The workers of an all-reduce ring: each listens, and connects to others.
pub const RING: Service = Service {
    server: "worker of the ring",
    client: "worker of the ring",
    client_label: b"elasticdl ring: client knows the token",
    server_label: b"elasticdl ring: server knows the token",
    local_prefix: "elasticdl-ring",
    server_name: "worker.elasticdl",
    client_names: &["worker.elasticdl"],
};
