//! Answers the questions of clients.

use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;

use kennel_helper::client_wire::Ask;
use kennel_helper::wire::{Cursor, Field};
use serde::Serialize;
use serde_json::{Value, json};

use crate::policy::profile::Isolation;
use crate::report::change::Conflicts;
use crate::report::error::Error;
use crate::serve::connection::{Connection, NextStep};
use crate::serve::detached::{self, unless_left};
use crate::serve::question::{CommitOrder, Question, SentChange, SentCommit, SentEntry, SentInfo};
use crate::session::Session;
use crate::session::files::replace::NEW_FILE;
use crate::sys::path_text::PathText;

/// Answers a question.
pub(crate) async fn answer(connection: &Connection, session: &Session, question: Question) -> NextStep {
    if let Question::Write { path: PathText(path), mode } = question {
        write(connection, session, path, mode).await;
        return NextStep::Nothing;
    }
    if let Question::Snapshot = question {
        snapshot(connection, session).await;
        return NextStep::Nothing;
    }
    let ends = matches!(question, Question::Discard);
    // What a client no longer waits for may still take effect.
    let Some(told) = unless_left(connection, tell(session, question)).await else { return NextStep::Nothing };
    match told {
        Ok((value, descriptor)) => connection.reply(Ok(value), descriptor.as_ref().map(AsFd::as_fd)),
        Err(error) => {
            connection.reply(Err(error), None);
            return NextStep::Nothing;
        }
    }
    if ends { NextStep::Stop(None) } else { NextStep::Nothing }
}

/// The answer, and the descriptor that comes with it.
async fn tell(session: &Session, question: Question) -> Result<(Value, Option<OwnedFd>), Error> {
    let value = match question {
        Question::Describe => describe(session),
        Question::Stats => value(session.stats()),
        Question::Processes => value(session.processes().await?),
        Question::Detached => value(detached::list(session)),
        Question::Published => value(session.published()),
        Question::Publish { port } => value(session.publish(port)?),
        Question::Connect { port } => {
            let stream = session.connect(port).await.map_err(Error::io("connect to the port"))?;
            let socket = stream.into_socket().map_err(Error::io("hand out the connection"))?;
            return Ok((Value::Null, Some(socket)));
        }
        Question::Changes => {
            value::<Vec<SentChange>>(session.changes().await?.into_iter().map(Into::into).collect())
        }
        Question::Commit(order) => commit(session, order).await?,
        Question::Discard => {
            session.discard().await?;
            Value::Null
        }
        Question::EndShell { shell } => {
            session.shell_with_id(&shell).end().await;
            Value::Null
        }
        Question::Stat { path: PathText(path) } => value(SentInfo::from(session.stat(path).await?)),
        Question::List { path: PathText(path) } => {
            value::<Vec<SentEntry>>(session.list(path).await?.into_iter().map(Into::into).collect())
        }
        Question::Read { path: PathText(path) } => {
            let (file, info) = session.open_file(&path).await?;
            return Ok((value(SentInfo::from(info)), Some(file)));
        }
        Question::Mkdir { path: PathText(path) } => {
            session.mkdir(path).await?;
            Value::Null
        }
        Question::Remove { path: PathText(path) } => {
            session.remove(path).await?;
            Value::Null
        }
        // These have an answer of their own.
        Question::Write { .. } | Question::Snapshot => Value::Null,
    };
    Ok((value, None))
}

fn value<T: Serialize>(of: T) -> Value {
    // Plain data always serializes.
    serde_json::to_value(of).unwrap_or_default()
}

fn describe(session: &Session) -> Value {
    let (profile, workspace) = session.origin();
    let prepared = session.prepared();
    json!({
        "profile": profile,
        "workspace": PathText(workspace),
        "directory": PathText(prepared.compiled.commands.directory.clone()),
        "isolation": if session.live().zygote().is_shared() { Isolation::Session } else { Isolation::Command },
        "version": env!("CARGO_PKG_VERSION"),
        "enforcement": session.enforcement(),
    })
}

/// The result of a commit. Null: the session keeps no changes in the directory of the order.
async fn commit(session: &Session, order: CommitOrder) -> Result<Value, Error> {
    if order.directory.is_some_and(|PathText(directory)| !session.keeps_changes_in(&directory)) {
        return Ok(Value::Null);
    }
    let paths: Vec<PathBuf> = order.paths.into_iter().map(|PathText(path)| path).collect();
    let conflicts = if order.overwrite { Conflicts::Overwrite } else { Conflicts::Refuse };
    Ok(value(SentCommit::from(session.commit_part(&paths, conflicts).await?)))
}

/// Hands out what commands changed in the image. No command starts until the client leaves.
async fn snapshot(connection: &Connection, session: &Session) {
    let Some(taken) = unless_left(connection, session.snapshot()).await else { return };
    match taken {
        Ok(snapshot) => {
            connection.reply(Ok(json!({ "image": snapshot.image() })), Some(snapshot.directory()));
            connection.wait_until_gone().await;
        }
        Err(error) => connection.reply(Err(error), None),
    }
}

/// Hands out a new file, which appears at its path when the client says so. If the client leaves before,
/// nothing is left.
async fn write(connection: &Connection, session: &Session, path: PathBuf, mode: Option<u32>) {
    // No set-user-id, set-group-id or sticky bit, as for files that replace another one.
    let mode = mode.map_or(NEW_FILE, |mode| mode & 0o777);
    let begun = match unless_left(connection, session.writer("write", &path, mode)).await {
        Some(begun) => begun,
        None => return,
    };
    let begun = begun.and_then(|writer| {
        let file = writer.descriptor().map_err(Error::io("hand out the new file"))?;
        Ok((writer, file))
    });
    let (writer, file) = match begun {
        Ok(begun) => begun,
        Err(error) => return connection.reply(Err(error), None),
    };
    connection.reply(Ok(Value::Null), Some(file.as_fd()));
    drop(file);
    let Some(packet) = connection.next().await else { return };
    if matches!(Ask::take(&mut Cursor::new(&packet.bytes)), Some(Ask::Keep {})) {
        connection.reply(writer.commit().await.map(|()| Value::Null), None);
    }
}
