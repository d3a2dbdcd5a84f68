//! Servers for tests, on the host's loopback. They write HTTP by hand, so that tests see every byte that
//! arrives.

use std::{
    io::{self, BufRead, BufReader, Read, Write},
    net::{IpAddr, SocketAddr, TcpListener, TcpStream},
    os::fd::{AsRawFd, OwnedFd},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst},
    },
};

use nix::sys::socket::{
    AddressFamily, Backlog, SockFlag, SockType, SockaddrIn, bind, connect, getsockname, listen, socket,
};

/// The loopback address of clients that only ask a server how many there were.
const ASKING: [u8; 4] = [127, 77, 0, 1];

/// A socket that is bound to this address of the host, at any port.
fn bound([a, b, c, d]: [u8; 4]) -> OwnedFd {
    let socket = socket(AddressFamily::Inet, SockType::Stream, SockFlag::SOCK_CLOEXEC, None).unwrap();
    bind(socket.as_raw_fd(), &SockaddrIn::new(a, b, c, d, 0)).unwrap();
    socket
}

/// A port of the host's loopback where nothing listens, and nobody else can as long as this lives.
pub struct ClosedPort {
    pub port: u16,
    socket: OwnedFd,
}

impl ClosedPort {
    pub fn new() -> Self {
        let socket = bound([127, 0, 0, 1]);
        Self { port: getsockname::<SockaddrIn>(socket.as_raw_fd()).unwrap().port(), socket }
    }

    /// Lets somebody connect from now on.
    pub fn open(self) -> TcpListener {
        listen(&self.socket, Backlog::new(128).unwrap()).unwrap();
        self.socket.into()
    }
}

/// A TCP server: a thread for each connection. It stops listening when dropped.
pub struct Server {
    pub port: u16,
    accepted: Arc<AtomicUsize>,
    over: Arc<AtomicBool>,
}

impl Server {
    pub fn start(serve: impl Fn(TcpStream, usize) + Send + Sync + 'static) -> Self {
        Self::on("127.0.0.1:0", serve).unwrap()
    }

    pub fn on(at: &str, serve: impl Fn(TcpStream, usize) + Send + Sync + 'static) -> io::Result<Self> {
        Ok(Self::of(TcpListener::bind(at)?, serve))
    }

    /// Each connection is served with its number, from 0.
    fn of(listener: TcpListener, serve: impl Fn(TcpStream, usize) + Send + Sync + 'static) -> Self {
        let port = listener.local_addr().unwrap().port();
        let (accepted, over) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicBool::new(false)));
        let (count, is_over, serve) = (Arc::clone(&accepted), Arc::clone(&over), Arc::new(serve));
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                if is_over.load(SeqCst) {
                    return;
                }
                let Ok(stream) = stream else { continue };
                if stream.peer_addr().is_ok_and(|peer| peer.ip() == IpAddr::from(ASKING)) {
                    continue;
                }
                let (number, serve) = (count.fetch_add(1, SeqCst), Arc::clone(&serve));
                std::thread::spawn(move || serve(stream, number));
            }
        });
        Self { port, accepted, over }
    }

    /// Sends its input back, and ends when the client has ended.
    pub fn echo() -> Self {
        Self::start(|mut stream, _| {
            let Ok(mut reader) = stream.try_clone() else { return };
            let _ = io::copy(&mut reader, &mut stream);
        })
    }

    /// How many connections there were. Clients are connected before the server has accepted them, so this
    /// joins the queue and waits for its turn.
    pub fn accepted(&self) -> usize {
        let socket = bound(ASKING);
        connect(socket.as_raw_fd(), &SockaddrIn::new(127, 0, 0, 1, self.port)).unwrap();
        let mut turn = TcpStream::from(socket);
        let _ = turn.read(&mut [0]);
        self.accepted.load(SeqCst)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.over.store(true, SeqCst);
        let _ = TcpStream::connect(SocketAddr::from(([127, 0, 0, 1], self.port)));
    }
}

/// A request as it arrived.
#[derive(Clone, Debug)]
pub struct Seen {
    /// `GET /path HTTP/1.1`
    pub line: String,
    pub headers: Vec<(String, String)>,
    pub body: Vec<u8>,
    /// The number of its connection.
    pub connection: usize,
}

impl Seen {
    /// The values of a header, joined.
    pub fn header(&self, name: &str) -> String {
        let values = self.headers.iter().filter(|(other, _)| other.eq_ignore_ascii_case(name));
        values.map(|(_, value)| value.as_str()).collect::<Vec<_>>().join(", ")
    }

    pub fn target(&self) -> &str {
        self.line.split(' ').nth(1).unwrap_or_default()
    }
}

/// An HTTP/1.1 server that records its requests.
pub struct Origin {
    pub server: Server,
    seen: Arc<Mutex<Vec<Seen>>>,
}

impl Origin {
    /// Answers `NAME: TARGET`.
    pub fn named(name: &'static str) -> Self {
        Self::answering(move |seen| answer(200, format!("{name}: {}\n", seen.target()).as_bytes()))
    }

    /// `respond` returns the whole answer. An empty one ends the connection.
    pub fn answering(respond: impl Fn(&Seen) -> Vec<u8> + Send + Sync + 'static) -> Self {
        Self::on("127.0.0.1:0", respond).unwrap()
    }

    pub fn on(at: &str, respond: impl Fn(&Seen) -> Vec<u8> + Send + Sync + 'static) -> io::Result<Self> {
        Ok(Self::of(TcpListener::bind(at)?, respond))
    }

    pub fn of(listener: TcpListener, respond: impl Fn(&Seen) -> Vec<u8> + Send + Sync + 'static) -> Self {
        let seen: Arc<Mutex<Vec<Seen>>> = Arc::default();
        let log = Arc::clone(&seen);
        let server = Server::of(listener, move |stream, connection| {
            let mut reader = BufReader::new(stream);
            while let Ok(Some(request)) = read(&mut reader, connection) {
                log.lock().unwrap().push(request.clone());
                let answer = respond(&request);
                if answer.is_empty() || reader.get_mut().write_all(&answer).is_err() {
                    return;
                }
            }
        });
        Self { server, seen }
    }

    pub fn port(&self) -> u16 {
        self.server.port
    }

    /// The requests so far.
    pub fn seen(&self) -> Vec<Seen> {
        self.seen.lock().unwrap().clone()
    }

    /// The request lines so far.
    pub fn lines(&self) -> Vec<String> {
        self.seen().into_iter().map(|seen| seen.line).collect()
    }

    /// Whether nobody has connected yet.
    pub fn is_untouched(&self) -> bool {
        self.server.accepted() == 0
    }
}

/// An answer of a known length.
pub fn answer(status: u16, body: &[u8]) -> Vec<u8> {
    let head = format!("HTTP/1.1 {status} Words\r\nContent-Length: {}\r\n\r\n", body.len());
    [head.as_bytes(), body].concat()
}

/// Reads one request. Returns `None` at the end of the connection.
pub fn read(reader: &mut BufReader<TcpStream>, connection: usize) -> io::Result<Option<Seen>> {
    let Some(line) = line(reader)? else { return Ok(None) };
    let mut seen = Seen { line, headers: Vec::new(), body: Vec::new(), connection };
    while let Some(header) = self::line(reader)?.filter(|header| !header.is_empty()) {
        let (name, value) = header.split_once(':').unwrap_or((&header, ""));
        seen.headers.push((name.to_owned(), value.trim().to_owned()));
    }
    if seen.header("expect") == "100-continue" {
        reader.get_mut().write_all(b"HTTP/1.1 100 Continue\r\n\r\n")?;
    }
    if seen.header("transfer-encoding").eq_ignore_ascii_case("chunked") {
        seen.body = chunks(reader)?;
    } else if let Ok(length) = seen.header("content-length").parse() {
        seen.body = vec![0; length];
        reader.read_exact(&mut seen.body)?;
    }
    Ok(Some(seen))
}

fn line(reader: &mut impl BufRead) -> io::Result<Option<String>> {
    let mut bytes = Vec::new();
    if reader.read_until(b'\n', &mut bytes)? == 0 {
        return Ok(None);
    }
    Ok(Some(String::from_utf8_lossy(&bytes).trim_end_matches(['\r', '\n']).to_owned()))
}

fn chunks(reader: &mut impl BufRead) -> io::Result<Vec<u8>> {
    let mut body = Vec::new();
    loop {
        let size = line(reader)?.unwrap_or_default();
        let size = usize::from_str_radix(size.split(';').next().unwrap_or_default().trim(), 16);
        let size = size.map_err(|_| io::Error::from(io::ErrorKind::InvalidData))?;
        let begun = body.len();
        body.resize(begun + size, 0);
        reader.read_exact(&mut body[begun..])?;
        line(reader)?;
        if size == 0 {
            return Ok(body);
        }
    }
}
