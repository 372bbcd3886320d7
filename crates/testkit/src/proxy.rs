//! A proxy in front of an object storage server that treats requests as a test decides.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use anyhow::Result;

/// A request, as far as a test decides by it.
#[derive(Clone, Debug)]
pub struct Request {
    /// As HTTP names it, for example `PUT`.
    pub method: String,
    /// Path and query.
    pub target: String,
    /// Whether it has the condition that there is no such object.
    pub if_absent: bool,
}

impl Request {
    /// Whether it is of this method and has this part in its target.
    pub fn is(&self, method: &str, part: &str) -> bool {
        self.method == method && self.target.contains(part)
    }

    /// Whether the request makes one object of its parts.
    pub fn completes(&self) -> bool {
        self.is("POST", "uploadId=")
    }
}

/// What happens to a request.
#[derive(Clone, Debug)]
pub enum Fate {
    /// Is carried out and answered.
    Pass,
    /// Passes without its condition, as if the service did not know it.
    PassUnconditionally,
    /// Passes with this appended to its query.
    PassWith(&'static str),
    /// Is not passed on; the connection is reset.
    Drop,
    /// Half of it is passed on, and both connections are reset.
    CutRequest,
    /// Passes with one bit of its body flipped.
    FlipBody,
    /// Is carried out twice; the answer is the second one.
    Twice,
    /// Is carried out, but the answer is lost.
    SwallowAnswer,
    /// Is carried out; the answer breaks off in the middle of its body.
    CutAnswer,
    /// Is carried out later.
    Delay(Duration),
    /// Is not passed on; the answer is this one.
    Answer(u16, String),
}

impl Fate {
    /// An answer of object storage that refuses the request.
    pub fn error(status: u16, code: &str) -> Self {
        let body = format!(
            "<?xml version=\"1.0\"?><Error><Code>{code}</Code><Message>as a test says</Message></Error>"
        );
        Self::Answer(status, body)
    }
}

type Decide = dyn Fn(&Request) -> Fate + Send + Sync;

/// Ends when dropped, with all its connections.
#[derive(Debug)]
pub struct Proxy {
    port: u16,
    is_over: Arc<AtomicBool>,
}

impl Proxy {
    /// Starts a proxy in front of a port on this host; `decide` is asked for each request.
    pub fn start(upstream: u16, decide: impl Fn(&Request) -> Fate + Send + Sync + 'static) -> Result<Self> {
        let listener = TcpListener::bind(("127.0.0.1", 0))?;
        let port = listener.local_addr()?.port();
        let is_over = Arc::new(AtomicBool::new(false));
        let decide: Arc<Decide> = Arc::new(decide);
        let over = Arc::clone(&is_over);
        thread::spawn(move || {
            for client in listener.incoming() {
                if over.load(Ordering::SeqCst) {
                    return;
                }
                let (Ok(client), decide) = (client, Arc::clone(&decide)) else { return };
                // A connection that breaks is part of the test.
                thread::spawn(move || drop(serve(client, upstream, &*decide)));
            }
        });
        Ok(Self { port, is_over })
    }

    /// Its port on 127.0.0.1.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// The URL that leads to the server through it.
    pub fn endpoint(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::SeqCst);
        TcpStream::connect(("127.0.0.1", self.port)).ok();
    }
}

/// Serves one request on each connection, and tells the client so.
fn serve(mut client: TcpStream, upstream: u16, decide: &Decide) -> io::Result<()> {
    let mut reader = BufReader::new(client.try_clone()?);
    let mut first = String::new();
    if reader.read_line(&mut first)? == 0 {
        return Ok(());
    }
    let mut words = first.split(' ').map(str::to_owned);
    let (method, target) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
    let mut request = Request { method, target, if_absent: false };
    let (mut headers, mut body_bytes) = (Vec::new(), 0);
    loop {
        let mut line = String::new();
        reader.read_line(&mut line)?;
        let lower = line.to_ascii_lowercase();
        if let Some(length) = lower.strip_prefix("content-length:") {
            body_bytes = length.trim().parse().unwrap_or(0);
        }
        request.if_absent |= lower.trim_end() == "if-none-match: *";
        if line.trim().is_empty() {
            break;
        }
        if !lower.starts_with("connection:") {
            headers.push(line);
        }
    }
    let mut body = vec![0; body_bytes];
    reader.read_exact(&mut body)?;

    let fate = decide(&request);
    if let Fate::PassUnconditionally = fate {
        headers.retain(|line| !line.to_ascii_lowercase().starts_with("if-none-match:"));
    }
    if let Fate::PassWith(more) = fate {
        first = first.replace(" HTTP/1.1", &format!("{more} HTTP/1.1"));
    }
    let passed = || -> io::Result<TcpStream> {
        let mut server = TcpStream::connect(("127.0.0.1", upstream))?;
        write!(server, "{first}{}Connection: close\r\n\r\n", headers.concat())?;
        Ok(server)
    };
    match fate {
        Fate::Drop => return client.shutdown(Shutdown::Both),
        Fate::CutRequest => {
            passed()?.write_all(&body[..body.len() / 2])?;
            return client.shutdown(Shutdown::Both);
        }
        Fate::Answer(status, text) => {
            let length = text.len();
            let head = format!(
                "HTTP/1.1 {status} x\r\nContent-Length: {length}\r\nETag: \"x\"\r\nConnection: close\r\n\r\n"
            );
            client.write_all(head.as_bytes())?;
            return client.write_all(text.as_bytes());
        }
        Fate::Delay(time) => thread::sleep(time),
        Fate::FlipBody => {
            let middle = body.len() / 2;
            body.iter_mut().skip(middle).take(1).for_each(|byte| *byte ^= 1);
        }
        Fate::Pass
        | Fate::PassUnconditionally
        | Fate::PassWith(_)
        | Fate::Twice
        | Fate::SwallowAnswer
        | Fate::CutAnswer => {}
    }
    let carried_out = || -> io::Result<Vec<u8>> {
        let mut server = passed()?;
        server.write_all(&body)?;
        let mut answer = Vec::new();
        server.read_to_end(&mut answer)?;
        Ok(answer)
    };
    if let Fate::Twice = fate {
        carried_out()?;
    }
    let answer = carried_out()?;
    match fate {
        Fate::SwallowAnswer => {}
        Fate::CutAnswer => {
            let body_at = answer.windows(4).position(|four| four == b"\r\n\r\n").map_or(0, |at| at + 4);
            client.write_all(&answer[..body_at + (answer.len() - body_at) / 2])?;
        }
        _ => client.write_all(&answer)?,
    }
    client.shutdown(Shutdown::Both)
}
