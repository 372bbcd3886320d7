//! The program on its own terminal: what it asks for, and what it does not show.

use std::{
    fs::File,
    io::{Read as _, Write as _},
    process::{Child, Command, Stdio},
    sync::{Arc, Mutex},
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use rustix::{
    fs::{Mode, OFlags},
    pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt},
    termios::{LocalModes, tcgetattr},
};

use crate::program::{PASSWORD, Program, Run, bare};

const PATIENCE: Duration = Duration::from_secs(60);

/// A program that runs on a pseudo-terminal, as if a user were typing.
pub(crate) struct Terminal {
    child: Child,
    keyboard: File,
    screen: Arc<Mutex<String>>,
    reader: Option<JoinHandle<()>>,
}

impl Terminal {
    /// Starts `command` in its own session, on a new terminal.
    pub(crate) fn start(command: &Command) -> Self {
        let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC).unwrap();
        grantpt(&master).unwrap();
        unlockpt(&master).unwrap();
        let name = ptsname(&master, Vec::new()).unwrap();
        let flags = OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC;
        let terminal = File::from(rustix::fs::open(name, flags, Mode::empty()).unwrap());
        let mut session = Command::new("setsid");
        session.arg("--ctty").arg(command.get_program()).args(command.get_args()).env_clear();
        session.envs(command.get_envs().filter_map(|(name, value)| Some((name, value?))));
        session.current_dir(command.get_current_dir().unwrap());
        let stdio = || Stdio::from(terminal.try_clone().unwrap());
        let child = session.stdin(stdio()).stdout(stdio()).stderr(stdio()).spawn().unwrap();
        let keyboard = File::from(master);
        let mut output = keyboard.try_clone().unwrap();
        let screen = Arc::new(Mutex::new(String::new()));
        let shown = Arc::clone(&screen);
        let reader = thread::spawn(move || {
            let mut bytes = [0; 4096];
            // Once the last program on a terminal has ended, reading from it returns an error.
            while let Ok(count @ 1..) = output.read(&mut bytes) {
                shown.lock().unwrap().push_str(&String::from_utf8_lossy(&bytes[..count]));
            }
        });
        Self { child, keyboard, screen, reader: Some(reader) }
    }

    fn screen(&self) -> String {
        self.screen.lock().unwrap().clone()
    }

    /// Whether typed text is shown.
    fn echoes(&self) -> bool {
        tcgetattr(&self.keyboard).unwrap().local_modes.contains(LocalModes::ECHO)
    }

    #[track_caller]
    fn until(&mut self, what: &str, mut done: impl FnMut(&mut Self) -> bool) {
        let begin = Instant::now();
        while !done(self) {
            assert!(begin.elapsed() < PATIENCE, "{what}: {}", self.screen());
            thread::sleep(Duration::from_millis(5));
        }
    }

    /// Types an answer once the prompt is shown and echo is off.
    #[track_caller]
    pub(crate) fn type_hidden(&mut self, asked: &str, typed: &str) {
        self.until(asked, |it| it.screen().contains(asked) && !it.echoes());
        self.keyboard.write_all(typed.as_bytes()).unwrap();
    }

    /// Types an answer once the prompt is shown.
    #[track_caller]
    pub(crate) fn type_shown(&mut self, asked: &str, typed: &str) {
        self.until(asked, |it| it.screen().contains(asked));
        self.keyboard.write_all(typed.as_bytes()).unwrap();
    }

    /// Waits for the program to end; what was shown is its output.
    #[track_caller]
    pub(crate) fn ended(mut self) -> Run {
        self.until("the program ends", |it| it.child.try_wait().unwrap().is_some());
        assert!(self.echoes(), "the terminal stays mute: {}", self.screen());
        self.reader.take().unwrap().join().unwrap();
        let code = self.child.wait().unwrap().code().unwrap_or(-1);
        Run { code, out: self.screen(), err: String::new() }
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        let _gone = self.child.kill();
        let _gone = self.child.wait();
    }
}

#[test]
fn passwords_of_the_repository_are_asked_for_and_not_shown() {
    let program = Program::new();
    let at_terminal = |verb: &str| {
        let mut command = bare(&program.path(""));
        command.arg(verb).arg("--repo").arg(program.repository());
        Terminal::start(&command)
    };
    let line = format!("{PASSWORD}\n");
    let mut init = at_terminal("init");
    init.type_hidden("new password of the repository: ", &line);
    init.type_hidden("the same again: ", &line);
    let it = init.ended().expect_code(0);
    assert!(it.out.contains("(encrypted)") && !it.out.contains(PASSWORD), "{it:#?}");

    let mut list = at_terminal("list");
    list.type_hidden("password of the repository: ", &line);
    let it = list.ended().expect_code(0);
    assert!(it.out.contains("no backups") && !it.out.contains(PASSWORD), "{it:#?}");

    let mut wrong = at_terminal("list");
    wrong.type_hidden("password of the repository: ", "battery staple\n");
    let it = wrong.ended().expect_code(6);
    assert!(!it.out.contains("battery"), "{it:#?}");
}

#[test]
fn the_servers_password_is_asked_for_and_not_shown() {
    let program = Program::with_repository();
    let mut backup =
        Terminal::start(&program.command(&["backup", "--no-defaults", "-u", "nobody", "-S", "absent", "-p"]));
    backup.type_hidden("password of the server: ", "hush hush\n");
    let it = backup.ended().expect_code(4);
    assert!(it.out.contains("absent") && !it.out.contains("hush"), "{it:#?}");
}

#[test]
fn who_gives_up_at_the_question_has_the_terminal_back() {
    let program = Program::with_repository();
    let mut command = bare(&program.path(""));
    command.arg("list").arg("--repo").arg(program.repository());
    let mut list = Terminal::start(&command);
    list.type_hidden("password of the repository: ", "corr\x03");
    let it = list.ended().expect_code(130);
    assert!(!it.out.contains("corr"), "{it:#?}");
}
