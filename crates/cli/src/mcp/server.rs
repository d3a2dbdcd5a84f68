//! The server: takes calls, bounds how many run, and hands each to its tool.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering::Relaxed},
};

use kennel::{Policy, Session, Span, internal::LeftPipes};
use rmcp::{
    ErrorData, RoleServer, ServerHandler,
    model::{
        CallToolRequestParams, CallToolResponse, CallToolResult, Implementation, InitializeResult,
        ListPromptsResult, ListResourceTemplatesResult, ListResourcesResult, ListToolsResult,
        PaginatedRequestParams, ServerCapabilities, ServerConfig, Tool,
    },
    service::RequestContext,
};
use serde_json::{Map, Value};
use tokio::sync::{Mutex, Semaphore};
use tokio_util::sync::CancellationToken;

use super::{
    answer::{Answer, arguments, refused, short},
    instructions::instructions,
    output::{overflow::Outputs, progress::Listener},
    tools::{
        Name,
        changes::{Changes, Commit},
        files::{Edit, List, Write},
        publish::Publish,
        read::Read,
        run::{Run, Shared},
        shell::{Shells, Snippet},
    },
    transport::flow::Flow,
};

/// How many calls work at the same time. Others wait for their turn.
const MOST_AT_ONCE: usize = 32;

/// How many calls may be there. More are refused.
const MOST_CALLS: usize = 1000;

/// One client, and the sandbox that its calls use.
pub(super) struct Server {
    session: Session,
    config: ServerConfig,
    tools: Vec<Tool>,
    /// The other tools, and why they are not there.
    missing: Vec<(Name, &'static str)>,
    turns: Semaphore,
    /// Who holds it may change files: an edit reads a file and writes it.
    files: Mutex<()>,
    flow: Arc<Flow>,
    calls: AtomicUsize,
    shells: Shells,
    shared: Shared,
    /// Ends the server.
    ended: CancellationToken,
}

impl Server {
    pub(super) fn new(
        session: Session,
        policy: &Policy,
        may_commit: bool,
        flow: Arc<Flow>,
        ended: CancellationToken,
    ) -> Self {
        let missing: Vec<_> =
            Name::ALL.iter().filter_map(|name| Some((*name, name.missing(policy, may_commit)?))).collect();
        let is_there = |name: &Name| missing.iter().all(|(other, _)| other != name);
        let tools = Name::ALL.into_iter().filter(is_there).map(|name| name.tool(policy)).collect();
        let about = Implementation::new("kennel", env!("CARGO_PKG_VERSION")).with_title("Kennel");
        let config = InitializeResult::new(ServerCapabilities::builder().enable_tools().build())
            .with_server_info(about)
            .with_instructions(instructions(policy, &session.in_force(), may_commit));
        Self {
            session,
            config,
            tools,
            missing,
            turns: Semaphore::new(MOST_AT_ONCE),
            files: Mutex::new(()),
            flow,
            calls: AtomicUsize::new(0),
            shells: Shells::default(),
            shared: Shared {
                left: LeftPipes::default(),
                outputs: Outputs::default(),
                timeout: policy.limits.timeout.map(Span::duration),
            },
            ended,
        }
    }

    /// Waits for the call's turn and does it.
    async fn call(&self, name: Name, given: Option<Map<String, Value>>, listener: &Listener) -> Answer {
        let _call = Counted::new(&self.calls).ok_or_else(|| {
            refused(format!("there are {MOST_CALLS} calls already: wait until some of them have ended"))
        })?;
        let turn = self.turns.acquire().await;
        let _turn = turn.map_err(|_| refused("the server has ended"))?;
        self.flow.room().await;
        let session = &self.session;
        match name {
            Name::Run => arguments::<Run>(given)?.call(session, &self.shared, listener).await,
            Name::Shell => {
                arguments::<Snippet>(given)?.call(session, &self.shells, &self.shared, listener).await
            }
            Name::ReadFile => arguments::<Read>(given)?.call(session).await,
            Name::WriteFile => {
                let _files = self.files.lock().await;
                arguments::<Write>(given)?.call(session).await
            }
            Name::EditFile => {
                let _files = self.files.lock().await;
                arguments::<Edit>(given)?.call(session).await
            }
            Name::ListDir => arguments::<List>(given)?.call(session).await,
            Name::Changes => arguments::<Changes>(given)?.call(session).await,
            Name::Commit => arguments::<Commit>(given)?.call(session).await,
            Name::Publish => arguments::<Publish>(given)?.call(session),
        }
    }
}

/// A call that is counted while it is there.
struct Counted<'c>(&'c AtomicUsize);

impl<'c> Counted<'c> {
    /// `None` if there are too many.
    fn new(count: &'c AtomicUsize) -> Option<Self> {
        let counted = Self(count);
        (count.fetch_add(1, Relaxed) < MOST_CALLS).then_some(counted)
    }
}

impl Drop for Counted<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Relaxed);
    }
}

impl ServerHandler for Server {
    fn get_info(&self) -> ServerConfig {
        self.config.clone()
    }

    async fn list_tools(
        &self,
        _: Option<PaginatedRequestParams>,
        _: RequestContext<RoleServer>,
    ) -> Result<ListToolsResult, ErrorData> {
        Ok(ListToolsResult::with_all_items(self.tools.clone()))
    }

    // Some clients ask for these lists whatever the server offers, and give it up at an error.

    async fn list_prompts(
        &self,
        _: Option<PaginatedRequestParams>,
        _: RequestContext<RoleServer>,
    ) -> Result<ListPromptsResult, ErrorData> {
        Ok(ListPromptsResult::default())
    }

    async fn list_resources(
        &self,
        _: Option<PaginatedRequestParams>,
        _: RequestContext<RoleServer>,
    ) -> Result<ListResourcesResult, ErrorData> {
        Ok(ListResourcesResult::default())
    }

    async fn list_resource_templates(
        &self,
        _: Option<PaginatedRequestParams>,
        _: RequestContext<RoleServer>,
    ) -> Result<ListResourceTemplatesResult, ErrorData> {
        Ok(ListResourceTemplatesResult::default())
    }

    async fn call_tool(
        &self,
        request: CallToolRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        let name = Name::parse(&request.name).ok_or_else(|| {
            ErrorData::invalid_params(format!("unknown tool: {}", short(&request.name)), None)
        })?;
        if let Some((_, why)) = self.missing.iter().find(|(missing, _)| *missing == name) {
            return Ok(refused(*why).into());
        }
        let listener = Listener::of(&context);
        let result: CallToolResult = tokio::select! {
            biased;
            () = context.ct.cancelled() => refused("the client cancelled the call or closed stdin"),
            answer = self.call(name, request.arguments, &listener) => answer.unwrap_or_else(|refused| refused),
        };
        // Somebody killed it. The agent starts another server.
        if self.session.has_ended() {
            self.ended.cancel();
        }
        Ok(result.into())
    }
}
