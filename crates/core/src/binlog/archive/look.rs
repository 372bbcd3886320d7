//! Questions to a server that is being archived, asked beside its stream on a separate thread: a server whose
//! commits wait for the archive may answer only once they have returned,
//! so whoever lets them return must not wait for the answer.

use std::{
    sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel},
    thread,
    time::Duration,
};

use holdfast_formats::Gtids;

use super::{is_lost, is_refused};
use crate::{
    binlog::{
        left_out,
        resume::{Files, executed},
        semi_sync::{Source, Waits},
        stretch::Place,
    },
    error::{Error, Result},
    server::{ConnectOptions, Purpose, Session},
};

/// How long a server may take for each answer, and to accept a connection.
const ANSWER_MAX: Duration = Duration::from_secs(5);

/// Which server to ask, and about what.
#[derive(Clone, Debug)]
pub(super) struct Questions {
    pub(super) connect: ConnectOptions,
    pub(super) semi_sync: bool,
    pub(super) standby: bool,
    pub(super) allow_replica_filters: bool,
    /// The wait counters when the server last did not answer.
    pub(super) unanswered: Option<Waits>,
}

/// What a server answers at any time.
pub(super) struct State {
    /// With `--semi-sync`.
    pub(super) source: Option<Source>,
    /// Why its binlog does not advance.
    pub(super) stopped: Option<String>,
}

impl State {
    /// Asks the server. Refuses one whose binlog lacks something that must not be missing.
    pub(super) fn read(session: &mut Session, questions: &Questions) -> Result<Self> {
        let source = if questions.semi_sync { Some(Source::read(session)?) } else { None };
        left_out::require_all(session, questions.standby, questions.allow_replica_filters)?;
        Ok(Self { source, stopped: left_out::stopped_replica(session)? })
    }
}

/// What a server says about its binlog.
pub(super) struct Contents {
    /// Settings by which it leaves something out.
    pub(super) filters: Option<String>,
    /// GTIDs of all transactions, where it assigns them.
    pub(super) gtids: Option<Gtids>,
    pub(super) files: Files,
}

impl Contents {
    fn read(session: &mut Session) -> Result<Self> {
        let filters = left_out::filters(session)?;
        // Read before the list, so that the list may hold more, never less.
        let gtids = executed(session)?;
        Ok(Self { filters, gtids, files: Files::list(session)? })
    }
}

/// An answer.
pub(super) enum Answer {
    State(Result<State>),
    Contents(Contents),
    /// The server did not say in time what its binlog is.
    Unanswered(Waits),
    /// The server refuses to say what its binlog is.
    Refused(Error),
    /// Another server answers by now at the address of the one that is archived.
    Elsewhere,
}

/// How far the archive was when the questions were asked.
#[derive(Clone, Debug)]
pub(super) struct AskedAt {
    pub(super) place: Place,
    pub(super) gtids: Gtids,
    /// Whether the archive was not taking what the server sent.
    pub(super) is_held_up: bool,
}

/// Questions under way. Dropping this discards the answers.
pub(super) struct Look {
    answers: Receiver<Answer>,
    pub(super) asked_at: AskedAt,
    pub(super) with_state: bool,
}

impl Look {
    /// Begins to ask; about the state only if `with_state`.
    pub(super) fn begin(questions: Questions, with_state: bool, asked_at: AskedAt) -> Result<Self> {
        let (tell, answers) = channel();
        // If no session can be opened, the stream shows what is wrong with the server, if anything is.
        let ask = move || drop(ask(&questions, with_state, &tell));
        thread::Builder::new()
            .name("binlog-look".to_owned())
            .spawn(ask)
            .map_err(|error| Error::failed(format!("start a thread: {error}")))?;
        Ok(Self { answers, asked_at, with_state })
    }

    /// The next answer, if it comes in time; an error once none will come any more.
    pub(super) fn next(&self, wait: Duration) -> Result<Option<Answer>, Ended> {
        match self.answers.recv_timeout(wait) {
            Ok(answer) => Ok(Some(answer)),
            Err(RecvTimeoutError::Timeout) => Ok(None),
            Err(RecvTimeoutError::Disconnected) => Err(Ended),
        }
    }
}

/// No more answers will come.
#[derive(Debug)]
pub(super) struct Ended;

fn ask(questions: &Questions, with_state: bool, tell: &Sender<Answer>) -> Result<()> {
    let usual = &questions.connect;
    let connect = ConnectOptions {
        connect_timeout: Some(usual.timeout().min(ANSWER_MAX)),
        answer_timeout: Some(ANSWER_MAX),
        leads_to: None,
        ..usual.clone()
    };
    let mut session = Session::open(&connect, Purpose::Control)?;
    if let Some(archived) = &usual.leads_to
        && archived.require_same(&session.identity()?).is_err()
    {
        let _unwanted = tell.send(Answer::Elsewhere);
        return Ok(());
    }
    if with_state {
        let _unwanted = tell.send(Answer::State(State::read(&mut session, questions)));
    }
    let source = if questions.semi_sync { Some(Source::read(&mut session)?) } else { None };
    if source.as_ref().is_some_and(|source| source.stands_since(questions.unanswered)) {
        return Ok(());
    }
    let answer = match (Contents::read(&mut session), source) {
        (Ok(contents), _) => Answer::Contents(contents),
        (Err(error), Some(source)) if is_lost(&error) => Answer::Unanswered(source.waits()),
        (Err(error), _) if is_refused(&error) => Answer::Refused(error),
        (Err(error), _) => return Err(error),
    };
    let _unwanted = tell.send(answer);
    Ok(())
}
