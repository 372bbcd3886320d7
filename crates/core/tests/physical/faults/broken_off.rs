//! External interruptions: at any point of a backup, the server dies or is shut down, or the connections to
//! it are cut or go silent. The backup's result is truthful, and the next backup succeeds.

use std::{
    collections::HashSet,
    io::{ErrorKind as IoErrorKind, Read, Write},
    net::Shutdown,
    os::unix::net::{UnixListener, UnixStream},
    path::Path,
    sync::{Arc, Mutex},
};

use super::*;

/// What happens to the server, or to the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    Killed,
    ShutDown,
    /// Connections end, and new ones are refused.
    Cut,
    /// Nothing gets through any more, without any error.
    Silent,
}

const FATES: [Fate; 4] = [Fate::Killed, Fate::ShutDown, Fate::Cut, Fate::Silent];

#[derive(Clone, Copy, PartialEq, Eq)]
enum Line {
    Open,
    Cut,
    Silent,
}

/// A relay between a backup and the server's socket.
struct Relay {
    socket: PathBuf,
    line: Arc<Mutex<Line>>,
}

/// How soon a connection notices a change of the line.
const NOTICED: Duration = Duration::from_millis(20);

impl Relay {
    fn start(socket: PathBuf, server: &Path) -> Relay {
        let listener = UnixListener::bind(&socket).unwrap();
        let line = Arc::new(Mutex::new(Line::Open));
        let (server, of_all) = (server.to_owned(), Arc::clone(&line));
        // Ends with the test process.
        thread::spawn(move || {
            for near in listener.incoming() {
                let near = near.unwrap();
                if *of_all.lock().unwrap() == Line::Cut {
                    continue;
                }
                let far = UnixStream::connect(&server).unwrap();
                for (from, to) in [(near.try_clone(), far.try_clone()), (Ok(far), Ok(near))] {
                    let (from, to, line) = (from.unwrap(), to.unwrap(), Arc::clone(&of_all));
                    thread::spawn(move || pass_on(from, to, &line));
                }
            }
        });
        Relay { socket, line }
    }

    fn become_(&self, line: Line) {
        *self.line.lock().unwrap() = line;
        thread::sleep(2 * NOTICED);
    }
}

fn pass_on(mut from: UnixStream, mut to: UnixStream, line: &Mutex<Line>) {
    from.set_read_timeout(Some(NOTICED)).unwrap();
    let mut buffer = vec![0; 64 << 10];
    loop {
        let state = *line.lock().unwrap();
        let got = match state {
            Line::Open => from.read(&mut buffer),
            Line::Cut => Ok(0),
            Line::Silent => {
                thread::sleep(NOTICED);
                continue;
            }
        };
        match got {
            Ok(0) => break,
            Ok(got) if to.write_all(&buffer[..got]).is_ok() => {}
            Err(error) if matches!(error.kind(), IoErrorKind::WouldBlock | IoErrorKind::TimedOut) => {}
            _ => break,
        }
    }
    let _ = from.shutdown(Shutdown::Both);
    let _ = to.shutdown(Shutdown::Both);
}

impl Scene {
    /// The scene after the interruption, with the server restarted.
    fn after(self, fate: Fate, seed: u64) -> Scene {
        let Scene { mut stage, load } = self;
        load.stop().unwrap();
        match fate {
            Fate::Killed => stage.source.kill9().unwrap(),
            _ => stage.source.stop().unwrap(),
        }
        stage.source.run().unwrap();
        let load = slow_load(&stage.source, seed);
        Scene { stage, load }
    }
}

fn backups_survive(kind: ServerKind, seed: u64, chosen: impl Fn(usize) -> bool) {
    let mut scene = Scene::new(kind, seed);
    let first = scene.stage.back_up();
    scene.change();
    let mut points = scene.begin(None).ended().succeeded().points;
    let mut known = HashSet::new();
    points.retain(|point| known.insert(point.clone()));
    let passed = |name: &str| points.iter().position(|point| point == name).unwrap();
    // From here on a server that was away may have cut off redo that was captured, and written something else.
    let captured = passed(match kind.is_mariadb() {
        true => "backup.redo.following",
        false => "backup.consumer.registered",
    })..passed("backup.locks.released");
    let tries = points.iter().flat_map(|point| FATES.map(|fate| (point, fate)));
    for (number, (point, fate)) in
        tries.enumerate().filter(|(number, (point, _))| is_tried(point, chosen(*number)))
    {
        scene.change();
        let before = scene.standing();
        let socket = scene.stage.dir.path().join(format!("relay-{number}"));
        let relay = Relay::start(socket, scene.source().socket());
        let place = Place { socket: relay.socket.clone(), ..scene.place() };
        let backup = scene.begin_frozen(&place, point);
        match fate {
            Fate::Killed | Fate::ShutDown => scene = scene.after(fate, seed + number as u64),
            Fate::Cut => relay.become_(Line::Cut),
            Fate::Silent => relay.become_(Line::Silent),
        }
        let begun = Instant::now();
        backup.thaw();
        let ended = backup.ended();
        let took = begun.elapsed();
        let free = scene.until_free();
        println!("{kind}: {fate:?} at {point}: {} after {took:.1?}, free {free:.1?} later", ended.status);
        if !ended.status.success() {
            println!("  it said: {}", ended.error());
        }
        let was_restarted = matches!(fate, Fate::Killed | Fate::ShutDown);
        assert!(!(was_restarted && captured.contains(&passed(point)) && ended.status.success()));
        scene.assert_over(&before, &ended, &format!("{fate:?} at {point}"));
    }
    scene.end(&first);
}

#[test]
fn mariadb_10_11_breaks_off_at_any_point() {
    backups_survive(ServerKind::MariaDb1011, 67, |number| number % 15 == 2);
}

#[test]
fn mariadb_11_8_breaks_off_at_any_point() {
    backups_survive(ServerKind::MariaDb118, 69, |number| number % 40 == 15);
}

#[test]
fn mysql_9_7_breaks_off_at_any_point() {
    backups_survive(ServerKind::MySql97, 68, |number| number % 21 == 8);
}
