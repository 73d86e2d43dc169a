//! Both ends of real sessions, and what each says when the other is not to be trusted.

use std::io::{Read, Write};
use std::net::TcpListener;
use std::path::Path;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, ExtendedKeyUsagePurpose, IsCa, KeyPair,
};
use tempfile::TempDir;

use super::*;
use crate::connection::Connection;
use crate::error::{ErrorKind, WireError};
use crate::frame::{Op, Outgoing};
use crate::handshake::{self, Caller, Identity, Place};
use crate::service::PS;
use crate::socket::{Listener, Socket};

const TOKEN: &[u8] = b"a token";
const PLACE: Place = Place { number: 0, of: 1 };
const LIMIT: Duration = Duration::from_secs(30);
/// For handshakes that are to fail by silence.
const SHORT: Duration = Duration::from_millis(300);

/// Who signs the certificates of a job.
pub(crate) struct Authority {
    issuer: CertifiedIssuer<'static, KeyPair>,
    folder: TempDir,
}

impl Authority {
    pub(crate) fn new() -> Self {
        let mut params = CertificateParams::new(vec![]).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let issuer = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
        let folder = TempDir::new().unwrap();
        std::fs::write(folder.path().join("ca.pem"), issuer.pem()).unwrap();
        Self { issuer, folder }
    }

    fn issue(&self, role: &str) -> TlsFiles {
        self.issue_with(role, |_| {})
    }

    /// Writes certificate and key of a role into one file.
    fn issue_with(&self, role: &str, change: impl FnOnce(&mut CertificateParams)) -> TlsFiles {
        let mut params = CertificateParams::new(vec![format!("{role}.elasticdl")]).unwrap();
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        if role != "worker" {
            params.insert_extended_key_usage(ExtendedKeyUsagePurpose::ServerAuth);
        }
        change(&mut params);
        let key = KeyPair::generate().unwrap();
        let certificate = params.signed_by(&key, &self.issuer).unwrap();
        let path = self.folder.path().join(format!("{role}.pem"));
        std::fs::write(&path, certificate.pem() + &key.serialize_pem()).unwrap();
        TlsFiles {
            authority: self.folder.path().join("ca.pem"),
            certificate: path.clone(),
            key: path,
        }
    }

    pub(crate) fn credentials(&self, role: &str) -> Arc<Credentials> {
        Credentials::read(self.issue(role)).unwrap()
    }
}

type Outcome<T> = Result<T, WireError>;

/// Has a server and a client shake hands; returns what each makes of it, and their sockets.
fn meet(
    server: Option<&Arc<Credentials>>,
    client: Option<&Arc<Credentials>>,
    server_limit: Duration,
) -> (Outcome<Socket>, Outcome<Socket>) {
    let (listener, address) = Listener::bind("127.0.0.1", 0).unwrap();
    let now = Instant::now();
    thread::scope(|scope| {
        let by = now + server_limit;
        let accepting = scope.spawn(move || accept(listener.accept().unwrap().0, server, by));
        let connected = connect(&address.to_string(), client, now + LIMIT);
        (accepting.join().unwrap(), connected)
    })
}

fn accept(socket: Socket, tls: Option<&Arc<Credentials>>, by: Instant) -> Outcome<Socket> {
    let socket = match tls {
        Some(tls) => socket.accepting_tls(tls, &PS)?,
        None => socket,
    };
    let identity = Identity {
        place: PLACE,
        layout: 0,
        local_name: "",
    };
    handshake::accept(&socket, &PS, TOKEN, identity, by)?;
    Ok(socket)
}

fn connect(address: &str, tls: Option<&Arc<Credentials>>, by: Instant) -> Outcome<Socket> {
    let socket = Socket::connect(address, by)?;
    let socket = match tls {
        Some(tls) => socket.with_tls(tls, &PS)?,
        None => socket,
    };
    let caller = Caller {
        layout: 0,
        service: &PS,
        token: TOKEN,
        worker_id: 0,
        expected: Some(PLACE),
    };
    handshake::connect(&socket, &caller, address, by)?;
    Ok(socket)
}

fn both(server: &Arc<Credentials>, client: &Arc<Credentials>) -> (Socket, Socket) {
    let (accepted, connected) = meet(Some(server), Some(client), LIMIT);
    (accepted.unwrap(), connected.unwrap())
}

fn words<T>(outcome: Outcome<T>) -> String {
    outcome.err().expect("a refusal").to_string()
}

#[test]
fn two_of_one_authority_accept_each_other_and_share_a_binding_of_their_own() {
    let job = Authority::new();
    let (ps, worker) = (job.credentials("ps"), job.credentials("worker"));
    let (accepted, connected) = both(&ps, &worker);
    assert!(matches!(accepted, Socket::Tls(_)));
    let binding = *accepted.binding().unwrap();
    assert_eq!(Some(&binding), connected.binding());
    let (other, _) = both(&ps, &worker);
    assert_ne!(Some(&binding), other.binding());
}

#[test]
fn certificates_of_another_job_are_refused_at_both_ends() {
    let (job, other) = (Authority::new(), Authority::new());
    let (accepted, connected) = meet(
        Some(&other.credentials("ps")),
        Some(&job.credentials("worker")),
        LIMIT,
    );
    let error = connected.err().unwrap();
    assert_eq!(error.kind(), ErrorKind::Authentication);
    let error = error.to_string();
    assert!(error.contains("127.0.0.1:"), "{error}");
    assert!(
        error.contains("its certificate is not signed by this job's"),
        "{error}"
    );
    let error = words(accepted);
    assert!(
        error.contains("it refuses this process's certificate"),
        "{error}"
    );
}

#[test]
fn a_client_of_another_job_learns_why_it_is_refused() {
    let (job, other) = (Authority::new(), Authority::new());
    let mut stranger = other.issue("worker");
    stranger.authority = job.issue("ps").authority;
    let stranger = Credentials::read(stranger).unwrap();
    let (accepted, connected) = meet(Some(&job.credentials("ps")), Some(&stranger), LIMIT);
    let error = words(accepted);
    assert!(
        error.contains("not signed by this job's authority"),
        "{error}"
    );
    let error = words(connected);
    assert!(
        error.contains("refuses this process's certificate"),
        "{error}"
    );
}

#[test]
fn what_has_expired_is_refused_at_either_end() {
    let job = Authority::new();
    let expired = |role: &str| {
        let files = job.issue_with(role, |params| {
            params.not_before = rcgen::date_time_ymd(2020, 1, 1);
            params.not_after = rcgen::date_time_ymd(2020, 1, 2);
        });
        Credentials::read(files).unwrap()
    };
    let old = expired("ps");
    let (_, connected) = meet(Some(&old), Some(&job.credentials("worker")), LIMIT);
    let error = words(connected);
    assert!(error.contains("its certificate has expired"), "{error}");
    let old = expired("worker");
    let (accepted, connected) = meet(Some(&job.credentials("ps")), Some(&old), LIMIT);
    let error = words(accepted);
    assert!(error.contains("its certificate has expired"), "{error}");
    let error = words(connected);
    assert!(
        error.contains("refuses this process's certificate: expired"),
        "{error}"
    );
}

#[test]
fn a_worker_cannot_serve_as_a_ps_replica_nor_a_stray_role_connect() {
    let job = Authority::new();
    let worker = job.credentials("worker");
    let (_, connected) = meet(Some(&worker), Some(&worker), LIMIT);
    let error = words(connected);
    assert!(error.contains("that of another role"), "{error}");
    let (accepted, connected) = meet(
        Some(&job.credentials("ps")),
        Some(&job.credentials("visitor")),
        LIMIT,
    );
    let error = words(accepted);
    assert!(error.contains("that of another role"), "{error}");
    let error = words(connected);
    assert!(
        error.contains("refuses this process's certificate"),
        "{error}"
    );
}

#[test]
fn a_client_without_a_certificate_is_refused_before_the_greeting() {
    let job = Authority::new();
    let (listener, address) = Listener::bind("127.0.0.1", 0).unwrap();
    let by = Instant::now() + LIMIT;
    let ps = job.credentials("ps");
    let accepting = thread::spawn(move || accept(listener.accept().unwrap().0, Some(&ps), by));
    let mut roots = rustls::RootCertStore::empty();
    roots.add(job.issuer.der().clone()).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = rustls::ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13])
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    let name = "ps.elasticdl".try_into().unwrap();
    let mut session = rustls::ClientConnection::new(Arc::new(config), name).unwrap();
    let mut tcp = std::net::TcpStream::connect(address).unwrap();
    let mut stream = rustls::Stream::new(&mut session, &mut tcp);
    let error = stream.read(&mut [0]).unwrap_err();
    assert!(words_of(&error).unwrap().contains("got none"), "{error}");
    let error = words(accepting.join().unwrap());
    assert!(error.contains("it shows no certificate"), "{error}");
}

#[test]
fn tls_and_none_do_not_meet_and_both_say_so() {
    let job = Authority::new();
    let (ps, worker) = (job.credentials("ps"), job.credentials("worker"));
    let (accepted, connected) = meet(None, Some(&worker), LIMIT);
    let error = words(accepted);
    assert!(
        error.contains("speaks TLS, this process does not"),
        "{error}"
    );
    let error = words(connected);
    assert!(error.contains("expected TLS 1.3"), "{error}");
    let (accepted, connected) = meet(Some(&ps), None, SHORT);
    let error = words(accepted);
    assert!(error.contains("no TLS handshake came in time"), "{error}");
    let error = words(connected);
    assert!(error.contains("does it speak TLS"), "{error}");
}

#[test]
fn a_stranger_who_never_ends_the_handshake_is_let_go() {
    let job = Authority::new();
    let (listener, address) = Listener::bind("127.0.0.1", 0).unwrap();
    let ps = job.credentials("ps");
    let by = Instant::now() + LIMIT;
    let accepting = thread::spawn(move || accept(listener.accept().unwrap().0, Some(&ps), by));
    let mut tcp = std::net::TcpStream::connect(address).unwrap();
    // A handshake message that is said to be long, in records that are whole.
    let mut record = vec![0x16, 3, 1, 0x3f, 0xff, 1, 0, 0xff, 0xfb];
    record.resize(5 + 0x3fff, 0);
    let sent = (0..100).try_for_each(|_| {
        tcp.write_all(&record)?;
        record[5..9].fill(0);
        Ok::<_, std::io::Error>(())
    });
    let error = words(accepting.join().unwrap());
    assert!(!error.is_empty());
    assert!(
        sent.is_err() || tcp.read(&mut [0]).is_err() || error.contains("TLS"),
        "{error}"
    );
}

/// Ends two sessions and passes on what is said in them, as one who has a good certificate can.
fn relay(listener: &TcpListener, server: &str, job: &Authority, by: Instant) {
    let ps = Credentials::read(job.issue("ps")).unwrap();
    // A certificate of its own that the server takes; here one of a worker.
    let worker = Credentials::read(job.issue("worker")).unwrap();
    let inner = Socket::Tcp(listener.accept().unwrap().0);
    let inner = inner.accepting_tls(&ps, &PS).unwrap();
    inner.secure(by).unwrap();
    let outer = Socket::connect(server, by).unwrap();
    let outer = outer.with_tls(&worker, &PS).unwrap();
    outer.secure(by).unwrap();
    thread::scope(|scope| {
        for (mut from, mut to) in [(&inner, &outer), (&outer, &inner)] {
            scope.spawn(move || {
                let _ = std::io::copy(&mut from, &mut to);
                to.shut_down();
                from.shut_down();
            });
        }
    });
}

#[test]
fn a_relay_with_good_certificates_cannot_pass_on_the_proof_of_the_token() {
    let job = Authority::new();
    let (ps, worker) = (job.credentials("ps"), job.credentials("worker"));
    let (listener, address) = Listener::bind("127.0.0.1", 0).unwrap();
    let between = TcpListener::bind("127.0.0.1:0").unwrap();
    let relayed = between.local_addr().unwrap().to_string();
    let by = Instant::now() + LIMIT;
    thread::scope(|scope| {
        let accepting = scope.spawn(|| accept(listener.accept().unwrap().0, Some(&ps), by));
        scope.spawn(|| relay(&between, &address.to_string(), &job, by));
        let refused = connect(&relayed, Some(&worker), by).err().unwrap();
        assert!(
            matches!(refused, WireError::Authentication { .. }),
            "{refused}"
        );
        let refused = accepting.join().unwrap().err().unwrap();
        assert!(
            matches!(refused, WireError::Authentication { .. }),
            "{refused}"
        );
    });
}

#[test]
fn large_frames_in_both_directions_at_once_do_not_wait_for_each_other() {
    const BYTES: usize = 24 << 20;
    let job = Authority::new();
    let (accepted, connected) = both(&job.credentials("ps"), &job.credentials("worker"));
    thread::scope(|scope| {
        for (socket, byte) in [(&accepted, 1), (&connected, 2)] {
            socket.set_timeout(LIMIT).unwrap();
            // Both write before either reads: each direction is full.
            let written = std::sync::mpsc::channel();
            scope.spawn(move || {
                let mut writer = socket;
                writer.write_all(&vec![byte; 8 << 20]).unwrap();
                written.0.send(()).unwrap();
                writer.write_all(&vec![byte; BYTES - (8 << 20)]).unwrap();
            });
            scope.spawn(move || {
                let mut reader = socket;
                let mut found = vec![0; BYTES];
                reader.read_exact(&mut found).unwrap();
                assert!(found.iter().all(|&found| found == 3 - byte));
                written.1.recv().unwrap();
            });
        }
    });
}

#[test]
fn a_writer_says_that_its_peer_takes_nothing_before_it_waits() {
    let job = Authority::new();
    let (accepted, connected) = both(&job.credentials("ps"), &job.credentials("worker"));
    connected.set_timeout(LIMIT).unwrap();
    let (full, is_full) = std::sync::mpsc::channel();
    thread::scope(|scope| {
        scope.spawn(move || {
            let bytes = [0; 64 << 10];
            let mut is_waiting = false;
            while !is_waiting {
                let slices = [std::io::IoSlice::new(&bytes)];
                let before_waiting = || {
                    is_waiting = true;
                    full.send(()).unwrap();
                };
                connected.write_telling(&slices, before_waiting).unwrap();
            }
            connected.shut_down();
        });
        is_full.recv_timeout(LIMIT).unwrap();
        std::io::copy(&mut &accepted, &mut std::io::sink()).unwrap();
    });
}

#[test]
fn a_request_that_does_not_fit_goes_on_where_it_stopped() {
    let job = Authority::new();
    let (accepted, connected) = both(&job.credentials("ps"), &job.credentials("worker"));
    let (one, other) = std::os::unix::net::UnixStream::pair().unwrap();
    // More slices than a system takes in one call, then more bytes than a socket takes.
    let few = [0.5; 3];
    let many: Vec<f32> = (0..4 << 20).map(|at| at as f32).collect();
    let frame = (0..1500).fold(Outgoing::new(Op::Give), |frame, table| {
        frame.rows(table, 1, &few)
    });
    let frame = frame.dense(&many);
    let mut expected = Vec::new();
    frame.write_to(1, &mut expected).unwrap();
    for (reader, writer) in [
        (accepted, connected),
        (Socket::Unix(one), Socket::Unix(other)),
    ] {
        writer.set_timeout(LIMIT).unwrap();
        let mut connection = Connection::new(Arc::new(writer));
        assert!(!connection.send_at_once(&frame).unwrap());
        thread::scope(|scope| {
            let found = scope.spawn(|| {
                let mut found = vec![0; expected.len()];
                (&reader).read_exact(&mut found).map(|()| found)
            });
            for _ in 0..2 {
                Connection::wait_for_any([&connection].into_iter(), LIMIT).unwrap();
                if connection.send_at_once(&frame).unwrap() {
                    break;
                }
            }
            if connection.is_sending() {
                connection.send(&frame).unwrap();
            }
            assert!(!connection.is_sending());
            assert!(found.join().unwrap().unwrap() == expected);
        });
    }
}

#[test]
fn a_reader_is_woken_by_its_own_shut_down_and_by_the_end_of_the_peer() {
    let job = Authority::new();
    let (ps, worker) = (job.credentials("ps"), job.credentials("worker"));
    let (accepted, connected) = both(&ps, &worker);
    assert!(accepted.is_open());
    thread::scope(|scope| {
        let reading = scope.spawn(|| (&accepted).read(&mut [0; 8]));
        accepted.shut_down();
        assert_eq!(reading.join().unwrap().unwrap(), 0);
    });
    drop(accepted);
    assert_eq!((&connected).read(&mut [0; 8]).unwrap(), 0);
    assert!(!connected.is_open());
}

#[test]
fn a_peer_that_is_killed_inside_a_record_ends_the_reading() {
    let job = Authority::new();
    let (accepted, connected) = both(&job.credentials("ps"), &job.credentials("worker"));
    let Socket::Tls(stream) = &connected else {
        panic!("expected TLS");
    };
    // The start of a record whose rest never comes.
    stream
        .tcp()
        .write_all(&[0x17, 3, 3, 0x10, 0, 1, 2, 3])
        .unwrap();
    connected.shut_down();
    assert_eq!((&accepted).read(&mut [0; 8]).unwrap(), 0);
}

#[test]
fn a_peer_that_says_nothing_is_waited_for_as_long_as_was_said() {
    let job = Authority::new();
    let (accepted, connected) = both(&job.credentials("ps"), &job.credentials("worker"));
    accepted.set_timeout(SHORT).unwrap();
    let error = (&accepted).read(&mut [0; 8]).unwrap_err();
    assert!(crate::timed_out(&error), "{error}");
    // Nothing is lost by it.
    (&connected).write_all(b"late").unwrap();
    let mut late = [0; 4];
    accepted.set_timeout(LIMIT).unwrap();
    (&accepted).read_exact(&mut late).unwrap();
    assert_eq!(&late, b"late");
}

#[test]
fn changed_bytes_end_the_session() {
    let job = Authority::new();
    let (accepted, connected) = both(&job.credentials("ps"), &job.credentials("worker"));
    let Socket::Tls(stream) = &connected else {
        panic!("expected TLS");
    };
    let mut record = vec![0x17, 3, 3, 0, 40];
    record.resize(45, 7);
    stream.tcp().write_all(&record).unwrap();
    let error = (&accepted).read(&mut [0; 8]).unwrap_err();
    assert!(words_of(&error).is_some(), "{error}");
}

#[test]
fn new_connections_take_the_files_as_they_are_then() {
    let job = Authority::new();
    let ps = job.credentials("ps");
    let worker = Credentials::read(job.issue_with("worker", |params| {
        params.not_before = rcgen::date_time_ymd(2020, 1, 1);
        params.not_after = rcgen::date_time_ymd(2020, 1, 2);
    }));
    let worker = worker.unwrap();
    let (_, connected) = meet(Some(&ps), Some(&worker), LIMIT);
    assert!(connected.is_err());
    job.issue("worker"); // in place of the old one
    both(&ps, &worker);
}

#[test]
fn a_renewal_by_half_leaves_the_certificate_of_before() {
    let job = Authority::new();
    let files = job.issue("ps");
    let ps = Credentials::read(files.clone()).unwrap();
    std::fs::write(&files.key, "half").unwrap();
    both(&ps, &job.credentials("worker"));
}

#[test]
fn files_that_hold_something_else_are_named() {
    let job = Authority::new();
    let good = job.issue("ps");
    let refused = |files: TlsFiles| Credentials::read(files).unwrap_err().to_string();
    let missing = refused(TlsFiles {
        authority: Path::new("/nowhere/ca.pem").into(),
        ..good.clone()
    });
    assert!(missing.contains("/nowhere/ca.pem"), "{missing}");
    let no_key = refused(TlsFiles {
        key: good.authority.clone(),
        ..good.clone()
    });
    assert!(no_key.contains("expected a private key"), "{no_key}");
    let another = refused(TlsFiles {
        key: job.issue("worker").key,
        ..good
    });
    assert!(another.contains("a certificate and its key"), "{another}");
}
