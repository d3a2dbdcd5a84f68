//! `kennel mcp`: a Model Context Protocol server on stdin and stdout, for the commands and files of one
//! sandbox.
//!
//! It prepares a session as `kennel session start` does, and every tool is a call of that session. No
//! argument of a call reaches the policy. stdout carries only the protocol; what is for people goes to
//! stderr.

mod answer;
mod instructions;
mod output;
mod server;
mod tools;
mod transport;

use std::{
    io::{self, IsTerminal},
    process::ExitCode,
    sync::Arc,
};

use kennel::{Error, Isolation, Policy, Profile, Session, report::PolicyError};
use rmcp::{
    service::{ServerInitializeError, serve_server_with_ct},
    transport::stdio_pipes,
};
use tokio_util::sync::CancellationToken;

use crate::{
    args::session::Mcp,
    owner,
    policy::flags,
    process::{self, signals::interrupted},
    report,
    session::host::{keep_changes, settle},
};
use server::Server;
use transport::Lines;
use transport::flow::Flow;

/// Runs `kennel mcp`.
pub(crate) fn mcp(arguments: &Mcp) -> Result<ExitCode, Error> {
    if let Some(code) = owner::choose(&arguments.owner, owner::Request::of(&arguments.policy))? {
        return Ok(code);
    }
    let policy = policy(arguments)?;
    if io::stdin().is_terminal() {
        report::say(
            "kennel: mcp: an agent starts this command and speaks JSON-RPC to its stdin; see docs/mcp.md",
        );
    }
    let runtime = process::runtime(process::IDLE_THREAD)?;
    let code = runtime.block_on(async {
        let session = Session::prepare(&policy).await?;
        if !arguments.quiet {
            report::degraded(&session.enforcement());
        }
        report::chosen(&session.published());
        let ended = CancellationToken::new();
        let flow = Flow::new();
        let server = Server::new(session.clone(), &policy, arguments.allow_commit, Arc::clone(&flow), ended.clone());
        let code = tokio::select! {
            served = serve(server, flow, ended) => served.and_then(|()| if session.has_ended() { Err(Error::SessionEnded) } else { Ok(0) }),
            status = interrupted() => status,
        };
        session.shutdown().await;
        code
    });
    settle(&policy);
    // A thread may still wait in read(2) of stdin.
    std::mem::forget(runtime);
    code.map(ExitCode::from)
}

fn policy(arguments: &Mcp) -> Result<Policy, Error> {
    let mut policy = flags::from_flags(&arguments.policy)?;
    arguments.warm.add_to(&mut policy);
    if policy.profile != Profile::CiOnly {
        policy.notes.extend(flags::notes(&arguments.policy));
    }
    if arguments.allow_commit && policy.overlay.is_none() {
        return Err(PolicyError::Value {
            key: "overlay".to_owned(),
            value: String::new(),
            reason: "--allow-commit needs --overlay".to_owned(),
        }
        .into());
    }
    // A model has to learn what was refused, and which flag its user can add.
    policy.explain = true;
    // As in a terminal: what one command starts, the next one finds.
    policy.isolation.get_or_insert(Isolation::Session);
    keep_changes(&mut policy, None)?;
    Ok(policy)
}

/// Serves until stdin or the session ends.
async fn serve(server: Server, flow: Arc<Flow>, ended: CancellationToken) -> Result<(), Error> {
    let (stdin, stdout) = stdio_pipes();
    let transport = Lines::new(stdin, stdout, flow, ended.clone());
    let failed = |why: &str| Error::Io {
        what: "speak MCP on stdin and stdout",
        source: io::Error::other(why.to_owned()),
    };
    let serving = match serve_server_with_ct(server, transport, ended).await {
        Ok(serving) => serving,
        Err(ServerInitializeError::ConnectionClosed(_) | ServerInitializeError::Cancelled) => return Ok(()),
        Err(ServerInitializeError::ExpectedInitializeRequest(_)) => {
            return Err(failed("the first message is no request"));
        }
        Err(_) => return Err(failed("the client does not take the answer to its first request")),
    };
    serving.waiting().await.map(drop).map_err(|_| failed("the server has stopped"))
}
