//! The runtime: an engine for any number of connectors.

use std::path::{self, PathBuf};
use std::sync::Arc;
use std::{fmt, io};

use ipnet::IpNet;
use wasmtime::component::types::ComponentItem;
use wasmtime::component::{self, Component};
use wasmtime::{
    Config, Engine, ExternType, FuncType, InstanceAllocationStrategy, Linker, Module, PoolingAllocationConfig,
};

use crate::audit::log::Log;
use crate::audit::trail::{Origin, Trail};
use crate::broker::SpawnPolicy;
use crate::broker::executor::{OwnSandbox, SpawnExecutor};
use crate::broker::manifest::Manifest;
use crate::connector::cache::{Cache, Code};
use crate::connector::error::{ConnectorError, name, not_loaded};
use crate::connector::guest::component as components;
use crate::connector::guest::component::Ready;
use crate::connector::guest::imports::{Import, Imports, is_component};
use crate::connector::guest::module;
use crate::connector::guest::state::GuestState;
use crate::connector::heartbeat::Heartbeat;
use crate::connector::host::Loaded;
use crate::connector::http::HttpClient;
use crate::connector::journal::{Journal, LogLine, LogSink};
use crate::connector::limits::{MAX_MEMORY, MAX_TABLE};
use crate::connector::program::{Connector, LinkedProgram, START};
use crate::connector::slots::Slots;
use crate::connector::transport::{Tls, Transport};
use crate::network::gate::Gate;
use crate::network::proxy::Proxy;
use crate::policy::audit::Audit;
use crate::policy::network::address;
use crate::policy::network::rule::Rules;
use crate::policy::network::settings::{AllowListOwner, Settings};
use crate::report::enforcement::Note;
use crate::report::error::Error;
use crate::report::error::policy::PolicyError;
use crate::report::escape::harmless;
use crate::report::failure::Failure;
use crate::report::remedy::{SettingKey, remedy};

/// Calls that run at once, if the caller does not say.
const AT_ONCE: u32 = 1024;

/// Bytes that the answer to a request may have, if the caller does not say.
const MAX_BODY: usize = 10 << 20;

/// Stack of a program, in bytes, and the room that functions of Kennel's have beyond it.
const STACK: usize = 512 << 10;
const HOST_STACK: usize = 512 << 10;

/// Core instances, memories and tables of one component. A module has one instance, memory and table.
const MAX_INSTANCES: u32 = 64;
const MAX_MEMORIES: u32 = 2;
const MAX_TABLES: u32 = 8;

/// The first bytes of WebAssembly.
const MAGIC: &[u8] = b"\0asm";

/// An engine for any number of connectors. Clones share it.
///
/// ```
/// use kennel::connector::Runtime;
///
/// let runtime = Runtime::builder().at_once(64).build()?;
/// # Ok::<(), kennel::connector::ConnectorError>(())
/// ```
#[derive(Clone)]
pub struct Runtime {
    shared: Arc<Shared>,
}

/// What all connectors of a runtime share.
pub(crate) struct Shared {
    pub(crate) engine: Engine,
    pub(crate) heartbeat: Heartbeat,
    pub(crate) slots: Slots,
    pub(crate) sink: Option<LogSink>,
    modules: Linker<GuestState>,
    components: component::Linker<GuestState>,
    cache: Option<Cache>,
    client: Option<Arc<dyn HttpClient>>,
    spawner: Arc<dyn SpawnExecutor>,
    tls: Arc<Tls>,
    addresses: Vec<IpNet>,
    audit: Option<(Audit, Arc<Log>)>,
    max_body: usize,
    at_once: u32,
}

impl fmt::Debug for Runtime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Runtime").field("cache", &self.shared.cache).finish_non_exhaustive()
    }
}

impl Runtime {
    /// Starts to set up a runtime.
    #[must_use]
    pub fn builder() -> RuntimeBuilder {
        RuntimeBuilder::default()
    }

    /// Compiles a program for its manifest: a core module or a component, which the program itself tells.
    /// Takes up to seconds for a large program, and about a millisecond if a cache has its code. Blocks: an
    /// asynchronous caller uses `spawn_blocking`.
    ///
    /// # Errors
    /// `load_failed`: it is not valid WebAssembly, lacks `_start` or `invoke`, or imports something that
    /// Kennel does not offer or the manifest does not cover. `cancelled`: the runtime is
    /// [closed](Self::close).
    pub fn compile(&self, manifest: &Manifest, program: &[u8]) -> Result<Connector, ConnectorError> {
        self.shared.slots.check_open()?;
        let own_name = name(manifest).to_owned();
        let code = self.code(program).map_err(|error| broken(&own_name, &error))?;
        let imports = imports(&self.shared.engine, &code);
        if let Some(import) = imports.missing(manifest).next() {
            let refused = not_loaded(format!("{own_name} imports {import}: {}", import.reason()));
            let remedy = match imports.is_component {
                false => remedy![
                    "if the connector may have that, add it to the manifest; ",
                    SettingKey::CheckConnector,
                    " shows all imports",
                ],
                // Some languages import all functions of an interface.
                true => remedy![
                    "if the connector may have that, add it to the manifest; if it never uses that, delete the function from \
                     the connector.wit with which it is built; ",
                    SettingKey::CheckConnector,
                    " shows all imports",
                ],
            };
            return Err(ConnectorError::from(refused).with_remedy(remedy));
        }
        self.log_notes(&own_name, manifest);
        let linked = match &code {
            Code::Module(module) => {
                let start = module.get_export(START);
                let is_plain = |start: FuncType| start.params().len() + start.results().len() == 0;
                if !matches!(start, Some(ExternType::Func(start)) if is_plain(start.clone())) {
                    let message = format!("{own_name} exports no function {START} without arguments");
                    return Err(not_loaded(message).into());
                }
                self.shared.modules.instantiate_pre(module).map(LinkedProgram::Module)
            }
            Code::Component(component) => {
                Ready::new(&self.shared.components, component).map(LinkedProgram::Component)
            }
        };
        let program = linked.map_err(|error| broken(&own_name, &error))?;
        let loaded = Arc::new(self.load(manifest)?);
        let slots = Arc::new(Slots::new("connector", self.shared.at_once));
        Ok(Connector { runtime: Arc::clone(&self.shared), loaded, program: Arc::new(program), slots })
    }

    /// Writes what Kennel ignores in a manifest into the log of its connector.
    fn log_notes(&self, own_name: &str, manifest: &Manifest) {
        let journal = Journal::new(&own_name.into(), self.shared.sink.as_ref());
        for Note { subject, text, .. } in manifest.notes() {
            journal.write("warn", &format!("{subject}: {text}"));
        }
    }

    /// What a program imports. Compiles it, but needs no manifest.
    ///
    /// # Errors
    /// `load_failed`: it is not valid WebAssembly.
    pub fn inspect(&self, program: &[u8]) -> Result<Imports, ConnectorError> {
        let code = self.code(program).map_err(|error| broken("it", &error))?;
        Ok(imports(&self.shared.engine, &code))
    }

    /// Refuses further calls and programs, and waits until the calls that run have ended. A call that begins
    /// meanwhile waits, and is refused. [`Connector::close`] does this for one connector.
    pub async fn close(&self) {
        self.shared.slots.close().await;
    }

    /// Compiles a program into the cache, unless its code is there already, and returns the file.
    ///
    /// # Errors
    /// `load_failed`: it is not valid WebAssembly. Otherwise: the runtime has no cache, or the cache cannot
    /// be written.
    pub fn precompile(&self, program: &[u8]) -> Result<PathBuf, ConnectorError> {
        let Shared { engine, cache, .. } = &*self.shared;
        let cache = cache
            .as_ref()
            .ok_or_else(|| Error::io("keep compiled code")(io::Error::other("the runtime has no cache")))?;
        let place = cache.place(engine, program);
        if cache.load(engine, program).is_none() {
            let code = compiled(engine, program).map_err(|error| broken("it", &error))?;
            cache.store(engine, program, &code).map_err(|source| {
                let (what, path, remedy) = ("keep compiled code in", cache.directory.clone(), None);
                Error::File { what, path, source, remedy }
            })?;
        }
        Ok(place)
    }

    fn code(&self, program: &[u8]) -> wasmtime::Result<Code> {
        let Shared { engine, cache, .. } = &*self.shared;
        if let Some(code) = cache.as_ref().and_then(|cache| cache.load(engine, program)) {
            return Ok(code);
        }
        let code = compiled(engine, program)?;
        if let Some(cache) = cache
            && let Err(error) = cache.store(engine, program, &code)
        {
            // That costs only time: the program is compiled again next time.
            tracing::warn!(%error, "compiled code is not kept");
        }
        Ok(code)
    }

    /// What the calls of a connector share: its rules, its client, its broker.
    fn load(&self, manifest: &Manifest) -> Result<Loaded, ConnectorError> {
        let shared = &self.shared;
        let rules = Rules::parse(manifest.hosts.iter().map(String::as_str))
            .map_err(|(_, error)| not_loaded(format!("the hosts of the manifest: {error}")))?;
        let settings = Settings {
            allow: rules.clone(),
            addresses: shared.addresses.clone(),
            decides: AllowListOwner::Manifest,
            ..Settings::default()
        };
        let gate = Arc::new(Gate::new(Arc::new(settings))?);
        let own_name: Arc<str> = name(manifest).into();
        let origin = Origin { connector: Some(Arc::clone(&own_name)), spawn: None, root: None };
        let trail = Trail::new(shared.audit.as_ref().map(|(_, log)| log), origin);
        let proxy = Arc::new(Proxy::new(&gate, &trail));
        let client = shared.client.clone().unwrap_or_else(|| {
            let (proxy, tls) = (Arc::clone(&proxy), Arc::clone(&shared.tls));
            Arc::new(Transport { proxy, tls, max_body: shared.max_body })
        });
        let mut spawns = SpawnPolicy::new(manifest.clone());
        if let Some(cache) = &shared.cache {
            spawns.check_outside("compiled code", &cache.place(&shared.engine, &[])).map_err(Error::from)?;
        }
        if shared.client.is_none() && !manifest.hosts.is_empty() {
            for path in Tls::of_environment() {
                spawns.check_outside("certificates of the environment", &path).map_err(Error::from)?;
            }
        }
        if let Some((audit, _)) = &shared.audit {
            spawns = spawns.audited(audit.clone(), Some(Arc::clone(&own_name))).map_err(Error::from)?;
        }
        Ok(Loaded {
            name: own_name,
            manifest: manifest.clone(),
            rules,
            client,
            spawner: Arc::clone(&shared.spawner),
            spawns,
            proxy,
            max_body: shared.max_body,
        })
    }
}

fn is_type(item: &ComponentItem) -> bool {
    matches!(item, ComponentItem::Type(_) | ComponentItem::Resource(_))
}

fn compiled(engine: &Engine, program: &[u8]) -> wasmtime::Result<Code> {
    if !program.starts_with(MAGIC) {
        return Err(wasmtime::Error::msg("it is not WebAssembly: it does not begin with \\0asm"));
    }
    Ok(if is_component(program) {
        Code::Component(Component::from_binary(engine, program)?)
    } else {
        Code::Module(Module::from_binary(engine, program)?)
    })
}

/// The failure of a program that the engine refuses.
fn broken(name: &str, error: &wasmtime::Error) -> Failure {
    not_loaded(format!("{name} cannot be loaded: {}", harmless(&format!("{error:#}"))))
}

/// What compiled code imports.
fn imports(engine: &Engine, code: &Code) -> Imports {
    let import = |module: &str, name: &str| Import { module: module.to_owned(), name: name.to_owned() };
    match code {
        Code::Module(module) => Imports {
            is_component: false,
            all: module.imports().map(|used| import(used.module(), used.name())).collect(),
        },
        Code::Component(component) => {
            let mut all = Vec::new();
            for (interface, item) in component.component_type().imports(engine) {
                match item {
                    ComponentItem::ComponentInstance(instance) => {
                        let functions = instance.exports(engine).filter(|(_, item)| !is_type(item));
                        all.extend(functions.map(|(name, _)| import(interface, name)));
                    }
                    item if !is_type(&item) => all.push(import(interface, "")),
                    _ => {}
                }
            }
            Imports { is_component: true, all }
        }
    }
}

/// Sets up a [`Runtime`].
#[derive(Default)]
pub struct RuntimeBuilder {
    client: Option<Arc<dyn HttpClient>>,
    spawner: Option<Arc<dyn SpawnExecutor>>,
    sink: Option<LogSink>,
    cache: Option<PathBuf>,
    authorities: Vec<PathBuf>,
    addresses: Vec<String>,
    audit: Option<Audit>,
    max_body: Option<usize>,
    at_once: Option<u32>,
}

impl fmt::Debug for RuntimeBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RuntimeBuilder").field("cache", &self.cache).finish_non_exhaustive()
    }
}

impl RuntimeBuilder {
    /// Sends requests with another client than Kennel's. Kennel still checks their hosts, follows redirects
    /// and adds credentials; TLS, the addresses of names and the records of connections are up to the client.
    #[must_use]
    pub fn http_client(mut self, client: impl HttpClient + 'static) -> Self {
        self.client = Some(Arc::new(client));
        self
    }

    /// Runs spawned programs with something else than Kennel's sandbox. Kennel still checks each request and
    /// records the decision, so an executor gets only what the manifest and the call allow.
    ///
    /// ```
    /// use kennel::broker::{CheckedSpawn, CredentialResolver, SpawnExecutor, Spawned, Spawning};
    /// use kennel::connector::Runtime;
    ///
    /// /// Runs nothing.
    /// struct DryRun;
    ///
    /// impl SpawnExecutor for DryRun {
    ///     fn spawn<'s>(&'s self, _: &'s CheckedSpawn, _: &'s dyn CredentialResolver) -> Spawning<'s> {
    ///         Box::pin(async { Ok(Spawned::default()) })
    ///     }
    /// }
    ///
    /// let runtime = Runtime::builder().spawn_executor(DryRun).build()?;
    /// # Ok::<(), kennel::connector::ConnectorError>(())
    /// ```
    #[must_use]
    pub fn spawn_executor(mut self, spawner: impl SpawnExecutor + 'static) -> Self {
        self.spawner = Some(Arc::new(spawner));
        self
    }

    /// Gets each log line of each program, besides `tracing` and the result of the call: the name of the
    /// connector, and the line. When a connector is compiled, it also gets the notes of its manifest.
    #[must_use]
    pub fn log_sink(mut self, sink: impl Fn(&str, &LogLine) + Send + Sync + 'static) -> Self {
        self.sink = Some(Arc::new(sink));
        self
    }

    /// Keeps compiled code in this directory. It is created if it does not exist. Nobody else may be able to
    /// write to it: what is in it is run. Grant it to no sandbox. Kennel never deletes code from it; you can,
    /// at any time. [`default_cache`](crate::connector::default_cache) is one that no sandbox shows.
    #[must_use]
    pub fn cache(mut self, directory: impl Into<PathBuf>) -> Self {
        self.cache = Some(directory.into());
        self
    }

    /// Trusts the certificates of a PEM file, besides those that the system trusts.
    #[must_use]
    pub fn certificate_authority(mut self, file: impl Into<PathBuf>) -> Self {
        self.authorities.push(file.into());
        self
    }

    /// Opens special address ranges to names, such as `10.0.0.0/8`: see
    /// [`Network::allow_addresses`](crate::policy::network::Network::allow_addresses).
    #[must_use]
    pub fn allow_addresses(mut self, networks: impl IntoIterator<Item = impl Into<String>>) -> Self {
        self.addresses.extend(networks.into_iter().map(Into::into));
        self
    }

    /// Records every call, every connection and every spawn in an audit log.
    #[must_use]
    pub fn audit(mut self, audit: impl Into<Audit>) -> Self {
        self.audit = Some(audit.into());
        self
    }

    /// The most bytes that the answer to a request may have: 10 MiB by default.
    #[must_use]
    pub fn max_body(mut self, bytes: usize) -> Self {
        self.max_body = Some(bytes);
        self
    }

    /// How many calls run at once: 1024 by default. Further calls wait, which counts as their wall time. Each
    /// takes 8 GiB of addresses, and no memory before it is used.
    #[must_use]
    pub fn at_once(mut self, calls: u32) -> Self {
        self.at_once = Some(calls.max(1));
        self
    }

    /// Builds the runtime.
    ///
    /// # Errors
    /// The cache, a certificate or the audit log cannot be used, or an address range is malformed.
    pub fn build(self) -> Result<Runtime, ConnectorError> {
        let at_once = self.at_once.unwrap_or(AT_ONCE);
        let failed = |error: wasmtime::Error| {
            Error::io("start the WebAssembly engine")(io::Error::other(error.to_string()))
        };
        let engine = Engine::new(&config(at_once)).map_err(failed)?;
        let mut tls = Tls::default();
        for file in &self.authorities {
            tls.trust(file)?;
        }
        let audit = match self.audit {
            Some(mut audit) => {
                audit.path = path::absolute(&audit.path).map_err(Error::io("find the current directory"))?;
                let log = Arc::new(Log::open(&audit)?);
                Some((audit, log))
            }
            None => None,
        };
        let addresses = address::networks(self.addresses.iter().map(String::as_str))
            .map_err(|(number, error)| {
                PolicyError::value("allow_addresses", &self.addresses[number], error.to_string())
            })
            .map_err(Error::from)?;
        let shared = Shared {
            heartbeat: Heartbeat::start(&engine).map_err(Error::io("start a thread"))?,
            slots: Slots::new("runtime", at_once),
            sink: self.sink,
            modules: module::linker(&engine).map_err(failed)?,
            components: components::linker(&engine).map_err(failed)?,
            cache: self.cache.as_deref().map(Cache::open).transpose()?,
            client: self.client,
            spawner: self.spawner.unwrap_or_else(|| Arc::new(OwnSandbox)),
            tls: Arc::new(tls),
            addresses,
            audit,
            max_body: self.max_body.unwrap_or(MAX_BODY),
            at_once,
            engine,
        };
        Ok(Runtime { shared: Arc::new(shared) })
    }
}

/// The engine's settings: instances come from a pool, and an epoch interrupts programs.
fn config(at_once: u32) -> Config {
    let mut pool = PoolingAllocationConfig::new();
    // Each call has room for the largest program that loads. So no call fails because of others.
    pool.total_component_instances(at_once)
        .max_core_instances_per_component(MAX_INSTANCES)
        .total_core_instances(at_once.saturating_mul(MAX_INSTANCES))
        .max_memories_per_component(MAX_MEMORIES)
        .total_memories(at_once.saturating_mul(MAX_MEMORIES))
        .max_tables_per_component(MAX_TABLES)
        .total_tables(at_once.saturating_mul(MAX_TABLES))
        .total_stacks(at_once)
        .max_memory_size(usize::try_from(MAX_MEMORY).unwrap_or(usize::MAX))
        .table_elements(MAX_TABLE);
    let mut config = Config::new();
    config
        .allocation_strategy(InstanceAllocationStrategy::Pooling(pool))
        .async_support(true)
        .epoch_interruption(true)
        .wasm_backtrace(false)
        .max_wasm_stack(STACK)
        .async_stack_size(STACK + HOST_STACK);
    config
}
