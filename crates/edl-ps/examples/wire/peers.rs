//! The other process: a ps replica and an echo.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::net::{UnixListener, UnixStream};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use edl_ps::{Door, PS, PsServer, Synchrony};
use edl_store::Store;

use crate::{Failure, TOKEN};

/// The most bytes that an echo carries in one direction.
const ECHO_BYTES: usize = 64 << 20;

/// Bytes of the numbers before a request.
const ECHO_HEADER_BYTES: usize = 24;

/// Serves replica `replica` of `num_replicas` and an echo, until its input ends.
///
/// Args: `ordered` if pushes and pulls take turns (a bound of staleness of 0).
pub fn answer(replica: u32, num_replicas: u32, ordered: bool) -> Result<(), Failure> {
    let store = Arc::new(Store::new(replica, num_replicas));
    let synchrony = if ordered {
        Synchrony::Bounded { max_staleness: 0 }
    } else {
        Synchrony::Asynchronous
    };
    let server = PsServer::start(
        store,
        &Door {
            service: &PS,
            host: "127.0.0.1",
            port: 0,
            token: TOKEN,
            tls: None,
        },
        synchrony,
        None,
    )?;
    let tcp = TcpListener::bind("127.0.0.1:0")?;
    let path = std::env::temp_dir().join(format!("edl-wire-{}", std::process::id()));
    let unix = UnixListener::bind(&path)?;
    let port = tcp.local_addr()?.port();
    println!("{} {port} {}", server.address(), path.display());
    std::thread::spawn(move || unix.accept().and_then(|(peer, _)| echo(peer)));
    std::thread::spawn(move || {
        let (peer, _) = tcp.accept()?;
        peer.set_nodelay(true)?;
        echo(peer)
    });
    io::stdin().read_to_string(&mut String::new())?;
    drop(server);
    std::fs::remove_file(path)?;
    Ok(())
}

/// Answers requests of (bytes that follow, bytes wanted, nanoseconds of work between) until the
/// peer leaves.
fn echo(mut peer: impl Read + Write) -> io::Result<()> {
    let mut bytes = vec![1u8; ECHO_BYTES];
    let mut numbers = [0; ECHO_HEADER_BYTES];
    loop {
        peer.read_exact(&mut numbers)?;
        let [request, wanted, work] = bytemuck::cast::<_, [u64; 3]>(numbers);
        peer.read_exact(&mut bytes[..request as usize])?;
        let (began, work) = (Instant::now(), Duration::from_nanos(work));
        while began.elapsed() < work {
            std::hint::spin_loop();
        }
        peer.write_all(&bytes[..wanted as usize])?;
    }
}

/// The other process; it ends when its input does.
pub struct Answerer {
    process: Child,
    input: Option<ChildStdin>,
    words: Vec<String>,
}

impl Answerer {
    pub fn start(replica: u32, num_replicas: u32, ordered: bool) -> Result<Self, Failure> {
        let mut process = Command::new(std::env::current_exe()?)
            .args([
                "answer",
                &replica.to_string(),
                &num_replicas.to_string(),
                &ordered.to_string(),
            ])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let input = process.stdin.take();
        let output: ChildStdout = process.stdout.take().ok_or("no output")?;
        let mut line = String::new();
        BufReader::new(output).read_line(&mut line)?;
        let words: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
        match words.len() {
            3 => Ok(Self {
                process,
                input,
                words,
            }),
            _ => Err(format!("expected three words, found '{line}'").into()),
        }
    }

    /// Where its replica is.
    pub fn address(&self) -> String {
        self.words[0].clone()
    }

    /// Connects to its echo.
    pub fn echo(&self, tcp: bool) -> Result<Echo, Failure> {
        let peer: Box<dyn Stream> = if tcp {
            let peer = TcpStream::connect(("127.0.0.1", self.words[1].parse()?))?;
            peer.set_nodelay(true)?;
            Box::new(peer)
        } else {
            Box::new(UnixStream::connect(&self.words[2])?)
        };
        Ok(Echo {
            peer,
            bytes: vec![1; ECHO_BYTES],
        })
    }

    /// Seconds of processor time so far.
    pub fn cpu(&self) -> f64 {
        cpu_of(&self.process.id().to_string())
    }
}

/// Seconds that the threads of a process have run; 0 where the system does not say.
pub fn cpu_of(process: &str) -> f64 {
    let Ok(threads) = std::fs::read_dir(format!("/proc/{process}/task")) else {
        return 0.0;
    };
    let of_thread = |thread: std::fs::DirEntry| {
        let text = std::fs::read_to_string(thread.path().join("schedstat")).ok()?;
        text.split(' ').next()?.parse::<f64>().ok()
    };
    threads.flatten().filter_map(of_thread).sum::<f64>() / 1e9
}

impl Drop for Answerer {
    fn drop(&mut self) {
        self.input = None;
        let _ = self.process.wait();
    }
}

trait Stream: Read + Write {}
impl<T: Read + Write> Stream for T {}

/// A connection that carries bytes and does nothing else.
pub struct Echo {
    peer: Box<dyn Stream>,
    bytes: Vec<u8>,
}

impl Echo {
    /// Sends so many bytes, receives so many; the other end works for a time between.
    pub fn call(&mut self, request: usize, wanted: usize, work: Duration) -> io::Result<()> {
        let numbers = [request as u64, wanted as u64, work.as_nanos() as u64];
        let numbers = bytemuck::cast::<[u64; 3], [u8; ECHO_HEADER_BYTES]>(numbers);
        let out = [
            io::IoSlice::new(&numbers),
            io::IoSlice::new(&self.bytes[..request]),
        ];
        let written = self.peer.write_vectored(&out)?;
        self.peer
            .write_all(&self.bytes[written - ECHO_HEADER_BYTES..request])?;
        self.peer.read_exact(&mut self.bytes[..wanted])
    }
}
